"""The rules of `validate`, findings, and their positions in a text.

Codes are stable and never reused: NV1xx structure, NV2xx grammar, NV3xx meaning for
NVIDIA, NV4xx consistency of a release, NV5xx content of wheels. docs/rules.md declares
and explains the rules; the wheel contains a copy of that page.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from typing import Any, ClassVar, Generic, TypeVar, cast

from nvidia_variant_provider.errors import InputError, join

from .. import findings
from ..files import read_resource
from ..findings import Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One rule, as described in its section of docs/rules.md, in Markdown.

    :param title: the defect, in a few words.
    :param what: the defect, in full sentences.
    :param effect: the reaction of uv and variantlib, and the effect on users.
    :param fix: the correction, beginning with ``Fix: ``.
    :param example: an excerpt of a document with the defect, and the correction after
        an arrow; may be empty.
    """

    code: str
    severity: Severity
    title: str
    what: str
    effect: str
    fix: str
    example: str

    @property
    def name(self) -> str:
        """The title as one word, for SARIF: ``KeyGivenTwice``."""
        words = re.findall(r"[A-Za-z0-9]+", self.title)
        return "".join(word[0].upper() + word[1:] for word in words)

    def as_text(self) -> str:
        """Return the explanation as plain text, one paragraph for each part."""
        parts = (self.what, self.effect, self.fix, self.example)
        return "\n\n".join(part for part in parts if part)

    def as_markdown(self) -> str:
        """Return the explanation as Markdown, without a heading."""
        parts = [self.what, self.effect, self.fix]
        if self.example:
            parts.append(f"```text\n{self.example}\n```")
        return "\n\n".join(parts)


_SECTION = re.compile(
    r"### (?P<code>NV\d+): (?P<title>.+) \{ #(?P=code) \}\n\n"
    r"(?P<severity>Error|Warning|Note)\. "
    r"(?P<what>(?s:.+?))\n\n(?P<effect>(?s:.+?))\n\n(?P<fix>Fix: (?s:.+?))\n"
    r"(?:\n```text\n(?P<example>(?s:.+?))\n```\n)?(?:\n|\Z)"
)


def _rules() -> Iterator[Rule]:
    for match in _SECTION.finditer(_read_page()):
        yield Rule(
            code=match["code"],
            severity=cast("Severity", match["severity"].lower()),
            title=match["title"],
            what=_one_line(match["what"]),
            effect=_one_line(match["effect"]),
            fix=_one_line(match["fix"]),
            example=match["example"] or "",
        )


def _read_page() -> str:
    try:
        return read_resource("lint", "rules.md")
    except OSError:
        # An editable installation uses the page in the checkout.
        checkout = os.path.join(os.path.dirname(__file__), *([os.pardir] * 5))
        with open(os.path.join(checkout, "docs", "rules.md"), encoding="utf-8") as page:
            return page.read()


def _one_line(paragraph: str) -> str:
    return paragraph.replace("\n", " ")


