"""The GPU code of installed distributions, read once for each content.

What is read of installed files is kept in a cache until one of the files changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from nvidia_variant_provider.errors import InputError

from .. import __version__
from ..gpu_code.inspection import Progress, inspect_recorded
from ..gpu_code.loose import is_text
from ..gpu_code.report import WheelReport
from ..kept_files import load, store
from .distributions import Distribution, RecordedFile

__all__ = ["CodeReader", "Watch", "kept_path", "read_kept", "write_kept"]

logger = logging.getLogger(__name__)


_LONGEST = 16 * 1024 * 1024
"""The most bytes that are kept of one distribution. The report of 10,560 loose cubins
has 6 MB."""


def kept_path(
    folder: str | None,
    kind: str,
    distribution: Distribution,
    files: Iterable[RecordedFile],
) -> str | None:
    """Return where what was read of exactly these files is kept.

    RECORD has the hash of each file. A file that was changed after it had been
    installed has another size or another time.

    :param folder: ``None`` keeps nothing.
    :param kind: what was read.
    :returns: ``None`` where nothing is kept, or a file is missing.
    """
    if folder is None:
        return None
    state = hashlib.sha256(f"{__version__}\n{kind}\n{distribution.name}\n".encode())
    state.update(distribution.metadata)
    for item in files:
        try:
            status = os.stat(distribution.locate(item.path))
        except (OSError, ValueError):
            return None
        line = f"{item.path}\0{item.digest}\0{status.st_size}\0{status.st_mtime_ns}"
        state.update(f"{line}\n".encode("utf-8", "surrogateescape"))
    return os.path.join(folder, f"{state.hexdigest()}.json")


def read_kept(path: str | None) -> Any:
    """Read what is kept; ``None`` where there is nothing that can be used."""
    content = load(path, _LONGEST)
    if content is None:
        return None
    try:
        return json.loads(content)
    except ValueError as error:
        # A full disk may have cut it.
        logger.info("%s cannot be used: %r", path, error)
        return None


def write_kept(path: str | None, document: object) -> None:
    """Keep a document; a cache that cannot be written is not an error."""
    # The report of 10,560 cubins takes long to write as JSON, so look first.
    if path is None:
        return
    store(path, json.dumps(document, separators=(",", ":")).encode())


Watch: TypeAlias = "Callable[[str], AbstractContextManager[Progress | None]]"
"""Called with the name of a distribution, and returns what takes the progress."""


class CodeReader:
    """Reads the GPU code of distributions, and keeps what it finds.

    :param folder: where reports are kept; ``None`` keeps none.
    :param jobs: how many files are read at the same time.
    :param watch: returns what takes the progress of reading it.
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
