"""The properties that a wheel could truthfully declare, and the GPUs that it runs on.

An ``sm_arch`` value is a promise for every GPU that supports the value: 8.0, 8.6 and
8.9 all support ``80_real``. The promise is true if each library of the wheel runs on
all of these GPUs. Libraries that were copied into the wheel are ignored, because they
have their own targets. The libraries of tests are ignored too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvidia_variant_provider.machine.supported import (
    SM_ARCH,
    all_features,
    supported_sm_arch,
)

from ..findings import Reported
from ..knowledge.tables import (
    NATIVE,
    PTX,
    UNKNOWN,
    can_exist,
    driver_versions,
    gpu_models,
)
from ..wheels.archive import parse_wheel_name
from .bounds import Bound, find_bounds, newest_ptx, oldest_driver
from .report import WheelReport, target_key
from .units import Unit, parse_target, split_units

NO = "no"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrueClaim(Reported):
    """The properties that a wheel could truthfully declare.

    :param sm_arch: values of the catalog, machine code first, in ascending order.
    :param exact: values with code for only one GPU (``90a``). They are true as long as
        no other known GPU supports the value: only 9.0 supports ``90_real``.
    :param compiled: further ``_virtual`` values, which are true because of PTX for
        lower targets: only 8.x supports ``80_virtual``, but drivers compile such PTX
        for 9.0 too.
    :param unnamed: targets that no value can name, such as ``90a_virtual``.
    :param lacking: for each library, the targets that only other libraries cover.
    :param strict: the lowest ``cuda_version_lower_bound`` under the provider's strict
        rule: all code runs with every driver for this version or a newer one.
    :param relaxed: the lowest bound under CUDA's minor-version compatibility.
    :param relaxed_sm_arch: the values that are true with the relaxed bound, including
        exact ones, but not PTX that the oldest driver rejects.
    :param complete: whether all relevant files could be read; otherwise the claim is
        only a hint.
    """

    sm_arch: tuple[str, ...]
    exact: tuple[str, ...]
    compiled: tuple[str, ...]
    unnamed: tuple[str, ...]
    lacking: Mapping[str, tuple[str, ...]]
    strict: Bound
    relaxed: Bound
    relaxed_sm_arch: tuple[str, ...] = ()
    complete: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSupport:
    """Whether a wheel runs on the GPUs of one compute capability.

    :param how: `NATIVE`, `PTX` if the driver compiles some of the code, `NO` if at
        least one library does not run, or `UNKNOWN`.
    :param driver: the lowest CUDA version of a driver with which the wheel runs;
        ``None`` if unknown, or if its PTX is newer than any known toolkit.
    :param lacking: the libraries that do not run on these GPUs, if other libraries do.
    """

    capability: ComputeCapability
    how: str
    driver: CudaVersion | None
    lacking: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the fields, with the compute capability as ``sm``."""
        return {
            "sm": str(self.capability),
            "how": self.how,
            "driver": None if self.driver is None else str(self.driver),
            "lacking": list(self.lacking),
        }


def find_claim(report: WheelReport) -> TrueClaim:
    """Derive from a wheel's report the properties that the wheel could declare."""
    units = split_units(report)
    sm_arch = _true_values(units)
    exact = _exact_values(units, sm_arch)
    real = [value for value in (*sm_arch, *exact) if value.endswith("_real")]
    native = bool(real) and all(
        unit.how(gpu) == NATIVE
        for unit in _loaded(units)
        for value in real
        for gpu in gpus_of(value)
    )
    strict, relaxed = find_bounds(report, units, real=real, native=native)
    targets = {target for unit in units for target in unit.targets}
    return TrueClaim(
        sm_arch=sm_arch,
        exact=exact,
        compiled=_compiled_values(units, (*sm_arch, *exact)),
        unnamed=_sorted(target for target in targets if not property_value(target)),
        lacking=_lacking(units),
        strict=strict,
        relaxed=relaxed,
        relaxed_sm_arch=_relaxed_values(units, relaxed, (*sm_arch, *exact)),
        complete=report.complete,
    )


