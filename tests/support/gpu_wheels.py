"""Wheels with GPU code, and with properties that declare it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.containers import BINARIES, library
from support.documents import document, nvidia
from support.wheels import stub_wheel

__all__ = ["PLAIN", "PLAIN_SO", "Wheel", "binary", "one", "two"]

PLATFORM = "cp311-cp311-linux_x86_64"
PLAIN = ("75_real", "80_real", "90_real", "90_virtual")
"""The targets of ``plain.so``, which is linked with CUDA 13; its PTX is from 13.5."""


def binary(name: str) -> bytes:
    return (BINARIES / name).read_bytes()


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel of the release demo 1.0.

    :param sm: the declared ``sm_arch`` values.
    :param variant: the declared properties, instead of those from ``sm``.
    """

    libraries: Mapping[str, bytes]
    lower: str | None = "13.0"
    sm: Sequence[str] = ()
    label: str | None = "cu130"
    variant: Mapping[str, Any] | None = None
    requires: Sequence[str] = ()
    tag: str = PLATFORM

    def write(self, folder: Path) -> Path:
        properties = nvidia(self.lower, sm=self.sm)
        if self.variant is not None:
            properties = dict(self.variant)
        own = document({self.label or "": properties})
        return stub_wheel(
            folder,
            "demo",
            "1.0",
            self.label,
            variant_json=None if self.label is None else own,
            tag=self.tag,
            requires=self.requires,
            members=self.libraries,
        )


def one(*targets: str, isa: tuple[int, int] = (9, 0)) -> dict[str, bytes]:
    return {"demo/lib.so": library(*targets, isa=isa)}


def two(one: Sequence[str], other: Sequence[str]) -> dict[str, bytes]:
    return {"demo/a.so": library(*one), "demo/b.so": library(*other)}


PLAIN_SO = {"demo/plain.so": binary("plain.so")}
