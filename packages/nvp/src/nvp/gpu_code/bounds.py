"""The CUDA version that a wheel is linked with, and the oldest driver for its code.

A driver runs machine code from any toolkit of its own CUDA major version: CUDA calls
this minor-version compatibility. The driver compiles PTX only from toolkits that are
not newer than itself. A linked CUDA runtime rejects drivers of an older major version.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

from nvidia_variant_provider.errors import shown
from nvidia_variant_provider.machine.environment import CudaVersion
from nvidia_variant_provider.machine.supported import NEWEST, OLDEST

from ..findings import Reported
from ..knowledge.builds import CudaMajor
from ..knowledge.tables import parse_isa
from ..metadata.requirements import parse_requirement
from .report import LibraryReport, WheelReport
from .units import Unit, first_toolkit, parse_target, ptx_toolkit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound(Reported):
    """A lower bound of the driver's CUDA version.

    :param version: the bound, or ``None`` if there is none.
    :param reason: the reason for the bound or for its absence; may be empty.
    """

    version: CudaVersion | None
    reason: str


def find_bounds(
    report: WheelReport, units: Sequence[Unit], *, real: Sequence[str], native: bool
) -> tuple[Bound, Bound]:
    """Return the strict bound, and the bound under minor-version compatibility.

    :param real: the machine code to declare, such as ``90_real``.
    :param native: whether machine code runs on all declared GPUs.
    """
    counted = {item.path for unit in units for item in unit.libraries}
    bounds = list(map(_as_bound, linked_runtimes(report, counted)))
    bounds += [_unit_bound(report, unit) for unit in units]
    strict = _highest(bounds)
    version = strict.version
    if version is None:
        return strict, strict
    if not OLDEST <= version <= NEWEST:
        reason = f"{strict.reason}, which variant properties cannot name"
        strict = Bound(version=None, reason=reason)
        return strict, strict
    if newest_runtime(report, units) is None:
        reason = f"{strict.reason}; nothing tells which CUDA it is linked with"
        strict = Bound(version=version, reason=reason)
    return strict, _relaxed(version, units, real, native=native)


def relaxed_version(lower: CudaVersion, real: Iterable[str]) -> CudaVersion:
    """Return the lowest CUDA version of a driver that runs machine code.

    :param lower: the strict bound; the result has the same CUDA major version.
    :param real: the machine code, such as ``90_real``. A driver that is older than the
        first toolkit for a GPU does not support the GPU.
    """
    known = filter(None, map(first_toolkit, real))
    return max(CudaVersion(lower.major), min(known, default=lower))


def oldest_driver(version: CudaVersion, units: Iterable[Unit]) -> CudaVersion:
    """Return the lowest CUDA version of a driver that loads the units.

    The result has the CUDA major version of ``version``. If a unit has a library for
    each of several CUDA versions, one loadable library is enough.
    """
    return max([CudaVersion(version.major), *filter(None, map(_oldest_choice, units))])


def _oldest_choice(unit: Unit) -> CudaVersion | None:
    named = [_named_choice(item) for item in unit.libraries] if unit.by_cuda else []
    known = [runtime.version for runtime in named if runtime is not None]
    return min(known) if known and len(known) == len(named) else None


def _named_choice(library: LibraryReport) -> Runtime | None:
    """Return the CUDA version in a path such as ``lib_cuda126.so``, or ``None``."""
    names = re.findall(_CHOSEN, library.path)
    if not names:
        return None
    source = f"{library.path} is named after the CUDA that it is for"
    return Runtime(version=_version(*names[-1]), source=source)


def _relaxed(
    version: CudaVersion, units: Sequence[Unit], real: Sequence[str], *, native: bool
) -> Bound:
    oldest = oldest_driver(version, units)
    floor = max(oldest, relaxed_version(version, real)) if real else oldest
    newest = newest_ptx(units)
    # The oldest driver compiles the PTX too if the PTX is not newer than the driver.
    old = newest is not None and newest <= floor
    if not native and any(unit.targets for unit in units):
        if newest is None:
            reason = "it has no machine code that can be declared"
            return Bound(version=None, reason=reason)
        if not old:
            reason = f"some GPUs rely on PTX, which needs a driver for CUDA {newest}"
            return Bound(version=None, reason=reason)
        reason = (
            f"some GPUs rely on PTX, which such a driver compiles: "
            f"it is from CUDA {newest} or older"
        )
        return Bound(version=floor, reason=reason)
    reason = f"machine code runs with any driver for CUDA {version.major}"
    if old:
        reason += f"; its PTX is from CUDA {newest} or older, and runs as well"
    elif newest is not None:
        reason += f"; its PTX is from CUDA {newest}, and must not be declared then"
    if oldest.minor:
        reason += f"; the oldest of the libraries to choose from is for CUDA {oldest}"
    return Bound(version=floor, reason=reason)


def newest_ptx(units: Sequence[Unit]) -> CudaVersion | None:
    """Return the toolkit of the newest PTX; ``None`` if unknown, or without PTX.

    In a unit with libraries for several CUDA versions, the oldest PTX counts.
    """
    versions = []
    for unit in units:
        newest = [max(isa.values()) for isa in unit.choices() if isa]
        if newest:
            versions.append(min(newest))
    return ptx_toolkit(max(versions)) if versions else None


def newest_runtime(report: WheelReport, units: Sequence[Unit]) -> Runtime | None:
    """Return the newest CUDA version that a wheel requires, or ``None``."""
    choices = {item.path for unit in units if unit.by_cuda for item in unit.libraries}
    runtimes = linked_runtimes(report, choices)
    for unit in units:
        if unit.by_cuda:
            each = [_choice_runtimes(report, item) for item in unit.libraries]
            newest = [max(group, key=attrgetter("version")) for group in each if group]
            # If a library does not depend on CUDA, the unit works with every version.
            if len(newest) == len(each):
                runtimes.append(min(newest, key=attrgetter("version")))
    return max(runtimes, key=attrgetter("version"), default=None)


def _choice_runtimes(report: WheelReport, library: LibraryReport) -> list[Runtime]:
    named = _named_choice(library)
    return [*([named] if named else []), *library_runtimes(report, library)]


def _unit_bound(report: WheelReport, unit: Unit) -> Bound:
    if not unit.by_cuda:
        return _highest([_library_bound(report, item) for item in unit.libraries])
    bounds = []
    for item in unit.libraries:
        named = filter(None, [_named_choice(item)])
        bounds.append(_highest([*map(_as_bound, named), _library_bound(report, item)]))
    known = [(bound.version, bound) for bound in bounds if bound.version is not None]
    return min(known, key=lambda pair: pair[0])[1] if known else _highest(bounds)


def _library_bound(report: WheelReport, library: LibraryReport) -> Bound:
    bounds = list(map(_as_bound, library_runtimes(report, library)))
    kernels = library.kernels
    for target in kernels:
        try:
            _, letter, _ = parse_target(target)
        except ValueError:
            continue
        version, name = first_toolkit(target), target.partition("_")[0]
        if version is not None:
            reason = f"CUDA {version} is the first to emit code for {name}"
            if version < OLDEST:
                reason = f"CUDA {OLDEST} is the oldest that a property can name"
            bounds.append(Bound(version=max(version, OLDEST), reason=reason))
        elif not letter:
            reason = f"no known CUDA emits code for {name}"
            bounds.append(Bound(version=None, reason=reason))
    for target, versions in library.ptx_isa.items():
        for text in versions if target in kernels else ():
            needed = ptx_toolkit(parse_isa(text))
            reason = f"PTX ISA {text} is from CUDA {needed}"
            if needed is None:
                reason = f"PTX ISA {text} is newer than any known CUDA"
            bounds.append(Bound(version=needed, reason=reason))
    return _highest(bounds)


def _as_bound(runtime: Runtime) -> Bound:
    return Bound(version=CudaVersion(*runtime.version), reason=runtime.source)


def _highest(bounds: Sequence[Bound]) -> Bound:
    """Return the highest bound, or the first bound that no known driver meets."""
    for bound in bounds:
        if bound.version is None and bound.reason:
            return bound
    known = [(bound.version, bound) for bound in bounds if bound.version is not None]
    if not known:
        return Bound(version=None, reason="")
    highest = max(version for version, _ in known)
    return next(bound for version, bound in known if version == highest)


# Match only libraries whose soname has the CUDA major version: sonames such as those of
# cuFFT and cuSPARSE have a different version.
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
"""The names of projects for one CUDA version, such as ``faiss-gpu-cu12``."""

_CHOSEN = re.compile(
    r"(?<![a-z0-9])cu(?:da)?[-_]?(1[0-9])([0-9])?(?![a-z0-9])", re.IGNORECASE
)
_NUMBERS = re.compile(r"([0-9]{1,3})(?:\.([0-9]{1,3}))?(?:\..*)?")

MAX_PARSED = 50_000
"""The maximum length of all parsed CUDA requirements in characters; a wheel has about
twenty, of 100 characters. Parsing that many takes 0.1 seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """A CUDA version that a file is linked with.

    :param version: the lowest possible version.
    :param source: the evidence, such as ``demo/lib.so is linked with libcudart.so.12``.
    :param named: whether ``version`` is exact, not only a lower limit.
    """

    version: CudaVersion
    source: str
    named: bool = True


