"""Variant metadata: ``{name}-{version}-variants.json`` and ``variant.json``."""

from __future__ import annotations

from .document import read_metadata
from .model import Provider, VariantsMetadata

__all__ = ["Provider", "VariantsMetadata", "read_metadata"]
