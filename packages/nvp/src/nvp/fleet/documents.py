"""What the machines of a fleet get, as Markdown, CSV and one HTML page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from ..matrix.style import as_html, as_markdown, as_page, tone_classes
from .choosing import Choice, Fleet

__all__ = ["csv_lines", "html_lines", "markdown_lines"]

Rows = Sequence[Sequence[str]]

_TITLE = "Which build each machine gets"


def markdown_lines(
    header: Sequence[str], rows: Rows, notes: Sequence[str]
) -> list[str]:
    """Return the lines of a table in Markdown, with the summary below it."""
    table = [header, ["---"] * len(header), *(map(as_markdown, row) for row in rows)]
    lines = [f"| {' | '.join(row)} |" for row in table]
    return [f"# {_TITLE}", "", *lines, "", *(f"- {as_markdown(n)}" for n in notes)]


def csv_lines(header: Sequence[str], rows: Rows) -> list[str]:
    """Return the lines of a table in CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().splitlines()


def html_lines(
    fleet: Fleet,
    builds: Sequence[str | None],
    *,
    title: str | None,
    notes: Sequence[str],
) -> list[str]:
    """Return the lines of the page, which are ASCII, in the style of `matrix`.

    :param builds: for each choice the text of its tile; ``None`` where nothing was
        chosen for any machine.
    :param title: the release, such as ``torch 2.10.0``.
    :param notes: sentences for the end of the page.
    """
    tones = _tones(fleet)
    heading = as_html(title or _TITLE)
    lead = "Machines with the same driver and the same GPUs are in one row"
    if title is not None:
        lead = f"{_TITLE}. {lead}"
    body = [*_table(fleet, builds, tones), *_fewest(fleet, tones), *_notes(notes)]
    name = f"{heading}: the machines"
    return list(as_page(title=name, heading=heading, lead=f"{lead}.", body=body))


def _tones(fleet: Fleet) -> Mapping[str, str]:
    """Return the CSS class of each build that uses a GPU."""
    picks = [choice.pick for choice in fleet.choices if choice.pick is not None]
    used = {pick.selected for pick in picks if pick.selected in pick.gpu}
    listed = fleet.cover.labels if fleet.cover is not None else ()
    return tone_classes(sorted({*filter(None, used), *listed}))


def _table(
    fleet: Fleet, builds: Sequence[str | None], tones: Mapping[str, str]
) -> Iterator[str]:
    heads = ["Driver and GPU", "Machines", *(["Build"] if any(builds) else [])]
    yield (
        '<div class="scroll" role="region" tabindex="0" aria-labelledby="groups">'
        '<table class="groups">'
    )
    yield f'<caption id="groups">{_TITLE}</caption>'
    cells = "".join(f'<th scope="col">{head}</th>' for head in heads)
    yield f"<thead><tr>{cells}</tr></thead>"
    yield "<tbody>"
    for choice, build in zip(fleet.choices, builds, strict=True):
        names = choice.group.names
        others = f" and {len(names) - 1} like it" if len(names) > 1 else ""
        tile = ""
        if build is not None:
            tile = f'<td class="{_classes(choice, tones)}">{as_html(build)}</td>'
        yield (
            f'<tr><th scope="row"><b>{as_html(choice.group.title)}</b> '
            f"<small>{as_html(names[0] + others)}</small></th>"
            f'<td class="count">{len(names)}</td>{tile}</tr>'
        )
    yield "</tbody></table></div>"


def _classes(choice: Choice, tones: Mapping[str, str]) -> str:
    if choice.pick is None:
        return "gone"
    if choice.pick.selected not in choice.pick.gpu:
        return "cpu"
    return tones[choice.pick.selected]


def _fewest(fleet: Fleet, tones: Mapping[str, str]) -> Iterator[str]:
    if fleet.cover is None or not fleet.cover.gains:
        return
    word = "Fewest" if fleet.cover.is_smallest else "Few"
    yield f"<h2>{word} builds that give each machine one for its GPU</h2>"
    yield '<ul class="legend">'
    for label, count in fleet.cover.gains.items():
        plural = "s" if count > 1 else ""
        yield (
            f'<li><span class="key {tones[label]}">{as_html(label)}</span> '
            f"<span>{count} machine{plural}</span></li>"
        )
    yield "</ul>"


def _notes(notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield "<h2>Notes</h2>"
        yield '<ul class="notes">'
        yield from (f"<li>{as_html(note)}</li>" for note in notes)
        yield "</ul>"