def _declared_runtimes(report: WheelReport) -> list[Runtime]:
    """Return the CUDA versions in METADATA and in the project's name.

    ``jax-cuda12-plugin`` is for CUDA 12, and ``cupy-cuda110`` for CUDA 11.0.
    """
    named = named_runtime(report.project)
    required = required_runtimes(report.requires)
    if len({runtime.version.major for runtime in required}) > 1:
        required = []  # the major version of the build is unclear
    return [*required, *([named] if named else [])]


def named_runtime(project: str) -> Runtime | None:
    """Return the CUDA version in a project's name, such as ``cupy-cuda12x``."""
    name = re.sub(r"[-_.]+", "-", project).lower()
    match = _NAMED.fullmatch(name)
    if match is None:
        return None
    version = _version(match[1] or match[2], match[3])
    source = f"the project is named {shown(name, 80).strip(chr(39))}"
    return Runtime(version=version, source=source)


def library_runtimes(report: WheelReport, library: LibraryReport) -> list[Runtime]:
    """Return the CUDA versions that a library is linked with.

    The file names of vendored copies are read too: they contain the full version.
    """
    runtimes = [*_needed(library.path, library.needed), *_traces(library)]
    # Return early: a wheel may have thousands of cubins, which need no library.
    if not library.needed:
        return runtimes
    for item in report.copies_of(library.needed):
        newest = _newest_of_copy(item.path, item.needed)
        runtimes += () if newest is None else (newest,)
    return runtimes


