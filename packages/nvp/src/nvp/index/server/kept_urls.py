"""Find files of a project with URLs of this server, before they are committed.

Installers record the index in files that other machines read, which cannot reach the
server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import urlsplit

from .server import reachable_url

_MOST_BYTES = 50_000_000

_BY_FILE = frozenset({"uv.lock", "pylock*.toml"})
"""Files whose installer uses only the URLs of files, never the index."""

_ADVICE = {
    "uv.lock": "the server has to run at this port where the file is used",
    "pylock*.toml": "the server has to run at this port where the file is used",
    "pdm.lock": "lock without --static-urls",
    "poetry.lock": "name another source in pyproject.toml, and run poetry lock",
    "Pipfile": "name PyPI in its place, and run pipenv lock --pypi-mirror URL",
    "Pipfile.lock": "name PyPI in Pipfile, and run pipenv lock --pypi-mirror URL",
    "*requirements*.txt": "remove the line, or compile with --no-emit-index-url",
    "pyproject.toml": "remove it",
}
"""The advice, by the pattern of the name."""

_OF_TABLES = {
    "uv": "remove the table, and lock with uv lock --default-index URL",
    "poetry": "run poetry source remove NAME before you commit it",
    "pdm": "remove the table, and give the URL with pdm config pypi.url URL",
}
_TABLE = re.compile(r"\s*\[+\s*tool\.(uv|poetry|pdm)\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptUrl:
    """A line of a file with a URL of the server.

    :param line: its number, from 1.
    :param advice: the next step, in lower case without a period.
    """

    path: Path
    line: int
    advice: str


def find_kept_urls(folder: Path, urls: Sequence[str]) -> Iterator[KeptUrl]:
    """Yield the first line of each file of a project that makes it need the server.

    Comments are ignored. So is the index in uv.lock, because `uv sync` uses only the
    URLs of files.

    :param folder: the directory of the project.
    :param urls: the index URLs of the server.
    """
    names = {"localhost", "127.0.0.1", "[::1]"}
    ports = set()
    for url in urls:
        for parts in map(urlsplit, (url, reachable_url(url))):
            names.add(parts.netloc.rpartition(":")[0])
            ports.add(str(parts.port))
    hosts = "|".join(map(re.escape, sorted(names)))
    own = rf"https?://(?:[^/\s@]*@)?(?:{hosts}):(?:{'|'.join(sorted(ports))})(?![0-9])"
    for path, form in _candidates(folder):
        # Further indexes of a server have a number in their paths.
        pattern = re.compile(own + ("(?:/[0-9]+)?/f/" if form in _BY_FILE else ""))
        table = ""
        for number, line in enumerate(_lines(path), 1):
            if match := _TABLE.match(line):
                table = match[1]
            elif line.startswith("["):
                table = ""
            if not line.lstrip().startswith("#") and pattern.search(line):
                advice = _OF_TABLES.get(table, _ADVICE[form])
                yield KeptUrl(path=path, line=number, advice=advice)
                break


def has_lock(folder: Path) -> bool:
    """Return whether a directory has a lock file or a compiled requirements file."""
    return any(path.name != "pyproject.toml" for path, *_ in _candidates(folder))


def _candidates(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of a project that installers write, with their patterns."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
        for path in paths:
            form = next((form for form in _ADVICE if fnmatch(path.name, form)), None)
            if form is not None and path.stat().st_size <= _MOST_BYTES:
                yield path, form
    except OSError:
        return


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
