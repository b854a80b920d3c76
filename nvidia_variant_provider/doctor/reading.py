"""The GPU code of installed distributions, read once for each content."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from .. import __version__
from ..errors import InputError
from ..gpu_code.inspection import Progress, inspect_recorded
from ..gpu_code.loose import is_text
from ..gpu_code.report import WheelReport
from .distributions import Distribution, RecordedFile

__all__ = ["CodeReader", "Watch", "may_have_gpu_code"]

logger = logging.getLogger(__name__)

Watch: TypeAlias = "Callable[[str], AbstractContextManager[Progress | None]]"
"""Called with the name of a distribution, and returns what is told the progress."""

_LONGEST = 16 * 1024 * 1024
"""The most bytes of a kept report. That of 10,560 loose cubins has 6 MB."""


class CodeReader:
    """Reads the GPU code of distributions, and keeps what it finds.

    :param folder: where reports are kept; ``None`` keeps none.
    :param jobs: how many files are read at the same time.
    :param watch: returns what is told how far the reading of a distribution is.
    """

    def __init__(
        self,
        folder: str | None = None,
        *,
        jobs: int = 1,
        watch: Watch | None = None,
    ) -> None:
        self._folder = folder
        self._jobs = jobs
        self._watch = watch or (lambda _: contextlib.nullcontext())

    def read(self, distribution: Distribution) -> WheelReport | None:
        """Find the GPU code of a distribution.

        :returns: ``None`` where it has no file that could hold any, or no RECORD. What
            cannot be read is a defect of the report.
        """
        files = [item for item in distribution.files if may_have_gpu_code(item.path)]
        if not files:
            return None
        path = self._path(distribution, files)
        report = _load(path)
        if report is not None:
            logger.debug("%s: its report is kept in %s", distribution.name, path)
            return report
        record = (distribution.record or b"").decode("utf-8", "replace")
        with self._watch(distribution.name) as progress:
            try:
                report = inspect_recorded(
                    distribution.name,
                    record,
                    distribution.metadata,
                    locate=distribution.locate,
                    jobs=self._jobs,
                    progress=progress,
                )
            except InputError as error:
                distribution.defects.append(error.message)
                return None
        if not report.all_defects:
            _store(path, report)
        return report

    def _path(
        self, distribution: Distribution, files: list[RecordedFile]
    ) -> str | None:
        """Return where the report of exactly these files is kept.

        RECORD has the hash of each file. A file that was changed after it had been
        installed has another size or another time.
        """
        if self._folder is None:
            return None
        state = hashlib.sha256(f"{__version__}\n{distribution.name}\n".encode())
        state.update(distribution.metadata)
        for item in files:
            try:
                status = os.stat(distribution.locate(item.path))
            except (OSError, ValueError):
                return None
            line = f"{item.path}\0{item.digest}\0{status.st_size}\0{status.st_mtime_ns}"
            state.update(f"{line}\n".encode("utf-8", "surrogateescape"))
        return os.path.join(self._folder, f"{state.hexdigest()}.json")


def may_have_gpu_code(path: str) -> bool:
    """Return whether a file of a RECORD is looked into, by its name."""
    if path.startswith("../") or path.endswith(".pyc"):
        return False
    return not is_text(path)


def _load(path: str | None) -> WheelReport | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            text = file.read(_LONGEST + 1)
    except OSError:
        return None
    try:
        document: Any = json.loads(text)
        return WheelReport.from_dict(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # A full disk may have cut it.
        logger.info("%s cannot be used: %r", path, error)
        return None


def _store(path: str | None, report: WheelReport) -> None:
    """Keep a report; a cache that cannot be written is not an error."""
    if path is None:
        return
    text = json.dumps(report.to_dict(), separators=(",", ":")).encode()
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
