"""Reading one wheel: what it has, what it could declare, and what that cost."""

from __future__ import annotations

import io
import re
import time
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from typing import IO, Any, Protocol

from nvidia_variant_provider.errors import InputError

from ..gpu_code.bounds import newest_runtime
from ..gpu_code.claims import find_claim
from ..gpu_code.inspection import inspect_listing, list_wheel
from ..gpu_code.loose import is_text
from ..gpu_code.report import WheelReport
from ..gpu_code.units import split_units
from .model import Claimed, Outcome, Wheel

__all__ = [
    "Meter",
    "Readable",
    "StoppedError",
    "Watched",
    "inspect_wheel",
]

_NATIVE = re.compile(
    r"(?:.*\.)?(?:so(?:\.[0-9.]+)?|pyd|dll|dylib|a|lib|o|obj|exe|cubin|fatbin|nvfatbin|ptx)"
    r"|[^.]+",
    re.IGNORECASE,
)
"""Names of files that may have machine code. Programs such as ``ptxas`` have names
without a dot."""

_INFO = re.compile(r"[^/]+\.dist-info/.*", re.DOTALL)


class StoppedError(Exception):
    """The reading of a wheel ends early.

    This is neither an `OSError` nor a `ValueError`, which `gpu_code` takes for damage
    of the wheel.

    :param error: says why.
    :param may_pass: whether the reason may be gone the next time.
    """

    def __init__(self, error: InputError, *, may_pass: bool) -> None:
        super().__init__(error.message)
        self.error = error
        self.may_pass = may_pass


class Meter:
    """Counts what is read for a wheel, and ends the reading when its time is over.

    :param seconds: how long it may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.started = time.monotonic()
        self.until = self.started + seconds
        self.bytes_read = 0

    def add(self, count: int) -> None:
        """Count bytes that have arrived."""
        self.bytes_read += count

    def check(self) -> None:
        """Go on, unless the time is over.

        :raises StoppedError: it is.
        """
        if self.is_over:
            raise StoppedError(self.late(), may_pass=True)

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.until

    def late(self) -> InputError:
        """Return the error that says so."""
        return InputError(f"not read within {self._seconds:g} s")


class Readable(Protocol):
    """A file of bytes that can seek."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes, and none only at the end."""

    def tell(self) -> int:
        """Return the position at which the next read starts."""

    def seek(self, offset: int, whence: int = ..., /) -> object:
        """Set the position at which the next read starts."""


class Watched(io.RawIOBase):
    """A file whose errors end the reading, instead of passing for damage of the wheel.

    :param counts: whether the bytes count; otherwise the file itself counts them.
    """

    def __init__(self, file: Readable, meter: Meter, *, counts: bool) -> None:
        super().__init__()
        self._file = file
        self._meter = meter
        self._counts = counts

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def tell(self) -> int:
        """Return the position at which the next read starts."""
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position at which the next read starts."""
        self._file.seek(offset, whence)
        # A temporary file returns nothing in Python 3.10.
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``.

        :raises StoppedError: the file cannot be read, or the time is over.
        """
        self._meter.check()
        try:
            data = self._file.read(len(buffer))
        except InputError as error:
            raise StoppedError(error, may_pass=True) from None
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            raise StoppedError(InputError(message), may_pass=True) from None
        if self._counts:
            self._meter.add(len(data))
        buffer[: len(data)] = data
        return len(data)


def inspect_wheel(file: IO[bytes], wheel: Wheel, meter: Meter) -> Outcome:
    """Look into a wheel.

    METADATA and the list of members come first. Of a wheel without a native library,
    nothing else is read.

    :param file: the open wheel, which can seek.
    :raises StoppedError: it took too long, or the file could not be read.
    """
    native = False

    def look(archive: zipfile.ZipFile) -> None:
        nonlocal native
        # Libraries that are damaged count: they are no reason to skip a wheel.
        native = any(map(is_native, archive.namelist()))

    listing = list_wheel(file, wheel.filename, look=look)
    if not native:
        listing.files.clear()
    report = inspect_listing(
        listing, wheel.filename, progress=lambda _done, _total: meter.check()
    )
    return _describe(wheel, report, native=native)


def _describe(wheel: Wheel, report: WheelReport, *, native: bool) -> Outcome:
    """Return what became of a wheel that was looked into.

    :param native: whether it has a native library, or another file with GPU code.
    """
    if wheel.size is None:
        wheel = replace(wheel, size=report.size)
    for defect in report.defects:
        if not defect.path and not report.members:
            return Outcome(wheel=wheel, status="failed", reason=defect.message)
    if not native:
        reason = "it has no native library"
        return Outcome(wheel=wheel, status="skipped", reason=reason, report=report)
    claims, cuda = _claims(report)
    return Outcome(
        wheel=wheel, status="inspected", report=report, claims=claims, cuda=cuda
    )


def is_native(path: str) -> bool:
    """Return whether a file of a wheel may have machine code, by its name."""
    name = path.rpartition("/")[2]
    return (
        _NATIVE.fullmatch(name) is not None
        and _INFO.fullmatch(path) is None
        and not is_text(name)
    )


def _claims(report: WheelReport) -> tuple[Mapping[str, Claimed], str | None]:
    """Return what a wheel could declare, and the CUDA that it is linked with.

    `builds.needs_of_report` also counts the toolkit that the code of a library shows,
    since a library may link CUDA statically: it answers on which drivers the build
    runs. The store says what the wheel names.
    """
    units = split_units(report)
    runtime = newest_runtime(report, units)
    claim = find_claim(report)
    sets = {
        "strict": (claim.strict, (*claim.sm_arch, *claim.exact)),
        "relaxed": (claim.relaxed, claim.relaxed_sm_arch),
    }
    claims = {
        name: Claimed(
            lower_bound=None if bound.version is None else str(bound.version),
            reason=bound.reason,
            sm_arch=tuple(values),
        )
        for name, (bound, values) in sets.items()
        if bound.version is not None or values
    }
    return claims, None if runtime is None else str(runtime.version)
