"""Text from metadata and file names, made harmless for each format."""

from __future__ import annotations

import html
import re

from ..errors import printable

__all__ = ["as_code", "as_html", "as_markdown"]

_PUNCTUATION = re.compile(r"([\\`*_{}\[\]#!|~])")


def as_html(text: str) -> str:
    """``text`` for an element or an attribute of HTML or SVG, in ASCII.

    A page then reads the same whichever encoding a shell's redirection uses.
    """
    escaped = html.escape(printable(text), quote=True)
    return escaped.encode("ascii", "xmlcharrefreplace").decode("ascii")


def as_markdown(text: str) -> str:
    """``text`` as it is, in Markdown."""
    return _PUNCTUATION.sub(r"\\\1", html.escape(printable(text), quote=False))


def as_code(text: str) -> str:
    """``text`` as a code span that also stands in a table.

    A code span has no escapes; whatever would end it or the table's cell, or be
    HTML to a careless renderer, is replaced.
    """
    harmless = printable(text).translate(str.maketrans("`|<>&", "'/()+"))
    return f"`{harmless}`"
