"""NV301 to NV311: the NVIDIA properties of individual labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from nvidia_variant_provider.errors import join, shown
from nvidia_variant_provider.machine.environment import CudaVersion
from nvidia_variant_provider.machine.supported import (
    LOWER_BOUND,
    NAMESPACE,
    SM_ARCH,
    UPPER_BOUND,
    all_features,
)

from ..gpu_code.bounds import relaxed_version
from ..knowledge.tables import toolkits
from .findings import Checks, Collector, Problem
from .spelling import catalog, corrected, meant_feature, meant_value

TARGET = re.compile(r"([1-9][0-9]{1,2})([af]?)_(real|virtual)")
"""Matches a value of ``sm_arch``; the groups are number, ``a`` or ``f``, and kind."""

# A major version of CUDA has two digits, the minor version one or two: ``cu128`` is
# CUDA 12.8 and ``cu1410`` is CUDA 14.10.
_CU_LABEL = re.compile(r"cu([1-9][0-9])(0|[1-9][0-9]?)(?![0-9])")


Floor = Callable[[Mapping[str, Any]], "CudaVersion | None"]
"""Given a wheel's declared features, returns the CUDA version of the oldest driver for
its machine code; ``None`` if unknown."""

Told = Mapping[str, object]
"""Maps labels to their ``nvidia`` features that were already checked, and the empty
label to the checked provider; see `tell`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The declared drivers and targets of a label, without unknown values.

    :param lower: the lower bound of the driver's CUDA version.
    :param upper: the upper bound of the driver's CUDA version.
    :param real: the numbers of the machine code targets, in ascending order.
    :param virtual: the numbers of the PTX targets, in ascending order.
    """

    lower: CudaVersion | None
    upper: CudaVersion | None
    real: tuple[int, ...]
    virtual: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NvidiaLabel:
    """One label that has properties of the namespace ``nvidia``.

    :param features: the parsed JSON of the namespace; the values may be malformed.
    :param claim: the drivers and targets that the well-formed features declare.
    :param place: the place of the features in the document.
    :param named: the CUDA version that the label's name contains, such as 12.8 in
        ``cu128``.
    :param by_cuda: whether the lower bound identifies no toolkit, as in `Scope`.
    :param floor: the function of `Scope`, for the label of a wheel.
    """

    features: Mapping[str, Any]
    claim: Claim
    place: str
    named: CudaVersion | None
    by_cuda: bool
    floor: Floor | None = None


def nvidia_labels(
    document: Mapping[str, Any],
    *,
    by_cuda: bool,
    floor: Floor | None = None,
    told: Told = MappingProxyType({}),
) -> Iterator[NvidiaLabel]:
    """Yield the labels whose ``nvidia`` features were not checked yet (see `Told`)."""
    for label, properties in labels_of(document).items():
        features = properties.get(NAMESPACE)
        if isinstance(features, dict) and told.get(label) != features:
            named = _CU_LABEL.search(label)
            yield NvidiaLabel(
                features=features,
                claim=claim_of(features),
                place=join(join("variants", label), NAMESPACE),
                named=CudaVersion(int(named[1]), int(named[2])) if named else None,
                by_cuda=by_cuda,
                floor=floor,
            )


def claim_of(features: Mapping[str, Any]) -> Claim:
    """Return the drivers and targets that the ``nvidia`` features of a label declare.

    Misspelled values are corrected, and malformed values are ignored.
    """
    features = corrected(features)
    targets = [TARGET.fullmatch(text) for text in texts_of(features, SM_ARCH)]
    numbers = [(int(m[1]), m[3]) for m in targets if m is not None and not m[2]]
    return Claim(
        lower=_bound(features, LOWER_BOUND),
        upper=_bound(features, UPPER_BOUND),
        real=tuple(sorted(n for n, kind in numbers if kind == "real")),
        virtual=tuple(sorted(n for n, kind in numbers if kind == "virtual")),
    )


def texts_of(features: Mapping[str, Any], feature: str) -> list[str]:
    """Return the values of a feature that are strings."""
    values = features.get(feature)
    return [v for v in values if isinstance(v, str)] if isinstance(values, list) else []


def _bound(features: Mapping[str, Any], feature: str) -> CudaVersion | None:
    texts = texts_of(features, feature)
    if len(texts) != 1 or texts[0] not in catalog()[feature]:
        return None
    major, _, minor = texts[0].partition(".")
    return CudaVersion(int(major), int(minor or 0))


def labels_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each label's properties; other rules report malformed properties."""
    variants = document.get("variants")
    if not isinstance(variants, dict):
        return {}
    return {label: item for label, item in variants.items() if isinstance(item, dict)}


LABEL_CHECKS: Checks[NvidiaLabel] = Checks()