def find_gpus(report: WheelReport) -> tuple[GpuSupport, ...]:
    """Return the support for each known GPU, ascending; empty without GPU code.

    Systems on a chip (Tegra) are left out if the wheel cannot be installed on one. GPUs
    that are too old for properties are included only if the wheel runs on them with an
    existing driver.
    """
    units = split_units(report)
    if not any(unit.targets for unit in units):
        return ()
    strict, _ = find_bounds(report, units, real=(), native=True)
    with_tegra = _can_be_on_tegra(report)
    judged = [
        _support(capability, units, strict)
        for capability, model in gpu_models().items()
        if with_tegra or not model.tegra
    ]
    return tuple(
        gpu
        for gpu in judged
        if supported_sm_arch(gpu.capability)
        or (gpu.driver is not None and can_exist(gpu.driver, gpu.capability))
    )


def _can_be_on_tegra(report: WheelReport) -> bool:
    """Return whether the wheel can be installed on a Jetson (aarch64 Linux)."""
    hosts = {
        (item.format, item.machine)
        for item in report.own
        if item.format in ("elf", "pe") and item.machine
    }
    if hosts and ("elf", "aarch64") not in hosts:
        return False
    if report.kind == "wheel":
        with contextlib.suppress(InputError):
            tags = parse_wheel_name(report.file_name).tags
            platforms = {tag.platform for tag in tags}
            return any(p == "any" or p.endswith("aarch64") for p in platforms)
    return True


def _support(
    capability: ComputeCapability, units: Sequence[Unit], strict: Bound
) -> GpuSupport:
    toolkit = strict.version
    judged = [(unit, unit.how(capability, toolkit)) for unit in _loaded(units)]
    lacking = tuple(unit.name for unit, how in judged if how is None)
    if lacking:
        some = lacking if len(lacking) < len(judged) else ()
        return GpuSupport(capability=capability, how=NO, driver=None, lacking=some)
    if any(how == UNKNOWN for _, how in judged):
        return GpuSupport(capability=capability, how=UNKNOWN, driver=None)
    # The driver must support both the GPU and the CUDA major version of the code.
    drivers: list[CudaVersion | None] = [
        max(gpu_models()[capability].first_toolkit, CudaVersion(11))
    ]
    if strict.version is not None:
        drivers.append(oldest_driver(strict.version, units))
    compiled = [unit for unit, how in judged if how == PTX]
    drivers += [unit.jit_toolkit(capability) for unit in compiled]
    known = [version for version in drivers if version is not None]
    driver = max(known) if len(known) == len(drivers) else None
    if driver is not None:
        # Search later drivers too: Orin needs one for the code of desktop GPUs.
        later = (driver, *(d for d in driver_versions() if d > driver))
        loaded = [unit for unit, _ in judged]
        driver = next(
            each
            for each in later
            if all(unit.how(capability, toolkit, each) for unit in loaded)
        )
    how = PTX if compiled else NATIVE
    return GpuSupport(capability=capability, how=how, driver=driver)


def _loaded(units: Iterable[Unit]) -> list[Unit]:
    """Return the units with kernels: units with only stubs run everywhere."""
    return [unit for unit in units if unit.targets]


@cache
def _catalog() -> frozenset[str]:
    return frozenset(
        value
        for feature in all_features()
        if feature.name == SM_ARCH
        for value in feature.values
    )


def property_value(target: str) -> str | None:
    """Return the ``sm_arch`` value that names a target, or ``None``.

    Machine code for a family runs on the same GPUs as generic code, so ``100_real``
    names ``100f_real``. No value names targets with another letter.
    """
    number, letter, kind = parse_target(target)
    value = f"{number}_{kind}"
    named = not letter or (letter == "f" and kind == "real")
    return value if named and value in _catalog() else None


