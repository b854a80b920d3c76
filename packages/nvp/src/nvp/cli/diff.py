"""``diff``: show which machines get a different build from a new release."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from nvidia_variant_provider.errors import InputError, UsageError
from nvidia_variant_provider.strict_json import (
    MAX_BYTES,
    open_regular,
    parse_json,
    read_bytes,
)

from .arguments import (
    add_options,
    choice,
    read_releases,
    refuse_project,
)
from .parsers import add_examples
from .render import Result, terminal_width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..matrix.changes import Differences

_OPTIONS = """
old OLD
  old release: {name}-{version}-variants.json, its URL, a directory with one, - for
  stdin, a receipt of doctor, a release on an index, such as torch==2.15.0, or an
  index: a directory of wheels or pages, or a saved page in HTML or JSON
new NEW
  new release, in the same forms
--format
--all
  also show the pairs that stay the same
--all-pairs
--index-url
--assume
--minor-version-compatibility
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, _OPTIONS, format=choice("text", "markdown", "json"))
    add_examples(
        parser,
        "diff old-variants.json new-variants.json",
        "diff old/ new/ --format markdown",
        "diff receipts/monday.json receipts/friday.json",
        "diff torch==2.14.1 torch==2.15.0",
        "diff index-yesterday/ index/",
        notes=[
            "A pair is one driver with one GPU. The exit code is 1 when a pair "
            "loses its GPU build; for two states of an index also when it gets an "
            "older release, or none.",
            "For two receipts, a row is one fact of the stack or one workload. The "
            "exit code is 1 when a workload that passed before fails.",
        ],
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Compare two releases, states of an index, or receipts of ``doctor``.

    ``data`` has all ``pairs``, with their ``project`` for an index, or, for receipts,
    ``receipt_facts``. The exit code is 1 if a pair or a workload is lost.
    """
    from ..matrix.changes import LOST
    from ..matrix.text import WIDTH, markdown_lines, text_lines

    if options.old == options.new == "-":
        raise UsageError("OLD and NEW are both stdin", hint="name a file for one")
    if _are_receipts(options.old, options.new):
        return _compare_receipts(options)
    if _are_indexes(options.old, options.new):
        return _compare_indexes(options, environ)
    differences, names = _compare(options, environ)
    notes = []
    if len(names - {None}) > 1:
        notes.append(f"{differences.old} and {differences.new} are different projects")
    if options.format == "markdown":
        lines = markdown_lines(differences, with_same=options.all)
    else:
        width = terminal_width(sys.stdout) or WIDTH
        lines = text_lines(differences, with_same=options.all, width=width)
    return Result(
        exit_code=1 if differences.counts[LOST] else 0,
        data=differences.to_dict(),
        text=lines,
        verbatim=options.format == "markdown",
        notes=notes,
        as_json=options.format == "json",
    )


def _compare(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[Differences, set[str | None]]:
    """Return the differences, and the names of the projects."""
    files = (options.old, options.new)
    given: dict[str, Any] = {
        "all_pairs": options.all_pairs,
        "minor_version_compatibility": options.minor_version_compatibility or None,
        "environ": environ,
    }
    releases = read_releases(options, environ, *files)
    if not releases:
        from ..api import diff_of_projects

        differences = diff_of_projects(*files, index_url=options.index_url, **given)
        return differences, {differences.old.split()[0], differences.new.split()[0]}
    from ..api import diff

    old, new = releases
    return diff(old, new, assume=options.assume, **given), {old.name, new.name}


def _are_indexes(old: str, new: str) -> bool:
    """Return whether OLD and NEW are directories of files, or saved pages."""
    others = [path for path in (old, new) if not _is_index(path)]
    if len(others) == 1 and not _is_empty(others[0]):
        refuse_project(others[0], "releases")
        if not os.path.lexists(others[0]) and not re.search("==|://|^-$", others[0]):
            message = "there is no such file or directory"
            raise InputError(message, path=others[0], hint="check the path")
        raise UsageError(
            "is not an index, and the other one is",
            path=others[0],
            hint="compare two indexes (directories of wheels, or saved pages), or two "
            "releases",
        )
    return len(others) < 2


def _is_index(path: str) -> bool:
    """Return whether a path is a saved page, or a directory of pages or wheels.

    A directory with metadata of a release, but without wheels next to it, is no index.
    For an unreadable path, return ``False``: the reader of the path reports the error.
    """
    from nvidia_variant_provider.metadata.document import SUFFIX

    from ..directories import list_folders

    try:
        if os.path.isdir(path):
            folders = list_folders(path)
            _, names = next(folders)
            if _lists_files(names):
                return True
            is_release = any(name.endswith(SUFFIX) for name in names)
            return not is_release and any(_lists_files(x) for _, x in folders)
        if not os.path.isfile(path):
            return False
        with open_regular(path) as file:
            head = file.read(65536).lstrip()
    except (OSError, ValueError):
        return False
    # Metadata of a release never has the key "files".
    return head.startswith(b"<") or b'"files"' in head


def _lists_files(names: Iterable[str]) -> bool:
    from ..index.http.urls import HTML_PAGE, JSON_PAGE

    return any(x.endswith(".whl") or x in (HTML_PAGE, JSON_PAGE) for x in names)


def _is_empty(path: str) -> bool:
    """Return whether a directory has no files, so it is an index without projects."""
    return os.path.isdir(path) and not any(names for _, _, names in os.walk(path))


def _compare_indexes(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Compare the ``pairs`` of each project; the exit code is 1 if a pair is lost."""
    from ..api import diff_of_indexes
    from ..matrix.changes import LOST
    from ..matrix.text import index_lines

    for name in ("assume", "index_url"):
        if getattr(options, name):
            message = f"--{name.replace('_', '-')} is for releases"
            raise UsageError(message, hint="leave out the option")
    differences = diff_of_indexes(
        options.old,
        options.new,
        all_pairs=options.all_pairs,
        minor_version_compatibility=options.minor_version_compatibility or None,
        environ=environ,
    )
    as_table = options.format == "markdown"
    width = None if as_table else terminal_width(sys.stdout)
    return Result(
        exit_code=1 if differences.counts[LOST] else 0,
        data=differences.to_dict(),
        text=index_lines(
            differences, with_same=options.all, width=width, as_markdown=as_table
        ),
        verbatim=as_table,
        notes=differences.notes,
        as_json=options.format == "json",
    )


_MARK = b'"receipt_version"'


def _are_receipts(old: str, new: str) -> bool:
    """Return whether the files are receipts of ``doctor``."""
    found = {path: _is_receipt(path) for path in (old, new)}
    others = [path for path, is_receipt in found.items() if not is_receipt]
    if others and any(found.values()):
        raise UsageError(
            "is no receipt, and the other file is one",
            path=others[0],
            hint="compare two receipts, or two releases",
        )
    return not others


def _compare_receipts(options: argparse.Namespace) -> Result:
    """Compare two receipts; the exit code is 1 for a lost workload."""
    from ..api import diff_receipts
    from ..doctor.receipts.document import comparison_lines, comparison_markdown

    if options.assume or options.minor_version_compatibility:
        option = "--assume" if options.assume else "--minor-version-compatibility"
        message = f"{option} has no effect on receipts"
        raise UsageError(message, hint="leave out the option")
    comparison = diff_receipts(options.old, options.new)
    as_table = options.format == "markdown"
    lines = comparison_markdown if as_table else comparison_lines
    return Result(
        exit_code=1 if comparison.has_lost_workloads else 0,
        data=comparison.to_dict(),
        text=lines(comparison, with_same=options.all),
        verbatim=as_table,
        as_json=options.format == "json",
    )


def _is_receipt(path: str) -> bool:
    """Return whether a file is a receipt, or a report that contains a receipt.

    For an unreadable file, return ``False``: the reader of releases reports the error.
    """
    try:
        # Leave pipes alone, because they can be read only once.
        if not os.path.isfile(path):
            return False
        with open_regular(path) as file:
            # MAX_BYTES is enough: metadata of a release is not longer, and a longer
            # receipt or report has `_MARK` within that length.
            data = file.read(MAX_BYTES)
    except (OSError, ValueError):
        return False
    if _MARK not in data:
        return False
    from ..doctor.receipts.making import MAX_RECEIPT, is_receipt

    data = read_bytes(path, limit=MAX_RECEIPT)
    return is_receipt(parse_json(data, path, limit=MAX_RECEIPT))
