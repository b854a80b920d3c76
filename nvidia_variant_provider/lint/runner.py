"""`validate`: files, wheels, folders and project pages to sorted findings."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence

from ..errors import InputError, UsageError
from ..strict_json import read_bytes, read_stdin
from .collector import Collector
from .documents import check_text
from .findings import Finding
from .release import check_folder, check_wheel
from .rules import ERROR, RULES, SEVERITIES, WARNING

__all__ = ["check_paths", "fails", "selected"]


def check_paths(
    paths: Iterable[str | os.PathLike[str]],
    *,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
) -> list[Finding]:
    """The findings about all ``paths``, sorted by path, code and place.

    :param paths: metadata files, wheels, folders of an index, URLs of project
        pages, or ``-`` for a metadata file on standard input. What cannot be read
        is a finding, never a pass.
    :param select: prefixes of codes to keep; all of them when it is empty.
    :param ignore: prefixes of codes to leave out.
    :raises UsageError: a prefix of no rule.
    """
    for prefix in (*select, *ignore):
        if not prefix or not any(code.startswith(prefix) for code in RULES):
            hint = "codes are NV100 and so on; a prefix as NV3 names a family"
            raise UsageError(f"there is no rule {prefix!r}", hint=hint)
    # Libraries are read in full: not for nothing.
    content = any(selected(c, select, ignore) for c in RULES if c.startswith("NV5"))
    found = [
        finding
        for path in paths
        for finding in _check(os.fspath(path), content=content)
    ]
    kept = {f for f in found if selected(f.code, select, ignore)}
    return sorted(kept, key=lambda f: (f.path, f.code, f.place, f.message))


def selected(code: str, select: Collection[str], ignore: Collection[str]) -> bool:
    """Is a rule kept? The longer of two prefixes that name it counts."""
    chosen = max((len(p) for p in select if code.startswith(p)), default=-1)
    left_out = max((len(p) for p in ignore if code.startswith(p)), default=-1)
    return chosen > left_out if select else left_out < 0


def fails(findings: Sequence[Finding], *, strict: bool) -> bool:
    """Do findings fail a release: errors, and warnings when it is strict?"""
    limit = SEVERITIES.index(WARNING if strict else ERROR)
    return any(SEVERITIES.index(finding.severity) <= limit for finding in findings)


def _check(path: str, *, content: bool) -> list[Finding]:
    if path.startswith(("http://", "https://")):
        from .pages import check_page

        return check_page(path)
    found = Collector("stdin" if path == "-" else path)
    try:
        if os.path.isdir(path):
            return check_folder(path, content=content)
        if path.endswith(".whl"):
            return check_wheel(path, content=content)
        data = read_stdin() if path == "-" else read_bytes(path)
    except InputError as error:
        found.add("NV100", "", error.message, error.hint or "")
        return found.findings
    check_text(data, found)
    return found.findings
