"""The former module of `nvp.index.VariantRepository`."""

from __future__ import annotations

from .selection.repository import VariantRepository

__all__ = ["VariantRepository"]
