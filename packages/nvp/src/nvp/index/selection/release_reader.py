"""Reading the variants of a release: from its metadata file, or from its wheels."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO

from simple_repository import model

from nvidia_variant_provider.errors import InputError

from .files import FileReader
from .renaming import Release, Wheel

if TYPE_CHECKING:
    from nvidia_variant_provider.metadata import VariantsMetadata

__all__ = ["ReleaseReader"]

logger = logging.getLogger(__name__)

_MOST_LABELS = 64
"""Labels of a release whose wheels are opened when there is no metadata file."""

_REMEMBERED = 1024


class ReleaseReader:
    """Reads the variants of releases from a repository.

    Metadata is remembered by its hash, or by the names of the wheels it is from.
    """

    def __init__(self, files: FileReader) -> None:
        self._files = files
        self._documents: dict[str, VariantsMetadata] = {}

    async def read(
        self, project: str, release: Release, files: Mapping[str, model.File]
    ) -> VariantsMetadata:
        """Read the metadata file, or else the ``variant.json`` of the wheels.

        :param files: the files of the page, by name.
        :raises InputError: neither can be used.
        """
        if release.metadata is None:
            return await self._combine(project, release)
        file = files[release.metadata]
        expected = file.hashes.get("sha256", "").lower()
        if expected in self._documents:
            return self._documents[expected]
        body = await self._files.read(project, file.filename)
        from nvidia_variant_provider.metadata import read_metadata

        digest = hashlib.sha256(body).hexdigest()
        if expected and digest != expected:
            message = "its sha256 is not the one that the page gives"
            hint = "report it to the index"
            raise InputError(message, path=file.filename, hint=hint)
        if digest not in self._documents:
            metadata = await asyncio.to_thread(read_metadata, body, path=file.filename)
            self._remember(digest, metadata)
        return self._documents[digest]

    async def _combine(self, project: str, release: Release) -> VariantsMetadata:
        from ...wheels.merging import combine

        # One wheel of each label is enough: PEP 825 requires that all wheels with the
        # same label declare the same properties.
        chosen = {w.parts.label or "": w for w in reversed(release.labelled)}
        key = "\n".join(sorted(wheel.file_name for wheel in chosen.values()))
        if key in self._documents:
            return self._documents[key]
        if len(chosen) > _MOST_LABELS:
            message = f"there is no metadata file, and wheels of {len(chosen)} labels"
            raise InputError(message, hint="ask the index for the metadata file")
        logger.info(
            "%s %s has no metadata file: reading %d wheels",
            project,
            release.version,
            len(chosen),
        )
        parts = await asyncio.gather(
            *(self._read_wheel(project, wheel) for wheel in chosen.values())
        )
        merged, problems = combine(parts)
        for problem in problems:
            raise problem
        self._remember(key, merged)
        return merged

    async def _read_wheel(
        self, project: str, wheel: Wheel
    ) -> tuple[str, VariantsMetadata]:
        from ...wheels.variant_json import read_wheel_metadata

        def read(file: BinaryIO) -> VariantsMetadata:
            label = wheel.parts.label or ""
            return read_wheel_metadata(wheel.file_name, label, file)[0]

        return wheel.file_name, await self._files.open(project, wheel.file_name, read)

    def _remember(self, key: str, metadata: VariantsMetadata) -> None:
        if len(self._documents) > _REMEMBERED:
            self._documents.clear()
        self._documents[key] = metadata
