"""The lowest driver that the code of a wheel runs with, and the reason.

A driver runs machine code from any toolkit of its own CUDA major: CUDA calls this
minor-version compatibility. It compiles PTX only from toolkits that are not newer than
itself. The CUDA runtime that is linked refuses drivers of an older major.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from nvidia_variant_provider.machine.environment import CudaVersion
from nvidia_variant_provider.machine.supported import NEWEST, OLDEST

from ..knowledge.tables import parse_isa
from .report import LibraryReport, WheelReport
from .runtimes import Runtime, library_runtimes, linked_runtimes
from .units import Unit, first_toolkit, parse_target, ptx_toolkit


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A lower bound of the driver's CUDA version.

    :param version: the bound, or ``None`` if there is none.
    :param reason: what the bound follows from, or why there is none; may be empty.
    """

    version: CudaVersion | None
    reason: str

    def to_dict(self) -> dict[str, str | None]:
        """Return the fields under their own names."""
        version = None if self.version is None else str(self.version)
        return {"version": version, "reason": self.reason}


def find_bounds(
    report: WheelReport, units: Sequence[Unit], *, real: Sequence[str], native: bool
) -> tuple[Bound, Bound]:
    """Return the strict bound, and the bound under minor-version compatibility.

    :param real: the machine code that would be declared, such as ``90_real``.
    :param native: whether machine code runs on all GPUs that would be declared.
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
    """Return the oldest driver of the same major on which machine code can run.

    :param lower: the strict bound.
    :param real: what the machine code is for, such as ``90_real``: a driver that is
        older than the first toolkit for a GPU does not support that GPU.
    """
    known = filter(None, map(first_toolkit, real))
    return max(CudaVersion(lower.major), min(known, default=lower))


def _relaxed(
    version: CudaVersion, units: Sequence[Unit], real: Sequence[str], *, native: bool
) -> Bound:
    floor = relaxed_version(version, real) if real else CudaVersion(version.major)
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
    return Bound(version=floor, reason=reason)


def newest_ptx(units: Sequence[Unit]) -> CudaVersion | None:
    """Return the toolkit of the newest PTX; of alternatives by CUDA the oldest."""
    versions = []
    for unit in units:
        newest = [max(isa.values()) for isa in unit.choices() if isa]
        if newest:
            versions.append(min(newest))
    return ptx_toolkit(max(versions)) if versions else None


def newest_runtime(report: WheelReport, units: Sequence[Unit]) -> Runtime | None:
    """Return the newest CUDA that it cannot run without, or ``None``."""
    choices = {item.path for unit in units if unit.by_cuda for item in unit.libraries}
    runtimes = linked_runtimes(report, choices)
    for unit in units:
        if unit.by_cuda:
            each = [library_runtimes(report, item) for item in unit.libraries]
            newest = [max(group, key=attrgetter("version")) for group in each if group]
            # A library without a CUDA dependency works with every CUDA version.
            if len(newest) == len(each):
                runtimes.append(min(newest, key=attrgetter("version")))
    return max(runtimes, key=attrgetter("version"), default=None)


def _unit_bound(report: WheelReport, unit: Unit) -> Bound:
    bounds = [_library_bound(report, item) for item in unit.libraries]
    if not unit.by_cuda:
        return _highest(bounds)
    known = [(bound.version, bound) for bound in bounds if bound.version is not None]
    return min(known, key=lambda pair: pair[0])[1] if known else _highest(bounds)


def _library_bound(report: WheelReport, library: LibraryReport) -> Bound:
    bounds = [_as_bound(runtime) for runtime in library_runtimes(report, library)]
    for target in library.kernels:
        try:
            _, letter, _ = parse_target(target)
        except ValueError:
            continue
        version = first_toolkit(target)
        name = target.partition("_")[0]
        if version is not None:
            reason = f"CUDA {version} is the first to emit code for {name}"
            if version < OLDEST:
                reason = f"CUDA {OLDEST} is the oldest that a property can name"
            bounds.append(Bound(version=max(version, OLDEST), reason=reason))
        elif not letter:
            reason = f"no known CUDA emits code for {name}"
            bounds.append(Bound(version=None, reason=reason))
    for target, versions in library.ptx_isa.items():
        for text in versions if target in library.kernels else ():
            needed = ptx_toolkit(parse_isa(text))
            reason = f"PTX ISA {text} is from CUDA {needed}"
            if needed is None:
                reason = f"PTX ISA {text} is newer than any known CUDA"
            bounds.append(Bound(version=needed, reason=reason))
    return _highest(bounds)


def _as_bound(runtime: Runtime) -> Bound:
    return Bound(version=runtime.version, reason=runtime.source)


def _highest(bounds: Sequence[Bound]) -> Bound:
    """Return the bound that all others allow; the first one among equal bounds."""
    for bound in bounds:
        if bound.version is None and bound.reason:  # no known driver meets this need
            return bound
    known = [(bound.version, bound) for bound in bounds if bound.version is not None]
    if not known:
        return Bound(version=None, reason="")
    highest = max(version for version, _ in known)
    return next(bound for version, bound in known if version == highest)