@cache
def gpus_of(value: str) -> tuple[ComputeCapability, ...]:
    """Return the GPUs that an ``sm_arch`` value covers, in ascending order.

    The provider offers ``86_real`` for 8.6 and higher in 8.x, ``80_virtual`` for all of
    8.x, and ``86_virtual`` for none. A system on a chip (Tegra) is included only for a
    value with its own number. Orin (8.7) runs no machine code for other GPUs; the
    provider still offers it ``80_real``, which no build can prevent.
    """
    number, _, kind = parse_target(value)
    lowest = ComputeCapability(number // 10, number % 10)
    if kind == "virtual" and lowest.minor:
        return ()
    models = gpu_models()
    tegra = lowest in models and models[lowest].tegra
    gpus = {
        capability
        for capability, model in models.items()
        if capability.major == lowest.major
        and capability >= lowest
        and not (model.tegra or tegra)
    }
    # Include the GPU that the value names, even if no such GPU is known.
    return tuple(sorted({*gpus, lowest}))


def _runs(unit: Unit, value: str) -> bool:
    """Return whether a unit has code for ``value`` or runs on all GPUs of the value."""
    return value in values_of(unit.targets) or reaches(unit, value)


@lru_cache(maxsize=2**16)  # many libraries of a wheel have the same targets
def values_of(targets: frozenset[str]) -> frozenset[str | None]:
    """Return the ``sm_arch`` values that name targets."""
    return frozenset(map(property_value, targets))


def reaches(unit: Unit, value: str) -> bool:
    """Return whether the code of a unit runs on all GPUs of an ``sm_arch`` value."""
    gpus = gpus_of(value)
    return bool(gpus) and all(unit.how(gpu) is not None for gpu in gpus)


def _true_values(units: Sequence[Unit]) -> tuple[str, ...]:
    """Return the values that are true for all units, without redundant values.

    A value that all units have is included. A value that only some units have is
    included if the other units run on its GPUs, and if it adds a GPU to those of the
    earlier values. With a library for 8.0 and 8.6 and another for 8.0, the value is
    8.0: 8.6 adds no GPU. With one for 8.0 and another for 8.6, the value is 8.6.
    """
    # Ignore code for only one GPU, whose values `_exact_values` returns.
    loaded = [
        replace(x, targets=frozenset(t for t in x.targets if parse_target(t)[1] != "a"))
        for x in _loaded(units)
    ]
    named = [values_of(unit.targets) for unit in loaded]
    chosen: list[str] = []
    for value in _sorted(v for values in named for v in values if v is not None):
        if all(value in values for values in named):
            chosen.append(value)
            continue
        reached = {gpu for other in chosen for gpu in gpus_of(other)}
        more = not reached.issuperset(gpus_of(value))
        if more and all(_runs(unit, value) for unit in loaded):
            chosen.append(value)
    return tuple(chosen)


def _exact_values(units: Sequence[Unit], sm_arch: Sequence[str]) -> tuple[str, ...]:
    """Return values such as ``90_real`` that are true only because of code for 90a."""
    loaded = _loaded(units)
    values = set()
    for unit in loaded:
        for target in unit.targets:
            number, letter, kind = parse_target(target)
            value = f"{number}_real"
            if (letter, kind) == ("a", "real") and value in _catalog():
                values.add(value)
    return _sorted(
        value
        for value in values.difference(sm_arch)
        if all(_runs(unit, value) for unit in loaded)
    )


def _compiled_values(units: Sequence[Unit], values: Sequence[str]) -> tuple[str, ...]:
    """Return further ``_virtual`` values that are true because drivers compile PTX."""
    loaded = _loaded(units)
    reached = {gpu for value in values for gpu in gpus_of(value)}
    majors = {capability.major for capability in gpu_models()} if loaded else set()
    candidates = {f"{major}0_virtual" for major in majors} & _catalog()
    return _sorted(
        value
        for value in candidates.difference(values)
        if not reached.issuperset(gpus_of(value))
        and all(_runs(unit, value) for unit in loaded)
    )


def _relaxed_values(
    units: Sequence[Unit], relaxed: Bound, values: Sequence[str]
) -> tuple[str, ...]:
    """Return the values that are still true with the relaxed bound."""
    if relaxed.version is None:
        return ()
    newest = newest_ptx(units)
    if newest is not None and newest > relaxed.version:
        return tuple(value for value in values if value.endswith("_real"))
    return tuple(values)


def _lacking(units: Sequence[Unit]) -> dict[str, tuple[str, ...]]:
    """Return ``{name of a unit: values that only other units cover}``."""
    loaded = _loaded(units)
    values = {value for unit in loaded for value in values_of(unit.targets)}
    named = _sorted(value for value in values if value is not None and gpus_of(value))
    # Many libraries have the same targets.
    lacking: dict[frozenset[str], tuple[str, ...]] = {}
    for unit in loaded:
        if unit.targets not in lacking:
            missing = tuple(value for value in named if not _runs(unit, value))
            lacking[unit.targets] = missing
    return {unit.name: x for unit in loaded if (x := lacking[unit.targets])}


def _sorted(targets: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(targets), key=target_key))
