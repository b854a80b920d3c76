"""What pip reports to have installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import LARGE_BYTES, parse_json, read_bytes

__all__ = ["Installed", "label_of", "read_report"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """A distribution that pip reports to have installed.

    :param label: ``None`` for a non-variant wheel or an sdist.
    :param file: the name of the file that it was installed from.
    :param requires: its ``Requires-Dist`` fields.
    """

    project: str
    version: str
    label: str | None
    file: str = ""
    requires: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Keys: ``name``, ``version``, ``label``."""
        return {"name": self.project, "version": self.version, "label": self.label}


def read_report(path: str | None) -> tuple[Installed, ...]:
    """Read pip's installation report, unless pip printed it."""
    if path is None or path == "-":
        return ()
    try:
        report: Any = parse_json(read_bytes(path, limit=LARGE_BYTES), limit=LARGE_BYTES)
        return tuple(map(_installed, report["install"]))
    except (InputError, KeyError, TypeError):
        return ()


def _installed(item: Mapping[str, Any]) -> Installed:
    metadata, url = item["metadata"], item["download_info"]["url"]
    return Installed(
        project=canonicalize_name(metadata["name"]),
        version=metadata["version"],
        label=label_of(url),
        file=unquote(urlsplit(url).path.rpartition("/")[2]),
        requires=tuple(metadata.get("requires_dist") or ()),
    )


def label_of(url: str) -> str | None:
    """Return the label in the URL of a file of the local index."""
    parts = urlsplit(url).path.split("/")
    # .../f/{project}/{label}/{digest}/{name}
    if len(parts) < 6 or parts[-5] != "f" or parts[-3] == "-":
        return None
    # A label that consists of dots has a dash before it.
    return parts[-3].lstrip("-")
