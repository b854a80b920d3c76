"""NV5xx: does the GPU code in a wheel bear out what the wheel declares?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import join, shown
from ..gpu_code.bounds import newest_runtime
from ..gpu_code.claims import TrueClaim, find_claim, gpus_of, property_value
from ..gpu_code.inspection import MAX_DEFECTS
from ..gpu_code.report import WheelReport, target_key
from ..gpu_code.units import Unit, parse_target, ptx_toolkit, split_units
from ..gpu_code.vendoring import is_vendored
from ..knowledge.tables import PTX, gpu_models
from ..machine.environment import ComputeCapability, CudaVersion
from ..machine.supported import LOWER_BOUND, NAMESPACE, OLDEST, SM_ARCH
from ..wheels.archive import WheelName
from .collector import Collector
from .labels import Claim, claim_of
from .rules import Code
from .structure import labels_of

__all__ = ["check_content"]

_MAX_NAMED = 3
"""Libraries that a message names."""


def check_content(
    report: WheelReport,
    name: WheelName,
    document: Mapping[str, Any] | None,
    found: Collector,
) -> None:
    """Compare what is in a wheel with what it declares.

    :param document: its ``variant.json``; ``None`` for a non-variant wheel.
    """
    hint = "build it again: what it holds cannot be compared with what is declared"
    for defect in report.all_defects[: MAX_DEFECTS + 1]:
        message = f"{defect.message} (at {defect.place})" if defect.place else ""
        place = shown(defect.path, 200)[1:-1]
        found.add("NV512", place, message or defect.message, hint)
    if untold := len(report.all_defects[MAX_DEFECTS + 1 :]):
        found.add("NV512", "", f"{untold} more defects", hint)
    if report.all_defects or (name.label is not None and document is None):
        return  # what is missing may be there; or other rules say why
    units = split_units(report)
    features = _declared(document, name.label)
    if features is None:
        if any(library.has_gpu_code for library in report.own):
            _add_silent(name, units, found)
        return
    place = join(join("variants", name.label or ""), NAMESPACE)
    _Check(report, units, features, place, found).run(pure=_is_pure(found.path))


def _declared(
    document: Mapping[str, Any] | None, label: str | None
) -> Mapping[str, Any] | None:
    """The features of ``nvidia`` that a wheel declares, if it does."""
    if document is None or label is None:
        return None
    properties = labels_of(document).get(label)
    features = properties.get(NAMESPACE) if isinstance(properties, dict) else None
    return features if isinstance(features, dict) else None


def _is_pure(path: str) -> bool:
    """Is a wheel for any platform, so that its kernels come by another way."""
    parts = path.removesuffix(".whl").split("-")
    return "any" in parts[-2:]


def _has_kernels(name: str) -> bool:
    """Is a linked library one of NVIDIA's that bring kernels."""
    return is_vendored(name) and "cudart" not in name.lower()


def _add_silent(name: WheelName, units: Sequence[Unit], found: Collector) -> None:
    targets = {target for unit in units for target in unit.targets | unit.stubs}
    kinds = ", ".join(sorted(targets, key=target_key)[:8]) or "LTO-IR"
    message = f"it has GPU code ({kinds}) and declares nothing of it"
    hint = "fine for the build that everybody may get; else give it a label"
    if name.label is not None:
        hint = "declare it, or leave the GPU code out"
    found.add("NV511", "", message, hint)


