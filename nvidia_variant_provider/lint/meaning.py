"""NV301 to NV311, NV314: what single labels and the provider mean for NVIDIA."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import join, shown
from ..gpu_code.bounds import relaxed_version
from ..knowledge.tables import toolkits
from ..machine.environment import CudaVersion
from ..machine.supported import (
    LOWER_BOUND,
    NAMESPACE,
    SM_ARCH,
    UPPER_BOUND,
    all_features,
)
from ..metadata.model import PLUGIN_API, REQUIRES
from ..metadata.requirements import parse_requirement
from .collector import Collector
from .structure import labels_of

__all__ = ["Claim", "check_meaning", "claim_of"]

_TARGET = re.compile(r"([0-9]{2,3})([af]?)_(real|virtual)")
_CU_LABEL = re.compile(r"cu([0-9]{2})([0-9])(?![0-9])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a label says of itself, as far as it makes sense.

    :param real: numbers of its targets of machine code, ascending.
    :param virtual: numbers of its PTX targets, ascending.
    """

    lower: CudaVersion | None
    upper: CudaVersion | None
    real: tuple[int, ...]
    virtual: tuple[int, ...]


def check_meaning(document: Mapping[str, Any], found: Collector) -> None:
    """Check the provider of ``nvidia`` and each label that uses it."""
    uses = False
    for label, properties in labels_of(document).items():
        features = properties.get(NAMESPACE)
        if not isinstance(features, dict):
            continue
        uses = True
        place = join(join("variants", label), NAMESPACE)
        claim = claim_of(features)
        _check_features(features, place, found)
        _check_bounds(claim, place, found)
        _check_label(label, claim, place, found)
        _check_targets(label, features, claim, place, found)
    providers = document.get("providers")
    provider = providers.get(NAMESPACE) if isinstance(providers, dict) else None
    if uses and isinstance(provider, dict) and not provider.get("static-properties"):
        _check_provider(provider, join("providers", NAMESPACE), found)


def claim_of(features: Mapping[str, Any]) -> Claim:
    """The claim of a label's ``nvidia`` features; what is malformed is left out."""
    targets = [_TARGET.fullmatch(text) for text in _texts(features, SM_ARCH)]
    numbers = [(int(m[1]), m[3]) for m in targets if m is not None and not m[2]]
    return Claim(
        lower=_version(features, LOWER_BOUND),
        upper=_version(features, UPPER_BOUND),
        real=tuple(sorted(n for n, kind in numbers if kind == "real")),
        virtual=tuple(sorted(n for n, kind in numbers if kind == "virtual")),
    )


def _texts(features: Mapping[str, Any], feature: str) -> list[str]:
    values = features.get(feature)
    return [v for v in values if isinstance(v, str)] if isinstance(values, list) else []


def _version(features: Mapping[str, Any], feature: str) -> CudaVersion | None:
    texts = _texts(features, feature)
    if len(texts) != 1 or texts[0] not in _catalog()[feature]:
        return None
    major, _, minor = texts[0].partition(".")
    return CudaVersion(int(major), int(minor or 0))


@cache
def _catalog() -> Mapping[str, frozenset[str]]:
    return {feature.name: frozenset(feature.values) for feature in all_features()}


@cache
def _single_valued() -> frozenset[str]:
    return frozenset(f.name for f in all_features() if not f.multi_value)


def _check_features(features: Mapping[str, Any], place: str, found: Collector) -> None:
    for feature, values in features.items():
        where = join(place, feature)
        if feature not in _catalog():
            message = (
                f"the provider has no feature {shown(feature)}: it fits no machine"
            )
            hint = f"known are {', '.join(_catalog())}"
            found.add("NV301", where, message, hint)
            continue
        texts = _texts(features, feature)
        if feature in _single_valued() and len(texts) > 1:
            message = "has several values; the most favourable one would count"
            found.add("NV303", where, message, "keep one")
        for index, value in enumerate(values if isinstance(values, list) else ()):
            if isinstance(value, str) and value not in _catalog()[feature]:
                _add_unknown(feature, value, join(where, index), found)


def _add_unknown(feature: str, value: str, place: str, found: Collector) -> None:
    match = _TARGET.fullmatch(value) if feature == SM_ARCH else None
    if match is not None and match[2]:
        number = match[1]
        kind = "one GPU" if match[2] == "a" else "one family of GPUs"
        message = f"{value} is code for {kind}, which variant properties cannot name"
        hint = (
            f"build for {number} as well, plain or PTX, and declare {number}_{match[3]}"
        )
        found.add("NV311", place, message, hint)
        return
    message = f"the provider never supports {shown(value)}"
    hint = "see: nvidia-variant-provider properties --all"
    found.add("NV302", place, message, hint)


def _check_bounds(claim: Claim, place: str, found: Collector) -> None:
    if claim.upper is None:
        return
    if claim.lower is not None and claim.lower >= claim.upper:
        message = f"needs CUDA {claim.lower} or newer, and older than {claim.upper}"
        found.add("NV304", place, message, "no driver is both; correct a bound")
    else:
        message = f"drivers for CUDA {claim.upper} and newer are shut out; they run it"
        hint = "drop cuda_version_upper_bound unless a newer driver really breaks it"
        found.add("NV305", join(place, UPPER_BOUND), message, hint)


