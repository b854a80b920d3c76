"""Derive the target and the requirements of a build from each kind of evidence.

Indexes such as PyTorch's name the builds of a release by a local version label
(``2.10.0+cu128``) or by a directory (``.../cu128/``). Only labels with the same
meaning everywhere are read; all others are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, TypeAlias

from packaging.version import Version

from nvidia_variant_provider.machine.environment import CudaVersion

from ..knowledge.builds import CudaMajor, LibraryCode, Needs

if TYPE_CHECKING:
    from ..gpu_code.report import LibraryReport, WheelReport
    from ..gpu_code.units import Unit
    from ..metadata.requirements import Work


# Most projects have no GPU code, so import the modules for GPU code and the tables of
# GPUs only when a build needs them.

_SYSTEMS = {
    "linux": {"platform_system": "Linux", "sys_platform": "linux", "os_name": "posix"},
    "win": {"platform_system": "Windows", "sys_platform": "win32", "os_name": "nt"},
}
_PLATFORM = re.compile("platform_system|platform_machine|sys_platform|os_name")
_PYTHON = re.compile("python_|implementation")

_MINOR = 4
"""A library is minor if the largest library of the build is more than 4 times as large.
Minor libraries alone do not make a build run. In torch 2.0 to 2.15, the linear algebra
from MAGMA is an eighth of ``libtorch_cuda.so`` and has code for other GPUs."""


def needs_of_report(report: WheelReport) -> Needs | None:
    """Derive the requirements of a wheel from its `inspect` report.

    :returns: ``None`` if the wheel could not be read completely.
    """
    from ..gpu_code.bounds import extra_runtimes, linked_runtimes
    from ..gpu_code.units import split_units
    from ..wheels.archive import platform_of

    if not report.complete:
        return None
    platform = platform_of(report.path.rpartition("-")[2])
    requires = requirements_on(report.requires, platform)
    report = replace(report, requires=requires)
    units = [unit for unit in split_units(report) if unit.targets]
    sizes = [max(item.size for item in unit.libraries) for unit in units]
    largest = max(sizes, default=0)
    pieces = tuple(
        _piece(report, unit, minor=_MINOR * size < largest)
        for unit, size in zip(units, sizes, strict=True)
    )
    chosen = {item.path for unit in units if unit.by_cuda for item in unit.libraries}
    runtimes = linked_runtimes(report, chosen) or extra_runtimes(
        report.project, report.requires
    )
    newest = max(runtimes, key=attrgetter("version"), default=None)
    source = newest.source if newest else "its libraries were read"
    # A program with one library for each of several CUDA versions loads the library
    # that the driver can run, so a driver for the oldest version is enough.
    built = [min(versions) for piece in pieces if (versions := _versions(piece))]
    cuda = max([*(runtime.version for runtime in runtimes), *built], default=None)
    if newest is not None and cuda is not None and cuda > newest.version:
        source += f", and its code was built with CUDA {cuda}"
    return Needs(
        evidence="inspected",
        source=source,
        cuda=cuda,
        pieces=pieces,
        gpu=bool(pieces or newest or any(item.has_gpu_code for item in report.own)),
        requires=report.requires,
    )


def _versions(piece: Iterable[LibraryCode]) -> list[CudaVersion]:
    """Return the CUDA versions of alternative libraries; empty if any is unknown."""
    versions = [code.cuda for code in piece]
    return [] if None in versions else [v for v in versions if v is not None]


def requirements_on(
    requires: Iterable[str],
    platform: str | None,
    work: Work | None = None,
    pythons: Collection[int] = (),
) -> tuple[str, ...]:
    """Return the requirements that apply on a platform, with or without extras.

    For example, torch requires CUDA packages only on Linux.

    :param platform: such as ``linux_x86_64``; for an unknown platform, all requirements
        are kept. Those for which no ``work`` is left are left out: they may not apply.
    :param pythons: minor versions of CPython 3, on all of which the requirements apply;
        without them, the requirements apply on any Python.
    """
    from ..metadata.requirements import Work, extras_of

    system, _, machine = (platform or "").partition("_")
    if system not in _SYSTEMS:
        return tuple(requires)
    machine = "AMD64" if machine == "amd64" else machine
    where = {**_SYSTEMS[system], "platform_machine": machine}
    kept, work = [], work or Work()
    for text in requires:
        # The parser is slow, and most markers are about extras.
        if _PLATFORM.search(text) or (pythons and _PYTHON.search(text)):
            extras = extras_of(text)
            steps = (2 * len(pythons) or 8) * len(extras) * len(text)
            if not (work.take(steps) and _counts(text, extras, where, pythons)):
                continue
        kept.append(text)
    return tuple(kept)


def _counts(
    text: str,
    extras: Iterable[str],
    where: Mapping[str, str],
    pythons: Collection[int],
) -> bool:
    from ..metadata.requirements import holds, parse_requirement

    requirement = parse_requirement(text)
    if requirement is None:
        return True
    patches = (0, 99) if pythons else (0,)
    versions = [
        {**where, "python_version": x, "python_full_version": f"{x}.{patch}"}
        for x in (f"3.{minor}" for minor in pythons or range(8, 16))
        for patch in patches
    ]
    combine = all if pythons else any
    return any(
        combine(holds(requirement, {**each, "extra": extra}) for each in versions)
        for extra in extras
    )


def needs_of_requirements(requires: Iterable[str], project: str = "") -> Needs | None:
    """Derive the requirements on a machine from ``Requires-Dist``.

    :param requires: such as ``nvidia-cuda-runtime-cu12==12.8.90``.
    :param project: the project that has these dependencies.
    :returns: ``None`` if the dependencies do not name a CUDA version.
    """
    from ..gpu_code.bounds import extra_runtimes, required_runtimes

    listed = tuple(requires)
    runtimes = required_runtimes(listed) or extra_runtimes(project, listed)
    if not runtimes:
        return None
    newest = max(runtimes, key=attrgetter("version"))
    oldest = min(runtimes, key=attrgetter("version"))
    if oldest.version.major != newest.version.major:
        doubt = f"{oldest.source}, and {newest.source}"
        return Needs(evidence="metadata", source=doubt, doubt=doubt, requires=listed)
    return Needs(
        evidence="metadata",
        source=newest.source,
        cuda=newest.version,
        library=_is_library(project),
        requires=listed,
    )


@lru_cache(maxsize=256)
def needs_of_name(project: str, release: Version | None = None) -> Needs | None:
    """Derive the requirements from the name of a project, such as ``cupy-cuda13x``.

    NVIDIA's libraries for CUDA 13 do not have the version in their names; the table of
    libraries has it.

    :param release: the release of the project; ``None`` for any.
    :returns: ``None`` if neither the name nor the table has a CUDA version.
    """
    if "cu" not in project and not _is_library(project):
        return None
    from ..gpu_code.bounds import named_runtime
    from ..knowledge.tables import library_releases

    if (runtime := named_runtime(project)) is not None:
        source, cuda = runtime.source, runtime.version
    elif _is_library(project) and project in library_releases():
        releases, major = library_releases()[project]
        if release is not None and release not in releases:
            return None
        source, cuda = f"{project} {releases} is of CUDA {major}", CudaMajor(major)
    else:
        return None
    return Needs(
        evidence="label", source=source, cuda=cuda, library=_is_library(project)
    )


def _is_library(project: str) -> bool:
    return project.startswith("nvidia-")


def needs_of_backend(backend: Backend | None) -> Needs | None:
    """Derive the requirements from the label alone.

    :returns: ``None`` for a label without meaning for NVIDIA GPUs.
    """
    if backend is None or backend.is_foreign:
        return None
    source = f"it is labelled {backend.label}"
    if backend.kind == "cpu":
        return Needs(evidence="label", source=source, gpu=False)
    torch = backend.torch
    requires = (f"torch=={torch[0]}.{torch[1]}.*",) if torch else ()
    return Needs(evidence="label", source=source, cuda=backend.cuda, requires=requires)


def _piece(report: WheelReport, unit: Unit, *, minor: bool) -> tuple[LibraryCode, ...]:
    codes = [replace(_code(report, library), minor=minor) for library in unit.libraries]
    return tuple(codes) if unit.by_cuda else (_merged(unit.name, codes),)


def _code(report: WheelReport, library: LibraryReport) -> LibraryCode:
    from ..gpu_code.bounds import library_runtimes

    kernels = [target.rpartition("_") for target in library.kernels]
    ptx = {
        name: _ptx_needs(library.ptx_isa.get(f"{name}_virtual", ()))
        for name, _, kind in kernels
        if kind == "virtual"
    }
    # A library that links CUDA statically shows the toolkit only in its code.
    versions = [runtime.version for runtime in library_runtimes(report, library)]
    versions += filter(None, map(_first_toolkit, library.kernels))
    versions += filter(None, map(_ptx_needs, library.ptx_isa.values()))
    return LibraryCode(
        name=library.path,
        cuda=max(versions, default=None),
        machine_code=frozenset(name for name, _, kind in kernels if kind == "real"),
        ptx=ptx,
    )


def _first_toolkit(target: str) -> CudaVersion | None:
    from ..gpu_code.units import first_toolkit

    try:
        return first_toolkit(target)
    except ValueError:  # no known toolkit emits this target
        return None


def _ptx_needs(versions: Iterable[str]) -> CudaVersion | None:
    from ..gpu_code.units import ptx_toolkit
    from ..knowledge.tables import parse_isa

    newest = max(map(parse_isa, versions), default=None)
    return None if newest is None else ptx_toolkit(newest)


def _merged(name: str, codes: list[LibraryCode]) -> LibraryCode:
    """Merge the code of files that belong together, such as the cubins of a wheel."""
    if len(codes) == 1:
        return codes[0]
    ptx: dict[str, CudaVersion | None] = {}
    for code in codes:
        for target, needed in code.ptx.items():
            known = ptx.get(target, CudaVersion(0))
            unknown = needed is None or known is None
            ptx[target] = None if unknown else max(needed, known)  # type: ignore[type-var]
    return LibraryCode(
        name=name,
        cuda=max((c.cuda for c in codes if c.cuda is not None), default=None),
        machine_code=frozenset[str]().union(*(code.machine_code for code in codes)),
        ptx=ptx,
        minor=codes[0].minor,
    )


BackendKind: TypeAlias = Literal["cuda", "cpu", "rocm", "xpu"]

Abi: TypeAlias = Literal["new", "old"]
"""The C++ ABI of GCC's standard library: ``new`` (since GCC 5, with
``_GLIBCXX_USE_CXX11_ABI=1``) or ``old``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """The target of a build, from its label.

    :param label: the label as written, such as ``cu128``.
    :param cuda: the CUDA toolkit of a ``cuda`` build, otherwise ``None``.
    :param torch: the release of torch that the build is for, such as ``(2, 8)``;
        ``None`` if the label does not contain it.
    :param abi: the C++ ABI, or ``None`` if the label does not contain it.
    """

    label: str
    kind: BackendKind
    cuda: CudaVersion | None = None
    torch: tuple[int, int] | None = None
    abi: Abi | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether the build is for GPUs of a vendor other than NVIDIA."""
        return self.kind in ("rocm", "xpu")

    @property
    def minor(self) -> bool:
        """Whether the label contains the minor version of CUDA."""
        return not isinstance(self.cuda, CudaMajor)

    @property
    def base(self) -> str:
        """The hardware and its version, such as ``cu128`` of ``pt28cu128``.

        Users select builds by this name (``--label cu128``).
        """
        if self.cuda is None:
            return self.label if self.kind == "rocm" else self.kind
        return f"cu{self.cuda}".replace(".", "")

    @property
    def preference(self) -> tuple[tuple[int, int], int]:
        """A sort key for equal builds: the newest torch and the shortest label."""
        return self.torch or (0, 0), -len(self.label)

    def agrees(self, other: Backend) -> bool:
        """Return whether the known parts of two backends (hardware, version) agree."""
        if self.cuda and other.cuda and not (self.minor and other.minor):
            return self.cuda.major == other.cuda.major
        return self.base == other.base


_PART = re.compile(
    r"cu(?:da)?\.?(?P<dotted_cuda>[0-9]{1,2}\.[0-9])(?![0-9])"
    r"|cu(?:da)?\.?(?P<cuda>[0-9]{2,3})(?![0-9])"
    r"|(?:torch|pt)\.?(?P<dotted_torch>[0-9]\.[0-9]{1,2})(?:\.[0-9]{1,2})?(?![0-9])"
    r"|torch\.?(?P<torch>[0-9]{2,4})(?![0-9])"
    r"|pt(?P<short_torch>[0-9]{2,3})(?![0-9])"
    r"|cxx11\.?abi(?P<abi>true|false|)"
    r"|(?P<other_cuda>cpu|xpu|rocm\.?[0-9]{1,2}(?:\.[0-9]{1,3}){0,2}(?:rc[0-9]+)?)"
    # Ignored parts of a label: a commit, a date, a rebuild, how cuDNN is included.
    r"|(?:(?:g|git)[0-9a-f]{7,40}|d20[0-9]{6}|post[0-9]+|cudnn[0-9]+|full|lw"
    r"|with\.pypi\.cudnn)(?=\.|$)"
)
_LONGEST = 80


@lru_cache(maxsize=1024)
def parse_backend(label: str | None) -> Backend | None:
    """Return the target for a local version label or the name of an index directory.

    There is no standard for the labels of torch extensions. These forms are read, with
    their parts in any order:

    ===================================  ==============================================
    torch, vllm                          ``cu128``, ``cpu``, ``xpu``, ``rocm7.2``
    flash-attn, mamba-ssm                ``cu12torch2.8cxx11abiTRUE``
    Astral's index                       ``cu.12.8.torch.2.11``
    torch-scatter and its siblings       ``pt28cu126``
    natten                               ``torch280cu128``
    gptqmodel, sageattention             ``cu128torch2.7``, ``cu128torch2.8.0``
    exllamav2                            ``cu128.torch2.8.0``
    k2, jaxlib                           ``cuda12.6.torch2.7.1``, ``cuda12.cudnn89``
    ===================================  ==============================================

    :param label: without the ``+``, in upper or lower case. A normalized label has a
        dot instead of a dash or an underscore.
    :returns: ``None`` for every other label, such as ``cu`` or ``computecanada``, and
        if two parts are of one kind or no part names the hardware.
    """
    if not label or len(label) > _LONGEST:
        return None
    text = label.lower().replace("-", ".").replace("_", ".")
    parts: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            return None
        for key, value in match.groupdict().items():
            if value is not None:
                # Reject a label with two kinds of hardware, torch versions or ABIs.
                part = key.rpartition("_")[2]
                if part in (known.rpartition("_")[2] for known in parts):
                    return None
                parts[key] = value
        at = match.end()
        if text[at : at + 1] == "." and at + 1 < len(text):
            at += 1
    other, cuda = parts.get("other_cuda"), _cuda(parts)
    if other is None and cuda is None:
        return None
    abi: Abi | None = None
    if "abi" in parts:
        abi = "old" if parts["abi"] == "false" else "new"
    return Backend(
        label=label,
        kind="cuda" if other is None else _KINDS[other[:3]],
        cuda=cuda,
        torch=_torch(parts, cuda),
        abi=abi,
    )


_KINDS: dict[str, BackendKind] = {"cpu": "cpu", "xpu": "xpu", "roc": "rocm"}

_LAST_OF_TORCH_2_1 = CudaVersion(12, 1)
"""The newest CUDA that torch 2.1 was built with."""


def _torch(parts: dict[str, str], cuda: CudaVersion | None) -> tuple[int, int] | None:
    if dotted := parts.get("dotted_torch"):
        major, minor = dotted.split(".")
        return int(major), int(minor)
    digits = parts.get("torch", "")
    # "torch280" ends with the patch release. "torch27" and "pt28" lack it. "torch211"
    # is 2.11 if the CUDA version is too new for torch 2.1.
    newer = digits[:2] == "21" and cuda is not None and cuda > _LAST_OF_TORCH_2_1
    if len(digits) == 4 or (len(digits) == 3 and not newer):
        digits = digits[:-1]
    digits = digits or parts.get("short_torch", "")
    return (int(digits[0]), int(digits[1:])) if digits else None


def _cuda(parts: dict[str, str]) -> CudaVersion | None:
    if dotted := parts.get("dotted_cuda"):
        return CudaVersion.parse(dotted)
    digits = parts.get("cuda")
    if digits is None:
        return None
    # "cu12" is any CUDA 12; "cu126" is CUDA 12.6, and "cu92" was CUDA 9.2. CUDA has
    # never had a minor version above 9.
    split = 2 if digits[0] == "1" or len(digits) == 3 else 1
    major = int(digits[:split])
    return (
        CudaVersion(major, int(digits[split:])) if digits[split:] else CudaMajor(major)
    )
