"""What one label says about NVIDIA, in the form that the rules for labels read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from nvidia_variant_provider.errors import join
from nvidia_variant_provider.machine.environment import CudaVersion
from nvidia_variant_provider.machine.supported import (
    LOWER_BOUND,
    NAMESPACE,
    SM_ARCH,
    UPPER_BOUND,
    all_features,
)

from .structure import labels_of

__all__ = [
    "TARGET",
    "Claim",
    "NvidiaLabel",
    "catalog",
    "claim_of",
    "nvidia_labels",
    "texts_of",
]

TARGET = re.compile(r"([0-9]{2,3})([af]?)_(real|virtual)")
"""A value of ``sm_arch``: the number, ``a`` or ``f`` for specific code, the kind."""

# A major version of CUDA has two digits, the minor version one or two: ``cu128`` is
# CUDA 12.8 and ``cu1410`` is CUDA 14.10.
_CU_LABEL = re.compile(r"cu([1-9][0-9])(0|[1-9][0-9]?)(?![0-9])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a label says about itself, as far as its values are known ones.

    :param lower: the lower bound of the driver's CUDA version.
    :param upper: the upper bound of the driver's CUDA version.
    :param real: the numbers of its targets of machine code, in ascending order.
    :param virtual: the numbers of its PTX targets, in ascending order.
    """

    lower: CudaVersion | None
    upper: CudaVersion | None
    real: tuple[int, ...]
    virtual: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NvidiaLabel:
    """One label that has properties of the namespace ``nvidia``.

    :param features: what JSON gave for the namespace; the values may be malformed.
    :param claim: what the features say, as far as they are well formed.
    :param place: the place of the features in the document.
    :param named: the CUDA version that the label's name contains, such as 12.8 in
        ``cu128``.
    :param by_cuda: the lower bound identifies no toolkit; see `Scope`.
    """

    features: Mapping[str, Any]
    claim: Claim
    place: str
    named: CudaVersion | None
    by_cuda: bool


def nvidia_labels(
    document: Mapping[str, Any], *, by_cuda: bool
) -> Iterator[NvidiaLabel]:
    """Return the labels of a document that have properties of ``nvidia``."""
    for label, properties in labels_of(document).items():
        features = properties.get(NAMESPACE)
        if isinstance(features, dict):
            yield NvidiaLabel(
                features=features,
                claim=claim_of(features),
                place=join(join("variants", label), NAMESPACE),
                named=_version_in_name(label),
                by_cuda=by_cuda,
            )


def claim_of(features: Mapping[str, Any]) -> Claim:
    """Return the claim of a label's ``nvidia`` features, without malformed values."""
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


@cache
def catalog() -> Mapping[str, frozenset[str]]:
    """Return all values that the provider can ever support, for each feature."""
    return {feature.name: frozenset(feature.values) for feature in all_features()}


def _bound(features: Mapping[str, Any], feature: str) -> CudaVersion | None:
    texts = texts_of(features, feature)
    if len(texts) != 1 or texts[0] not in catalog()[feature]:
        return None
    major, _, minor = texts[0].partition(".")
    return CudaVersion(int(major), int(minor or 0))


def _version_in_name(label: str) -> CudaVersion | None:
    match = _CU_LABEL.search(label)
    return CudaVersion(int(match[1]), int(match[2])) if match is not None else None
