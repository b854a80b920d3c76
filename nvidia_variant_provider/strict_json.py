"""Read JSON documents strictly, with the place of each defect.

The module `json` accepts ``NaN``, and the last value of a duplicate key. Other parsers
do not, so an installer and an index could read the same file differently.
"""

from __future__ import annotations

import os
import stat
import sys
from itertools import islice

from .errors import InputError, join, shown
from .light import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, BinaryIO

MAX_BYTES = 4 * 1024 * 1024
"""The largest metadata file, in bytes. Published files have up to 5 KB, and a file with
10,000 labels has 2 MB."""

LARGE_BYTES = 64 * 1024 * 1024
"""The largest index page or pip report, in bytes."""

_LEAST_MEMORY, _TIMES = 24 * 1024 * 1024, 4
"""The memory limit for the values of a JSON text: a number of bytes, plus a multiple of
the length of the text."""

OBJECT_MEMORY, LIST_MEMORY, VALUE_MEMORY = 232, 90, 72
"""The largest size in memory of an empty object, an empty list and a short value, in
bytes."""

_MOST_FLAWS = 1000
"""The maximum number of reported flaws of a text."""

_DEEPEST = 100
"""The maximum depth of a document. Deeper documents would exceed Python's limit for
recursion in code that walks through them."""


_NOT_METADATA = "this is not variant metadata"


class Flaw(Frozen):
    """A defect of a JSON text that a parser can tolerate.

    :param kind: one of the three constants of the class.
    :param place: the place in the document, such as ``variants.cu126``.
    :param message: the problem.
    :param hint: the next step.
    """

    BYTE_ORDER_MARK = "byte order mark"
    DUPLICATE_KEY = "duplicate key"
    CONSTANT = "constant"

    kind: str
    place: str
    message: str
    hint: str

    def __init__(self, kind: str, place: str, message: str, hint: str) -> None:
        super().__init__(kind=kind, place=place, message=message, hint=hint)


class _DuplicateKeys(dict):  # type: ignore[type-arg]
    """A JSON object with a duplicate key; `_find_flaws` finds its place later."""

    keys_given_twice: list[str]


class _Constant(float):
    """``NaN`` or ``Infinity``, which are not JSON; a float, as in `json`."""

    def __new__(cls, text: str) -> _Constant:
        return float.__new__(cls, text.replace("Infinity", "inf"))

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def read_bytes(
    path: str | os.PathLike[str], *, limit: int | None = None, given: bool = False
) -> bytes:
    """Return the bytes of a file, at most ``limit`` (default: `MAX_BYTES`).

    :param given: as in `open_regular`.
    :raises InputError: the file cannot be read, or is too large.
    """
    name = str(path)
    try:
        file = open_regular(path, given=given)
    except (OSError, ValueError) as error:
        raise unreadable(error, name) from None
    with file:
        return read_stream(file, name, limit=limit)


def is_opened(path: str | os.PathLike[str]) -> bool:
    """Return whether a path names a file that the shell has opened.

    Such a path is ``/dev/stdin``, or ``/dev/fd/63`` for ``<(command)``.
    """
    folder, _, name = str(path).rpartition("/")
    is_number = name.isascii() and name.isdigit()
    return str(path) == "/dev/stdin" or (
        folder in ("/dev/fd", "/proc/self/fd") and is_number
    )


def open_regular(
    path: str | os.PathLike[str],
    *,
    given: bool = False,
    place: tuple[str, int] | None = None,
) -> BinaryIO:
    """Open a regular file for reading; reject a file that makes readers wait.

    :param given: whether the user gave the path as an argument. Then it may also be a
        pipe that the shell has opened. A path that a file or a page names may not.
    :param place: the name of the file, and a descriptor of its directory, if ``path``
        is only its name for errors. Then the file must not be a link.
    :raises OSError: the file is not regular (such as a named pipe), cannot be opened,
        or has no data yet (such as ``/proc/kmsg``).
    :raises ValueError: the path has a NUL byte.
    """
    if given and is_opened(path):
        return open(path, "rb")
    name, folder = place or (path, None)
    _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=place is None).st_mode)

    def open_at_once(_: str, flags: int) -> int:
        flags |= getattr(os, "O_NONBLOCK", 0)
        flags |= getattr(os, "O_NOFOLLOW", 0) if place else 0
        return os.open(name, flags, dir_fd=folder)

    file = open(path, "rb", opener=open_at_once)  # noqa: SIM115  # the caller closes it
    try:
        # Check again: another program may have replaced the file.
        status = os.fstat(file.fileno())
        _check_regular(status.st_mode)
        if not status.st_size and not file.peek(1):
            # This call raises an error if the file has no data yet, but is not empty.
            os.read(file.fileno(), 1)
    except BaseException:
        file.close()
        raise
    return file


