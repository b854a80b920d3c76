"""Parts of pages and drawings: escaped text, colors, style sheets, page frame.

Color only repeats the text of a cell. In the light and the dark theme, text on the
tiles of GPU builds has a contrast of at least 7:1 (WCAG 2, level AAA), and all other
text of at least 4.5:1 (level AA). The tests compute these contrasts.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence

from nvidia_variant_provider.errors import printable

from ..files import harmless, read_resource

_PUNCTUATION = re.compile(r"([\\`*_{}\[\]#!|~]|:(?=:))")

_MENTION = re.compile(r"@(?=\w)")
"""The ``@`` of what may be a mention, because Markdown can remove the character before.
On GitHub, a backslash does not disable a mention."""

_FORMULA = re.compile(r"(^|;)(?=\s*(?:[=+\-@\uff1d\uff0b\uff0d\uff20]|::))")
"""The place before a formula, or a command of GitHub, in a cell. A spreadsheet may
separate cells by semicolons, and may read the wide forms of the signs."""


TONES = 7
"""The number of tile colors for GPU builds. ``light.css`` and ``dark.css`` define them;
the first color is for the oldest drivers."""


def tone_classes(labels: Sequence[str]) -> dict[str, str]:
    """Return the CSS class of each label.

    A small number of labels is spread over the whole scale, so the colors differ more.
    """
    step = max(1, TONES // max(1, len(labels)))
    return {label: f"t{index * step % TONES}" for index, label in enumerate(labels)}


def _variables(theme: str) -> str:
    return "".join(read_resource("matrix", f"{theme}.css").split())


def _tones(declaration: str) -> str:
    return "\n".join(f".t{i} {{ {declaration}: var(--t{i}); }}" for i in range(TONES))


def _page_css() -> list[str]:
    """Return the style sheet of the page, with the colors of both themes."""
    return f"""
:root {{ color-scheme: light dark; {_variables("light")} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables("dark")} }} }}
@media print {{ :root {{ color-scheme: light; {_variables("light")} }} }}
{_tones("background-color")}

{read_resource("matrix", "style.css")}""".strip().splitlines()


def svg_css() -> list[str]:
    """Return the style sheet of the drawing."""
    return f"""
svg {{ {_variables("light")} }}
@media (prefers-color-scheme: dark) {{ svg {{ {_variables("dark")} }} }}
{_tones("fill")}

{read_resource("matrix", "drawing.css")}""".strip().splitlines()


def as_page(
    *, title: str, heading: str, lead: str, body: Iterable[str]
) -> Iterator[str]:
    """Yield the lines of a self-contained page without scripts.

    The arguments are HTML in ASCII.

    :param title: the title in the browser.
    :param lead: the paragraph below the heading.
    :param body: the lines below ``lead``.
    """
    yield from (
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{title}</title>",
        "<style>",
        *_page_css(),
        "</style>",
        "</head>",
        "<body>",
        "<main>",
        f"<h1>{heading}</h1>",
        f'<p class="lead">{lead}</p>',
    )
    yield from body
    yield from ("</main>", "</body>", "</html>")


def as_legend(items: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield the legend of the tiles.

    :param items: the sign, the CSS classes and the meaning of each kind of tile.
    """
    yield '<ul class="legend">'
    for sign, classes, words in items:
        key = f'<span class="key {classes}">{as_html(sign)}</span>'
        yield f"<li>{key} <span>{as_html(words)}</span></li>"
    yield "</ul>"


def as_notes(notes: Sequence[str]) -> Iterator[str]:
    """Yield the list of sentences at the end of a page, if any."""
    if notes:
        yield "<h2>Notes</h2>"
        yield '<ul class="notes">'
        yield from (f"<li>{as_html(note)}</li>" for note in notes)
        yield "</ul>"


def as_html(text: str) -> str:
    """Escape ``text`` for an element or an attribute of HTML or SVG, in ASCII.

    ASCII is safe if a shell redirects the output in another encoding.
    """
    escaped = html.escape(printable(text), quote=True)
    return escaped.encode("ascii", "xmlcharrefreplace").decode("ascii")


def as_csv(text: str) -> str:
    """Return a cell that is neither a formula in a spreadsheet nor a CI command."""
    text = harmless(printable(text))
    return _FORMULA.sub(r"\1'", text) if len(text) > 1 else text


def as_markdown(text: str) -> str:
    """Escape ``text`` for Markdown."""
    escaped = html.escape(printable(text), quote=False)
    return without_mentions(_PUNCTUATION.sub(r"\\\1", escaped))


def without_mentions(text: str) -> str:
    """Keep GitHub from notifying the people and teams that Markdown seems to name."""
    return _MENTION.sub("@<!-- -->", text)


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]]
) -> Iterator[str]:
    """Yield the lines of a table with cells in Markdown."""
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row)} |"


def as_code(text: str) -> str:
    """Return ``text`` as a Markdown code span that may stand in a table.

    A code span has no escapes, so characters are replaced that would end the span or
    the table cell, or that some renderers treat as HTML.
    """
    harmless = printable(text).translate(str.maketrans("`|<>&", "'/()+"))
    return f"`{harmless}`"
