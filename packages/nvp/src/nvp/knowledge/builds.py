"""The table of builds: the GPU code of released wheels, with source and date.

``builds.json`` holds one record on each line. ``tools/update_builds.py`` makes it
again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from nvidia_variant_provider.machine.environment import CudaVersion

from .._resources import read_resource

__all__ = ["BuildRecord", "LibraryRecord", "build_records"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryRecord:
    """The GPU code of one library of a build.

    :param cuda: the CUDA toolkit that it was built with, the minor being 0 where only
        the major is known; ``None`` where nothing names one.
    :param machine_code: the targets of its machine code, such as ``90a``.
    :param ptx: by the target of its PTX, the CUDA version that a driver needs to
        compile it; ``None`` where that is newer than any known one.
    :param minor: it is small next to the largest library of the build, which does not
        run because this one does.
    """

    name: str
    cuda: CudaVersion | None
    machine_code: tuple[str, ...]
    ptx: Mapping[str, CudaVersion | None]
    minor: bool = False

    def to_dict(self) -> dict[str, object]:
        """Return the library as it stands in the table."""
        return {
            "name": self.name,
            **({} if self.cuda is None else {"cuda": str(self.cuda)}),
            **({"real": list(self.machine_code)} if self.machine_code else {}),
            **(
                {
                    "ptx": {
                        target: None if needed is None else str(needed)
                        for target, needed in self.ptx.items()
                    }
                }
                if self.ptx
                else {}
            ),
            **({"minor": True} if self.minor else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LibraryRecord:
        """Return the reverse of `to_dict`."""
        return cls(
            name=data["name"],
            cuda=_version(data.get("cuda")),
            machine_code=tuple(data.get("real", ())),
            ptx={
                target: _version(needed)
                for target, needed in data.get("ptx", {}).items()
            },
            minor=data.get("minor", False),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRecord:
    """One build of a release for one platform.

    :param project: the normalized name.
    :param version: the public version, without the label.
    :param label: the local version label, such as ``cu128``, or ``None`` for the build
        without one, which is PyPI's.
    :param platform: ``linux_x86_64``, ``linux_aarch64`` or ``win_amd64``.
    :param cuda: the CUDA toolkit that the build as a whole cannot do without.
    :param pieces: what a program loads: of each piece the libraries that it chooses
        from, one unless the wheel brings one for each CUDA version.
    :param gpu: false for a build that uses no GPU.
    :param requires: its dependencies on projects of this table.
    :param wheels: the SHA-256 of each file that was read, by its name.
    """

    project: str
    version: str
    label: str | None
    platform: str
    cuda: CudaVersion | None
    pieces: tuple[tuple[LibraryRecord, ...], ...]
    gpu: bool
    requires: tuple[str, ...]
    wheels: Mapping[str, str]
    source: str
    date: str

    def to_dict(self) -> dict[str, object]:
        """Return the record as it stands in the table."""
        return {
            "project": self.project,
            "version": self.version,
            **({} if self.label is None else {"label": self.label}),
            "platform": self.platform,
            **({} if self.cuda is None else {"cuda": str(self.cuda)}),
            **({} if self.gpu else {"gpu": False}),
            "pieces": [[item.to_dict() for item in piece] for piece in self.pieces],
            **({"requires": list(self.requires)} if self.requires else {}),
            **({"wheels": dict(self.wheels)} if self.wheels else {}),
            "source": self.source,
            "date": self.date,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BuildRecord:
        """Return the reverse of `to_dict`."""
        return cls(
            project=data["project"],
            version=data["version"],
            label=data.get("label"),
            platform=data["platform"],
            cuda=_version(data.get("cuda")),
            pieces=tuple(
                tuple(LibraryRecord.from_dict(item) for item in piece)
                for piece in data["pieces"]
            ),
            gpu=data.get("gpu", True),
            requires=tuple(data.get("requires", ())),
            wheels=data.get("wheels", {}),
            source=data["source"],
            date=data["date"],
        )


@cache
def build_records() -> Mapping[str, Sequence[BuildRecord]]:
    """Return the records by project."""
    table = json.loads(read_resource("knowledge", "builds.json"))
    records: dict[str, list[BuildRecord]] = {}
    for data in table["records"]:
        records.setdefault(data["project"], []).append(BuildRecord.from_dict(data))
    return records


def _version(text: str | None) -> CudaVersion | None:
    return None if text is None else CudaVersion.parse(text)
