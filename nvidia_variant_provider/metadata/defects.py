"""Defects of variant metadata, and what becomes of them.

There is one walk over a document (`document_reader`), and it reports every defect to
a `Reporter`. The reporter here serves reading: it raises the first defect that reading
cannot accept. A linter has a reporter of its own, which collects all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from ..errors import InputError
from .model import Provider

__all__ = ["Kind", "Report", "Reporter"]

Kind: TypeAlias = Literal[
    "not-metadata",
    "unknown-schema",
    "missing-key",
    "wrong-type",
    "unknown-key",
    "not-one-source",
    "providers-differ",
    "undeclared-namespace",
    "null-rules",
    "feature-order",
    "misplaced-key",
    "label",
    "long-label",
    "namespace",
    "feature",
    "value",
    "unsorted",
    "repeated",
    "no-value",
    "endpoint",
    "requirement",
    "marker",
]
"""What is wrong. The linter has one rule for each kind but the first."""

Report: TypeAlias = Callable[[Kind, str, str, str], None]
"""A way to report a defect: kind, place, message, hint."""


class Reporter:
    """Raises the first defect that reading cannot accept."""

    thorough = False
    """Whether the walk is to look for costly defects that reading accepts."""

    def refuse(self, kind: Kind, place: str, message: str, hint: str) -> None:  # noqa: ARG002
        """Report a defect for which reading refuses the document.

        :param place: the place in the document, such as ``variants.cu126.nvidia``.
        :param message: what is wrong.
        :param hint: what to do next.
        """
        raise InputError(message, place=place or None, hint=hint) from None

    def tolerate(self, kind: Kind, place: str, message: str, hint: str) -> None:
        """Report a defect that reading accepts, with the parameters of `refuse`."""

    def check_provider(self, provider: Provider, place: str) -> None:
        """Report the defects of a provider's texts, which reading accepts."""
