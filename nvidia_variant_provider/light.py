"""Light replacements for `dataclasses`, `logging` and `json`.

An installer loads the plugin in every process, and importing any of these standard
modules takes longer than importing the plugin: `dataclasses` imports ``inspect`` and
compiles code for every class, and `json` imports ``re``. The provider uses `Frozen`,
`Logger`, `dumps` and `loads` instead; nvp uses the standard modules.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from logging import Logger as StandardLogger
    from typing import Any, TypeVar

    from typing_extensions import dataclass_transform

    T = TypeVar("T", bound="Frozen")
else:

    def dataclass_transform(**_):
        """Return a decorator without effect: only type checkers need the real one."""
        return lambda cls: cls


EMPTY: Mapping[Any, Any] = {}
"""The default value of read-only mappings."""


def _rebuild(cls: type[T], fields: dict[str, object]) -> T:
    return cls(**fields)


class _Records(type):
    """A metaclass that makes a slot for each annotated name in the body of a class."""

    __slots__: tuple[str, ...]
    _defaults: dict[str, object]

    def __new__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any]
    ) -> _Records:
        fields = tuple(body.get("__annotations__", ()))
        # A class cannot have both a slot and an attribute of the same name.
        defaults = {field: body.pop(field) for field in fields if field in body}
        return super().__new__(
            cls, name, bases, {**body, "__slots__": fields, "_defaults": defaults}
        )


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Frozen(metaclass=_Records):
    """A record like ``@dataclass(frozen=True, kw_only=True, slots=True)``.

    Every annotated attribute of a subclass is a field, and the value of the attribute
    is the field's default. All records share the default, so it must be immutable.
    """

    def __init__(self, **fields: object) -> None:
        names = type(self).__slots__
        for name in names:
            if name in fields:
                object.__setattr__(self, name, fields.pop(name))
            elif name in type(self)._defaults:
                object.__setattr__(self, name, type(self)._defaults[name])
            else:
                raise TypeError(f"{type(self).__name__}() needs the argument {name}")
        if fields:
            unknown = ", ".join(fields)
            raise TypeError(f"{type(self).__name__}() has no argument {unknown}")

    def _items(self) -> Iterator[tuple[str, object]]:
        return ((name, getattr(self, name)) for name in type(self).__slots__)

    def replace(self: T, **changes: object) -> T:
        """Return a copy with some fields changed."""
        return _rebuild(type(self), {**dict(self._items()), **changes})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be assigned to")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(value == getattr(other, name) for name, value in self._items())

    def __hash__(self) -> int:
        return hash(tuple(value for _, value in self._items()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._items())
        return f"{type(self).__name__}({fields})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), dict(self._items()))


class Logger:
    """A logger that works only if the process has imported `logging`.

    The command line imports `logging` for ``-v``, and callers of the Python API import
    it to configure the log.

    :param name: the module's name.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, message: str, *values: object) -> None:
        """Log at INFO, if this process has imported `logging`."""
        logger = self._find()
        if logger is not None:
            logger.info(message, *values)

    def debug(self, message: str, *values: object) -> None:
        """Log at DEBUG, if this process has imported `logging`."""
        logger = self._find()
        if logger is not None:
            logger.debug(message, *values)

    def logs_debug(self) -> bool:
        """Return whether DEBUG is enabled, so callers can skip slow values."""
        logger = self._find()
        return logger is not None and logger.isEnabledFor(10)

    def _find(self) -> StandardLogger | None:
        logging = sys.modules.get("logging")
        return None if logging is None else logging.getLogger(self._name)


class _Context:
    """The settings that the C scanner reads; the values are the defaults of `json`."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = None
    memo: dict[str, str] = {}  # noqa: RUF012  # read by Python before 3.13


def loads(text: str) -> Any:
    """Return the value of a JSON text, using the C scanner of CPython's `json`.

    :raises ValueError: the text is not JSON.
    """
    try:
        from _json import make_scanner

        context: Any = _Context
        value, end = make_scanner(context)(text, 0)
        if not text[end:].strip():
            return value
    except Exception:  # noqa: BLE001, S110  # `json` reads the text or reports the error
        pass
    import json

    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def dumps(value: object) -> str:
    """Return the JSON text of a value, in ASCII.

    :param value: a string, a whole number, ``None``, or lists and mappings of these.
    """
    if value is None:
        return "null"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    if isinstance(value, dict):
        items = (f"{dumps(key)}: {dumps(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(dumps, value))}]"
    raise TypeError(f"{type(value).__name__} cannot be written")


def _escaped(character: str) -> str:
    if " " <= character <= "~" and character not in '"\\':
        return character
    # A character beyond the first 65,536 becomes two escapes (RFC 8259, section 7).
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
