"""What was found in wheels that were inspected on this machine, by their SHA-256."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import model

from nvidia_variant_provider.errors import InputError

from ...builds.needs import needs_of_report
from ...kept_files import load, store
from ...knowledge.builds import BuildRecord, Needs, needs_in_table
from ...wheels.names import parse_wheel_name
from .aging import Aging
from .files import FileReader

__all__ = ["Inspections", "Progress"]

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the bytes of a wheel that have been read, and their total."""

_REMEMBERED = 20_000
"""Files of which it is remembered for some minutes what was found in them."""

_LONGEST = 1024 * 1024
_HEX = frozenset("0123456789abcdef")


class Inspections:
    """Inspects wheels, and keeps what was found in a folder of the user.

    :param folder: where a record is kept by the SHA-256 of its wheel; ``None`` keeps
        it in memory only.
    """

    def __init__(self, files: FileReader, folder: Path | None = None) -> None:
        self._files = files
        self._folder = folder
        self._known: Aging[str, tuple[Needs | None]] = Aging(_REMEMBERED)
        # Seldom listed: a page has thousands of wheels, and few were inspected.
        self._names: Aging[Path, frozenset[str]] = Aging(1)

    def find(self, file: model.File) -> Needs | None:
        """Return what an earlier inspection of a wheel has found."""
        known = self._known.get(file.url)
        if known is None:
            known = (self._load(file),)
            self._known.put(file.url, known)
        return known[0]

    async def inspect(
        self,
        project: str,
        file: model.File,
        platform: str,
        progress: Progress | None = None,
    ) -> Needs | None:
        """Read the GPU code of a wheel, by ranges of bytes.

        :param platform: the platform of the wheel, as the table of builds names it.
        :returns: ``None`` where the wheel could not be read completely.
        :raises InputError: it cannot be read at all.
        """
        from datetime import datetime, timezone

        from ...gpu_code.inspection import inspect_path

        name = file.filename

        def read(source: BinaryIO) -> Needs | None:
            return needs_of_report(inspect_path(source, name=name, progress=progress))

        needs = await self._files.open(project, name, read)
        if needs is None:
            return None
        version = Version(parse_wheel_name(name).version.replace("_", "-"))
        digest = file.hashes.get("sha256", "").lower()
        date = datetime.now(timezone.utc).date().isoformat()
        record = BuildRecord(
            project=canonicalize_name(project),
            version=version.public,
            label=version.local,
            platform=platform,
            needs=needs_in_table(needs, date),
            wheels={name: digest} if digest else {},
            source="inspected",
            date=date,
        )
        text = json.dumps(record.to_dict(), separators=(",", ":"))
        store(self._path(file), text.encode())
        needs = _needs(record)
        self._known.put(file.url, (needs,))
        pieces = len(needs.pieces or ())
        logger.info("%s: inspected, %d pieces of GPU code", name, pieces)
        return needs

    def _load(self, file: model.File) -> Needs | None:
        path = self._path(file)
        if path is None or path.name not in self._list(path.parent):
            return None
        content = load(path, _LONGEST)
        if content is None:
            return None
        try:
            return _needs(BuildRecord.from_dict(json.loads(content)))
        except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
            # An older version may have written it, or a full disk has cut it.
            logger.info("%s: its record cannot be used: %r", file.filename, error)
            return None

    def _list(self, folder: Path) -> frozenset[str]:
        names = self._names.get(folder)
        if names is None:
            try:
                names = frozenset(os.listdir(folder))
            except OSError:
                names = frozenset()
            self._names.put(folder, names)
        return names

    def _path(self, file: model.File) -> Path | None:
        digest = file.hashes.get("sha256", "").lower()
        if self._folder is None or len(digest) != 64 or not _HEX.issuperset(digest):
            return None
        return self._folder / f"{digest}.json"


def _needs(record: BuildRecord) -> Needs:
    source = f"inspected here, {record.date}"
    return replace(record.needs, evidence="inspected", source=source)
