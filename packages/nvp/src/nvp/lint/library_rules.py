"""NV513 and NV514: whether the libraries of a wheel suit its tags and its METADATA."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from nvidia_variant_provider.errors import shown

from ..findings import listed
from ..gpu_code.report import LibraryReport, WheelReport
from ..gpu_code.runtimes import (
    Runtime,
    library_runtimes,
    major_of_name,
    required_runtimes,
)
from ..gpu_code.units import split_units
from ..wheels.names import WheelName
from .findings import Checks, Problem

__all__ = ["LIBRARY_CHECKS", "WheelLibraries"]

_PLATFORM = re.compile(
    r"(?:linux|(?:many|musl)linux\w*?)_(?P<elf>x86_64|i686|aarch64|armv[67]l|ppc64(?:le)?"
    r"|s390x|riscv64)|win_(?P<pe>amd64|arm64)|win(?P<pe32>32)"
)
_MACHINES = {
    "amd64": "x86_64",
    "arm64": "aarch64",
    "i686": "x86",
    "32": "x86",
    "armv6l": "arm",
    "armv7l": "arm",
    "ppc64le": "ppc64",
    "riscv64": "riscv",
}
"""The machines of platform tags that have another name in the reports of libraries."""

_PROCESSORS = frozenset({"aarch64", "arm", "ppc64", "riscv", "s390x", "x86", "x86_64"})
"""The machines of processors; others, such as those of GPUs, suit every wheel."""

_EXTENSION = re.compile(r".*\.(?:abi3|cpython-[^./]+|cp3[0-9]+-[^./]+)\.(?:so|pyd)")
"""The file names of extension modules, which only the interpreter loads."""

_MAX_NAMED = 3
"""How many libraries a message names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelLibraries:
    """A wheel whose libraries were read."""

    report: WheelReport
    name: WheelName


LIBRARY_CHECKS: Checks[WheelLibraries] = Checks()
"""The checks of all libraries of a wheel, with or without GPU code."""


@LIBRARY_CHECKS.rule("NV513")
def check_nv513(wheel: WheelLibraries) -> Iterator[Problem]:
    """Report libraries for another processor or system than the platform tag."""
    platforms = {tag.platform for tag in wheel.name.tags}
    suited = {_machine_of(platform) for platform in platforms}
    if None in suited:
        return  # The wheel is for any platform, or for one whose files are not read.
    libraries = [x for x in wheel.report.libraries if x.machine in _PROCESSORS]
    foreign = [x for x in libraries if (x.format, x.machine) not in suited]
    native = [x for x in libraries if (x.format, x.machine) in suited]
    if native:
        # Wheels may bring programs and libraries for other machines, such as helpers
        # that are copied to a device, as long as nothing here has to load them.
        foreign = _loaded(foreign, native)
    if foreign:
        names = listed([shown(x.path, 100) for x in foreign], _MAX_NAMED)
        machines = sorted({_described(x) for x in foreign})
        yield Problem(
            "",
            f"{names}: made for {' and '.join(machines)}, and the wheel is for "
            f"{', '.join(sorted(platforms))}",
            "build the library for the platform of the wheel, or correct the tag",
        )


@LIBRARY_CHECKS.rule("NV514")
def check_nv514(wheel: WheelLibraries) -> Iterator[Problem]:
    """Report requirements on another CUDA major than that which libraries link."""
    report = wheel.report
    required = required_runtimes(report.requires)
    linked = list(_linked(report))
    majors = {runtime.version.major for runtime in linked}
    if not linked or not required or majors & {r.version.major for r in required}:
        return
    newest = max(linked, key=lambda runtime: runtime.version)
    yield Problem(
        "METADATA",
        f"{newest.source}, and {required[0].source}",
        f"require the packages of CUDA {newest.version.major}, or build for CUDA "
        f"{required[0].version.major}",
    )


def _machine_of(platform: str) -> tuple[str, str] | None:
    """Return the format and the machine of the libraries for a platform tag."""
    match = _PLATFORM.fullmatch(platform)
    if match is None:
        return None
    word = match["elf"] or match["pe"] or match["pe32"]
    return "elf" if match["elf"] else "pe", _MACHINES.get(word, word)


def _loaded(
    libraries: Iterable[LibraryReport], native: Collection[LibraryReport]
) -> list[LibraryReport]:
    """Return the libraries that Python loads, or one of the wheel's own platform."""
    names = {_name(x) for x in native}
    needed = {name for x in native for name in x.needed} - names
    # An extension module may be there once for each platform.
    modules = {_module(x) for x in native}
    return [
        x
        for x in libraries
        if (
            _module(x) not in modules
            if _EXTENSION.fullmatch(_name(x))
            else _name(x) in needed
        )
    ]


def _name(library: LibraryReport) -> str:
    return library.path.rpartition("/")[2]


def _module(library: LibraryReport) -> tuple[str, str]:
    """Return the folder of an extension module, and its name in Python."""
    folder, _, name = library.path.rpartition("/")
    return folder, name.partition(".")[0]


def _described(library: LibraryReport) -> str:
    system = "Linux" if library.format == "elf" else "Windows"
    return f"{system} on {library.machine}"


def _linked(report: WheelReport) -> Iterator[Runtime]:
    """Yield the CUDA that has to come from outside of the wheel."""
    alternatives = {
        item.path
        for unit in split_units(report)
        if unit.by_cuda
        for item in unit.libraries
    }
    brought = {major_of_name(_name(x)) for x in report.libraries}
    for item in report.own:
        if item.path not in alternatives:
            for runtime in library_runtimes(report, item):
                if runtime.version.major not in brought:
                    yield runtime