# Cache the result, because thousands of libraries may link the same copies.
@functools.lru_cache(maxsize=4096)
def _newest_of_copy(path: str, needed: tuple[str, ...]) -> Runtime | None:
    """Return the newest CUDA version of a vendored copy's name and linked libraries."""
    runtimes = list(_needed(path, needed))
    if match := _SONAME.fullmatch(path.rpartition("/")[2].lower()):
        version = _version(match[1], match[2])
        source = f"the wheel contains {path}"
        runtimes.insert(0, Runtime(version=version, source=source))
    return max(runtimes, key=attrgetter("version"), default=None)


def linked_runtimes(report: WheelReport, without: Collection[str]) -> list[Runtime]:
    """Return the CUDA versions from METADATA, the project's name and its libraries.

    :param without: the paths of libraries to ignore.
    """
    runtimes = _declared_runtimes(report)
    for item in report.own:
        if item.path not in without:
            runtimes += library_runtimes(report, item)
    return runtimes


def major_of_name(file_name: str) -> int | None:
    """Return the CUDA major version in the file name of a CUDA library, if any."""
    name = file_name.lower()
    match = _SONAME.fullmatch(name) or _DLL.fullmatch(name)
    return None if match is None else int(match[1])


def _needed(path: str, needed: Iterable[str]) -> Iterator[Runtime]:
    for name in needed:
        major = major_of_name(name)
        if major is not None:
            # Ignore the minor version in the name of a library: every release of CUDA
            # 11 has libcudart.so.11.0.
            source = f"{path} is linked with {shown(name).strip(chr(39))}"
            yield Runtime(version=CudaMajor(major), source=source)


