"""What the rules need of one wheel, which is read once and may be kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InputError
from ..wheels.variant_json import WheelContent, read_wheel
from .index_files import IndexFile, OpenFile, SkippedError

if TYPE_CHECKING:
    from ..gpu_code.report import WheelReport

__all__ = ["Unread", "WheelFacts", "read_facts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """Why a wheel, or its GPU code, could not be read.

    :param message: a sentence without a full stop.
    :param hint: what to do next; may be empty.
    """

    message: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelFacts:
    """What was found in one wheel, before any rule has judged it.

    :param sha256: the hash of the file; ``None`` where only parts of it were read.
    :param unhashed: why the hash is not known, although a page gives one.
    :param content: what the wheel says about itself; ``None`` if that was not read.
    :param report: its GPU code; ``None`` if that was not read.
    :param unread: why the wheel or its GPU code could not be read, which is a defect of
        the wheel.
    :param skipped: why it was not read at all, which is no defect of the wheel.
    """

    sha256: str | None = None
    unhashed: str | None = None
    content: WheelContent | None = None
    report: WheelReport | None = None
    unread: Unread | None = None
    skipped: str | None = None


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
