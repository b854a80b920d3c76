"""Checking one metadata document: NV100 to NV103 and NV114, then the other families."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata.model import NULL_LABELS
from nvidia_variant_provider.metadata.versions import SchemaVersion
from nvidia_variant_provider.strict_json import Flaw, parse_lenient

from .collector import Checks, Collector, Problem
from .meaning import check_meaning
from .scope import Scope
from .selection import SELECTION_CHECKS
from .structure import check_structure

__all__ = ["DOCUMENT_CHECKS", "Document", "check_document", "check_text"]

_CODES: Mapping[str, str] = {
    Flaw.BYTE_ORDER_MARK: "NV101",
    Flaw.DUPLICATE_KEY: "NV102",
    Flaw.CONSTANT: "NV103",
}
_RELEASE = Scope()


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A document whose shape may be wrong in any place.

    :param fields: what JSON gave.
    :param version: its schema version, or the one that it is read as.
    """

    fields: Mapping[str, Any]
    version: SchemaVersion
    scope: Scope


DOCUMENT_CHECKS: Checks[Document] = Checks()
"""The checks of a document that need more than its structure and its grammar."""


def check_text(data: bytes, collector: Collector, scope: Scope = _RELEASE) -> Any:
    """Check the bytes of a metadata file.

    :return: the document, or ``None`` when the bytes are not plain JSON.
    """
    try:
        document, flaws = parse_lenient(data)
    except InputError as error:
        collector.add_error("NV100", error, error.place or "")
        return None
    for flaw in flaws:
        place = flaw.place or "top level"
        collector.add(_CODES[flaw.kind], place, flaw.message, flaw.hint)
    check_document(document, collector, scope)
    return None if flaws else document


def check_document(
    document: object, collector: Collector, scope: Scope = _RELEASE
) -> None:
    """Check a parsed document with every family of rules that can apply.

    A defect that one family reports does not keep the others from looking.
    """
    checked = check_structure(document, collector)
    if not isinstance(document, dict):
        return
    metadata = checked.metadata
    subject = Document(fields=document, version=metadata.schema, scope=scope)
    DOCUMENT_CHECKS.run(subject, collector)
    check_meaning(document, collector, scope)
    # The findings above say what is wrong. A label that cannot be read cannot be
    # ordered either.
    if scope.whole_release and checked.is_readable:
        SELECTION_CHECKS.run(metadata, collector)


@DOCUMENT_CHECKS.rule("NV114")
def check_nv114(document: Document) -> Iterator[Problem]:
    """Report a release that offers nothing to machines that no label fits."""
    if not document.scope.whole_release or document.scope.has_plain_wheel:
        return
    variants = document.fields.get("variants", {})
    nulls = NULL_LABELS if document.version.old_null else NULL_LABELS[:1]
    if isinstance(variants, dict) and not any(label in variants for label in nulls):
        yield Problem(
            "variants",
            "there is no null variant for machines that no other label fits",
            "publish a null variant, or a non-variant wheel",
        )
