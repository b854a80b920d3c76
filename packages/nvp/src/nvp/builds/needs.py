"""What a build is for, and what it needs of a machine, by each kind of evidence.

Indexes such as PyTorch's name the builds of a release by a local version label
(``2.10.0+cu128``) or by a folder (``.../cu128/``). Only labels whose meaning is the
same everywhere are read; any other label says nothing, and a build is never judged
by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, TypeAlias

from nvidia_variant_provider.machine.environment import CudaVersion

from ..knowledge.builds import LibraryCode, Needs

if TYPE_CHECKING:
    from ..gpu_code.report import LibraryReport, WheelReport
    from ..gpu_code.units import Unit


# Most projects that pip installs have no GPU code: the modules that read GPU code, and
# the tables of GPUs, are imported when a build turns up that needs them.

_MINOR = 4
"""A library is minor when the largest one is more than so many times its size. In
torch 2.0 to 2.15 the linear algebra, which comes from MAGMA, has an eighth of the
size of ``libtorch_cuda.so`` and code for other GPUs."""


def needs_of_report(report: WheelReport) -> Needs | None:
    """Take the needs from what `inspect` found in a wheel.

    :returns: ``None`` when the wheel could not be read completely.
    """
    from ..gpu_code.bounds import linked_runtimes
    from ..gpu_code.units import split_units

    if not report.complete:
        return None
    units = [unit for unit in split_units(report) if unit.targets]
    sizes = [max(item.size for item in unit.libraries) for unit in units]
    pieces = tuple(
        _piece(report, unit, minor=_MINOR * size < max(sizes))
        for unit, size in zip(units, sizes, strict=True)
    )
    chosen = {item.path for unit in units if unit.by_cuda for item in unit.libraries}
    runtimes = linked_runtimes(report, chosen)
    newest = max(runtimes, key=attrgetter("version"), default=None)
    source = newest.source if newest else "its libraries were read"
    # A program takes the library that fits out of those for several CUDA versions.
    built = [min(versions) for piece in pieces if (versions := _versions(piece))]
    cuda = max([*(runtime.version for runtime in runtimes), *built], default=None)
    if newest is not None and cuda is not None and cuda > newest.version:
        source += f", and its code is of CUDA {cuda}"
    return Needs(
        evidence="inspected",
        source=source,
        cuda=cuda,
        pieces=pieces or None,
        gpu=bool(pieces or newest or any(item.has_gpu_code for item in report.own)),
        requires=report.requires,
    )


def _versions(piece: Iterable[LibraryCode]) -> list[CudaVersion]:
    """Return the CUDA versions of the choices, if each choice needs one."""
    versions = [code.cuda for code in piece]
    return [] if None in versions else [v for v in versions if v is not None]


def needs_of_requirements(requires: Iterable[str]) -> Needs | None:
    """Take the needs from ``Requires-Dist``.

    :param requires: such as ``nvidia-cuda-runtime-cu12==12.8.90``.
    :returns: ``None`` when the dependencies do not name a CUDA version.
    """
    from ..gpu_code.bounds import required_runtimes

    listed = tuple(requires)
    runtimes = required_runtimes(listed)
    if not runtimes:
        return None
    newest = max(runtimes, key=attrgetter("version"))
    return Needs(
        evidence="metadata",
        source=newest.source,
        cuda=newest.version,
        requires=listed,
    )


def needs_of_backend(backend: Backend | None) -> Needs | None:
    """Take the needs from a label alone.

    :returns: ``None`` for a label that says nothing about NVIDIA GPUs.
    """
    if backend is None or backend.is_foreign:
        return None
    source = f"it is labelled {backend.label}"
    if backend.kind == "cpu":
        return Needs(evidence="label", source=source, gpu=False)
    return Needs(evidence="label", source=source, cuda=backend.cuda)


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
    # A library may link CUDA statically: its code is then what shows the toolkit.
    versions = [runtime.version for runtime in library_runtimes(report, library)]
    versions += filter(None, map(_first_toolkit, library.kernels))
    versions += filter(None, ptx.values())
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
    except ValueError:  # a target that no known toolkit emits
        return None


def _ptx_needs(versions: Iterable[str]) -> CudaVersion | None:
    from ..gpu_code.units import ptx_toolkit
    from ..knowledge.tables import parse_isa

    newest = max(map(parse_isa, versions), default=None)
    return None if newest is None else ptx_toolkit(newest)


def _merged(name: str, codes: list[LibraryCode]) -> LibraryCode:
    """Join files that are one piece, such as the loose cubins of a wheel."""
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

_CUDA = re.compile(r"cu([0-9]{1,2})([0-9])")
_ROCM = re.compile(r"rocm[0-9]{1,2}(?:\.[0-9]{1,3}){0,2}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """What a build was made for.

    :param label: the label as it was written, such as ``cu128``.
    :param cuda: the CUDA toolkit of a ``cuda`` build, otherwise ``None``.
    """

    label: str
    kind: BackendKind
    cuda: CudaVersion | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether the build is for hardware that is not NVIDIA's."""
        return self.kind in ("rocm", "xpu")


def parse_backend(label: str | None) -> Backend | None:
    """Read a local version label or the name of an index folder.

    :param label: such as ``cu128``, ``cpu``, ``xpu`` or ``rocm7.2``, without the ``+``.
    :returns: ``None`` for every other label, such as ``pt28cu126``, ``cpu.cxx11.abi``,
        ``cu`` or ``computecanada``.
    """
    if not label:
        return None
    text = label.lower()
    if text in ("cpu", "xpu"):
        return Backend(label=label, kind="cpu" if text == "cpu" else "xpu")
    if _ROCM.fullmatch(text):
        return Backend(label=label, kind="rocm")
    match = _CUDA.fullmatch(text)
    if match is None:
        return None
    # The last digit is the minor: cu92 is CUDA 9.2, cu118 is 11.8 and cu130 is 13.0.
    # CUDA has never had a minor above 9.
    return Backend(
        label=label, kind="cuda", cuda=CudaVersion(int(match[1]), int(match[2]))
    )
