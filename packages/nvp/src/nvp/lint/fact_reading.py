"""Reading what the rules need of one wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvidia_variant_provider.errors import InputError

from ..wheels.variant_json import read_wheel
from .facts import Unread, WheelFacts
from .index_files import IndexFile, OpenFile, SkippedError

if TYPE_CHECKING:
    from ..gpu_code.report import WheelReport

__all__ = ["read_facts"]


def read_facts(file: IndexFile) -> WheelFacts:
    """Read one wheel. What is wrong with it is part of the result."""
    sha256 = unhashed = None
    try:
        with file.open_wheel() as opened:
            sha256, unhashed = opened.sha256, opened.unhashed
            content = read_wheel(opened.source)
            report, unread = _inspect(file, opened)
    except SkippedError as skipped:
        return WheelFacts(unhashed=skipped.unhashed, skipped=skipped.reason)
    except InputError as error:
        return WheelFacts(sha256=sha256, unhashed=unhashed, unread=_unread(error))
    return WheelFacts(
        sha256=sha256, unhashed=unhashed, content=content, report=report, unread=unread
    )


def _inspect(
    file: IndexFile, opened: OpenFile
) -> tuple[WheelReport | None, Unread | None]:
    if not file.reading.content:
        return None, None
    # The readers of binaries take a while to import.
    from ..gpu_code.inspection import inspect_path

    try:
        with file.reading.watch(file.path) as progress:
            report = inspect_path(
                opened.source, name=file.path, jobs=opened.jobs, progress=progress
            )
    except InputError as error:
        return None, _unread(error)
    return report, None


def _unread(error: InputError) -> Unread:
    return Unread(message=error.message, hint=error.hint or "")