class _Check:
    """One wheel that declares properties of ``nvidia``."""

    def __init__(
        self,
        report: WheelReport,
        units: Sequence[Unit],
        features: Mapping[str, Any],
        place: str,
        found: Collector,
    ) -> None:
        self._report = report
        self._units = units
        self._loaded = [unit for unit in units if unit.targets]
        self._names_targets = isinstance(features.get(SM_ARCH), list)
        self._declared: Claim = claim_of(features)
        self._truth: TrueClaim = find_claim(report)
        self._place = place
        self._found = found

    def run(self, *, pure: bool) -> None:
        values = [f"{number}_real" for number in self._declared.real]
        values += [f"{number}_virtual" for number in self._declared.virtual]
        self._check_runtime()
        if not self._loaded:
            stubs = {property_value(t) for unit in self._units for t in unit.stubs}
            for value in values:
                if value in stubs:
                    self._add_stub(value)
            own = self._report.own
            libraries = any(item.format in ("elf", "pe") for item in own)
            # What is linked when it runs, what later toolkits made, and what calls
            # the kernels of cuBLAS and its like alone.
            other = any(
                item.lto or item.unknown or any(map(_has_kernels, item.needed))
                for item in own
            )
            empty = values and not stubs.intersection(values) and not other
            if empty and (libraries or not pure):
                self._add_empty()
            return
        for value in values:
            self._check_value(value)
        self._check_undeclared(values)
        self._drop_refuted()
        self._check_ptx(values)
        self._check_agreement(values)

    def _add(self, code: Code, feature: str, message: str, hint: str) -> None:
        self._found.add(code, join(self._place, feature), message, hint)

    def _add_empty(self) -> None:
        message = "it declares GPU code, and its libraries have none"
        if any(library.has_gpu_code for library in self._report.vendored):
            message += " (those that were copied into it have targets of their own)"
        hint = "build it with the kernels, or drop sm_arch"
        self._add("NV510", SM_ARCH, message, hint)

    def _add_stub(self, value: str) -> None:
        message = (
            f"{value} stands on empty cubins alone, which linking adds: no kernel is "
            "built for it"
        )
        hint = f"build the kernels for it, or drop {value}"
        self._add("NV508", SM_ARCH, message, hint)

    def _check_value(self, value: str) -> None:
        """Is one declared value true?"""
        number, _, kind = parse_target(value)
        lacking = [unit for unit in self._loaded if not self._has(unit, value)]
        if not lacking:
            return
        failing = [unit for unit in lacking if not _reaches(unit, value)]
        if not failing:
            self._add_other(value, lacking)
        elif any(value in map(property_value, unit.stubs) for unit in failing):
            self._add_stub(value)
        elif exact := [u for u in failing if _specific(u, number, kind)]:
            self._add_specific(value, exact)
        elif kind == "virtual":
            message = f"there is no PTX for {number}{_in(failing, self._loaded)}"
            hint = f"build it, or drop {value}"
            self._add("NV504", SM_ARCH, message, hint)
        else:
            where = _in(failing, self._loaded)
            message = f"{value} is declared, and no code{where} runs on such a GPU"
            hint = f"build for {number}, or drop {value}; see: inspect"
            self._add("NV501", SM_ARCH, message, hint)

    def _drop_refuted(self) -> None:
        """Of a library for each CUDA the bound tells no toolkit, as NV307 takes it."""
        if any(unit.by_cuda for unit in self._loaded):
            kept = [item for item in self._found.findings if item.code != "NV307"]
            self._found.findings = kept

    def _has(self, unit: Unit, value: str) -> bool:
        return value in map(property_value, unit.targets)

    def _add_other(self, value: str, lacking: Sequence[Unit]) -> None:
        """Declared, and run by code for another target."""
        number, _, kind = parse_target(value)
        if all(_specific(unit, number, kind) for unit in lacking):
            letter = _specific(lacking[0], number, kind)
            known = ", ".join(map(str, gpus_of(value)))
            message = f"{value} is {number}{letter} code alone, which runs on {known}"
            hint = f"that is all of them so far; build for {number} to be safe"
        else:
            where = _in(lacking, self._loaded)
            message = f"there is no code for {value}{where}: other code runs instead"
            hint = "declare the targets that it has"
        self._add("NV503", SM_ARCH, message, hint)

    def _add_specific(self, value: str, exact: Sequence[Unit]) -> None:
        number, _, kind = parse_target(value)
        letter = _specific(exact[0], number, kind)
        others = [
            str(gpu)
            for gpu in gpus_of(value)
            if any(unit.how(gpu) is None for unit in exact)
        ]
        message = (
            f"{value} is {number}{letter} code alone, which does not run on "
            f"{', '.join(others)}"
        )
        hint = f"build for {number} as well, plain or for its family ({number}f)"
        if kind == "virtual":
            hint = f"build plain PTX for {number}, or drop {value}"
        self._add("NV507", SM_ARCH, message, hint)

    def _check_undeclared(self, values: Sequence[str]) -> None:
        if not self._names_targets:
            return  # NV306 says so
        reached = {gpu for value in values for gpu in gpus_of(value)}
        for value in (*self._truth.sm_arch, *self._truth.exact):
            if value in values or self._is_too_new(value):
                continue
            lost = [gpu for gpu in gpus_of(value) if gpu not in reached]
            if lost:
                listed = ", ".join(map(str, lost))
                message = f"it has code for {value}, which is not declared: {listed}"
                hint = f"add {value}, or those GPUs get another build"
                self._add("NV502", SM_ARCH, message, hint)
            elif gpus_of(value):
                message = f"it has code for {value}, which is not declared"
                hint = "other values give it to the same GPUs; declare it to be exact"
                self._add("NV503", SM_ARCH, message, hint)

    def _is_too_new(self, value: str) -> bool:
        """Is PTX left out on purpose, for a bound that its drivers need not keep?"""
        if not value.endswith("_virtual") or self._declared.lower is None:
            return False
        needed = [
            ptx_toolkit(isa) for unit in self._loaded for isa in unit.isa.values()
        ]
        return any(v is None or v > self._declared.lower for v in needed)

    def _check_ptx(self, values: Sequence[str]) -> None:
        """NV505: the driver's compiler refuses PTX of a newer toolkit."""
        if not self._names_targets:
            values = [v for v in self._truth.sm_arch if v.endswith("_virtual")]
        lower = self._declared.lower
        newest: dict[CudaVersion, tuple[Unit, str]] = {}
        for unit in self._loaded:
            for value in values:
                for gpu in gpus_of(value):
                    relies = value.endswith("_virtual") or unit.how(gpu) == PTX
                    needed = _jit_toolkit(unit, gpu) if relies else None
                    # Older drivers than the GPU cannot be there.
                    if needed and needed > max(lower or OLDEST, _first_driver(gpu)):
                        newest.setdefault(needed, (unit, value))
        if not newest:
            return
        needed = max(newest)
        unit, value = newest[needed]
        bound = "there is no lower bound" if lower is None else f"the bound is {lower}"
        message = (
            f"PTX of {shown(unit.name, 100)} needs a driver for CUDA {needed}, and "
            f"{bound}: older drivers refuse it"
        )
        hint = f"declare {needed}"
        relaxed = self._truth.relaxed.version
        # Not where machine code alone would leave GPUs out: old PTX is in that bound.
        if relaxed is not None and needed > relaxed:
            hint += f", or drop {value} and rely on machine code"
        self._add("NV505", LOWER_BOUND, message, hint)

    def _check_runtime(self) -> None:
        """NV506: the runtime refuses drivers of an older major."""
        runtime = newest_runtime(self._report, self._units)
        lower = self._declared.lower
        if runtime is None or (lower and lower.major >= runtime.version.major):
            return
        major = runtime.version.major
        bound = "there is no lower bound" if lower is None else f"the bound is {lower}"
        message = f"{runtime.source}, and {bound}: CUDA {major} needs a newer driver"
        self._add("NV506", LOWER_BOUND, message, f"declare {major}.0 or higher")

    def _check_agreement(self, values: Sequence[str]) -> None:
        """NV509, but for what is declared: that is NV501's."""
        for name, targets in self._truth.lacking:
            silent = [target for target in targets if target not in values]
            if not silent:
                continue
            message = (
                f"{shown(name, 100)} has nothing that runs on {', '.join(silent)}, "
                "which other libraries of the wheel have"
            )
            hint = "build all of them for the same targets"
            self._add("NV509", SM_ARCH, message, hint)


