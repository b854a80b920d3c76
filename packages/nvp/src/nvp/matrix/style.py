"""What pages and drawings are made of: escaped text, colours, style sheets, the head.

Colour only repeats what the text of a cell says. In both themes text on the tiles of
GPU builds has a contrast of at least 7:1 (WCAG 2, level AAA), and all other text of at
least 4.5:1 (level AA). The tests compute these contrasts.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nvidia_variant_provider.errors import printable

from ..files import read_resource

__all__ = [
    "DARK",
    "LIGHT",
    "Theme",
    "as_code",
    "as_html",
    "as_markdown",
    "as_notes",
    "as_page",
    "svg_css",
    "tone_classes",
]

_PUNCTUATION = re.compile(r"([\\`*_{}\[\]#!|~])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Theme:
    """Colours as ``#rrggbb``.

    :param page: the background.
    :param ink: text on the page and on the tiles.
    :param soft: less important text on the page.
    :param line: borders.
    :param tones: tiles of GPU builds, those for the oldest drivers first.
    :param cpu: tiles of builds that do not use the GPU.
    :param cpu_ink: text on those tiles.
    :param hatch: the mark of builds with only PTX.
    """

    page: str
    ink: str
    soft: str
    line: str
    tones: Sequence[str]
    cpu: str
    cpu_ink: str
    hatch: str


LIGHT = Theme(
    page="#ffffff",
    ink="#12181f",
    soft="#4a5561",
    line="#c5cdd6",
    tones=(
        "#c9dfff",
        "#a9e4e3",
        "#b5e6ae",
        "#e6e88a",
        "#ffd27d",
        "#ffbfa0",
        "#f7b9d7",
    ),
    cpu="#f1f3f5",
    cpu_ink="#4a5561",
    hatch="#12181f",
)

DARK = Theme(
    page="#0f141a",
    ink="#f4f7fa",
    soft="#a9b4c0",
    line="#3a4652",
    tones=(
        "#1d4377",
        "#0f5157",
        "#245527",
        "#4f4d08",
        "#664106",
        "#76341a",
        "#6f2450",
    ),
    cpu="#1a2129",
    cpu_ink="#a9b4c0",
    hatch="#f4f7fa",
)


def tone_classes(labels: Sequence[str]) -> dict[str, str]:
    """Return the CSS class of each label.

    A few labels are spread over the whole scale, so that their colours differ more.
    """
    count = len(LIGHT.tones)
    step = max(1, count // max(1, len(labels)))
    return {label: f"t{index * step % count}" for index, label in enumerate(labels)}


def _variables(theme: Theme) -> str:
    tones = "".join(f"--t{i}:{tone};" for i, tone in enumerate(theme.tones))
    return (
        f"--page:{theme.page};--ink:{theme.ink};--soft:{theme.soft};"
        f"--line:{theme.line};--cpu:{theme.cpu};--cpu-ink:{theme.cpu_ink};"
        f"--hatch:{theme.hatch};{tones}"
    )


def _tones(declaration: str) -> str:
    return "\n".join(
        f".t{i} {{ {declaration}: var(--t{i}); }}" for i in range(len(LIGHT.tones))
    )


def _page_css() -> list[str]:
    """Return the style sheet of the page, which has only the themes' colours."""
    return f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
@media print {{ :root {{ color-scheme: light; {_variables(LIGHT)} }} }}
{_tones("background-color")}

{read_resource("matrix", "style.css")}""".strip().splitlines()


def svg_css() -> list[str]:
    """Return the style sheet of the drawing."""
    return f"""
svg {{ {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ svg {{ {_variables(DARK)} }} }}
{_tones("fill")}

{read_resource("matrix", "drawing.css")}""".strip().splitlines()


def as_page(
    *, title: str, heading: str, lead: str, body: Iterable[str]
) -> Iterator[str]:
    """Yield the lines of a page without scripts and without other files.

    The arguments are HTML, in ASCII.

    :param title: what the browser calls the page.
    :param lead: the paragraph below the heading.
    :param body: the lines below that.
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


def as_notes(notes: Sequence[str]) -> Iterator[str]:
    """Yield the list of sentences at the end of a page; nothing where there is none."""
    if notes:
        yield "<h2>Notes</h2>"
        yield '<ul class="notes">'
        yield from (f"<li>{as_html(note)}</li>" for note in notes)
        yield "</ul>"


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
