"""Corrections of misspelled features and values.

A misspelling gives one finding only: the other rules use the corrected spelling.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

from nvidia_variant_provider.machine.supported import SM_ARCH, all_features

_TARGET = re.compile(
    r"(sm|compute|arch|gpu)?[ _.-]?([1-9][0-9]?)\.?([0-9])(?:[ _.+-]?([a-z]+))?"
)
_BOUND = re.compile(r"(?:>=|cuda|cu|v)? *([1-9][0-9])(?:[._]?([0-9]))?(?:\.[0-9x]+)*")
_KINDS = {"real": "real", "code": "real", "virtual": "virtual", "ptx": "virtual"}


@cache
def catalog() -> Mapping[str, frozenset[str]]:
    """Return, for each feature, all values that the provider can ever support."""
    return {feature.name: frozenset(feature.values) for feature in all_features()}


@cache
def meant_feature(name: str) -> str | None:
    """Return the feature that an unknown name probably misspells, if any."""
    folded = re.sub(r"[^a-z0-9]+", "_", name.lower())
    return next(iter(get_close_matches(folded, sorted(catalog()), 1, 0.75)), None)


@cache
def meant_value(feature: str, value: str) -> str | None:
    """Return the value that an unknown value probably misspells, if any.

    For example, ``sm_90`` and ``90_reel`` mean ``90_real``; ``13.0.1`` means ``13.0``.
    Numbers are never corrected: ``99_real`` may be a future GPU.
    """
    text = value.strip().lower()
    if feature != SM_ARCH:
        match = _BOUND.fullmatch(text)
        guess = f"{match[1]}.{match[2] or 0}" if match else ""
    elif match := _TARGET.fullmatch(text):
        word = match[4] or ("ptx" if match[1] == "compute" else "real")
        kinds = get_close_matches(word, _KINDS, 1, 0.6)
        guess = f"{match[2]}{match[3]}_{_KINDS[kinds[0]]}" if kinds else ""
    else:
        return None
    return guess if guess in catalog()[feature] else None


def corrected(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return features with misspellings corrected."""
    result: dict[str, Any] = {}
    for name, values in features.items():
        feature = name if name in catalog() else meant_feature(name) or name
        if feature != name and feature in features:
            continue  # the correct name takes precedence over the misspelled one
        result[feature] = values
        known = catalog().get(feature)
        if known is not None and isinstance(values, list):
            result[feature] = [
                (meant_value(feature, value) or value)
                if isinstance(value, str) and value not in known
                else value
                for value in values
            ]
    return result


def has_unknown(features: Mapping[str, Any], feature: str | None = None) -> bool:
    """Return whether features, or only ``feature``, have an unknown name or value."""
    return any(
        name not in catalog()
        or not isinstance(values, Sequence)
        or any(
            not isinstance(value, str) or value not in catalog()[name]
            for value in values
        )
        for name, values in features.items()
        if feature in (None, name)
    )
