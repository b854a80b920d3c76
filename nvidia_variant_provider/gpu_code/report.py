"""What was found: GPU code per library, and what could not be read.

Targets are named as ``sm_arch`` values are: ``90_real`` is machine code for
compute capability 9.0, ``90_virtual`` PTX. Code that uses what one GPU (``a``) or
one family of GPUs (``f``) alone has keeps its letter: ``90a_real``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = [
    "Defect",
    "LibraryReport",
    "WheelReport",
    "plain_target",
    "sort_targets",
    "target_key",
]

_TARGET = re.compile(r"([0-9]+)([af]?)(?:_(real|virtual))?")
_RUNTIME = re.compile(
    r"libcudart(?:-[0-9a-f]+)?\.so\.([0-9]+).*|cudart(?:32|64)_([0-9]+)\.dll",
    re.IGNORECASE,
)

_NOTHING: Mapping[str, int] = {}
"""Shared by the thousands of reports of a wheel of cubins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Defect:
    """Something that could not be read, or is not what it claims to be.

    :param path: the file, in the wheel or folder.
    :param place: where in it, as ``0x1f40``, the offset of a byte; may be empty.
    :param message: a sentence without its full stop.
    """

    path: str
    message: str
    place: str = ""

    def to_dict(self) -> dict[str, str]:
        """Keys: ``path``, ``place``, ``message``."""
        return {"path": self.path, "place": self.place, "message": self.message}


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryReport:
    """The GPU code of one file. Counts are of entries, as ``cuobjdump`` lists them.

    :param path: in the wheel or folder, with ``/``; the name of a single file.
    :param format: ``elf``, ``pe``, ``cubin``, ``fatbin``, ``ptx``, ``archive``
        (``ar``) or ``data`` (containers in any other file).
    :param machine: of the host: ``x86_64``, ``aarch64``, ...; empty when there is
        none, ``cuda`` for a cubin.
    :param size: bytes of the file.
    :param vendored: it was copied into the wheel from elsewhere (``*.libs/``,
        ``.dylibs``), or it is part of an ``nvidia`` package.
    :param targets: machine code and PTX, as ``{"90_real": 7, "120_virtual": 7}``,
        stubs included.
    :param lto: LTO-IR, as ``{"80": 3}``.
    :param stubs: how many of ``targets`` hold no kernel at all: what linking adds.
    :param ptx_isa: versions of the PTX language, ``{"120_virtual": ("8.7",)}``.
    :param compression: entries by ``none``, ``lz4``, ``zstd``.
    :param sections: containers by the section that they are in; ``""`` outside any.
    :param needed: libraries that it is linked with (DT_NEEDED, imports of a DLL),
        in their order.
    :param unknown: entries of unknown kinds, as ``{"kind 0x20": 1}``.
    :param unchecked: machine code small enough for a stub that could not be
        decompressed to see.
    """

    path: str
    format: str
    machine: str = ""
    size: int = 0
    vendored: bool = False
    targets: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    lto: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    stubs: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    ptx_isa: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    compression: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    sections: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    needed: tuple[str, ...] = ()
    unknown: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    unchecked: int = 0
    defects: tuple[Defect, ...] = ()

    @property
    def has_gpu_code(self) -> bool:
        """Is there any: machine code, PTX, LTO-IR, or kinds that are not known."""
        return bool(self.targets or self.lto or self.unknown)

    @property
    def kernels(self) -> Mapping[str, int]:
        """``targets`` without the stubs: those that something can run from."""
        found = {
            name: count - self.stubs.get(name, 0)
            for name, count in self.targets.items()
        }
        return {name: count for name, count in found.items() if count > 0}

    @property
    def cuda_runtime(self) -> tuple[int, ...]:
        """Major versions of the CUDA runtime that it is linked with, ascending."""
        found = set()
        for name in self.needed:
            if match := _RUNTIME.fullmatch(name):
                # cudart64_110.dll is of 11.0, cudart64_12.dll of 12.x.
                found.add(int(match[1] or match[2][:2]))
        return tuple(sorted(found))

    def to_dict(self) -> dict[str, object]:
        """Every field under its own name, and ``cuda_runtime``."""
        return {
            "path": self.path,
            "format": self.format,
            "machine": self.machine or None,
            "size": self.size,
            "vendored": self.vendored,
            "targets": dict(self.targets),
            "lto": dict(self.lto),
            "stubs": dict(self.stubs),
            "ptx_isa": {name: list(found) for name, found in self.ptx_isa.items()},
            "compression": dict(self.compression),
            "sections": dict(self.sections),
            "needed": list(self.needed),
            "cuda_runtime": list(self.cuda_runtime),
            "unknown": dict(self.unknown),
            "unchecked": self.unchecked,
            "defects": [defect.to_dict() for defect in self.defects],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelReport:
    """The GPU code of a wheel, or of what else holds libraries.

    :param path: what was inspected.
    :param kind: ``wheel`` (any zip archive), ``folder``, ``distribution`` (an
        installed one, ``path`` being its name) or ``file``.
    :param size: bytes of the archive or file; of the files together otherwise.
    :param members: files in it, without folders.
    :param libraries: libraries and programs (ELF, PE), and whatever else has GPU
        code or a defect, by path.
    :param defects: of the archive as a whole and of members that are no library;
        those of a library are with it.
    :param requires: ``Requires-Dist`` of its METADATA.
    """

    path: str
    kind: str
    size: int = 0
    members: int = 0
    libraries: tuple[LibraryReport, ...] = ()
    defects: tuple[Defect, ...] = ()
    requires: tuple[str, ...] = ()

    @property
    def own(self) -> tuple[LibraryReport, ...]:
        """The project's own libraries."""
        return tuple(item for item in self.libraries if not item.vendored)

    @property
    def vendored(self) -> tuple[LibraryReport, ...]:
        """Libraries of others that were copied into the wheel."""
        return tuple(item for item in self.libraries if item.vendored)

    @property
    def targets(self) -> Mapping[str, int]:
        """The kernels of the project's own libraries together."""
        return sort_targets(
            sum((Counter(item.kernels) for item in self.own), Counter())
        )

    @property
    def all_defects(self) -> tuple[Defect, ...]:
        """Those of the archive, then those of each library."""
        found = [item.defects for item in self.libraries]
        return self.defects + tuple(defect for group in found for defect in group)

    @property
    def complete(self) -> bool:
        """Was all read that counts: not so with a defect but in copies of others."""
        return not (self.defects or any(item.defects for item in self.own))

    def to_dict(self) -> dict[str, object]:
        """Every field under its own name."""
        return {
            "path": self.path,
            "kind": self.kind,
            "size": self.size,
            "members": self.members,
            "libraries": [library.to_dict() for library in self.libraries],
            "defects": [defect.to_dict() for defect in self.defects],
            "requires": list(self.requires),
        }


def plain_target(target: str) -> str:
    """``target`` by the GPUs that run it: ``100f_real`` runs where ``100_real`` does.

    Of PTX the letter stays: ``100f_virtual`` compiles for its family alone.
    """
    match = _TARGET.fullmatch(target)
    if match and match[2] == "f" and match[3] == "real":
        return f"{match[1]}_real"
    return target


def target_key(target: str) -> tuple[int, int, str]:
    """Orders targets: machine code first, then by number, then by letter."""
    match = _TARGET.fullmatch(target)
    if match is None:
        return 2, 0, target
    return int(match[3] == "virtual"), int(match[1]), match[2]


def sort_targets(
    targets: Mapping[str, int] | Iterable[tuple[str, int]],
) -> dict[str, int]:
    """``targets`` in the order of `target_key`."""
    pairs = targets.items() if isinstance(targets, Mapping) else targets
    return dict(sorted(pairs, key=lambda pair: target_key(pair[0])))
