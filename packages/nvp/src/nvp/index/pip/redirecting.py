"""Redirect pip to the local index: arguments, variables and files.

pip also reads options such as ``--index-url`` from requirements files, which would
bypass the local index. pip gets copies of such files with the URLs of the local index.
Files without such options are used directly.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from urllib.parse import urljoin

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import read_bytes

from ...files import real_path, resource_file
from ..server.local_index import LocalIndex
from ..server.upstream import local_path
from .command import PipCommand
from .hooks import HOOKS, PLACES
from .settings import FILES, GROUPS, bypass_proxies, replace_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .locks import LockCopies

# The options for indexes and links, which are replaced.
_PLACES = {"index_url", "extra_index_urls", "find_links", "no_index"}

_USER_DATA = "PIP_USER_AGENT_USER_DATA"
"""A variable whose value is part of the ``User-Agent`` of pip 19.1 and newer, even with
``--isolated``. Each pip that pip starts inherits the variable."""

# https://pip.pypa.io/en/stable/reference/requirements-file-format/
_MAIN_INDEX = ("-i", "--index-url", "--pypi-url")
_INDEX = (*_MAIN_INDEX, "--extra-index-url")
_LINKS = ("-f", "--find-links")
_EDITABLE = ("-e", "--editable")
_CONSTRAINTS = ("-c", "--constraint")
_NAMED_FILES = ("-r", "--requirement", *_CONSTRAINTS)
_HERE = (*_INDEX, *_LINKS, *_NAMED_FILES)
_WITH_VALUES = (
    "--all-releases",
    "--config-settings",
    "--global-option",
    "--hash",
    "--no-binary",
    "--only-binary",
    "--only-final",
    "--trusted-host",
    "--use-feature",
)
_FLAGS = ("--no-index", "--pre", "--prefer-binary", "--require-hashes")
_KNOWN = (*_HERE, *_EDITABLE, *_WITH_VALUES, *_FLAGS)
"""The options in requirements files; pip accepts unambiguous prefixes of long names."""

_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_OWN_VARIABLE = re.compile(r"\$\{(PIP_[A-Z0-9_]+)\}")
_SPECIAL = re.compile(r"(?<=\$)(?=\{)|(?<=\s)(?=#)")
_COMMENT = re.compile(r"(^|(?<!\s)\s+)#.*$")  # in linear time
_SCHEME = re.compile(r"(http|https|file):", re.IGNORECASE)
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
)
_CODING = re.compile(rb"#.*?coding[:=]\s*([-\w.]+)")  # PEP 263


def redirect(
    command: PipCommand,
    environ: Mapping[str, str],
    local_index: LocalIndex,
    folder: Path,
    copied: dict[str, str],
    *,
    copies: LockCopies | None,
) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and variables that make pip use the local index.

    :param copied: receives the path of each copy, keyed by the requirements file.
    :param copies: creates the copies of lock files; ``None`` without lock files.
    """
    credentials = command.credentials
    no_index = command.options.no_index
    files = FileCopies(
        folder=folder,
        # With --no-index, pip ignores all indexes, also those in files.
        index=str if no_index else local_index.add_index,
        links=local_index.add_links,
        environ=environ,
        copied=copied,
    )
    named = (*command.options.requirements, *command.options.constraints)
    places = files.find_places(
        [path for path in named if not path.partition("[")[0].endswith(".toml")]
    )
    # For pip, a main index in a file replaces the indexes of the command.
    replaces = any(option in _MAIN_INDEX and place for option, place in places)
    given = [] if replaces else command.indexes
    indexes = [local_index.add_index(u, credentials.get(u)) for u in given]
    indexes += [] if no_index else local_index.add_vendors()
    linked = [place for option, place in places if option in _LINKS]
    joined = local_index.join_links([*command.find_links, *linked])
    links = [local_index.add_links(u, credentials.get(u)) for u in command.find_links]
    # pip prefers the files of all pages to those of directories: the last counts.
    links = [*joined, *(link for link in links if link not in joined)]

    def replaced_file(text: str) -> str:
        copy = copies.add(text) if copies is not None else None
        return copy or files.replace(text)

    def replaced_group(text: str) -> str:
        path, mark, group = text.rpartition(":")
        copy = copies.add(path, group) if copies is not None and mark else None
        return f"{copy}:{group}" if copy else text

    arguments: list[str] = []
    for option, spelled, *values in command.words:
        if option in FILES.values():
            arguments += [spelled, *map(replaced_file, values)]
        elif option == GROUPS:
            arguments += [spelled, *map(replaced_group, values)]
        elif option not in _PLACES:
            arguments += [spelled, *values]
    if no_index:
        arguments.append("--no-index")
    isolated = command.options.isolated_mode
    replaced = {
        # An empty value is an index too: without it, pip would use the configured one.
        "index-url": indexes[:1] or ([] if no_index else [""]),
        # Repeat the main index: an empty value would let pip's configured extra
        # indexes through.
        "extra-index-url": indexes[1:]
        or (indexes if command.options.extra_index_urls else []),
        "find-links": links,
    }
    variables = bypass_proxies(environ, local_index.host)
    if local_index.token is not None:
        own = environ.get(_USER_DATA)
        token = local_index.token
        variables[_USER_DATA] = f"{own} {token}" if own else token
    for option, values in replaced.items():
        # Prefer variables: they override configuration files, and other users of this
        # machine can read arguments. pip splits the values of variables at spaces.
        plain = [v for v in values if not isolated and v.split() == [v]]
        if plain:
            variables[f"PIP_{option.replace('-', '_').upper()}"] = " ".join(plain)
        for value in values:
            if value not in plain:
                arguments += [f"--{option}", value]
    # Not an argument: other users can read those.
    variables[PLACES] = json.dumps([local_index.url, local_index.pages_of_pip])
    variables[HOOKS] = resource_file("index", "pip", "hooks.py")
    variables |= replace_files(command, environ, folder, replaced_file, replaced_group)
    return arguments, variables