def _check_label(label: str, claim: Claim, place: str, found: Collector) -> None:
    named = _named(label)
    if named is None or claim.lower is None:
        return
    # A bound that minor-version compatibility loosens stays within the major.
    loosened = claim.lower == CudaVersion(named.major)
    if named != claim.lower and not loosened:
        message = f"the label names CUDA {named}, the lower bound {claim.lower}"
        found.add("NV309", join(place, LOWER_BOUND), message, "correct one of the two")


def _check_targets(
    label: str,
    features: Mapping[str, Any],
    claim: Claim,
    place: str,
    found: Collector,
) -> None:
    if SM_ARCH not in features:
        if LOWER_BOUND in features or UPPER_BOUND in features:
            message = "a driver alone selects it, also where it has no code for the GPU"
            found.add("NV306", place, message, "declare the targets it was built for")
        return
    if claim.lower is None:
        return
    emitters = [
        toolkit
        for version, toolkit in toolkits().items()
        if version.major == claim.lower.major and version >= claim.lower
    ]
    if not emitters:
        return
    where = join(place, SM_ARCH)
    wanted = sorted({*claim.real, *claim.virtual})
    possible = []
    for number in wanted:
        if any(str(number) in toolkit.targets for toolkit in emitters):
            possible.append(str(number))
            continue
        message = (
            f"no toolkit of CUDA {claim.lower} to {emitters[-1].version} emits code "
            f"for {number}"
        )
        found.add("NV307", where, message, _advice(number))
    _check_toolkit(label, claim, [int(n) for n in possible], where, found)
    _check_strictness(claim, join(place, LOWER_BOUND), found)


def _named(label: str) -> CudaVersion | None:
    """The CUDA version that a label names, as ``cu128`` does."""
    match = _CU_LABEL.search(label)
    return CudaVersion(int(match[1]), int(match[2])) if match is not None else None


def _check_toolkit(
    label: str, claim: Claim, numbers: Sequence[int], place: str, found: Collector
) -> None:
    named = _named(label)
    toolkit = toolkits().get(named) if named is not None else None
    if toolkit is None or claim.lower is None or toolkit.version < claim.lower:
        return
    for number in numbers:
        if str(number) not in toolkit.targets:
            message = f"the label names CUDA {named}, which emits no code for {number}"
            found.add("NV308", place, message, _advice(number))


def _advice(number: int) -> str:
    if number in (101, 110):
        return "Thor is 101 to CUDA 12 and 110 from CUDA 13 on"
    spans = [v for v, t in toolkits().items() if str(number) in t.targets]
    if not spans:
        return "no known toolkit does"
    return f"CUDA {spans[0]} to {spans[-1]} do"


def _check_strictness(claim: Claim, place: str, found: Collector) -> None:
    if claim.lower is None or claim.lower.minor == 0 or not claim.real:
        return
    floor = relaxed_version(claim.lower, [f"{number}_real" for number in claim.real])
    if floor >= claim.lower:
        return
    message = (
        f"drivers for CUDA {floor} run its machine code too, by minor-version "
        "compatibility"
    )
    hint = f"a lower bound of {floor} would reach them"
    if claim.virtual:
        hint = (
            f"PTX of a newer CUDA than {floor} needs a newer driver: to loosen the "
            f"bound to {floor}, publish a label without such PTX"
        )
    found.add("NV310", place, message, hint)


def _check_provider(provider: Mapping[str, Any], place: str, found: Collector) -> None:
    problem = _problem_for_uv(provider)
    if problem is not None:
        key, message, hint = problem
        found.add("NV314", join(place, key) if key else place, message, hint)


def _problem_for_uv(provider: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """What makes uv 0.13.8 ignore its own NVIDIA provider, if anything does.

    Measured: it wants the exact ``plugin-api`` and one plain requirement that
    admits version 0.0.1.
    """
    if provider.get("optional") is True:
        return "optional", "an optional provider is off for all users", "remove it"
    if provider.get("plugin-api") != PLUGIN_API:
        return (
            "plugin-api",
            "uv knows its provider by this text only",
            f"use {PLUGIN_API}",
        )
    hint = f'use ["{REQUIRES}"]'
    requires = provider.get("requires")
    if not isinstance(requires, list) or len(requires) != 1:
        return "requires", "uv wants exactly one requirement", hint
    return _problem_with_requirement(requires, hint)


def _problem_with_requirement(
    requires: Sequence[object], hint: str
) -> tuple[str, str, str] | None:
    from packaging.utils import canonicalize_name

    requirement = parse_requirement(str(requires[0]))
    if requirement is None:
        return None  # NV210 says so
    unusual = requirement.marker or requirement.extras or requirement.url
    if canonicalize_name(requirement.name) != "nvidia-variant-provider" or unusual:
        message = "uv wants nvidia-variant-provider, without marker, extra or URL"
        return "requires", message, hint
    if not requirement.specifier.contains("0.0.1", prereleases=True):
        message = "uv counts its provider as 0.0.1, which this does not admit"
        return "requires", message, hint
    return None
