"""Checking one metadata document: NV100 to NV103 and NV114, then the other families."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import InputError
from ..metadata.model import NULL_LABELS
from ..metadata.versions import SchemaVersion
from ..strict_json import Flaw, parse_lenient
from .collector import Collector, Problem
from .meaning import check_meaning
from .rules import Code
from .scope import Scope
from .selection import SELECTION_CHECKS
from .structure import check_structure

__all__ = ["check_document", "check_text"]

_CODES: Mapping[str, Code] = {
    Flaw.BYTE_ORDER_MARK: "NV101",
    Flaw.DUPLICATE_KEY: "NV102",
    Flaw.CONSTANT: "NV103",
}
_RELEASE = Scope()


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
    for problem in check_nv114(document, metadata.schema, scope):
        collector.add("NV114", problem.place, problem.message, problem.hint)
    check_meaning(document, collector, scope)
    # The findings above say what is wrong. A label that cannot be read cannot be
    # ordered either.
    if scope.whole_release and checked.is_readable:
        SELECTION_CHECKS.run(metadata, collector)


def check_nv114(
    document: Mapping[str, Any], version: SchemaVersion, scope: Scope
) -> Iterator[Problem]:
    """Report a release that offers nothing to machines that no label fits."""
    variants = document.get("variants", {})
    if not scope.whole_release or scope.has_plain_wheel:
        return
    nulls = NULL_LABELS if version.old_null else NULL_LABELS[:1]
    if isinstance(variants, dict) and not any(label in variants for label in nulls):
        yield Problem(
            "variants",
            "there is no null variant for machines that no other label fits",
            "publish a null variant, or a non-variant wheel",
        )
