"""The former module of `nvidia_variant_provider.index.VariantRepository`."""

from __future__ import annotations

from .selection.repository import VariantRepository

__all__ = ["VariantRepository"]
