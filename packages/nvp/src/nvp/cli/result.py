"""What a verb returns, for `render` to print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nvidia_variant_provider.errors import ProviderError
from nvidia_variant_provider.light import Frozen

__all__ = ["Result", "Table"]


class Table(Frozen):
    """Rows of text under a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class Result(Frozen):
    """The outcome of a verb.

    :param data: the ``data`` of the JSON report; ``None`` when the verb failed.
    :param text: lines and tables for people, in order.
    :param verbatim: the text is a document, such as HTML or a script. Its lines are
        not wrapped on a terminal, because people copy them.
    :param notes: sentences for stderr, which are printed with a JSON report as well.
    :param asides: lines for stderr that stand next to a document on stdout. They are
        not wrapped, and not printed with a JSON report, whose data has them.
    :param as_json: the verb has an option of its own for the JSON report, and the
        user gave it.
    :param said: the verb has printed its output already, because it runs until the
        user stops it.
    :param passed_on: the exit code is that of a program which the verb ran.
    :param errors: what failed. With ``data``, the text and the notes tell people
        about the errors, and only the JSON report lists them.
    """

    exit_code: int = 0
    data: Mapping[str, object] | None = None
    text: Sequence[str | Table] = ()
    verbatim: bool = False
    notes: Sequence[str] = ()
    asides: Sequence[str] = ()
    errors: Sequence[ProviderError] = ()
    as_json: bool = False
    said: bool = False
    passed_on: bool = False

    @property
    def status(self) -> str:
        """The ``status`` of the report: ``ok``, ``findings`` or ``error``."""
        words = {0: "ok"} if self.passed_on else {0: "ok", 1: "findings"}
        return words.get(self.exit_code, "error")