def _reaches(unit: Unit, value: str) -> bool:
    """Does it run, in any way, on all GPUs that get the build by a value?"""
    gpus = gpus_of(value)
    return bool(gpus) and all(unit.how(gpu) is not None for gpu in gpus)


def _jit_toolkit(unit: Unit, gpu: ComputeCapability) -> CudaVersion | None:
    try:
        return unit.jit_toolkit(gpu)
    except LookupError:
        return None


def _first_driver(gpu: ComputeCapability) -> CudaVersion:
    model = gpu_models().get(gpu)
    return OLDEST if model is None else model.first_toolkit


def _specific(unit: Unit, number: int, kind: str) -> str:
    """``a`` or ``f`` where that is the only code of a number; else nothing."""
    letters = {
        letter
        for target in unit.targets
        for found, letter, what in [parse_target(target)]
        if (found, what) == (number, kind)
    }
    return min(letters, default="")


def _in(failing: Sequence[Unit], loaded: Sequence[Unit]) -> str:
    """Names the libraries at fault, where not all are."""
    if len(failing) == len(loaded) > 1:
        return ""
    names = [shown(unit.name, 100) for unit in failing[:_MAX_NAMED]]
    more = f" and {len(failing) - _MAX_NAMED} more" if len(failing) > _MAX_NAMED else ""
    return f" in {', '.join(names)}{more}"
