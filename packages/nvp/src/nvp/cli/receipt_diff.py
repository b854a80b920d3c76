"""``diff`` of two receipts of ``doctor``, which are told from releases by content."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from nvidia_variant_provider.errors import UsageError
from nvidia_variant_provider.strict_json import (
    MAX_BYTES,
    open_regular,
    parse_json,
    read_bytes,
)

from .result import Result

__all__ = ["compare", "find_receipts"]

_MARK = b'"receipt_version"'


def find_receipts(
    old: str, new: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return two receipts; ``None`` where neither file is one.

    :raises UsageError: one file is a receipt, and the other one is not.
    :raises InputError: a receipt is not valid.
    """
    receipts = [_read(old), _read(new)]
    before, after = receipts
    if before is None and after is None:
        return None
    if before is None or after is None:
        missing = old if before is None else new
        raise UsageError(
            "is no receipt, and the other file is one",
            path=missing,
            hint="compare two receipts, or two releases",
        )
    return before, after


def compare(
    old: Mapping[str, Any], new: Mapping[str, Any], options: argparse.Namespace
) -> Result:
    """Return the lanes of two receipts; the exit code is 1 for a lost workload."""
    from ..doctor.receipts.comparing import compare as compare_receipts
    from ..doctor.receipts.document import comparison_lines, comparison_markdown

    if options.assume or options.minor_version_compatibility:
        option = "--assume" if options.assume else "--minor-version-compatibility"
        message = f"{option}: receipts say what is there, and nothing is assumed"
        raise UsageError(message, hint="leave out the option")
    comparison = compare_receipts(old, new)
    as_table = options.format == "markdown"
    lines = comparison_markdown if as_table else comparison_lines
    return Result(
        exit_code=1 if comparison.has_lost_workloads else 0,
        data=comparison.to_dict(),
        text=lines(comparison, with_same=options.all),
        verbatim=as_table,
        as_json=options.format == "json",
    )


def _read(path: str) -> Mapping[str, Any] | None:
    """Return the receipt in a file; ``None`` where the file does not look like one.

    What cannot be read here is left to the reader of releases, which says why.
    """
    try:
        # A pipe is left alone: it could not be read again.
        if not os.path.isfile(path):
            return None
        with open_regular(path) as file:
            # A release has at most MAX_BYTES, and a receipt begins with its mark or
            # with the report around it.
            data = file.read(MAX_BYTES)
    except (OSError, ValueError):
        return None
    if _MARK not in data:
        return None
    from ..doctor.receipts.reading import MAX_RECEIPT, is_receipt, receipt_of

    data = read_bytes(path, limit=MAX_RECEIPT)
    document = parse_json(data, path, limit=MAX_RECEIPT)
    return receipt_of(document, path) if is_receipt(document) else None
