"""NV5xx: whether the GPU code in a wheel matches its declared properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nvidia_variant_provider.errors import listed, shown
from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvidia_variant_provider.machine.supported import (
    LOWER_BOUND,
    NAMESPACE,
    OLDEST,
    SM_ARCH,
)

from ..gpu_code.bounds import newest_runtime
from ..gpu_code.claims import gpus_of
from ..gpu_code.files import MAX_DEFECTS
from ..gpu_code.report import WheelReport, target_key
from ..gpu_code.units import (
    Unit,
    links_kernels_of_nvidia,
    parse_target,
    ptx_toolkit,
    split_units,
)
from ..knowledge.tables import PTX, gpu_models
from ..wheels.archive import WheelName
from .content import (
    LIBRARY_CHECKS,
    DeclaringWheel,
    Lack,
    Shortfall,
    describe_wheel,
    letter_of,
    part_libraries,
)
from .findings import Checks, Collector, Problem

READING_CHECKS: Checks[WheelReport] = Checks()
SILENT_CHECKS: Checks[tuple[WheelReport, WheelName]] = Checks()
DECLARING_CHECKS: Checks[DeclaringWheel] = Checks()

_MAX_NAMED = 3
"""The maximum number of libraries in a message."""

_MAX_TARGETS = 30
"""The maximum number of targets in a message."""


def check_content(
    report: WheelReport,
    name: WheelName,
    document: Mapping[str, Any] | None,
    *,
    outside: Collector,
    inside: Collector,
) -> None:
    """Compare the contents of a wheel with its declared properties.

    :param document: the ``variant.json``; ``None`` for a non-variant wheel.
    :param outside: collects findings about the wheel.
    :param inside: collects findings that point into ``variant.json``.
    """
    READING_CHECKS.run(report, outside)
    LIBRARY_CHECKS.run((report, name), outside)
    # Stop here: code that seems to be missing may be in a part that is unreadable.
    if report.all_defects:
        return
    # Other rules, such as NV404 and NV412, report a labeled wheel without a usable
    # variant.json, and an unlabeled wheel with one.
    if (name.label is None) is not (document is None):
        return
    # NV513 reports foreign libraries, so the other rules check only native libraries.
    foreign, others = part_libraries(report, name)
    if foreign and not others:
        return
    report = replace(report, libraries=tuple(others))
    wheel = describe_wheel(report, name, document)
    if wheel is None:
        SILENT_CHECKS.run((report, name), outside)
    else:
        DECLARING_CHECKS.run(wheel, inside)


def find_floor(
    report: WheelReport, name: WheelName, features: Mapping[str, Any]
) -> CudaVersion | None:
    """Return the CUDA version of the oldest driver for the machine code of a wheel.

    NV310 uses the result. It is ``None`` if that driver is unknown, or if NV505 or
    NV506 already reports that the lower bound is too low.

    :param features: the declared ``nvidia`` features of the wheel.
    """
    document = {"variants": {name.label: {NAMESPACE: features}}}
    wheel = None if report.all_defects else describe_wheel(report, name, document)
    if wheel is None or [*check_nv505(wheel), *check_nv506(wheel)]:
        return None
    # A wheel without kernels takes its GPU code from another distribution: return
    # `OLDEST`, so only the CUDA version of the label limits the drivers.
    return wheel.truth.relaxed.version if wheel.loaded else OLDEST


@DECLARING_CHECKS.rule("NV501")
def check_nv501(wheel: DeclaringWheel) -> Iterator[Problem]:
    """Report declared machine code that is missing, if no other code replaces it."""
    for values, units in _grouped(wheel, Lack.NO_CODE):
        where = _in_libraries(units, wheel.loaded)
        yield Problem(
            wheel.at(SM_ARCH),
            f"{values} {_are(values)} declared, but no code{where} runs on such a GPU",
            f"build for {_numbers(values)}, or drop {values}; nvp inspect lists "
            "the code",
        )


@DECLARING_CHECKS.rule("NV502")
def check_nv502(wheel: DeclaringWheel) -> Iterator[Problem]:
    """Report undeclared code for GPUs that match no declared value."""
    missing = {value: lost for value, lost in _undeclared(wheel) if lost}
    if missing:
        values = ", ".join(missing)
        lost = sorted({gpu for gpus in missing.values() for gpu in gpus})
        yield Problem(
            wheel.at(SM_ARCH),
            f"the wheel has code for {values}, which {_are(values)} not declared, so "
            f"that GPUs of {', '.join(map(str, lost))} do not get it",
            f"add {values}; where a label is narrow on purpose, --ignore NV502:LABEL",
        )


@DECLARING_CHECKS.rule("NV503")
def check_nv503(wheel: DeclaringWheel) -> Iterator[Problem]:
    """Report declared values that differ from the targets but select the same GPUs."""
    for item in wheel.lacking(Lack.OTHER_NAME):
        number = parse_target(item.value)[0]
        if all(letter_of(unit, item.value) for unit in item.units):
            letter = letter_of(item.units[0], item.value)
            known = ", ".join(map(str, gpus_of(item.value)))
            message = (
                f"for {item.value} there is only {number}{letter} code, which runs on "
                f"{known}"
            )
            hint = (
                f"no other GPU needs {item.value} so far; build for {number} to be safe"
            )
        else:
            where = _in_libraries(item.units, wheel.loaded)
            message = f"there is no code for {item.value}{where}; other code runs there"
            hint = "declare the targets that the wheel has"
        yield Problem(wheel.at(SM_ARCH), message, hint)
    also = [value for value, lost in _undeclared(wheel) if not lost and gpus_of(value)]
    if also:
        values = ", ".join(also)
        yield Problem(
            wheel.at(SM_ARCH),
            f"the wheel has code for {values}, which {_are(values)} not declared",
            "other values give it to the same GPUs; declare it to be exact",
        )


@DECLARING_CHECKS.rule("NV504")
def check_nv504(wheel: DeclaringWheel) -> Iterator[Problem]:
    """Report declared PTX that is missing."""
    for values, units in _grouped(wheel, Lack.NO_PTX):
        numbers = _numbers(values)
        yield Problem(
            wheel.at(SM_ARCH),
            f"there is no PTX for {numbers}{_in_libraries(units, wheel.loaded)}",
            f"build PTX for {numbers}, or drop {values}",
        )


@DECLARING_CHECKS.rule("NV505")
def check_nv505(wheel: DeclaringWheel) -> Iterator[Problem]:
    """Report PTX that is too new for the oldest driver that the lower bound admits.

    A driver compiles only PTX from toolkits that are not newer than the driver.
    """
    refused = list(_refused_ptx(wheel))
    if not refused:
        return
    needed = max(version for version, _, _ in refused)
    unit, value = next((u, v) for version, u, v in refused if version == needed)
    hint = f"declare {needed}"
    relaxed = wheel.truth.relaxed.version
    # Dropping the PTX does not help if some GPUs need it. In that case, the relaxed
    # bound is at least the version that the PTX needs.
    if relaxed is not None and needed > relaxed:
        hint += f", or drop {value} and rely on machine code"
    yield Problem(
        wheel.at(LOWER_BOUND),
        f"the PTX of {shown(unit.name, 100)} needs a driver for CUDA {needed}, and "
        f"{_lower_bound(wheel)}, so older drivers refuse it",
        hint,
    )


@DECLARING_CHECKS.rule("NV506")
def check_nv506(wheel: DeclaringWheel) -> Iterator[Problem]:
    """Report a lower bound below the CUDA major version of the build."""
    if LOWER_BOUND in wheel.unclear:
        return
    runtime = newest_runtime(wheel.report, wheel.units)
    built, source = (runtime.version, runtime.source) if runtime else (OLDEST, "")
    strict = wheel.truth.strict
    # Code may need a newer CUDA than the linked libraries. If that code is PTX that
    # allowed drivers reject, NV505 reports it.
    if strict.version and strict.version.major > built.major:
        if any(True for _ in _refused_ptx(wheel)):
            return
        built, source = strict.version, strict.reason
    lower = wheel.declared.lower
    if not source or (lower and lower.major >= built.major):
        return
    yield Problem(
        wheel.at(LOWER_BOUND),
        f"{source}, and {_lower_bound(wheel)}: CUDA {built.major} needs a newer driver",
        f"declare {built.major}.0 or higher",
    )


@DECLARING_CHECKS.rule("NV507")
def check_nv507(wheel: DeclaringWheel) -> Iterator[Problem]:
    """Report declared generic targets whose only code is for one GPU or one family."""
    for item in wheel.lacking(Lack.SPECIFIC_CODE):
        number, _, kind = parse_target(item.value)
        letter = letter_of(item.units[0], item.value)
        others = [
            str(gpu)
            for gpu in gpus_of(item.value)
            if any(unit.how(gpu) is None for unit in item.units)
        ]
        hint = f"build for {number} as well, plain or for its family ({number}f)"
        if kind == "virtual":
            hint = f"build plain PTX for {number}, or drop {item.value}"
        yield Problem(
            wheel.at(SM_ARCH),
            f"for {item.value} there is only {number}{letter} code, which does not run "
            f"on {', '.join(others)}",
            hint,
        )


@DECLARING_CHECKS.rule("NV508")
def check_nv508(wheel: DeclaringWheel) -> Iterator[Problem]:
    """Report declared targets whose cubins contain no kernel."""
    for values, _ in _grouped(wheel, Lack.EMPTY_CUBINS):
        yield Problem(
            wheel.at(SM_ARCH),
            f"for {values} there are only empty cubins, which linking adds: no kernel "
            "is built for such GPUs",
            f"build the kernels for them, or drop {values}",
        )


@DECLARING_CHECKS.rule("NV509")
def check_nv509(wheel: DeclaringWheel) -> Iterator[Problem]:
    """Report libraries without code for undeclared targets that other libraries have.

    NV501 reports libraries without code for declared targets.
    """
    if not wheel.loaded:
        return
    declared = {*wheel.values}
    for name, targets in wheel.truth.lacking.items():
        undeclared = [target for target in targets if target not in declared]
        if undeclared:
            yield Problem(
                wheel.at(SM_ARCH),
                f"{shown(name, 100)} has nothing that runs on {', '.join(undeclared)}, "
                "which other libraries of the wheel have code for",
                "build all of them for the same targets",
            )


@DECLARING_CHECKS.rule("NV510")
def check_nv510(wheel: DeclaringWheel) -> Iterator[Problem]:
    """Report declared targets in a wheel without any GPU code."""
    if wheel.loaded or wheel.shortfalls or not wheel.values:
        return
    own = wheel.report.own
    # GPU code may also come from LTO-IR, from entries of an unknown kind, or from a
    # CUDA library that the wheel links, such as cuBLAS.
    if any(x.lto or x.unknown or links_kernels_of_nvidia(x.needed) for x in own):
        return
    if wheel.pure and not any(library.format in ("elf", "pe") for library in own):
        return
    message = "the wheel declares GPU code, and its libraries have none"
    if any(library.has_gpu_code for library in wheel.report.vendored):
        message += " (libraries that were copied into it have targets of their own)"
    yield Problem(wheel.at(SM_ARCH), message, "build the kernels, or drop sm_arch")


@SILENT_CHECKS.rule("NV511")
def check_nv511(wheel: tuple[WheelReport, WheelName]) -> Iterator[Problem]:
    """Report GPU code in a wheel that declares no property of ``nvidia``."""
    report, name = wheel
    if not any(library.has_gpu_code for library in report.own):
        return
    targets = {t for unit in split_units(report) for t in unit.targets | unit.stubs}
    kinds = listed(sorted(targets, key=target_key), _MAX_TARGETS) or "LTO-IR"
    message = f"the wheel has GPU code ({kinds}) and no label"
    hint = "this is fine for the build that every machine may get; else add a label"
    if name.label is not None:
        message = f"the wheel has GPU code ({kinds}), and its variant.json names no GPU"
        hint = "declare it, or leave the GPU code out"
    yield Problem("", message, hint)


@READING_CHECKS.rule("NV512")
def check_nv512(report: WheelReport) -> Iterator[Problem]:
    """Report GPU code that could not be read."""
    hint = "build the wheel again: its GPU code cannot be compared with its claims"
    # One more defect may state that the limit was reached.
    limit = MAX_DEFECTS + 1
    for defect in report.all_defects[:limit]:
        at = f" (at {defect.place})" if defect.place else ""
        place = shown(defect.path, 200)[1:-1]
        yield Problem(place, f"{defect.message}{at}", hint)
    if rest := len(report.all_defects[limit:]):
        yield Problem("", f"there are {rest} more defects", hint)


def _grouped(wheel: DeclaringWheel, lack: Lack) -> Iterator[tuple[str, Sequence[Unit]]]:
    """Yield the values that the same units lack, joined by commas, and these units."""
    groups: dict[tuple[str, ...], list[Shortfall]] = {}
    for item in wheel.lacking(lack):
        groups.setdefault(tuple(unit.name for unit in item.units), []).append(item)
    for items in groups.values():
        yield ", ".join(item.value for item in items), items[0].units


def _are(values: str) -> str:
    return "are" if "," in values else "is"


def _numbers(values: str) -> str:
    numbers = (value.partition("_")[0] for value in values.split(", "))
    return ", ".join(dict.fromkeys(numbers))


def _undeclared(
    wheel: DeclaringWheel,
) -> Iterator[tuple[str, Sequence[ComputeCapability]]]:
    """Yield undeclared values, each with its GPUs that match no declared value."""
    # NV306 reports a wheel without sm_arch, and NV302 an unknown value.
    if not wheel.loaded or not wheel.names_targets or SM_ARCH in wheel.unclear:
        return
    reached = {gpu for value in wheel.values for gpu in gpus_of(value)}
    for value in (*wheel.truth.sm_arch, *wheel.truth.exact):
        if value not in wheel.values and not _is_too_new(wheel, value):
            yield value, [gpu for gpu in gpus_of(value) if gpu not in reached]


def _is_too_new(wheel: DeclaringWheel, value: str) -> bool:
    """Return whether a value is PTX that is too new for the oldest allowed driver."""
    lower = wheel.declared.lower
    if not value.endswith("_virtual") or lower is None:
        return False
    toolkits = (ptx_toolkit(isa) for unit in wheel.loaded for isa in unit.isa.values())
    return any(version is None or version > lower for version in toolkits)


def _refused_ptx(wheel: DeclaringWheel) -> Iterator[tuple[CudaVersion, Unit, str]]:
    """Yield ``(needed CUDA, library, value)`` for PTX that allowed drivers reject."""
    values = wheel.values
    if LOWER_BOUND in wheel.unclear:
        return
    if not wheel.names_targets:
        values = [v for v in wheel.truth.sm_arch if v.endswith("_virtual")]
    lower = wheel.declared.lower or OLDEST
    seen = set()
    for unit in wheel.loaded:
        # Many libraries of a wheel have the same code: the first stands for them.
        code = unit.targets, *(frozenset(x.items()) for x in unit.choices())
        if code in seen:
            continue
        seen.add(code)
        for value in values:
            for gpu in gpus_of(value):
                relies = value.endswith("_virtual") or unit.how(gpu) == PTX
                needed = _jit_toolkit(unit, gpu) if relies else None
                # A machine with this GPU has at least the first driver that supports
                # the GPU.
                if needed and needed > max(lower, _first_driver(gpu)):
                    yield needed, unit, value


def _jit_toolkit(unit: Unit, gpu: ComputeCapability) -> CudaVersion | None:
    try:
        return unit.jit_toolkit(gpu)
    except LookupError:
        return None


def _first_driver(gpu: ComputeCapability) -> CudaVersion:
    model = gpu_models().get(gpu)
    return OLDEST if model is None else model.first_toolkit


def _lower_bound(wheel: DeclaringWheel) -> str:
    lower = wheel.declared.lower
    return "there is no lower bound" if lower is None else f"the lower bound is {lower}"


def _in_libraries(failing: Sequence[Unit], loaded: Sequence[Unit]) -> str:
    """Return " in" and the failing libraries; empty if several libraries all fail."""
    if len(failing) == len(loaded) > 1:
        return ""
    names = [shown(unit.name, 100) for unit in failing]
    return f" in {listed(names, _MAX_NAMED)}"
