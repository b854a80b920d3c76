"""What the publisher has to say before metadata can be written in another version."""

from __future__ import annotations

from collections.abc import Iterator

from nvidia_variant_provider.metadata import versions
from nvidia_variant_provider.metadata.model import VariantsMetadata

from ..metadata.checking import find_unanswered
from .remarks import Remark

__all__ = ["find_unwritable", "without_reserved"]


def find_unwritable(metadata: VariantsMetadata) -> Iterator[Remark]:
    """Yield what the written version cannot express, and no rule can supply."""
    for item in find_unanswered(metadata):
        hint = f"{item.hint}; then upgrade the file again"
        yield Remark(place=item.place, message=item.message, hint=hint)
    for namespace in sorted(metadata.schema.reserved):
        labels = _labels_of(namespace, metadata)
        if labels:
            message = f"version {versions.WRITTEN} has no namespace {namespace}"
            hint = f"remove the labels that use it, {', '.join(sorted(labels))}"
            yield Remark(place="variants", message=message, hint=hint)


def without_reserved(metadata: VariantsMetadata) -> VariantsMetadata:
    """Return the metadata without reserved namespaces and the labels that use them."""
    reserved = metadata.schema.reserved
    dead = {label for name in reserved for label in _labels_of(name, metadata)}
    return metadata.replace(
        namespaces=tuple(n for n in metadata.namespaces if n not in reserved),
        variants={k: v for k, v in metadata.variants.items() if k not in dead},
    )


def _labels_of(namespace: str, metadata: VariantsMetadata) -> list[str]:
    return [label for label, item in metadata.variants.items() if namespace in item]
