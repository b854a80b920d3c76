"""The labels in the names of files: of variants, and of local versions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from packaging.version import InvalidVersion, Version

from .renaming import find_label

__all__ = ["find_labels", "has_label"]


def find_labels(names: Iterable[str]) -> frozenset[str]:
    """Return the variant labels and the local version labels of files."""
    labels = {label for name in names if (label := _label(name)) is not None}
    return frozenset(labels)


def has_label(name: str, label: str) -> bool:
    """Return whether a wheel is the build that a user asks for by its label."""
    return _label(name) == label.lower()


def _label(name: str) -> str | None:
    label = find_label(name)
    if label is not None or "+" not in name or not name.endswith(".whl"):
        return label
    return _local(name.split("-", 2)[1])


@lru_cache(maxsize=4096)
def _local(text: str) -> str | None:
    try:
        return Version(text.replace("_", "-")).local
    except InvalidVersion:
        return None
