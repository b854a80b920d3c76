"""What checks report about places of files, and how findings are made of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from nvidia_variant_provider.errors import InputError

from .. import findings
from .positions import Position, find_positions
from .rules import RULES


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding(findings.Finding):
    """One defect in one place.

    :param path: the file, folder or page.
    :param place: the place in the document or in the folder; may be empty.
    :param member: the file inside the wheel ``path`` that ``place``, ``line`` and
        ``column`` refer to; ``None`` where ``path`` is the document itself.
    :param line: the line of the place in the document, from 1; ``None`` if unknown.
    :param column: the column, in characters from 1; ``None`` if unknown.
    """

    REPORTED: ClassVar = (
        *("code", "severity", "path", "place", "message", "hint"),
        *("member", "line", "column"),
    )

    path: str
    place: str
    member: str | None = None
    line: int | None = None
    column: int | None = None


Subject = TypeVar("Subject")

_ABOUT_KEYS: frozenset[str] = frozenset({"NV102", "NV109", "NV301"})
"""The rules whose findings point at a key instead of the value of the key."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a check reports; its caller knows the code and the path.

    :param place: the place in the document or in the folder; may be empty.
    :param message: what is wrong, without a final full stop.
    :param hint: what to do next.
    """

    place: str
    message: str
    hint: str


class Collector:
    """The findings about one file, folder or page.

    :param path: the name of the file, folder or page, for the findings.
    :param document: the JSON text that the places of these findings refer to, so that
        they get a line and a column. Findings about anything else, such as the name
        of the file, go to a collector without a document.
    :param member: the file inside the wheel ``path`` that the text was read from.
    """

    def __init__(
        self, path: str, *, document: bytes | None = None, member: str | None = None
    ) -> None:
        self.path = path
        self._document = document
        self._member = member
        self._problems: list[tuple[str, Problem]] = []

    @property
    def findings(self) -> list[Finding]:
        """The findings so far, with positions where these are known."""
        positions = self._find_positions()
        return [
            Finding(
                code=code,
                severity=RULES[code].severity,
                path=self.path,
                place=problem.place,
                message=problem.message,
                hint=problem.hint,
                member=self._member,
                line=line,
                column=column,
            )
            for code, problem in self._problems
            for line, column in [_position(code, positions.get(problem.place))]
        ]

    def _find_positions(self) -> Mapping[str, Position]:
        """Return the positions of all places, in one pass over the document."""
        if not self._problems or self._document is None:
            return {}
        try:
            text = self._document.decode("utf-8")
        except UnicodeDecodeError:
            return {}
        return find_positions(text, {problem.place for _, problem in self._problems})

    def add_problem(self, code: str, problem: Problem) -> None:
        """Add what the check of the rule ``code`` reports."""
        self._problems.append((code, problem))

    def add(self, code: str, place: str, message: str, hint: str) -> None:
        """Add a finding of the rule ``code``."""
        self.add_problem(code, Problem(place, message, hint))

    def add_error(self, code: str, error: InputError, place: str = "") -> None:
        """Add what could not be read as a finding of the rule ``code``."""
        self.add(code, place, error.message, error.hint or "")


def _position(code: str, position: Position | None) -> tuple[int | None, int | None]:
    """Return the line and the column that a finding of a rule points at."""
    if position is None:
        return None, None
    return position.key if code in _ABOUT_KEYS else position.value


Check = Callable[[Subject], Iterable[Problem]]


class Checks(Generic[Subject]):
    """The checks that look at one kind of subject, such as a label or a wheel.

    Each check is one function, which is registered under the code of its rule. It
    yields problems and cannot report another rule's code. A check decides before it
    reports: nothing removes a finding later.
    """

    def __init__(self) -> None:
        self._checks: dict[str, Check[Subject]] = {}

    def rule(self, code: str) -> Callable[[Check[Subject]], Check[Subject]]:
        """Register the decorated function as the check of a rule of the table."""
        assert code in RULES, code  # noqa: S101  # a slip shows when this is imported

        def register(check: Check[Subject]) -> Check[Subject]:
            self._checks[code] = check
            return check

        return register

    def __iter__(self) -> Iterator[tuple[str, Check[Subject]]]:
        return iter(self._checks.items())

    def run(self, subject: Subject, collector: Collector) -> None:
        """Let each check look at ``subject``, and collect what they report."""
        for code, check in self:
            for problem in check(subject):
                collector.add_problem(code, problem)
