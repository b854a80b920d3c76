"""What is known about a document besides its text."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Scope"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Where a document comes from, which decides which rules apply to it.

    :param whole_release: the document describes a release. ``variant.json`` describes
        one wheel, and says nothing about what the release offers other machines.
    :param has_plain_wheel: the release has a non-variant wheel, which every machine
        can fall back to.
    :param by_cuda: the wheel holds a copy of a library for each of several CUDA
        versions, so that its lower bound does not identify a toolkit.
    """

    whole_release: bool = True
    has_plain_wheel: bool = False
    by_cuda: bool = False
