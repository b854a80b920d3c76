"""Text from metadata and file names, made harmless for each format."""

from __future__ import annotations

import html
import re

from nvidia_variant_provider.errors import printable

__all__ = ["as_code", "as_html", "as_markdown"]

_PUNCTUATION = re.compile(r"([\\`*_{}\[\]#!|~])")


def as_html(text: str) -> str:
    """Return ``text`` for an element or an attribute of HTML or SVG, in ASCII.

    ASCII reads the same in whichever encoding a shell's redirection writes it.
    """
    escaped = html.escape(printable(text), quote=True)
    return escaped.encode("ascii", "xmlcharrefreplace").decode("ascii")


def as_markdown(text: str) -> str:
    """Return ``text`` for Markdown, where it reads as it is."""
    return _PUNCTUATION.sub(r"\\\1", html.escape(printable(text), quote=False))


def as_code(text: str) -> str:
    """Return ``text`` as a Markdown code span that may stand in a table.

    A code span has no escapes. Characters that would end the span or the table's
    cell, or that a careless renderer would take for HTML, are replaced.
    """
    harmless = printable(text).translate(str.maketrans("`|<>&", "'/()+"))
    return f"`{harmless}`"
