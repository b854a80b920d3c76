"""Variant metadata: ``{name}-{version}-variants.json`` and ``variant.json``."""

from __future__ import annotations

from .model import Provider, VariantsMetadata
from .reading import read_metadata

__all__ = ["Provider", "VariantsMetadata", "read_metadata"]
