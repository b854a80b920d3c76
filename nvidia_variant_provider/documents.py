"""Reading JSON documents strictly, with the place of whatever is wrong.

``json`` alone accepts duplicate keys (the last wins) and ``NaN``; an installer
and an index could then read two different things out of one file.
"""

from __future__ import annotations

from .errors import InputError, join, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from typing import Any, BinaryIO

__all__ = [
    "MAX_BYTES",
    "as_boolean",
    "as_integer",
    "as_list",
    "as_object",
    "as_string",
    "as_strings",
    "parse_json",
    "read_bytes",
    "read_stream",
    "unreadable",
]

MAX_BYTES = 64 * 1024 * 1024
"""No document is read beyond this many bytes."""


class _DuplicateKeys(dict):  # type: ignore[type-arg]
    """An object that gave a key twice, kept so that its place can be named."""

    key: str


class _Constant:
    """``NaN`` or ``Infinity``, which JSON has not."""

    def __init__(self, text: str) -> None:
        self.text = text


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file of at most `MAX_BYTES`."""
    name = str(path)
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed below
    except (OSError, ValueError) as error:
        raise unreadable(error, name) from None
    with file:
        return read_stream(file, name)


def unreadable(error: Exception, name: str) -> InputError:
    """The system's refusal as an error that names the file."""
    # A path with a NUL byte is a ValueError, which has no strerror.
    reason = getattr(error, "strerror", None) or str(error)
    message = f"cannot be read: {reason}"
    return InputError(message, path=name, hint="check the path")


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
    if data.startswith("\ufeff"):
        raise InputError(
            "starts with a byte order mark", path=path, hint="save it without one"
        )
    flaws: list[object] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) == len(items):
            return found
        seen: set[str] = set()
        marked = _DuplicateKeys(found)
        marked.key = next(k for k, _ in items if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        flaws.append(marked)
        return marked

    def constant(text: str) -> _Constant:
        flaws.append(text)
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
    if flaws:
        _reject_flaws(value, path)
    return value


def _reject_flaws(document: object, path: str | None) -> None:
    for where, value in _walk(document):
        place = where
        if isinstance(value, _DuplicateKeys):
            place = join(where, value.key)
            message, hint = "the key is given twice", "keep one of them"
        elif isinstance(value, _Constant):
            message, hint = f"{value.text} is not JSON", "write a string or a number"
        else:
            continue
        raise InputError(message, path=path, place=place, hint=hint)
    # The flaw is inside a value that a later duplicate has replaced.
    raise InputError("a key is given twice", path=path, hint="keep one of them")


def _walk(document: object) -> Iterator[tuple[str, object]]:
    """Every value with its place; no recursion, whatever the depth."""
    waiting: list[tuple[str, object]] = [("", document)]
    while waiting:
        place, value = waiting.pop()
        yield place, value
        if isinstance(value, dict):
            waiting += [(join(place, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(join(place, index), item) for index, item in enumerate(value)]


def _wrong(value: object, wanted: str, place: str) -> InputError:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    found = "null" if value is None else names.get(type(value), "a number")
    return InputError(f"expected {wanted}, found {found}", place=place or "top level")


def as_object(value: object, place: str) -> Mapping[str, Any]:
    """``value``, if it is a JSON object with string keys."""
    if type(value) is dict:
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