def _traces(library: LibraryReport) -> Iterator[Runtime]:
    """Yield the CUDA versions that were found in the content of a library."""
    if major := library.static_cudart:
        source = f"{library.path} contains the runtime of CUDA {major}"
        yield Runtime(version=CudaMajor(major), source=source, named=False)
    if library.toolkit:
        source = f"the machine code of {library.path} is from CUDA {library.toolkit}"
        version = _version(*library.toolkit.removesuffix(".0").partition(".")[::2])
        yield Runtime(version=version, source=f"{source} or newer", named=False)


def required_runtimes(requires: Iterable[str]) -> list[Runtime]:
    """Return the CUDA versions in ``Requires-Dist``, except in requirements of extras.

    ``nvidia-cublas-cu12`` contains only the major version. The minor version is also in
    ``nvidia-cuda-runtime-cu12==12.8.90`` and ``cuda-toolkit==13.0.*``.
    """
    return list(_required_runtimes(tuple(requires)))


_FOR_GPUS = re.compile(r"(?:.*[-_.])?gpu(?:[-_.].*)?", re.IGNORECASE)


def extra_runtimes(project: str, requires: Iterable[str]) -> list[Runtime]:
    """Return the CUDA major version that all requirements of extras share, in a list.

    onnxruntime-gpu 1.29 requires ``nvidia-cuda-runtime~=13.0; extra == "cuda"``. The
    list is empty for a project with extras for several majors, such as jax. Projects
    without ``gpu`` in their names are ignored: tensorflow-cpu has the extras of
    tensorflow, and cuda-bindings loads any CUDA version.
    """
    if not _FOR_GPUS.fullmatch(project):
        return []
    runtimes = _required_runtimes(tuple(requires), extras=True)
    if len({runtime.version.major for runtime in runtimes}) != 1:
        return []
    version = CudaMajor(runtimes[0].version.major)
    return [Runtime(version=version, source=f"{runtimes[0].source} for an extra")]


@functools.lru_cache(maxsize=8)
def _required_runtimes(
    requires: tuple[str, ...], *, extras: bool = False
) -> tuple[Runtime, ...]:
    """Return the CUDA versions in requirements; the cache saves parsing them again.

    :param extras: parse only the requirements of extras.
    """
    runtimes = []
    # Parse only requirements on NVIDIA's packages, because the parser is slow.
    texts = [text for text in requires if _OURS.match(text)]
    for text, length in zip(texts, accumulate(map(len, texts)), strict=True):
        requirement = parse_requirement(text) if length <= MAX_PARSED else None
        if requirement is None:
            continue
        if ("extra" in str(requirement.marker or "")) is not extras:
            continue
        version = _required(requirement.name.lower().replace("_", "-"), requirement)
        if version is not None:
            # Omit the extras of cuda-toolkit, which would fill the line.
            wanted = f"{requirement.name}{requirement.specifier}"
            source = f"METADATA requires {shown(wanted, 80).strip(chr(39))}"
            runtimes.append(Runtime(version=version, source=source))
    return tuple(runtimes)


def _required(name: str, requirement: Requirement) -> CudaVersion | None:
    suffixed = _SUFFIXED.fullmatch(name)
    major = int(suffixed[1]) if suffixed else None
    if not _VERSIONED.fullmatch(name):
        return None if major is None else CudaMajor(major)
    versions = []
    for item in requirement.specifier:
        match = _NUMBERS.fullmatch(item.version)
        if match is None or item.operator not in ("==", "===", "~=", ">="):
            continue
        # ``>=13.2`` and ``~=13.0`` allow newer versions at run time, so they show only
        # the major version of the build.
        loose = item.operator == ">=" or (
            item.operator == "~=" and item.version.count(".") < 2
        )
        versions.append(_version(match[1], None if loose else match[2]))
    fitting = [v for v in versions if major in (None, v.major) and v.major >= 9]
    return max(fitting, default=None if major is None else CudaMajor(major))


def _version(major: str, minor: str | None) -> CudaVersion:
    return CudaVersion(int(major), int(minor)) if minor else CudaMajor(int(major))