def check_meaning(
    document: Mapping[str, Any],
    collector: Collector,
    *,
    by_cuda: bool = False,
    floor: Floor | None = None,
    told: Told = MappingProxyType({}),
) -> None:
    """Check each label that uses ``nvidia``.

    The arguments after ``collector`` are as in `Scope`.
    """
    for label in nvidia_labels(document, by_cuda=by_cuda, floor=floor, told=told):
        LABEL_CHECKS.run(label, collector)


def tell(told: dict[str, object], document: Mapping[str, Any]) -> None:
    """Record in ``told`` that a document's labels and provider were checked."""
    for label, properties in labels_of(document).items():
        told[label] = properties.get(NAMESPACE)
    told[""] = provider_of(document)


def provider_of(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a document's NVIDIA provider, unless it has static properties."""
    providers = document.get("providers")
    provider = providers.get(NAMESPACE) if isinstance(providers, dict) else None
    dynamic = isinstance(provider, dict) and not provider.get("static-properties")
    return provider if dynamic else None


@LABEL_CHECKS.rule("NV301")
def check_nv301(label: NvidiaLabel) -> Iterator[Problem]:
    """Report features that the provider does not have."""
    for feature in label.features:
        if feature not in catalog():
            yield Problem(
                join(label.place, feature),
                f"the provider has no feature {shown(feature)}, so the label fits no "
                "machine",
                _did_you_mean(meant_feature(feature))
                or f"use one of {', '.join(catalog())}",
            )


@LABEL_CHECKS.rule("NV302")
def check_nv302(label: NvidiaLabel) -> Iterator[Problem]:
    """Report values that the provider never supports."""
    for feature, value, place in _unknown_values(label):
        if not _is_specific(feature, value):
            yield Problem(
                place,
                f"the provider never supports {shown(value)}",
                _did_you_mean(meant_value(feature, value))
                or "list the values with: nvp properties --all",
            )


@LABEL_CHECKS.rule("NV303")
def check_nv303(label: NvidiaLabel) -> Iterator[Problem]:
    """Report several values of a feature that allows only one."""
    for feature in label.features:
        if feature in _single_valued() and len(texts_of(label.features, feature)) > 1:
            yield Problem(
                join(label.place, feature),
                "the feature has several values, and clients use the most favorable",
                "keep one value",
            )


@LABEL_CHECKS.rule("NV304")
def check_nv304(label: NvidiaLabel) -> Iterator[Problem]:
    """Report bounds that no driver can satisfy together."""
    lower, upper = label.claim.lower, label.claim.upper
    if lower is not None and upper is not None and lower >= upper:
        yield Problem(
            label.place,
            f"the label needs a driver for CUDA {lower} or newer that is also older "
            f"than {upper}",
            "no driver is both; correct one of the bounds",
        )


@LABEL_CHECKS.rule("NV305")
def check_nv305(label: NvidiaLabel) -> Iterator[Problem]:
    """Report an upper bound, which excludes drivers that can run the build."""
    lower, upper = label.claim.lower, label.claim.upper
    if upper is not None and (lower is None or lower < upper):
        yield Problem(
            join(label.place, UPPER_BOUND),
            f"the bound excludes drivers for CUDA {upper} and newer, which can run "
            "this build",
            "drop cuda_version_upper_bound unless a newer driver really breaks it",
        )


@LABEL_CHECKS.rule("NV306")
def check_nv306(label: NvidiaLabel) -> Iterator[Problem]:
    """Report a label that limits the drivers but not the GPUs."""
    features = corrected(label.features)
    bounded = LOWER_BOUND in features or UPPER_BOUND in features
    if SM_ARCH not in features and bounded:
        yield Problem(
            label.place,
            "the driver alone selects the label, even where the build has no code for "
            "the GPU",
            "declare the targets that it was built for",
        )


@LABEL_CHECKS.rule("NV307")
def check_nv307(label: NvidiaLabel) -> Iterator[Problem]:
    """Report targets that no toolkit of the lower bound's CUDA major version emits."""
    emitters = _emitters(label)
    if not emitters or label.by_cuda:
        return
    for number in _numbers(label):
        if not any(str(number) in toolkits()[v].targets for v in emitters):
            yield Problem(
                join(label.place, SM_ARCH),
                f"no toolkit of CUDA {label.claim.lower} to {emitters[-1]} emits code "
                f"for {number}",
                _advice(number),
            )


@LABEL_CHECKS.rule("NV308")
def check_nv308(label: NvidiaLabel) -> Iterator[Problem]:
    """Report targets that the toolkit in the label's name does not emit."""
    toolkit = toolkits().get(label.named) if label.named is not None else None
    lower = label.claim.lower
    if toolkit is None or lower is None or toolkit.version < lower or label.by_cuda:
        return
    for number in _numbers(label):
        emitted = any(str(number) in toolkits()[v].targets for v in _emitters(label))
        # NV307 reports a target that no toolkit of the CUDA major version emits.
        if emitted and str(number) not in toolkit.targets:
            yield Problem(
                join(label.place, SM_ARCH),
                f"the label names CUDA {label.named}, which emits no code for {number}",
                _advice(number),
            )


@LABEL_CHECKS.rule("NV309")
def check_nv309(label: NvidiaLabel) -> Iterator[Problem]:
    """Report a label whose name and lower bound give different CUDA versions."""
    named, lower = label.named, label.claim.lower
    if named is None or lower is None:
        return
    # Minor-version compatibility allows an older bound of the same major version.
    real = [f"{number}_real" for number in label.claim.real]
    loosened = CudaVersion(named.major), relaxed_version(named, real)
    if named != lower and lower not in loosened:
        yield Problem(
            join(label.place, LOWER_BOUND),
            f"the label names CUDA {named}, but the lower bound is {lower}",
            "correct one of the two",
        )


@LABEL_CHECKS.rule("NV310")
def check_nv310(label: NvidiaLabel) -> Iterator[Problem]:
    """Report a lower bound that excludes drivers which can run the machine code."""
    claim = label.claim
    if claim.lower is None or not claim.real or not _emitters(label):
        return
    floor = relaxed_version(claim.lower, [f"{number}_real" for number in claim.real])
    # The code of a wheel is better evidence than its label, but might not show the
    # toolkit, so use the newer of the two versions.
    known = label.floor(label.features) if label.floor else floor
    if known is None or (floor := max(floor, known)) >= claim.lower:
        return
    hint = f"a lower bound of {floor} would reach them"
    if claim.virtual:
        hint = (
            f"PTX of a newer CUDA than {floor} needs a newer driver: to loosen the "
            f"bound to {floor}, publish a label without such PTX"
        )
    yield Problem(
        join(label.place, LOWER_BOUND),
        f"drivers for CUDA {floor} can run the machine code too, through minor-version "
        "compatibility",
        hint,
    )


@LABEL_CHECKS.rule("NV311")
def check_nv311(label: NvidiaLabel) -> Iterator[Problem]:
    """Report targets of code that runs only on one GPU or one family of GPUs."""
    for feature, value, place in _unknown_values(label):
        match = TARGET.fullmatch(value)
        if match is None or not _is_specific(feature, value):
            continue
        kind = "one GPU" if match[2] == "a" else "one family of GPUs"
        number = match[1]
        yield Problem(
            place,
            f"{value} is code for {kind}, which variant properties cannot express",
            f"build for {number} as well, plain or PTX, and declare "
            f"{number}_{match[3]}",
        )


def _did_you_mean(guess: str | None) -> str | None:
    return None if guess is None else f"did you mean {guess}?"


@cache
def _single_valued() -> frozenset[str]:
    return frozenset(f.name for f in all_features() if not f.multi_value)


def _unknown_values(label: NvidiaLabel) -> Iterator[tuple[str, str, str]]:
    """Yield the feature, value and place of each value missing from the catalog."""
    for feature, values in label.features.items():
        known = catalog().get(feature)
        if known is None or not isinstance(values, list):
            continue
        place = join(label.place, feature)
        for index, value in enumerate(values):
            if isinstance(value, str) and value not in known:
                yield feature, value, join(place, index)


def _is_specific(feature: str, value: str) -> bool:
    """Return whether a value targets one GPU or family, such as ``90a_real``."""
    match = TARGET.fullmatch(value) if feature == SM_ARCH else None
    return match is not None and bool(match[2])


def _numbers(label: NvidiaLabel) -> list[int]:
    return sorted({*label.claim.real, *label.claim.virtual})


def _emitters(label: NvidiaLabel) -> tuple[CudaVersion, ...]:
    """Return the toolkits that the lower bound allows, the oldest first.

    A build for CUDA 12.6 was built with CUDA 12.6 or a newer toolkit of CUDA 12.
    """
    lower = label.claim.lower
    if lower is None or SM_ARCH not in label.features:
        return ()
    return _toolkits_from(lower)


@cache
def _toolkits_from(lower: CudaVersion) -> tuple[CudaVersion, ...]:
    return tuple(v for v in toolkits() if v.major == lower.major and v >= lower)


def _advice(number: int) -> str:
    if number in (101, 110):
        return "Thor is 101 in CUDA 12 and 110 from CUDA 13 on"
    emitters = [v for v, t in toolkits().items() if str(number) in t.targets]
    if not emitters:
        return "no known toolkit emits it"
    return f"CUDA {emitters[0]} to {emitters[-1]} emit it"
