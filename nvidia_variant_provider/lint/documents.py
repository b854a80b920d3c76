"""Linting one metadata document: NV100 to NV103, then the other families."""

from __future__ import annotations

from ..documents import Flaw, parse_lenient
from ..errors import InputError
from ..metadata.model import VariantsMetadata
from ..metadata.reading import metadata_from_dict
from .collector import Collector
from .grammar import check_grammar
from .meaning import check_meaning
from .selection import check_selection
from .structure import check_structure

__all__ = ["check_document", "check_text"]

_CODES = {
    Flaw.BYTE_ORDER_MARK: "NV101",
    Flaw.DUPLICATE_KEY: "NV102",
    Flaw.CONSTANT: "NV103",
}


def check_text(data: bytes, found: Collector) -> VariantsMetadata | None:
    """Check the bytes of a metadata file; what `check_document` gives."""
    try:
        document, flaws = parse_lenient(data)
    except InputError as error:
        found.add("NV100", error.place or "", error.message, error.hint or "")
        return None
    for flaw in flaws:
        found.add(_CODES[flaw.kind], flaw.place or "top level", flaw.message, flaw.hint)
    return check_document(document, found)


def check_document(document: object, found: Collector) -> VariantsMetadata | None:
    """Check a parsed document.

    All that can be told is collected, whatever is wrong besides. The metadata
    comes back when it reads well enough to say what its labels select.
    """
    version = check_structure(document, found)
    if not isinstance(document, dict):
        return None
    check_grammar(document, version, found)
    check_meaning(document, found)
    try:
        metadata = metadata_from_dict(document)
    except InputError:
        # The findings above say what is wrong; a label that cannot be read cannot
        # be ordered either.
        return None
    check_selection(metadata, found)
    return metadata
