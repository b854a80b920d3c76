"""What a publisher should know about upgraded metadata."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata.model import VariantsMetadata

__all__ = ["Remark", "Upgrade", "without_repeats"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """One thing that a publisher should know about.

    :param place: the place in the document, or the file that the remark is about.
    :param message: what changes, or what is wrong.
    :param hint: the consequence, or what to do next.
    :param reorders: whether some machine may get the labels in another order.
    """

    place: str
    message: str
    hint: str
    reorders: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.message}; {self.hint}"

    @classmethod
    def from_error(cls, error: InputError) -> Remark:
        """Return the error as a remark."""
        place = ": ".join(part for part in (error.path, error.place) if part)
        hint = error.hint or "correct it"
        return cls(place=place or "top level", message=error.message, hint=hint)

    def to_dict(self) -> dict[str, object]:
        """Return the keys ``place``, ``message``, ``hint`` and ``reorders``."""
        return {
            "place": self.place,
            "message": self.message,
            "hint": self.hint,
            "reorders": self.reorders,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Upgrade:
    """The outcome of upgrading the metadata of a release.

    :param metadata: the upgraded metadata; ``None`` when there are problems.
    :param losses: what could not be carried over.
    :param notes: what was added, or will not work everywhere.
    :param problems: what the publisher has to say before there is a result.
    """

    metadata: VariantsMetadata | None
    losses: tuple[Remark, ...] = ()
    notes: tuple[Remark, ...] = ()
    problems: tuple[Remark, ...] = ()


def without_repeats(*groups: Iterable[Remark]) -> tuple[Remark, ...]:
    """Return the remarks of all groups in their order, each remark once."""
    return tuple(dict.fromkeys(remark for group in groups for remark in group))
