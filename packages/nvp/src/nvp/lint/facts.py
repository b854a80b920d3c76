"""What the rules need of one wheel, which is read once and may be kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..gpu_code.report import WheelReport
    from ..wheels.variant_json import WheelContent

__all__ = ["Unread", "WheelFacts"]


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
