"""What a run of ``validate`` has not looked at, for its summary."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Unchecked", "UncheckedFiles"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unchecked:
    """One thing that was not checked, with the same reason for all of its files.

    :param what: a noun, such as ``GPU code``; it is ``everything`` for whole files.
    :param reason: why, as a clause.
    :param files: how many files it is about.
    :param example: the path or the URL of one of them.
    """

    what: str
    reason: str
    files: int
    example: str

    def __str__(self) -> str:
        wheels = "1 file" if self.files == 1 else f"{self.files} files"
        return f"not checked: {self.what} of {wheels}: {self.reason}"

    def to_dict(self) -> dict[str, str | int]:
        """Return the fields under their own names."""
        return {
            "what": self.what,
            "reason": self.reason,
            "files": self.files,
            "example": self.example,
        }


class UncheckedFiles:
    """Counts the files that were not checked, without a list of them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], tuple[int, str]] = {}

    def add(self, what: str, reason: str, example: str, files: int = 1) -> None:
        """Count ``files`` more for which something was not checked."""
        count, first = self._counts.get((what, reason), (0, example))
        self._counts[what, reason] = (count + files, first)

    @property
    def all(self) -> list[Unchecked]:
        """What was counted so far, in the order of the first files."""
        return [
            Unchecked(what=what, reason=reason, files=count, example=example)
            for (what, reason), (count, example) in self._counts.items()
        ]
