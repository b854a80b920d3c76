"""What the linter reads of a wheel: ``variant.json`` and METADATA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO

from ..errors import InputError
from .archive import open_wheel, read_dist_info
from .variant_json import find_variant_markers

__all__ = ["WheelContent", "read_wheel"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelContent:
    """What a wheel says of its variant.

    :param variant_json: the bytes of ``*.dist-info/variant.json``, or ``None``.
    :param markers: requirements in METADATA that use variant markers.
    """

    variant_json: bytes | None
    markers: Sequence[str] = field(default=())


def read_wheel(source: str | IO[bytes]) -> WheelContent:
    """Read ``variant.json`` and METADATA out of a wheel.

    :raises InputError: it is no archive, or one that no wheel would be.
    """
    with open_wheel(source) as archive:
        metadata = read_dist_info(archive, "METADATA")
        if metadata is None:
            raise InputError("has no *.dist-info/METADATA", hint="build it again")
        return WheelContent(
            variant_json=read_dist_info(archive, "variant.json"),
            markers=find_variant_markers(metadata),
        )
