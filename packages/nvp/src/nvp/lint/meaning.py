"""NV301 to NV311: what the properties of single labels mean for NVIDIA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
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
from .collector import Checks, Collector, Problem
from .labels import TARGET, NvidiaLabel, catalog, nvidia_labels, texts_of
from .provider import PROVIDER_CHECKS
from .scope import Scope

__all__ = ["LABEL_CHECKS", "check_meaning"]

LABEL_CHECKS: Checks[NvidiaLabel] = Checks()

_RELEASE = Scope()


def check_meaning(
    document: Mapping[str, Any], collector: Collector, scope: Scope = _RELEASE
) -> None:
    """Check each label that uses ``nvidia``, and the provider of the namespace."""
    used = False
    for label in nvidia_labels(document, by_cuda=scope.by_cuda):
        used = True
        LABEL_CHECKS.run(label, collector)
    providers = document.get("providers")
    provider = providers.get(NAMESPACE) if isinstance(providers, dict) else None
    # Static properties are read from the file: no client has to know the provider.
    if used and isinstance(provider, dict) and not provider.get("static-properties"):
        PROVIDER_CHECKS.run(provider, collector)


@LABEL_CHECKS.rule("NV301")
def check_nv301(label: NvidiaLabel) -> Iterator[Problem]:
    """Report features that the provider does not have."""
    for feature in label.features:
        if feature not in catalog():
            yield Problem(
                join(label.place, feature),
                f"the provider has no feature {shown(feature)}, so the label fits no "
                "machine",
                f"use one of {', '.join(catalog())}",
            )


@LABEL_CHECKS.rule("NV302")
def check_nv302(label: NvidiaLabel) -> Iterator[Problem]:
    """Report values that the provider never supports."""
    for feature, value, place in _unknown_values(label):
        if not _is_specific(feature, value):
            yield Problem(
                place,
                f"the provider never supports {shown(value)}",
                "list the values with: nvidia-variant-provider properties --all",
            )


@LABEL_CHECKS.rule("NV303")
def check_nv303(label: NvidiaLabel) -> Iterator[Problem]:
    """Report several values of a feature that can have only one."""
    for feature in label.features:
        if feature in _single_valued() and len(texts_of(label.features, feature)) > 1:
            yield Problem(
                join(label.place, feature),
                "the feature has several values, and clients use the most favourable",
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
    """Report a label that names drivers and no GPUs."""
    bounded = LOWER_BOUND in label.features or UPPER_BOUND in label.features
    if SM_ARCH not in label.features and bounded:
        yield Problem(
            label.place,
            "the driver alone selects the label, even where the build has no code for "
            "the GPU",
            "declare the targets that it was built for",
        )


@LABEL_CHECKS.rule("NV307")
def check_nv307(label: NvidiaLabel) -> Iterator[Problem]:
    """Report targets that no toolkit of the lower bound's CUDA major emits."""
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
    if toolkit is None or lower is None or toolkit.version < lower:
        return
    for number in _numbers(label):
        emitted = any(str(number) in toolkits()[v].targets for v in _emitters(label))
        # A target that no toolkit of the major emits is NV307.
        if emitted and str(number) not in toolkit.targets:
            yield Problem(
                join(label.place, SM_ARCH),
                f"the label names CUDA {label.named}, which emits no code for {number}",
                _advice(number),
            )


@LABEL_CHECKS.rule("NV309")
def check_nv309(label: NvidiaLabel) -> Iterator[Problem]:
    """Report a label whose name and lower bound say different CUDA versions."""
    named, lower = label.named, label.claim.lower
    if named is None or lower is None:
        return
    # A bound that minor-version compatibility loosens stays within the major.
    loosened = lower == CudaVersion(named.major)
    if named != lower and not loosened:
        yield Problem(
            join(label.place, LOWER_BOUND),
            f"the label names CUDA {named}, but the lower bound is {lower}",
            "correct one of the two",
        )


@LABEL_CHECKS.rule("NV310")
def check_nv310(label: NvidiaLabel) -> Iterator[Problem]:
    """Report a lower bound that excludes drivers which can run the machine code."""
    lower = label.claim.lower
    if lower is None or lower.minor == 0 or not label.claim.real:
        return
    if not _emitters(label):
        return
    floor = relaxed_version(lower, [f"{number}_real" for number in label.claim.real])
    if floor >= lower:
        return
    hint = f"a lower bound of {floor} would reach them"
    if label.claim.virtual:
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
    """Report targets of code that runs on one GPU, or on one family of GPUs."""
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


@cache
def _single_valued() -> frozenset[str]:
    return frozenset(f.name for f in all_features() if not f.multi_value)


def _unknown_values(label: NvidiaLabel) -> Iterator[tuple[str, str, str]]:
    """Return the feature, value and place of what the catalog does not have."""
    for feature, values in label.features.items():
        known = catalog().get(feature)
        if known is None or not isinstance(values, list):
            continue
        place = join(label.place, feature)
        for index, value in enumerate(values):
            if isinstance(value, str) and value not in known:
                yield feature, value, join(place, index)


def _is_specific(feature: str, value: str) -> bool:
    """Return whether a value is a target such as ``90a_real`` or ``100f_real``."""
    match = TARGET.fullmatch(value) if feature == SM_ARCH else None
    return match is not None and bool(match[2])


def _numbers(label: NvidiaLabel) -> list[int]:
    return sorted({*label.claim.real, *label.claim.virtual})


def _emitters(label: NvidiaLabel) -> tuple[CudaVersion, ...]:
    """Return the toolkits that the lower bound allows, the oldest first.

    A build for CUDA 12.6 was made by some toolkit of CUDA 12 that is not older.
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
