"""Indexes on which the makers of projects publish builds, besides PyPI.

``vendor_indexes.json`` has a record for each index and its projects, with source and
date. Nothing is read from these indexes unless the user asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from packaging.utils import canonicalize_name

from nvidia_variant_provider.machine.environment import ComputeCapability

from ..files import read_resource

MISSING = "VERSION"
"""Stands in a URL for a part that is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VendorIndex:
    """An index, or one for each backend, with the projects that it has.

    :param maker: who publishes there, such as ``PyTorch``.
    :param projects: normalized names.
    :param backends: what ``{backend}`` in the URL stands for, such as ``cu126``; empty
        for an index that has builds for one CUDA each under a project's own name.
    :param url: the template of its URL. ``{backend}`` stands for a backend,
        ``{version}`` for a release of the project, and ``{torch}`` for the minor
        release of torch that the build is for.
    :param kind: ``simple``, or ``links`` for a page that pip takes as
        ``--find-links``.
    :param platforms: those that it has wheels for, such as ``win_amd64``.
    :param complete: it has all that its projects require, and can be the only index.
    :param leader: the project whose releases the others of the record are built for,
        and whose builds the table of builds has.
    :param needs: projects of other records that its builds require, for the same CUDA.
    :param releases: the releases that it has, such as ``<0.5``; empty for any.
    :param gpus: the compute capabilities that it is for; empty for all but Tegra.
    :param source: where it is described.
    :param confidence: ``seen`` in its maker's documentation or in repositories that
        install from it, or ``recalled``, which is not confirmed.
    """

    maker: str
    projects: tuple[str, ...]
    backends: tuple[str, ...] = ()
    url: str
    kind: Literal["simple", "links"]
    platforms: tuple[str, ...] = ("linux_x86_64", "linux_aarch64")
    complete: bool = False
    leader: str | None = None
    needs: tuple[str, ...] = ()
    releases: str = ""
    gpus: tuple[ComputeCapability, ...] = ()
    source: str
    date: str
    confidence: Literal["seen", "recalled"]

    def find_url(
        self,
        backend: str | None,
        *,
        version: str | None = None,
        torch: tuple[int, int] | None = None,
    ) -> str:
        """Return the URL for a backend, with `MISSING` for what is not known."""
        return self.url.format(
            backend=backend or MISSING,
            version=version or MISSING,
            torch=f"{torch[0]}.{torch[1]}" if torch else MISSING,
        )


@cache
def vendor_indexes() -> tuple[VendorIndex, ...]:
    """Return all records; of several for one project, the first counts most."""
    records = json.loads(read_resource("knowledge", "vendor_indexes.json"))
    for record in records:
        record["gpus"] = map(ComputeCapability.parse, record.get("gpus", ()))
        for key in {"projects", "backends", "needs", "gpus", "platforms"} & {*record}:
            record[key] = tuple(record[key])
    return tuple(VendorIndex(**record) for record in records)


def find_vendors(project: str) -> Sequence[VendorIndex]:
    """Return the records of a project."""
    name = canonicalize_name(project)
    return [record for record in vendor_indexes() if name in record.projects]