def find_mark(variables: Mapping[str, str]) -> str | None:
    """Return the variable with this pip run's secret, as ``NAME=VALUE``, if any."""
    value = variables.get(_USER_DATA)
    return None if value is None else f"{_USER_DATA}={value}"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileCopies:
    """Copies of requirements files for pip, with replaced indexes and links.

    :param folder: the directory of the copies.
    :param index: returns the URL that replaces the URL of an index.
    :param links: returns the replacement for a location of ``--find-links``.
    :param environ: the environment variables to substitute for ``${NAME}``.
    :param copied: the path of each copy, keyed by the path of the original.
    """

    folder: Path
    index: Callable[[str], str]
    links: Callable[[str], str]
    environ: Mapping[str, str]
    copied: dict[str, str] = field(default_factory=dict)
    _lines: dict[str, list[str]] = field(default_factory=dict)
    _used: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    _waiting: list[str] = field(default_factory=list)  # without a copy so far
    _unread: set[str] = field(default_factory=set)  # unreadable files
    _marked: set[str] = field(default_factory=set)  # files with a byte order mark
    _expanded: set[str] = field(default_factory=set)  # files with variables of pip

    def replace(self, path: str) -> str:
        """Return the path for pip: ``path``, or the path of a changed copy.

        Included files are also replaced. For an unreadable file, return ``path``, so
        pip reports the error.
        """
        found = self._register(path)
        while self._waiting:
            name = self._waiting.pop()
            text = "".join(f"{self._line(line, name)}\n" for line in self._read(name))
            # Preserve bytes that are not UTF-8.
            data = text.encode("utf-8", "surrogateescape")
            data = codecs.BOM_UTF8 + data if name in self._marked else data
            Path(self.copied[name]).write_bytes(data)
        return found

    def _register(self, path: str) -> str:
        """Return the path for pip; `replace` writes a new copy later."""
        if path in self.copied:
            return self.copied[path]
        # A pipe can be read only once, so pip needs a copy of its content.
        if not self.find_places([path]) and (
            path in self._unread or not _is_pipe(path)
        ):
            return path
        # Number the copies, because several files may have the same name. A number must
        # not make a long name too long.
        copy = self.folder / f"{len(self.copied)}-{os.path.basename(path)[-50:]}"
        self.copied[path] = str(copy)
        self._waiting.append(path)
        return str(copy)

    def find_places(self, paths: Sequence[str]) -> list[tuple[str, str]]:
        """Return the options for indexes and links in files, and in included files.

        A file with variables of pip counts too, with an empty option.
        """
        found: list[tuple[str, str]] = []
        waiting = [("-r", path) for path in reversed(paths)]
        seen: set[str] = set()
        while waiting:
            option, text = waiting.pop()
            if option not in _NAMED_FILES:
                found.append((option, text))
            elif text not in seen:
                seen.add(text)
                waiting += reversed(self._find_used(text))
        return found

    def _find_used(self, path: str) -> list[tuple[str, str]]:
        """Return the options in a file that pip uses, with resolved values."""
        if path not in self._used:
            self._used[path] = [
                (option, self._resolve(path, option, text or ""))
                for line in self._read(path)
                for option, text in _select_used(self._options(line))
            ]
            self._used[path] += [("", path)] if path in self._expanded else []
        return self._used[path]

    def _read(self, path: str) -> list[str]:
        """Return the joined lines of a file; empty if it cannot be read."""
        if path not in self._lines:
            try:
                text, is_marked = _decode(_read_local(path))
            except (InputError, LookupError, ValueError):
                text, is_marked = "", False
                self._unread.add(path)
            lines = list(_join_lines(text))
            # Some variables, such as PIP_INDEX_URL, have another value for pip.
            self._lines[path] = [_OWN_VARIABLE.sub(self._expand, x) for x in lines]
            if self._lines[path] != lines:
                self._expanded.add(path)
            if is_marked:
                self._marked.add(path)
        return self._lines[path]

    def _expand(self, match: re.Match[str]) -> str:
        return self.environ.get(match[1]) or match[0]

    def _line(self, line: str, path: str) -> str:
        options = self._options(line)
        used = _select_used(options)
        if not used:
            return line
        words: list[str] = []
        for option, text in options:
            words.append(option)
            if text is not None:
                is_used = (option, text) in used
                words.append(self._replaced(path, option, text) if is_used else text)
        # Quotes keep pip from expanding an expanded value again, or taking a comment.
        return _SPECIAL.sub("''", shlex.join(words))

    def _replaced(self, path: str, option: str, text: str) -> str:
        place = self._resolve(path, option, text)
        if option in _INDEX:
            return self.index(place) if place else ""
        # Relative paths do not work in a copy, which is in another directory.
        return self.links(place) if option in _LINKS else self._register(place)

    def _resolve(self, path: str, option: str, text: str) -> str:
        """Return the location to which ``text`` refers in a file at ``path``."""
        if option in _INDEX:
            return text
        if option in _LINKS:
            # Like pip, first try it beside the file.
            inner = os.path.join(os.path.dirname(os.path.abspath(path)), text)
            return inner if os.path.exists(inner) else text
        if _SCHEME.match(path):
            return urljoin(path, text)
        if _SCHEME.match(text):
            return text
        joined = os.path.join(os.path.dirname(path), text)
        plain = os.path.abspath(joined)
        try:
            is_same = "\0" in joined or real_path(plain) == real_path(joined)
        except OSError:  # reported when the file is read
            is_same = True
        if is_same:
            return plain
        # Only old versions of pip follow a link before "..". Let pip read the file.
        joined = os.path.join(os.getcwd(), joined)
        self._lines[joined] = []
        self._unread.add(joined)
        return joined

    def _options(self, line: str) -> list[tuple[str, str | None]]:
        """Return ``(word, value)`` pairs; only options in `_HERE` have a value.

        They have none if the line ends without it, which pip reports.
        """
        text = _COMMENT.sub("", line).strip()
        if not text.startswith("-"):
            return []
        # Like pip, also replace a variable in the value of an earlier one.
        for name in _VARIABLE.findall(text):
            if value := self.environ.get(name):
                text = text.replace(f"${{{name}}}", value)
        try:
            words = iter(shlex.split(text))
        except ValueError:
            return []
        options: list[tuple[str, str | None]] = []
        for word in words:
            if word == "--":
                options += [(rest, None) for rest in (word, *words)]
                break
            option, value = _split(word)
            if option in _EDITABLE:
                return []  # pip ignores other options on the line of a requirement
            if option in _HERE:
                value = next(words, None) if value is None else value
                options.append((option, value))
                continue
            if option in _WITH_VALUES:
                # Use two words: shlex.join() would quote "--option=va lue" as a whole,
                # but pip recognizes an option only by a leading dash.
                values = islice(words, 1) if value is None else [value]
                options += [(part, None) for part in (option, *values)]
            else:
                options.append((word, None))
        return options


