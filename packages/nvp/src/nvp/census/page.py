"""A census as one HTML page, without scripts and without other files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..findings import listed
from ..matrix.style import as_html, as_page
from .summary import ProjectSummary, ReleaseSummary

__all__ = ["census_page"]


def census_page(projects: Iterable[ProjectSummary]) -> Iterator[str]:
    """Return the lines of the page, which are ASCII.

    There is a table for each project, with a row for each build and a column for each
    GPU that any of its builds has code for.
    """
    return as_page(
        title="Census of GPU code",
        heading="Census of GPU code",
        lead='The targets for which each build has kernels: "code" is machine code, '
        "and PTX is what a driver compiles.",
        body=(line for project in projects for line in _project(project)),
    )


def _project(project: ProjectSummary) -> Iterator[str]:
    yield f"<h2>{as_html(project.project)}</h2>"
    builds = project.with_gpu_code
    others = [item for item in project.releases if not item.targets]
    if builds:
        numbers = list(dict.fromkeys(t.partition("_")[0] for t in project.targets))
        numbers.sort(key=lambda number: (int(number.rstrip("af")), number))
        yield '<div class="scroll" tabindex="0"><table class="census">'
        yield "<thead><tr>"
        titles = ["Release", "Build", "Platform", "CUDA", *numbers]
        yield "".join(f'<th scope="col">{as_html(title)}</th>' for title in titles)
        yield "</tr></thead>"
        yield "<tbody>"
        for item in builds:
            yield _row(item, numbers)
        yield "</tbody></table></div>"
    for sentence in _others(others):
        yield f"<p>{as_html(sentence)}</p>"


def _row(item: ReleaseSummary, numbers: Sequence[str]) -> str:
    cells = [
        f'<th scope="row">{as_html(item.version)}</th>',
        *(
            f"<td>{as_html(text or '-')}</td>"
            for text in (item.label, item.platform, item.cuda)
        ),
    ]
    for number in numbers:
        if f"{number}_real" in item.targets:
            cells.append('<td class="tile t2">code</td>')
        elif f"{number}_virtual" in item.targets:
            cells.append('<td class="tile t3 ptx">PTX</td>')
        elif any(target.partition("_")[0] == number for target in item.lost):
            cells.append('<td class="tile cpu">lost</td>')
        else:
            cells.append("<td></td>")
    return f"<tr>{''.join(cells)}</tr>"


def _others(items: Sequence[ReleaseSummary]) -> Iterator[str]:
    """Say in sentences what became of the builds that have no row."""
    without = [item for item in items if item.status == "inspected"]
    if without:
        yield f"Without kernels: {_listed(without)}."
    for status in ("skipped", "failed"):
        reasons: dict[str, list[ReleaseSummary]] = {}
        for item in items:
            if item.status == status:
                reasons.setdefault(item.reason or "no reason", []).append(item)
        for reason, alike in reasons.items():
            yield f"{status.capitalize()}, because {reason}: {_listed(alike)}."


def _listed(items: Sequence[ReleaseSummary]) -> str:
    names = [f"{item.version} {item.label or ''}".strip() for item in items]
    distinct = list(dict.fromkeys(names))
    return listed(distinct, 10)
