"""Requirements files that say where to look: the places in them are replaced.

pip reads ``--index-url`` and the like from such files too, where they would lead it
past the loopback index. Files without them stay as they are.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..documents import read_bytes
from ..errors import InputError

__all__ = ["Places", "rewrite"]

# https://pip.pypa.io/en/stable/reference/requirements-file-format/
_INDEX = ("-i", "--index-url", "--pypi-url", "--extra-index-url")
_LINKS = ("-f", "--find-links")
_FILES = ("-r", "--requirement", "-c", "--constraint")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_COMMENT = re.compile(r"(^|\s+)#.*$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """What to put in place of an index, and of a place with links.

    :param environ: the variables that ``${NAME}`` stands for.
    """

    index: Callable[[str], str]
    links: Callable[[str], str]
    environ: Mapping[str, str]


def rewrite(path: str, folder: Path, places: Places) -> str:
    """The path of a file to give to pip: ``path``, or a copy in ``folder``.

    Files that ``path`` includes are looked at as well. What cannot be read stays, so
    that pip says what is wrong with it.
    """
    return _Rewriter(folder, places).rewrite(path)


class _Rewriter:
    def __init__(self, folder: Path, places: Places) -> None:
        self._folder = folder
        self._places = places
        self._lines: dict[str, list[str] | None] = {}
        self._copies: dict[str, str] = {}

    def rewrite(self, path: str) -> str:
        if path in self._copies:
            return self._copies[path]
        if not self._has_places(path, set()):
            return path
        name = f"{len(self._copies)}-{os.path.basename(path)}"
        copy = self._folder / name
        # Known before it is written: files may include each other in a circle.
        self._copies[path] = str(copy)
        lines = [self._line(line, path) for line in self._read(path) or ()]
        copy.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(copy)

    def _has_places(self, path: str, seen: set[str]) -> bool:
        """Does the file, or one that it includes, say where to look."""
        if path in seen:
            return False
        seen.add(path)
        for line in self._read(path) or ():
            for option, text in _options(line):
                if option in (*_INDEX, *_LINKS):
                    return True
                if option in _FILES and self._has_places(_beside(path, text), seen):
                    return True
        return False

    def _read(self, path: str) -> list[str] | None:
        """The lines of a file; ``None`` for what is no text in a file."""
        if path not in self._lines:
            try:
                lines = _join_lines(read_bytes(path).decode("utf-8"))
            except (InputError, UnicodeDecodeError):
                lines = None
            self._lines[path] = lines
        return self._lines[path]

    def _line(self, line: str, path: str) -> str:
        options = _options(line)
        if not any(name in (*_INDEX, *_LINKS, *_FILES) for name, _ in options):
            return line
        found: list[str] = []
        for option, text in options:
            found.append(option)
            if option in _FILES:
                # A copy is in another folder than what it was made from.
                found.append(self.rewrite(os.path.abspath(_beside(path, text))))
            elif option in _INDEX:
                found.append(self._places.index(self._expanded(text)))
            elif option in _LINKS:
                found.append(self._links(self._expanded(text), path))
            elif text:
                found.append(text)
        return shlex.join(found)

    def _links(self, text: str, path: str) -> str:
        # pip looks beside the file first.
        inner = _beside(path, text)
        if "://" not in text and os.path.exists(inner):
            text = os.path.abspath(inner)
        return self._places.links(text)

    def _expanded(self, text: str) -> str:
        environ = self._places.environ
        return _VARIABLE.sub(lambda match: environ.get(match[1]) or match[0], text)


def _beside(path: str, text: str) -> str:
    return text if "://" in text else os.path.join(os.path.dirname(path), text)


def _options(line: str) -> list[tuple[str, str]]:
    """The words of a line of options; those that count here with their values."""
    text = _COMMENT.sub("", line).strip()
    if not text.startswith("-"):
        return []
    try:
        words = [part for word in shlex.split(text) for part in _split(word)]
    except ValueError:
        return []
    found: list[tuple[str, str]] = []
    pending = iter(words)
    for word in pending:
        takes = word in (*_INDEX, *_LINKS, *_FILES)
        found.append((word, next(pending, "") if takes else ""))
    return found


def _split(word: str) -> list[str]:
    """``--option=value`` and ``-ovalue`` are two words."""
    for option in (*_INDEX, *_LINKS, *_FILES):
        if option.startswith("--"):
            if word.startswith(f"{option}="):
                return [option, word[len(option) + 1 :]]
        elif word.startswith(option) and word != option and word[1] != "-":
            return [option, word[len(option) :]]
    return [word]


def _join_lines(text: str) -> list[str]:
    """Lines, where those that end with a backslash go on."""
    joined: list[str] = []
    start = ""
    for line in text.splitlines():
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            start += line[:-1] + " "
        else:
            joined.append(start + line)
            start = ""
    return [*joined, start] if start else joined
