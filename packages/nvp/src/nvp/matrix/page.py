"""One HTML page of the package: its head, its heading and its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .style import page_css

__all__ = ["as_page"]


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
        *page_css(),
        "</style>",
        "</head>",
        "<body>",
        "<main>",
        f"<h1>{heading}</h1>",
        f'<p class="lead">{lead}</p>',
    )
    yield from body
    yield from ("</main>", "</body>", "</html>")