def _read_local(path: str) -> bytes:
    """Read a requirements file of this machine.

    :raises InputError: the file cannot be read.
    :raises ValueError: the file is on a server. As a path, its URL could name a file
        below the current directory.
    """
    if _SCHEME.match(path) and not path.startswith("file:"):
        raise ValueError(path)
    return read_bytes(local_path(path), given=True)  # as pip does


def _is_pipe(path: str) -> bool:
    try:
        mode = os.stat(local_path(path)).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _select_used(
    options: list[tuple[str, str | None]],
) -> list[tuple[str, str | None]]:
    """Return the options for indexes, links and files that pip uses, in a line.

    pip reads one file, if the line names any, and ignores the other options.
    """
    files = sorted(
        (item for item in options if item[0] in _NAMED_FILES),
        key=lambda item: item[0] in _CONSTRAINTS,
    )
    return files[:1] or [item for item in options if item[0] in _HERE]


def _split(word: str) -> tuple[str, str | None]:
    """Return the full name of the option in ``word``, and its value, if present."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        meant = [option for option in _KNOWN if option.startswith(name)]
        if name not in _KNOWN and len(meant) == 1:
            name = meant[0]
        return name, value if equals else None
    if word[:2] in _KNOWN:
        return word[:2], word[2:] or None
    return word, None


def _decode(data: bytes) -> tuple[str, bool]:
    """Return the text of a file, and whether its copy needs a byte order mark.

    Bytes that are not UTF-8 become surrogate escapes, which can be written back.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding), True
    for line in data.split(b"\n", 2)[:2]:
        if found := _CODING.match(line):
            return data.decode(found[1].decode("ascii")), True
    return data.decode("utf-8", "surrogateescape"), False


def _join_lines(text: str) -> Iterator[str]:
    """Yield the lines of a text; like pip, join lines that end with a backslash.

    Empty lines after a joined line preserve the line numbers in pip's messages, because
    pip numbers a joined line by its first part.
    """
    start = ""
    parts = 0
    for line in text.splitlines():
        is_comment = _COMMENT.match(line) is not None
        if line.endswith("\\") and not is_comment:
            start += line.strip("\\")
            parts += 1
            continue
        # A comment ends a continued line, even if the comment ends with a backslash.
        yield start if is_comment and parts else start + line
        yield from [""] * parts
        start, parts = "", 0
    if parts:
        yield start
