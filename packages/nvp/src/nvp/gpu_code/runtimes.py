"""The CUDA that a wheel is linked with, as its libraries and its METADATA say."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from nvidia_variant_provider.errors import shown
from nvidia_variant_provider.machine.environment import CudaVersion

from ..metadata.requirements import parse_requirement
from .report import LibraryReport, WheelReport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Libraries with the major version of CUDA; cuFFT, cuSPARSE and others have their own.
_SONAME = re.compile(
    r"lib(?:cudart|cublas|cublaslt|nvblas|nvrtc|nvjitlink)(?:-[0-9a-f]+)?"
    r"\.so\.([0-9]{1,3})(?:\.([0-9]{1,3}))?(?:\..*)?"
)
_DLL = re.compile(r"(?:cudart|cublas|cublaslt|nvrtc)64_([0-9]{2})([0-9]?)(?:_0)?\.dll")
_SUFFIXED = re.compile(r"nvidia-[a-z0-9-]+-cu([0-9]{2})")
_VERSIONED = re.compile(
    r"(?:cuda-toolkit|nvidia-cuda-(?:runtime|nvrtc))(?:-cu[0-9]{2})?"
)
_OURS = re.compile(r"\s*(?:nvidia|cuda)[-_]", re.IGNORECASE)
_NAMED = re.compile(r"(?:.*-)?cu(?:da)?(?:(1[0-9])|([89]|1[0-9])([0-9]))x?(?:-.*)?")
"""A project for one CUDA: ``faiss-gpu-cu12``, ``cupy-cuda12x`` and ``cupy-cuda110``."""

_NUMBERS = re.compile(r"([0-9]{1,3})(?:\.([0-9]{1,3}))?(?:\..*)?")

MAX_PARSED = 500
"""Requirements on CUDA packages that are read; real wheels have about twenty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """A version of CUDA that a file is linked with.

    :param version: the lowest that it can be; where only the major is known, the minor
        is 0.
    :param source: what says so, such as ``demo/lib.so is linked with libcudart.so.12``.
    """

    version: CudaVersion
    source: str


def _declared_runtimes(report: WheelReport) -> list[Runtime]:
    """Return the CUDA that METADATA asks for, and the one in the project's name.

    ``jax-cuda12-plugin`` is for CUDA 12, and ``cupy-cuda110`` for CUDA 11.0.
    """
    runtimes = required_runtimes(report.requires)
    name = re.sub(r"[-_.]+", "-", report.project).lower()
    if match := _NAMED.fullmatch(name):
        version = CudaVersion(int(match[1] or match[2]), int(match[3] or 0))
        source = f"the project is named {shown(name, 80).strip(chr(39))}"
        runtimes.append(Runtime(version=version, source=source))
    return runtimes


def library_runtimes(report: WheelReport, library: LibraryReport) -> list[Runtime]:
    """Return the CUDA that a library is linked with, from the names of libraries.

    The copy of a library that a repair put into the wheel has a full version in its
    name, so that the vendored libraries are looked at too.
    """
    runtimes = list(_needed(library))
    # Wheels with thousands of cubins end here, before the names are looked at.
    if not library.needed:
        return runtimes
    names = {name.lower() for name in library.needed}
    for item in report.vendored:
        file_name = item.path.rpartition("/")[2].lower()
        if file_name not in names and not _is_runtime_of(file_name, names):
            continue
        if match := _SONAME.fullmatch(file_name):
            version = CudaVersion(int(match[1]), int(match[2] or 0))
            source = f"the wheel contains {item.path}"
            runtimes.append(Runtime(version=version, source=source))
        runtimes += _needed(item)
    return runtimes


def linked_runtimes(report: WheelReport, without: Collection[str]) -> list[Runtime]:
    """Return the CUDA of METADATA, of the project's name and of its own libraries.

    :param without: the paths of libraries that do not count.
    """
    runtimes = _declared_runtimes(report)
    for item in report.own:
        if item.path not in without:
            runtimes += library_runtimes(report, item)
    return runtimes


def major_of_name(file_name: str) -> int | None:
    """Return the CUDA major that a library of CUDA is of, by its file name."""
    name = file_name.lower()
    match = _SONAME.fullmatch(name) or _DLL.fullmatch(name)
    return None if match is None else int(match[1])


def _is_runtime_of(file_name: str, names: set[str]) -> bool:
    """Return whether a file is a longer version of one of ``names``.

    ``libcudart-1a2b.so.12`` is a link to ``libcudart-1a2b.so.12.4.127``.
    """
    return any(file_name.startswith(f"{name}.") for name in names)


def _needed(library: LibraryReport) -> Iterator[Runtime]:
    for name in library.needed:
        major = major_of_name(name)
        if major is not None:
            # Every CUDA 11 has libcudart.so.11.0, so the minor version in the name
            # of a library says nothing.
            source = f"{library.path} is linked with {shown(name).strip(chr(39))}"
            yield Runtime(version=CudaVersion(major), source=source)


def required_runtimes(requires: Iterable[str]) -> list[Runtime]:
    """Return the CUDA that ``Requires-Dist`` asks for, leaving out extras.

    ``nvidia-cublas-cu12`` tells the major version, and both
    ``nvidia-cuda-runtime-cu12==12.8.90`` and ``cuda-toolkit==13.0.*`` the minor too.
    """
    return list(_required_runtimes(tuple(requires)))


@functools.lru_cache(maxsize=4)
def _required_runtimes(requires: tuple[str, ...]) -> tuple[Runtime, ...]:
    """Parse the requirements, and remember it: one report is asked several times."""
    runtimes = []
    # The parser is slow, and most requirements are not on packages of NVIDIA.
    for text in [text for text in requires if _OURS.match(text)][:MAX_PARSED]:
        requirement = parse_requirement(text)
        if requirement is None:
            continue
        if requirement.marker is not None and "extra" in str(requirement.marker):
            continue
        version = _required(requirement.name.lower().replace("_", "-"), requirement)
        if version is not None:
            # The extras of cuda-toolkit would take the whole line.
            wanted = f"{requirement.name}{requirement.specifier}"
            source = f"METADATA requires {shown(wanted, 80).strip(chr(39))}"
            runtimes.append(Runtime(version=version, source=source))
    return tuple(runtimes)


def _required(name: str, requirement: Requirement) -> CudaVersion | None:
    suffixed = _SUFFIXED.fullmatch(name)
    major = int(suffixed[1]) if suffixed else None
    if not _VERSIONED.fullmatch(name):
        return None if major is None else CudaVersion(major)
    versions = []
    for item in requirement.specifier:
        match = _NUMBERS.fullmatch(item.version)
        if match is None or item.operator not in ("==", "===", "~=", ">="):
            continue
        # ``>=`` says what may be installed with it, not what it was built with.
        minor = 0 if item.operator == ">=" else int(match[2] or 0)
        versions.append(CudaVersion(int(match[1]), minor))
    fitting = [v for v in versions if major in (None, v.major) and v.major >= 9]
    return max(fitting, default=None if major is None else CudaVersion(major))
