"""Collecting findings, and running the checks that report them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from .findings import Finding
from .rules import RULES, Code

__all__ = ["Checks", "Collector", "Problem"]

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Problem:
    """What a check reports; the code and the path are known to its caller.

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
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.findings: list[Finding] = []

    def add(self, code: Code, place: str, message: str, hint: str) -> None:
        """Add a finding of the rule ``code``."""
        self.findings.append(
            Finding(
                code=code,
                severity=RULES[code].severity,
                path=self.path,
                place=place,
                message=message,
                hint=hint,
            )
        )


Check = Callable[[Subject], Iterable[Problem]]


class Checks(Generic[Subject]):
    """The checks that look at one kind of subject, such as a label or a wheel.

    Each check is one function, which is registered under the code of its rule. It
    yields problems and cannot report another rule's code.
    """

    def __init__(self) -> None:
        self._checks: dict[Code, Check[Subject]] = {}

    def rule(self, code: Code) -> Callable[[Check[Subject]], Check[Subject]]:
        """Register the decorated function as the check of a rule."""

        def register(check: Check[Subject]) -> Check[Subject]:
            self._checks[code] = check
            return check

        return register

    def __iter__(self) -> Iterator[tuple[Code, Check[Subject]]]:
        return iter(self._checks.items())

    def run(self, subject: Subject, collector: Collector) -> None:
        """Let each check look at ``subject``, and collect what they report."""
        for code, check in self._checks.items():
            for problem in check(subject):
                collector.add(code, problem.place, problem.message, problem.hint)