RULES: dict[str, Rule] = {rule.code: rule for rule in _rules()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding(findings.Finding):
    """One defect in one place.

    :param path: the file, directory or page.
    :param place: the place in the document or in the directory; may be empty.
    :param member: the file inside the wheel ``path`` that ``place``, ``line`` and
        ``column`` refer to; ``None`` if ``path`` is the document itself.
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
    """A problem that a check reports; the caller adds the code and the path.

    :param place: the place in the document or in the directory; may be empty.
    :param message: the defect, without a final period.
    :param hint: the next step.
    """

    place: str
    message: str
    hint: str


Locate = Callable[[str, Iterable[str]], "Mapping[str, Position]"]
"""Finds the positions of several places in a text."""


class Collector:
    """The findings about one file, directory or page.

    :param path: the name of the file, directory or page, for the findings.
    :param document: the text that the places refer to, from which the findings get a
        line and a column. Findings about anything else, such as the file name, need a
        collector without a document.
    :param member: the file inside the wheel ``path`` that the text was read from.
    :param locate: finds places in a text that is not JSON; see `find_positions`.
    """

    def __init__(
        self,
        path: str,
        *,
        document: bytes | None = None,
        member: str | None = None,
        locate: Locate | None = None,
    ) -> None:
        self.path = path
        self._locate = locate
        self._document = document
        self._member = member
        self._problems: list[tuple[str, Problem]] = []

    @property
    def findings(self) -> list[Finding]:
        """The findings so far, with positions if they are known."""
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
        """Return the positions of all problems' places, in one pass over the text."""
        if not self._problems or self._document is None:
            return {}
        try:
            text = self._document.decode("utf-8")
        except UnicodeDecodeError:
            return {}
        locate = self._locate or find_positions
        return locate(text, {problem.place for _, problem in self._problems})

    @property
    def problems(self) -> Sequence[tuple[str, Problem]]:
        """The problems reported so far, with their codes."""
        return self._problems

    def add_problem(self, code: str, problem: Problem) -> None:
        """Add a problem that the check of the rule ``code`` reports."""
        self._problems.append((code, problem))

    def add(self, code: str, place: str, message: str, hint: str) -> None:
        """Add a finding of the rule ``code``."""
        self.add_problem(code, Problem(place, message, hint))

    def add_error(self, code: str, error: InputError, place: str = "") -> None:
        """Add a reading error as a finding of the rule ``code``."""
        self.add(code, place, error.message, error.hint or "")


def _position(code: str, position: Position | None) -> tuple[int | None, int | None]:
    """Return the line and the column that a finding of a rule points at."""
    if position is None:
        return None, None
    return position.key if code in _ABOUT_KEYS else position.value


Check = Callable[[Subject], Iterable[Problem]]


class Checks(Generic[Subject]):
    """The checks of one kind of subject, such as a label or a wheel.

    Each check is a function that is registered under the code of its rule. It yields
    problems and cannot report another rule's code. Findings are never removed later.
    """

    def __init__(self) -> None:
        self._checks: dict[str, Check[Subject]] = {}

    def rule(self, code: str) -> Callable[[Check[Subject]], Check[Subject]]:
        """Return a decorator that registers a function as the check of a rule."""
        assert code in RULES, code  # noqa: S101  # mistakes show at import

        def register(check: Check[Subject]) -> Check[Subject]:
            self._checks[code] = check
            return check

        return register

    def __iter__(self) -> Iterator[tuple[str, Check[Subject]]]:
        return iter(self._checks.items())

    def run(self, subject: Subject, collector: Collector) -> None:
        """Run each check on ``subject``, and collect the problems."""
        for code, check in self:
            for problem in check(subject):
                collector.add_problem(code, problem)


_BLANKS = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """The position of a place in a text: pairs of line and column, both from 1.

    Columns count characters. List items and the whole document have no key, so their
    two pairs are equal.

    :param key: the beginning of the key.
    :param value: the beginning of the value.
    """

    key: tuple[int, int]
    value: tuple[int, int]


def find_positions(text: str, places: Iterable[str]) -> dict[str, Position]:
    """Return the positions of places in a JSON text, in linear time.

    If a key occurs twice, the later occurrence is used, as in the value that
    `strict_json.parse_lenient` returns. A place that the text lacks gets the position
    of the innermost value around it, so a missing key points at the object that
    lacks it. In a text that is not JSON, every place gets the position of the syntax
    error. The result is empty for a text that is nested too deeply to be read.

    :param places: places in the form of `errors.join`; ``""`` and ``"top level"``
        stand for the whole document.
    """
    # Editors do not show a byte order mark, so it does not count as a column.
    text = text.removeprefix("\ufeff")
    wanted = list(places)
    # Numbers stay strings, since Python refuses to convert very long numbers.
    decoder = JSONDecoder(parse_int=str, parse_float=str)
    try:
        decoder.decode(text)
    except JSONDecodeError as error:
        broken = Position(
            key=(error.lineno, error.colno), value=(error.lineno, error.colno)
        )
        return dict.fromkeys(wanted, broken)
    except RecursionError:
        return {}
    return positions_at(text, wanted, _find_offsets(text, wanted, decoder.raw_decode))


def positions_at(
    text: str, wanted: Iterable[str], offsets: Mapping[str, tuple[int, int]]
) -> dict[str, Position]:
    """Return the position of each place, or of the innermost known place around it.

    :param offsets: the offsets of the key and the value of each known place, including
        ``""``.
    """
    nearest = {place: offsets[_innermost(place, offsets.keys())] for place in wanted}
    pairs = _count_lines(text, {offset for both in nearest.values() for offset in both})
    return {
        place: Position(key=pairs[key], value=pairs[value])
        for place, (key, value) in nearest.items()
    }


def _find_offsets(
    text: str,
    wanted: Collection[str],
    decode: Callable[[str, int], tuple[Any, int]],
) -> dict[str, tuple[int, int]]:
    """Return the key and value offsets of wanted places and of the places around them.

    Only the containers around wanted places are walked. All other values are skipped
    with the decoder of the standard library.

    :param text: a valid JSON text.
    """
    is_on_the_way = find_prefixes(wanted)
    at = _skip_blanks(text, 0)
    offsets = {"": (at, at)}
    place, enter = "", True
    # The stack of open containers: place, and for a list the next index. Recursion
    # would fail for deeply nested texts.
    levels: list[tuple[str, int | None]] = []
    while True:
        # Here, ``at`` is the offset of the value of ``place``.
        if enter and text[at] in "{[":
            levels.append((place, 0 if text[at] == "[" else None))
            at = _skip_blanks(text, at + 1)
        else:
            at = _skip_blanks(text, decode(text, at)[1])
        while levels and text[at] in "}]":
            levels.pop()
            at = _skip_blanks(text, at + 1)
        if not levels:
            return offsets
        if text[at] == ",":
            at = _skip_blanks(text, at + 1)
        key_at = at
        parent, index = levels[-1]
        key: str | int
        if index is None:
            key, at = decode(text, at)
            colon = _skip_blanks(text, at)
            at = _skip_blanks(text, colon + 1)
        else:
            key = index
            levels[-1] = parent, index + 1
        place = join(parent, key)
        enter = is_on_the_way(place)
        if enter:
            offsets[place] = key_at, at


def find_prefixes(wanted: Collection[str]) -> Callable[[str], bool]:
    """Return a function that checks whether a place is or contains a wanted place."""
    exact = set(wanted)
    ordered = sorted(exact)

    def is_on_the_way(place: str) -> bool:
        if place in exact:
            return True
        for start in (f"{place}.", f"{place}["):
            index = bisect_left(ordered, start)
            if index < len(ordered) and ordered[index].startswith(start):
                return True
        return False

    return is_on_the_way


def _innermost(place: str, known: Collection[str]) -> str:
    """Return the longest known place that is ``place`` itself or contains it."""
    end = len(place)
    while place[:end] not in known:
        end = max(place.rfind(".", 0, end), place.rfind("[", 0, end), 0)
    return place[:end]


def _count_lines(text: str, offsets: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return the line and column of each offset, in one pass over the text."""
    pairs: dict[int, tuple[int, int]] = {}
    line, last, line_end = 1, 0, -1
    for offset in sorted(offsets):
        line += text.count("\n", last, offset)
        # Search back only to the previous offset: going back to the start of a long
        # line for each offset would take quadratic time.
        line_end = max(line_end, text.rfind("\n", last, offset))
        last = offset
        pairs[offset] = line, offset - line_end
    return pairs


def _skip_blanks(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return match.end() if match else at
