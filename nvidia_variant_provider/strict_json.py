"""Reading JSON documents strictly, with the place of whatever is wrong.

``json`` alone accepts duplicate keys (the last wins) and ``NaN``; an installer
and an index could then read two different things out of one file.
"""

from __future__ import annotations

import os
import stat
import sys

from ._frozen import Frozen
from .errors import InputError, join, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, BinaryIO

__all__ = [
    "MAX_BYTES",
    "Flaw",
    "as_boolean",
    "as_integer",
    "as_list",
    "as_object",
    "as_string",
    "as_strings",
    "open_regular",
    "parse_json",
    "parse_lenient",
    "read_bytes",
    "read_stdin",
    "read_stream",
    "unreadable",
]

MAX_BYTES = 64 * 1024 * 1024
"""No document is read beyond this many bytes."""

_OPENED = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""What the one who started the program has opened; no folder lists such files."""


class Flaw(Frozen):
    """What a JSON text has that JSON does not allow, with its place.

    :param kind: one of the three constants.
    """

    BYTE_ORDER_MARK = "byte order mark"
    DUPLICATE_KEY = "duplicate key"
    CONSTANT = "constant"

    __slots__ = ("hint", "kind", "message", "place")

    kind: str
    place: str
    message: str
    hint: str

    def __init__(self, kind: str, place: str, message: str, hint: str) -> None:
        self._set(kind=kind, place=place, message=message, hint=hint)


class _DuplicateKeys(dict):  # type: ignore[type-arg]
    """An object that gave a key twice, kept so that its place can be named."""

    keys_given_twice: list[str]


class _Constant(float):
    """``NaN`` or ``Infinity``, which JSON has not; a float, as `json` has it."""

    def __new__(cls, text: str) -> _Constant:
        return float.__new__(cls, text.replace("Infinity", "inf"))

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file of at most `MAX_BYTES`.

    A regular one, or what a shell puts in the place of one: ``/dev/stdin``, and
    ``/dev/fd/63`` of ``<(command)``.
    """
    name = str(path)
    try:
        file = open_regular(path)
    except (OSError, ValueError) as error:
        raise unreadable(error, name) from None
    with file:
        return read_stream(file, name)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A file, to read. A named pipe, on which opening waits for ever, is refused.

    :raises OSError: so it is, or the system refuses it.
    :raises ValueError: no path.
    """
    mode = os.stat(path).st_mode
    # Of a folder the system itself says so.
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or str(path).startswith(_OPENED)):
        import errno  # not for an installer, which loads this module

        raise OSError(errno.EINVAL, "not a regular file")
    return open(path, "rb")


def unreadable(error: Exception, name: str) -> InputError:
    """The system's refusal as an error that names the file."""
    # A path with a NUL byte is a ValueError, which has no strerror.
    reason = getattr(error, "strerror", None) or str(error)
    message = f"cannot be read: {reason}"
    return InputError(message, path=name, hint="check the path")


def read_stdin() -> bytes:
    """The bytes of standard input, at most `MAX_BYTES`."""
    if sys.stdin is None:  # closed by the caller: <&-
        raise InputError("cannot be read: closed", path="stdin", hint="name a file")
    return read_stream(sys.stdin.buffer, "stdin")


def read_stream(file: BinaryIO, name: str) -> bytes:
    """The bytes that are left in ``file``, at most `MAX_BYTES`."""
    try:
        data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise unreadable(error, name) from None
    if len(data) > MAX_BYTES:
        message = f"larger than {MAX_BYTES // 1024 // 1024} MiB"
        raise InputError(message, path=name, hint="this is no variant metadata")
    return data


def parse_json(data: bytes | str, path: str | None = None) -> Any:
    """The value of a JSON text; `InputError` for anything that is not JSON.

    :raises InputError: not UTF-8, byte order mark, malformed, nested too
        deeply, a key given twice, ``NaN`` or ``Infinity``.
    """
    value, flaws = parse_lenient(data, path)
    for flaw in flaws:
        place = flaw.place or None
        raise InputError(flaw.message, path=path, place=place, hint=flaw.hint)
    return value


