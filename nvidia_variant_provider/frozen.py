"""Immutable records with slots, for modules that must load quickly.

`dataclasses` would do, but it imports ``inspect``, and it compiles code for every
class: an installer that loads the plugin would pay that in every process, and
``resolve`` would spend a third of its time on it. Modules that neither of them loads
use real dataclasses.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, TypeVar

    from typing_extensions import dataclass_transform

    T = TypeVar("T", bound="Frozen")
else:

    def dataclass_transform(**_):
        """Stand for the decorator that tells type checkers how records are made."""
        return lambda cls: cls


EMPTY: Mapping[Any, Any] = {}
"""A default value for mappings, which are read only."""


def _rebuild(cls: type[T], fields: dict[str, object]) -> T:
    return cls(**fields)


class _Records(type):
    """Makes a slot of each annotated name in the body of a class."""

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
    """A record as ``@dataclass(frozen=True, kw_only=True, slots=True)`` makes one.

    A subclass annotates its fields, and gives default values to those that have one.
    Other attributes of the class have no annotation. A default value is the same
    object in every record, so that it must be one that nobody changes.
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
