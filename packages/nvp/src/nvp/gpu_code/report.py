"""The result of an inspection: GPU code per library, and unreadable parts.

Targets have the names of ``sm_arch`` values: ``90_real`` is machine code for compute
capability 9.0, and ``90_virtual`` is PTX. A letter follows the number if code uses
features of only one GPU (``a``) or one family of GPUs (``f``): ``90a_real``.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..findings import Reported

_TARGET = re.compile(r"([0-9]+)([af]?)(?:_(real|virtual))?")
_RUNTIME = re.compile(
    r"libcudart(?:-[0-9a-f]+)?\.so\.([0-9]+).*|cudart(?:32|64)_([0-9]+)\.dll",
    re.IGNORECASE,
)

_MOST_COPIES = 4
"""The maximum number of copies of a linked library; a wheel has one or two."""

_NOTHING: Mapping[str, int] = {}
"""An empty mapping for all reports, because a wheel may have thousands of cubins."""


class BrokenError(Exception):
    """A stream ends early, so the rest of the file cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Defect(Reported):
    """An unreadable or invalid part of a file.

    :param path: the file in the wheel or directory.
    :param place: the offset of a byte in the file, such as ``0x1f40``, or empty.
    :param message: a clause without a period.
    """

    path: str
    place: str = ""
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryReport:
    """The GPU code of one file. Counts are numbers of entries, as in ``cuobjdump``.

    :param path: the path of the file in the wheel or directory, with ``/``.
    :param format: ``elf``, ``pe``, ``cubin``, ``fatbin``, ``ptx``, ``archive`` (a
        static library) or ``data`` (any other file).
    :param machine: the processor, such as ``x86_64``; ``cuda`` for a cubin, and empty
        for formats without it.
    :param size: the size of the file in bytes.
    :param vendored: whether the file was copied into the wheel from elsewhere.
    :param targets: the number of entries of machine code and PTX for each target, such
        as ``{"90_real": 7, "120_virtual": 7}``; stubs count.
    :param lto: the number of entries of LTO-IR, such as ``{"80": 3}``.
    :param stubs: the number of ``targets`` without a kernel; linking adds such entries.
    :param ptx_isa: versions of the PTX language, such as ``{"120_virtual": ("8.7",)}``.
    :param compression: the number of entries with ``none``, ``lz4`` or ``zstd``.
    :param needed: the libraries that the file is linked with (``DT_NEEDED`` of an ELF
        file, imports of a DLL), in the order of the file.
    :param static_cudart: the major version of a statically linked CUDA runtime; 11
        stands for 11 or earlier, 13 for 13 or later, and 0 for none.
    :param toolkit: the first CUDA version that writes this form of machine code, such
        as ``13.0``; empty if the form is not distinctive.
    :param unknown: the number of unknown entries, such as ``{"kind 0x20": 1}``.
    :param unchecked: the number of entries of machine code that may be stubs, because
        they could not be decompressed.
    :param defects: the unreadable parts.
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
    needed: tuple[str, ...] = ()
    static_cudart: int = 0
    toolkit: str = ""
    unknown: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    unchecked: int = 0
    defects: tuple[Defect, ...] = ()

    @property
    def has_gpu_code(self) -> bool:
        """Whether the file has machine code, PTX, LTO-IR or unknown entries."""
        return bool(self.targets or self.lto or self.unknown)

    @property
    def tests(self) -> bool:
        """Whether the file belongs to the project's tests, which are never loaded."""
        return is_test(self.path)

    @property
    def kernels(self) -> Mapping[str, int]:
        """``targets`` without stubs, which contain no kernels.

        Linking for no particular GPU may also add PTX without a kernel, next to a stub
        for the oldest GPU of the toolkit.
        """
        counts = {
            name: count - self.stubs.get(name, 0)
            for name, count in self.targets.items()
        }
        for name, stubs in self.stubs.items():
            ptx = name.replace("_real", "_virtual")
            if counts.get(ptx) == stubs == self.targets[name]:
                counts[ptx] = 0
        return {name: count for name, count in counts.items() if count > 0}

    @property
    def cuda_runtime(self) -> tuple[int, ...]:
        """The major versions of the linked CUDA runtimes, ascending."""
        majors = {self.static_cudart} - {0}
        for name in self.needed:
            if match := _RUNTIME.fullmatch(name):
                # cudart64_110.dll belongs to CUDA 11.0, cudart64_12.dll to all of 12.x.
                majors.add(int(match[1] or match[2][:2]))
        return tuple(sorted(majors))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LibraryReport:
        """Read the result of `to_dict`, without validation.

        :raises KeyError, TypeError, AttributeError: the data has a different form.
        """
        fields = {key: value for key, value in data.items() if key in cls.__slots__}
        fields["machine"] = data["machine"] or ""
        fields["needed"] = tuple(data["needed"])
        fields["ptx_isa"] = {
            name: tuple(versions) for name, versions in data["ptx_isa"].items()
        }
        fields["defects"] = tuple(Defect(**item) for item in data["defects"])
        return cls(**fields)

    def to_dict(self) -> dict[str, object]:
        """Return every field under its own name, and ``cuda_runtime``."""
        return {
            "path": self.path,
            "format": self.format,
            "machine": self.machine or None,
            "size": self.size,
            "vendored": self.vendored,
            "tests": self.tests,
            "targets": dict(self.targets),
            "lto": dict(self.lto),
            "stubs": dict(self.stubs),
            "ptx_isa": {
                name: list(versions) for name, versions in self.ptx_isa.items()
            },
            "compression": dict(self.compression),
            "needed": list(self.needed),
            "cuda_runtime": list(self.cuda_runtime),
            "static_cudart": self.static_cudart,
            "toolkit": self.toolkit,
            "unknown": dict(self.unknown),
            "unchecked": self.unchecked,
            "defects": [defect.to_dict() for defect in self.defects],
        }


