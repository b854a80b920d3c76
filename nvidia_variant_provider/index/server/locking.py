"""Files of a lock file, as this machine gets them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from simple_repository import errors, model

from ...errors import InputError
from ..selection.choice import Choice
from ..selection.evaluating import EvaluatedWheel
from .linking import link
from .rewritten import read_pieces, rewrite_pieces
from .source import Source

__all__ = ["LockedPage", "read_locked", "save_rewritten"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedPage:
    """What is shown of the files of a project in a lock file.

    :param files: by the names in the lock file, best first; they have other names and
        URLs where they are variants. A wheel that is rewritten has no hashes.
    :param choices: what was chosen of each release with variants, by version.
    """

    files: Mapping[str, model.File]
    choices: Mapping[str, Choice]


async def read_locked(source: Source, project: str, url: str) -> LockedPage:
    """Read what a machine gets of a project of a lock file.

    :param url: what the URLs of the source start with.
    """
    page = await source.repository.get_project_page(project)
    choices = source.repository.choices(project)
    names = {
        offer.name: offer.wheel.file_name
        for choice in choices.values()
        for offer in choice.offers
    }
    files: dict[str, model.File] = {}
    for file in page.files:
        # A page shows the best wheel twice.
        files.setdefault(
            names.get(file.filename, file.filename),
            link(source, file, project, urlsplit(url).path, shown=url),
        )
    return LockedPage(files=files, choices=choices)


async def save_rewritten(source: Source, project: str, name: str, folder: Path) -> str:
    """Save a wheel that is rewritten on its way, and serve it from there.

    pip compares the hash of a wheel that it installs from a lock file, and the hash in
    the file is that of the original, which is verified here.

    :returns: the SHA-256 of the wheel as pip gets it.
    :raises InputError: it cannot be read, or has another hash.
    """
    try:
        wheel = await source.repository.get_resource(project, name)
    except errors.InvalidPackageError as error:
        raise InputError(str(error)) from None
    if not isinstance(wheel, EvaluatedWheel):
        raise InputError("is not rewritten as its page says", path=name)
    digest = hashlib.sha256()
    path = folder / name
    original = wheel.original

    async def write(pieces: AsyncIterator[bytes]) -> None:
        with path.open("wb") as file:
            async for piece in rewrite_pieces(
                pieces, wheel.plan, wheel.sha256, source.rewritten
            ):
                digest.update(piece)
                file.write(piece)

    if isinstance(original, model.HttpResource):
        asked = {"Accept-Encoding": "identity"}
        async with source.client.stream(original.url, asked) as response:
            await write(response.aiter_raw())
    elif isinstance(original, model.LocalResource):
        await write(read_pieces(Path(original.path)))
    else:
        raise InputError("a file of an unknown kind", path=name)
    source.saved[name] = path
    return digest.hexdigest()
