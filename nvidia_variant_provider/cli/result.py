"""What a verb returns, for `render` to print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import ProviderError

__all__ = ["Result", "Table"]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The outcome of a verb.

    :param data: the ``data`` of the JSON report; ``None`` when the verb failed.
    :param text: what people read: lines and tables, in order.
    :param notes: sentences for stderr, whichever the form of the report.
    :param as_json: the verb was asked for the JSON report in a way of its own.
    :param said: it was printed already, by a verb that ends when it is stopped.
    :param passed_on: the exit code is that of a program that the verb ran.
    :param errors: where there is ``data`` as well, the text and the notes say them.
    """

    exit_code: int = 0
    data: Mapping[str, object] | None = None
    text: Sequence[str | Table] = ()
    notes: Sequence[str] = ()
    errors: Sequence[ProviderError] = field(default=())
    as_json: bool = False
    said: bool = False
    passed_on: bool = False

    @property
    def status(self) -> str:
        """``ok``, ``findings`` or ``error``, after the exit code."""
        known = {0: "ok"} if self.passed_on else {0: "ok", 1: "findings"}
        return known.get(self.exit_code, "error")