def _check_regular(mode: int) -> None:
    # Accept a directory here: when it is opened, the system's message is clearer.
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        import errno  # import late, because installers load this module

        raise OSError(errno.EINVAL, "not a regular file")


def unreadable(error: Exception, name: str) -> InputError:
    """Return an error of the operating system as an `InputError` with the file's name.

    The name may be a URL with an unsupported scheme; its password is hidden.
    """
    scheme, mark, _ = name.partition("://")
    if not name:
        return InputError("the path is empty", path="''", hint="name a file")
    if mark and scheme.isalpha() and scheme not in ("file", "http", "https"):
        message = "only http and https URLs are read"
        return InputError(message, path=name, hint="download the file")
    # A path with a NUL byte raises ValueError, which has no strerror.
    reason = getattr(error, "strerror", None) or str(error)
    message = f"cannot be read: {reason}"
    return InputError(message, path=name, hint="check the path")


def read_stdin(*, limit: int | None = None) -> bytes:
    """Return the bytes of standard input, at most ``limit`` (default: `MAX_BYTES`).

    :raises InputError: stdin cannot be read or is too large.
    """
    if sys.stdin is None:  # The shell has closed stdin: <&-
        raise InputError("cannot be read: closed", path="stdin", hint="name a file")
    return read_stream(sys.stdin.buffer, "stdin", limit=limit)


def read_stream(file: BinaryIO, name: str, *, limit: int | None = None) -> bytes:
    """Return the rest of an open file, at most ``limit`` bytes (default: `MAX_BYTES`).

    :raises InputError: the file cannot be read or is too large.
    """
    limit = limit or MAX_BYTES
    try:
        data = file.read(limit + 1)
    except OSError as error:
        raise unreadable(error, name) from None
    if len(data) > limit:
        raise _too_large(limit, name)
    return data


def _too_large(limit: int, name: str | None) -> InputError:
    message = f"larger than {limit // 1024 // 1024} MiB"
    return InputError(message, path=name, hint=_NOT_METADATA)


def check_memory(
    text: str,
    path: str | None = None,
    *,
    least: int = _LEAST_MEMORY,
    times: int = _TIMES,
) -> None:
    """Reject a text whose values would take much more memory than the text.

    Counting brackets and commas is fast. An empty list has two or three bytes of text,
    but takes 64 bytes of memory.

    :raises InputError: the values may take more bytes than ``least`` and ``times`` the
        length of the text.
    """
    counts = ((OBJECT_MEMORY, "{"), (LIST_MEMORY, "["), (VALUE_MEMORY, ","))
    needed = sum(size * text.count(sign) for size, sign in counts)
    if needed > least + times * len(text):
        message = "has too many values for its length"
        raise InputError(message, path=path, hint=_NOT_METADATA)


def parse_json(
    data: bytes | str, path: str | None = None, *, limit: int | None = None
) -> Any:
    """Return the value of a JSON text.

    :param path: the name of the file for messages.
    :param limit: the maximum length in characters (default: `MAX_BYTES`).
    :raises InputError: the text is not UTF-8, not JSON or nested too deeply, begins
        with a byte order mark, gives a key twice, or has ``NaN`` or ``Infinity``.
    """
    value, flaws = parse_lenient(data, path, limit=limit)
    for flaw in flaws:
        place = flaw.place or None
        raise InputError(flaw.message, path=path, place=place, hint=flaw.hint)
    return value


def parse_lenient(
    data: bytes | str, path: str | None = None, *, limit: int | None = None
) -> tuple[Any, list[Flaw]]:
    """Return the value of a JSON text, and the flaws that the parser tolerated.

    The last value of a duplicate key is used. ``NaN`` is a number.

    :param path: the name of the file for messages.
    :raises InputError: the text is not UTF-8, not JSON or nested too deeply.
    """
    import json

    if isinstance(data, bytes):
        try:
            data = data.decode("utf-8")
        except UnicodeDecodeError as error:
            message = f"not UTF-8: byte {error.start}"
            raise InputError(message, path=path, hint="save it as UTF-8") from None
    if len(data) > (limit or MAX_BYTES):
        raise _too_large(limit or MAX_BYTES, path)
    check_memory(data, path)
    flaws: list[Flaw] = []
    if data.startswith("\ufeff"):
        message, hint = "starts with a byte order mark", "save it without one"
        flaws.append(Flaw(Flaw.BYTE_ORDER_MARK, "", message, hint))
        data = data[1:]
    marks: list[object] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        plain = dict(items)
        if len(plain) == len(items):
            return plain
        marked = _DuplicateKeys(plain)
        seen: set[str] = set()
        twice: dict[str, None] = {}
        for key, _ in items:
            if key in seen:
                twice[key] = None
            seen.add(key)
        marked.keys_given_twice = list(twice)
        marks.append(marked)
        return marked

    def constant(text: str) -> _Constant:
        marks.append(text)
        return _Constant(text)

    try:
        value = json.loads(data, object_pairs_hook=pairs, parse_constant=constant)
        if data.count("[") + data.count("{") > _DEEPEST:
            _check_depth(value)
        found = [*islice(_find_flaws(value), _MOST_FLAWS)] if marks else []
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        raise InputError(message, path=path, hint="check the file") from None
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        message = "nested too deeply" if deep else "a number is too long"
        hint = _NOT_METADATA
        raise InputError(message, path=path, hint=hint) from None
    return value, [*flaws, *found]


