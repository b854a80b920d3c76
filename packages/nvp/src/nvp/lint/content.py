"""What is in a wheel compared with what it declares: the facts that NV5xx judge.

The rules themselves are in `content_rules`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvidia_variant_provider.errors import join
from nvidia_variant_provider.machine.supported import NAMESPACE, SM_ARCH

from ..gpu_code.claims import TrueClaim, find_claim, gpus_of, property_value
from ..gpu_code.report import WheelReport
from ..gpu_code.units import Unit, parse_target, split_units
from ..wheels.names import WheelName
from .labels import Claim, claim_of, labels_of

__all__ = [
    "DeclaringWheel",
    "Lack",
    "Shortfall",
    "SilentWheel",
    "describe_wheel",
    "has_library_by_cuda",
    "letter_of",
]


class Lack(enum.Enum):
    """How the code of a wheel falls short of a declared value.

    The kinds are tried in the order in which they stand here, except for the first.
    """

    OTHER_NAME = "all GPUs that get the build run code for another target"
    EMPTY_CUBINS = "the only machine code for the target is without kernels"
    SPECIFIC_CODE = "there is code for one GPU or one family alone"
    NO_PTX = "there is no PTX"
    NO_CODE = "there is neither machine code nor PTX"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortfall:
    """A declared value that is not literally true.

    :param value: the value of ``sm_arch``.
    :param units: the libraries at fault.
    """

    value: str
    lack: Lack
    units: Sequence[Unit]


@dataclass(frozen=True, kw_only=True, slots=True)
class SilentWheel:
    """A wheel that declares no property of ``nvidia``."""

    report: WheelReport
    units: Sequence[Unit]
    label: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaringWheel:
    """A wheel that declares properties of ``nvidia``.

    :param units: the libraries that are loaded together, with the code in each.
    :param loaded: those of the units that have targets.
    :param values: the declared values of ``sm_arch`` that are well formed.
    :param names_targets: whether ``sm_arch`` is declared at all.
    :param declared: what the wheel claims.
    :param truth: what it could claim.
    :param shortfalls: the declared values that are not literally true.
    :param place: the place of the ``nvidia`` features in ``variant.json``.
    :param pure: whether the wheel is for any platform, so that its kernels come in
        another way.
    """

    report: WheelReport
    units: Sequence[Unit]
    loaded: Sequence[Unit]
    values: Sequence[str]
    names_targets: bool
    declared: Claim
    truth: TrueClaim
    shortfalls: Sequence[Shortfall]
    place: str
    pure: bool

    def at(self, feature: str) -> str:
        """Return the place of a feature in ``variant.json``."""
        return join(self.place, feature)

    def lacking(self, lack: Lack) -> Iterator[Shortfall]:
        """Return the shortfalls of one kind."""
        return (item for item in self.shortfalls if item.lack is lack)


def describe_wheel(
    report: WheelReport, name: WheelName, document: Mapping[str, Any] | None, path: str
) -> DeclaringWheel | SilentWheel:
    """Return the facts about one wheel whose GPU code could be read.

    :param document: its ``variant.json``; ``None`` for a non-variant wheel.
    """
    units = split_units(report)
    features = _declared_features(document, name.label)
    if features is None:
        return SilentWheel(report=report, units=units, label=name.label)
    loaded = [unit for unit in units if unit.targets]
    declared = claim_of(features)
    values = [f"{number}_real" for number in declared.real]
    values += [f"{number}_virtual" for number in declared.virtual]
    return DeclaringWheel(
        report=report,
        units=units,
        loaded=loaded,
        values=values,
        names_targets=isinstance(features.get(SM_ARCH), list),
        declared=declared,
        truth=find_claim(report),
        shortfalls=tuple(_find_shortfalls(values, units, loaded)),
        place=join(join("variants", name.label or ""), NAMESPACE),
        pure=_is_for_any_platform(path),
    )


def has_library_by_cuda(report: WheelReport) -> bool:
    """Return whether a wheel has a copy of a library for each CUDA version."""
    if report.all_defects:
        return False
    return any(unit.by_cuda for unit in split_units(report) if unit.targets)


def letter_of(unit: Unit, value: str) -> str:
    """Return ``a`` or ``f`` where a unit has only such code for a declared value.

    The result is empty where the unit has plain code for the number, or none.
    """
    number, _, kind = parse_target(value)
    letters = {
        letter
        for target in unit.targets
        for own_number, letter, own_kind in [parse_target(target)]
        if (own_number, own_kind) == (number, kind)
    }
    return min(letters, default="")


def _declared_features(
    document: Mapping[str, Any] | None, label: str | None
) -> Mapping[str, Any] | None:
    if document is None or label is None:
        return None
    properties = labels_of(document).get(label)
    features = properties.get(NAMESPACE) if isinstance(properties, dict) else None
    return features if isinstance(features, dict) else None


def _is_for_any_platform(path: str) -> bool:
    # The platform is the last part of the name, or the one before the label.
    parts = path.removesuffix(".whl").split("-")
    return "any" in parts[-2:]


def _find_shortfalls(
    values: Sequence[str], units: Sequence[Unit], loaded: Sequence[Unit]
) -> Iterator[Shortfall]:
    for value in values:
        if not loaded:
            stubs = [unit for unit in units if _has_stub(unit, value)]
            if stubs:
                yield Shortfall(value=value, lack=Lack.EMPTY_CUBINS, units=stubs)
            continue
        lacking = [unit for unit in loaded if not _has(unit, value)]
        if lacking:
            yield _classify(value, lacking)


def _classify(value: str, lacking: Sequence[Unit]) -> Shortfall:
    failing = [unit for unit in lacking if not _reaches(unit, value)]
    if not failing:
        return Shortfall(value=value, lack=Lack.OTHER_NAME, units=lacking)
    if any(_has_stub(unit, value) for unit in failing):
        return Shortfall(value=value, lack=Lack.EMPTY_CUBINS, units=failing)
    if specific := [unit for unit in failing if letter_of(unit, value)]:
        return Shortfall(value=value, lack=Lack.SPECIFIC_CODE, units=specific)
    lack = Lack.NO_PTX if value.endswith("_virtual") else Lack.NO_CODE
    return Shortfall(value=value, lack=lack, units=failing)


def _has(unit: Unit, value: str) -> bool:
    return value in map(property_value, unit.targets)


def _has_stub(unit: Unit, value: str) -> bool:
    return value in map(property_value, unit.stubs)


def _reaches(unit: Unit, value: str) -> bool:
    """Return whether a unit runs on all GPUs that get the build through a value."""
    gpus = gpus_of(value)
    return bool(gpus) and all(unit.how(gpu) is not None for gpu in gpus)
