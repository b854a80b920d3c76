"""The URLs of the real files in what pip has written: a report or a lock file.

pip records the URLs of the local index, which has ended by the time somebody reads
them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from ..server.local_index import LocalIndex
from .reports import label_of

__all__ = ["Restored", "restore"]

_FILE_URL = re.compile(r"\"(file:[^\"]*\.(?:whl|tar\.gz|zip))\"")


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """What pip wrote, with the URLs of the real files.

    :param variants: the project and label of each variant wheel in it.
    :param remarks: sentences about what in it does not last, without a full stop.
    """

    text: str
    variants: frozenset[tuple[str, str]] = frozenset()
    remarks: tuple[str, ...] = ()


def restore(text: str, local_index: LocalIndex) -> Restored:
    """Return the text with the URLs of the real files.

    The names of variant wheels, which the local index changes, become the real ones,
    and so do the hashes of wheels that were rewritten on the way.
    """
    names: dict[str, str] = {}
    variants: set[tuple[str, str]] = set()

    def put_back(match: re.Match[str]) -> str:
        url = match[0]
        original = local_index.original_url(url)
        if original is None:
            return url
        project = urlsplit(url).path.split("/")[-4]
        label = label_of(url)
        if label is not None:
            variants.add((project, label))
            names[_file_name(url)] = _file_name(original)
        return original

    text = re.sub(rf"{re.escape(local_index.url)}/[^\s\"'#]*", put_back, text)
    for name, original in names.items():
        text = text.replace(f'"{name}"', f'"{original}"')
    for name, original in local_index.rewritten.items():
        text = text.replace(name, original)
    here_alone = {
        canonicalize_name(_file_name(url).partition("-")[0])
        for url in _FILE_URL.findall(text)
    }
    return Restored(
        text=text, variants=frozenset(variants), remarks=_remarks(here_alone)
    )


def _remarks(projects: Collection[str]) -> tuple[str, ...]:
    """Say which projects have URLs that only this machine can use."""
    if not projects:
        return ()
    names = ", ".join(sorted(projects))
    return (f"URLs of files of this machine (file:) are in it for {names}",)


def _file_name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])