def _check_depth(document: object) -> None:
    level = [document]
    for _ in range(_DEEPEST):
        level = [
            item
            for value in level
            if isinstance(value, (dict, list))
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise RecursionError


def _find_flaws(document: object) -> Iterator[Flaw]:
    for place, value in _walk(document):
        if isinstance(value, _DuplicateKeys):
            message, hint = "the key is given twice", "keep one of them"
            for key in value.keys_given_twice:
                yield Flaw(Flaw.DUPLICATE_KEY, join(place, key), message, hint)
        else:
            message, hint = f"{value} is not JSON", "write a string or a number"
            yield Flaw(Flaw.CONSTANT, place, message, hint)
    # The flaws of a value that a later duplicate key replaced are lost. The duplicate
    # key is a flaw itself, so at least one flaw is reported.


def _walk(document: object) -> Iterator[tuple[str, _DuplicateKeys | _Constant]]:
    """Yield ``(place, value)`` for every value with a flaw.

    Places are built only for yielded values, to save memory and time.
    """
    keys: list[str | int] = []
    levels = [_items(document)]
    if isinstance(document, (_DuplicateKeys, _Constant)):
        yield "", document
    while levels:
        for key, value in levels[-1]:
            if isinstance(value, (_DuplicateKeys, _Constant)):
                place = ""
                for step in (*keys, key):
                    place = join(place, step)
                yield place, value
            if isinstance(value, (dict, list)):
                keys.append(key)
                levels.append(_items(value))
                break
        else:
            levels.pop()
            if keys:
                keys.pop()


def _items(value: object) -> Iterator[tuple[str | int, object]]:
    if isinstance(value, dict):
        return iter(value.items())
    return enumerate(value) if isinstance(value, list) else iter(())


def _wrong(value: object, wanted: str, place: str) -> InputError:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    given = "null" if value is None else names.get(type(value), "a number")
    return InputError(f"expected {wanted}, found {given}", place=place or "top level")


def as_object(value: object, place: str) -> Mapping[str, Any]:
    """Return ``value`` if it is a JSON object with string keys.

    :raises InputError: the value is something else.
    """
    if type(value) is dict and all(type(key) is str for key in value):
        return value
    # A JSON text yields a dict, but callers of the Python API may pass any mapping.
    from collections.abc import Mapping

    if not isinstance(value, Mapping):
        raise _wrong(value, "an object", place)
    for key in value:
        if not isinstance(key, str):
            raise InputError(f"key {shown(key)} is not a string", place=place)
    return value


def as_list(value: object, place: str) -> list[Any]:
    """Return ``value`` if it is a JSON array.

    :raises InputError: the value is something else.
    """
    if not isinstance(value, (list, tuple)):
        raise _wrong(value, "a list", place)
    return list(value)


def as_string(value: object, place: str) -> str:
    """Return ``value`` if it is a string.

    :raises InputError: the value is something else.
    """
    if not isinstance(value, str):
        raise _wrong(value, "a string", place)
    return value


def as_strings(value: object, place: str) -> tuple[str, ...]:
    """Return ``value`` if it is an array of strings.

    :raises InputError: the value is something else.
    """
    items = as_list(value, place)
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise _wrong(item, "a string", join(place, index))
    return tuple(items)


def as_boolean(value: object, place: str) -> bool:
    """Return ``value`` if it is ``true`` or ``false``.

    :raises InputError: the value is something else.
    """
    if not isinstance(value, bool):
        raise _wrong(value, "a boolean", place)
    return value


def as_integer(value: object, place: str) -> int:
    """Return ``value`` if it is a whole number (``true`` is not one).

    :raises InputError: the value is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(value, "a whole number", place)
    return value
