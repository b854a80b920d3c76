"""Immutable records with slots, for the modules that installers load.

`dataclasses` would do, but it imports ``inspect`` and ``re``, which together take
longer than starting Python does, and an installer would pay that in every process.
Modules that installers do not load use real dataclasses.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeVar

    T = TypeVar("T", bound="Frozen")


def _rebuild(cls: type[T], fields: dict[str, object]) -> T:
    return cls(**fields)


class Frozen:
    """A record that derives equality, hash, repr and pickling from ``__slots__``.

    A subclass lists its fields in ``__slots__``. Its ``__init__`` takes each field as
    an argument of the same name and passes all of them to `_set`.
    """

    __slots__: tuple[str, ...] = ()

    def _set(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _items(self) -> Iterator[tuple[str, object]]:
        return ((name, getattr(self, name)) for name in self.__slots__)

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