def parse_lenient(data: bytes | str, path: str | None = None) -> tuple[Any, list[Flaw]]:
    """The value of a JSON text with flaws that a parser could get over.

    Of a key that is given twice the last counts, and ``NaN`` is a number.

    :raises InputError: there is no value: not UTF-8, malformed, too deep.
    """
    import json

    if isinstance(data, bytes):
        try:
            data = data.decode("utf-8")
        except UnicodeDecodeError as error:
            message = f"not UTF-8: byte {error.start}"
            raise InputError(message, path=path, hint="save it as UTF-8") from None
    if len(data) > MAX_BYTES:
        message = f"larger than {MAX_BYTES // 1024 // 1024} MiB"
        raise InputError(message, path=path, hint="this is no variant metadata")
    flaws: list[Flaw] = []
    if data.startswith("\ufeff"):
        message, hint = "starts with a byte order mark", "save it without one"
        flaws.append(Flaw(Flaw.BYTE_ORDER_MARK, "", message, hint))
        data = data[1:]
    marks: list[object] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) == len(items):
            return found
        marked = _DuplicateKeys(found)
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
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        raise InputError(message, path=path, hint="check the file") from None
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        message = "nested too deeply" if deep else "a number is too long"
        hint = "this is no variant metadata"
        raise InputError(message, path=path, hint=hint) from None
    return value, flaws + (_find_flaws(value) if marks else [])


def _find_flaws(document: object) -> list[Flaw]:
    flaws = []
    for place, value in _walk(document):
        if isinstance(value, _DuplicateKeys):
            message, hint = "the key is given twice", "keep one of them"
            flaws += [
                Flaw(Flaw.DUPLICATE_KEY, join(place, key), message, hint)
                for key in value.keys_given_twice
            ]
        elif isinstance(value, _Constant):
            message, hint = f"{value} is not JSON", "write a string or a number"
            flaws.append(Flaw(Flaw.CONSTANT, place, message, hint))
    # Else the flaw is inside a value that a later duplicate has replaced, and
    # that duplicate has been found.
    return flaws


def _walk(document: object) -> Iterator[tuple[str, object]]:
    """Every object and constant with its place.

    Neither recursion, whatever the depth, nor memory for more than one value of
    each level: a place is made for what is yielded only.
    """
    if isinstance(document, _Constant):
        yield "", document
    keys: list[str | int] = []
    levels = [_items(document)]
    if isinstance(document, dict):
        yield "", document
    while levels:
        for key, value in levels[-1]:
            if isinstance(value, (dict, _Constant)):
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
    found = "null" if value is None else names.get(type(value), "a number")
    return InputError(f"expected {wanted}, found {found}", place=place or "top level")


def as_object(value: object, place: str) -> Mapping[str, Any]:
    """``value``, if it is a JSON object with string keys."""
    if type(value) is dict and all(type(key) is str for key in value):
        return value
    # Callers of the Python API may pass any mapping; a JSON text cannot.
    from collections.abc import Mapping

    if not isinstance(value, Mapping):
        raise _wrong(value, "an object", place)
    for key in value:
        if not isinstance(key, str):
            raise InputError(f"key {shown(key)} is not a string", place=place)
    return value


def as_list(value: object, place: str) -> list[Any]:
    """``value``, if it is a JSON array."""
    if not isinstance(value, (list, tuple)):
        raise _wrong(value, "a list", place)
    return list(value)


def as_string(value: object, place: str) -> str:
    """``value``, if it is a string."""
    if not isinstance(value, str):
        raise _wrong(value, "a string", place)
    return value


def as_strings(value: object, place: str) -> tuple[str, ...]:
    """``value``, if it is an array of strings."""
    items = as_list(value, place)
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise _wrong(item, "a string", join(place, index))
    return tuple(items)


def as_boolean(value: object, place: str) -> bool:
    """``value``, if it is ``true`` or ``false``."""
    if not isinstance(value, bool):
        raise _wrong(value, "a boolean", place)
    return value


def as_integer(value: object, place: str) -> int:
    """``value``, if it is a whole number (``true`` is none)."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(value, "a whole number", place)
    return value