@dataclass(frozen=True, kw_only=True)
class WheelReport(Reported):
    """The GPU code of a wheel, or of another collection of libraries.

    :param path: the inspected path, or the name of a distribution.
    :param kind: ``wheel`` (any zip archive), ``folder``, ``distribution`` (an installed
        one) or ``file``.
    :param size: the size of the archive or file, or of all files together, in bytes.
    :param members: the number of files in the archive or directory.
    :param libraries: libraries and programs (ELF and PE files), and other files with
        GPU code, sorted by path.
    :param defects: the defects of the archive itself, and of files that are not among
        ``libraries``. Each library has its defects in its own report.
    :param requires: ``Requires-Dist`` of the METADATA.
    """

    path: str
    kind: str
    size: int = 0
    members: int = 0
    libraries: tuple[LibraryReport, ...] = ()
    defects: tuple[Defect, ...] = ()
    requires: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """The last part of the path, which may be a URL or a Windows path."""
        return re.split(r"[/\\]", self.path.partition("?")[0])[-1]

    @property
    def project(self) -> str:
        """The project in the name of the wheel or distribution; may be empty."""
        if self.kind == "distribution":
            return self.path
        return self.file_name.partition("-")[0] if self.kind == "wheel" else ""

    @property
    def own(self) -> tuple[LibraryReport, ...]:
        """The project's own libraries, without those of its tests."""
        return tuple(x for x in self.libraries if not (x.vendored or x.tests))

    @property
    def tests(self) -> tuple[LibraryReport, ...]:
        """The project's own libraries and loose files for its tests."""
        return tuple(x for x in self.libraries if x.tests and not x.vendored)

    @cached_property
    def vendored(self) -> tuple[LibraryReport, ...]:
        """The libraries that were copied into the wheel from elsewhere."""
        return tuple(item for item in self.libraries if item.vendored)

    @cached_property
    def _vendored_names(self) -> Sequence[tuple[str, int]]:
        """The file name of each vendored library, in order, with its index."""
        names = (item.path.rpartition("/")[2].lower() for item in self.vendored)
        return sorted((f"{name}.", number) for number, name in enumerate(names))

    def copies_of(self, names: Iterable[str]) -> list[LibraryReport]:
        """Return the vendored copies of libraries, at most four of each.

        :param names: the names by which a library is linked.
        """
        numbers: set[int] = set()
        for name in {name.lower() for name in names}:
            # Compare prefixes, because libcudart.so.12 is a link to
            # libcudart.so.12.4.127.
            first = bisect.bisect_left(self._vendored_names, (f"{name}.", -1))
            for found, number in self._vendored_names[first : first + _MOST_COPIES]:
                if not found.startswith(f"{name}."):
                    break
                numbers.add(number)
        return [self.vendored[number] for number in sorted(numbers)]

    @property
    def targets(self) -> Mapping[str, int]:
        """The number of kernels for each target in the project's own libraries."""
        found: Counter[str] = Counter()
        for item in self.own:
            found.update(item.kernels)
        return sort_targets(found)

    @property
    def all_defects(self) -> tuple[Defect, ...]:
        """The defects of the archive, then those of each library."""
        groups = [item.defects for item in self.libraries]
        return self.defects + tuple(defect for group in groups for defect in group)

    @property
    def complete(self) -> bool:
        """Whether all files were read, except for vendored copies and tests."""
        return not (self.defects or any(item.defects for item in self.own))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WheelReport:
        """Read the result of `to_dict`, without validation.

        :raises KeyError, TypeError, AttributeError: the data has a different form.
        """
        return cls(
            path=data["path"],
            kind=data["kind"],
            size=data["size"],
            members=data["members"],
            libraries=tuple(map(LibraryReport.from_dict, data["libraries"])),
            defects=tuple(Defect(**item) for item in data["defects"]),
            requires=tuple(data["requires"]),
        )


def is_test(path: str) -> bool:
    """Return whether the path of a file shows that it is part of the project's tests.

    :param path: the path with ``/`` between directories.
    """
    folders = path.lower().split("/")[:-1]
    return "tests" in folders or "test" in folders


def target_key(target: str) -> tuple[int, int, str]:
    """Return a sort key: machine code precedes PTX; then number and letter decide."""
    match = _TARGET.fullmatch(target)
    if match is None:
        return 2, 0, target
    return int(match[3] == "virtual"), int(match[1]), match[2]


def sort_targets(
    targets: Mapping[str, int] | Iterable[tuple[str, int]],
) -> dict[str, int]:
    """Return ``targets`` in the order of `target_key`."""
    if isinstance(targets, Mapping):
        if len(targets) < 2:  # shortcut for cubins: a wheel may have 10,000 of them
            return dict(targets)
        targets = targets.items()
    return dict(sorted(targets, key=lambda pair: target_key(pair[0])))
