"""Linting one metadata document: NV100 to NV103, then the other families."""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ..metadata.reading import metadata_from_dict
from ..strict_json import Flaw, parse_lenient
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


def check_text(data: bytes, found: Collector) -> Any:
    """Check the bytes of a metadata file.

    What they hold comes back, or ``None`` when it is not plain JSON.
    """
    try:
        document, flaws = parse_lenient(data)
    except InputError as error:
        found.add("NV100", error.place or "", error.message, error.hint or "")
        return None
    for flaw in flaws:
        found.add(_CODES[flaw.kind], flaw.place or "top level", flaw.message, flaw.hint)
    check_document(document, found)
    return None if flaws else document


def check_document(document: object, found: Collector) -> None:
    """Check a parsed document.

    All that can be told is collected, whatever is wrong besides.
    """
    version = check_structure(document, found)
    if not isinstance(document, dict):
        return
    check_grammar(document, version, found)
    check_meaning(document, found)
    try:
        metadata = metadata_from_dict(document)
    except InputError:
        # The findings above say what is wrong; a label that cannot be read cannot
        # be ordered either.
        return
    check_selection(metadata, found)
