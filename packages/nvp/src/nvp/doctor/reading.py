"""The GPU code of installed distributions, read once for each content."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

from nvidia_variant_provider.errors import InputError

from ..gpu_code.inspection import Progress, inspect_recorded
from ..gpu_code.loose import is_text
from ..gpu_code.report import WheelReport
from .cache import kept_path, read_kept, write_kept
from .distributions import Distribution

__all__ = ["CodeReader", "Watch", "may_have_gpu_code"]

logger = logging.getLogger(__name__)

Watch: TypeAlias = "Callable[[str], AbstractContextManager[Progress | None]]"
"""Called with the name of a distribution, and returns what is told the progress."""


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
        self.folder = folder
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
        path = kept_path(self.folder, "code", distribution, files)
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
                    loaded_only=True,
                    jobs=self._jobs,
                    progress=progress,
                )
            except InputError as error:
                distribution.defects.append(error.message)
                return None
        if not report.all_defects:
            write_kept(path, report.to_dict())
        return report


def may_have_gpu_code(path: str) -> bool:
    """Return whether a file of a RECORD is looked into, by its name."""
    if path.startswith("../") or path.endswith(".pyc"):
        return False
    return not is_text(path)


def _load(path: str | None) -> WheelReport | None:
    document = read_kept(path)
    if document is None:
        return None
    try:
        return WheelReport.from_dict(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        logger.info("%s cannot be used: %r", path, error)
        return None
