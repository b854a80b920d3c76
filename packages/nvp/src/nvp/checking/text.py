"""The report of a check as text lines of a given width, as findings, or as a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from nvidia_variant_provider.errors import listed

from ..builds.verdicts import Verdict
from ..findings import Severity
from ..lint.findings import Finding, Rule
from ..matrix.style import as_html, as_notes, as_page
from ..pins.model import Choice
from .model import WORST, CheckedFile, CheckedPin, CheckReport

WIDTH = 80
THIS = "this machine"

BUT = re.compile(r", but this one is for CUDA [0-9.]+")
"""The part of a reason that the list of machines already shows."""

_HINT = "see what runs instead: nvp check --suggest"

_MOST = 6
"""The maximum number of names in a line."""

_LONGEST = 46
"""The maximum width of a package's name and version in the table."""


def text_lines(report: CheckReport, *, width: int = WIDTH) -> list[str]:
    """Return the lines of the text: for each file, the verdicts and their reasons.

    :param width: the width of the lines of a table; callers wrap the sentences.
    """
    lines: list[str] = []
    many = len(report.machines) > 1
    if many:
        lines += [*_machines(report), ""]
    for file in report.files:
        lines += [*_file(report, file, many=many, width=width), ""]
    for item in report.suggestions:
        lines += [item.sentence, *(f"  {line}" for line in item.lines), ""]
    lines += _summary(report)
    return lines


def marks(count: int) -> list[str]:
    """Return a short name for each group: A to Z, then A2 to Z2, and so on."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    rounds = ["", *map(str, range(2, count // 26 + 2))]
    return [f"{letter}{number}" for number in rounds for letter in letters][:count]


def say_titles(items: Sequence[CheckedPin]) -> str:
    """Return the titles of the first packages, and the number of the remaining ones."""
    return listed(list(dict.fromkeys(item.pin.title for item in items)), _MOST)


def _machines(report: CheckReport) -> Iterator[str]:
    count = sum(len(group.names) for group in report.machines)
    yield f"{count} machines, of which those that are alike are one group:"
    for mark, group in zip(marks(len(report.machines)), report.machines, strict=True):
        others = f" and {len(group.names) - 1} like it" if len(group.names) > 1 else ""
        yield f"  {mark}  {group.title}: {group.names[0]}{others}"


def _file(
    report: CheckReport, file: CheckedFile, *, many: bool, width: int
) -> Iterator[str]:
    where = f"{file.platform or 'this platform'}, Python {file.python}"
    on = "" if many else f" on a machine with {report.machines[0].title}"
    yield f"{file.file.path}{on} ({where})"
    if not file.pins:
        yield f"  it pins no GPU build (packages: {len(file.file.pins)})"
    rows = _fold(file)
    names = [_name(items) for items in rows]
    size = min(_LONGEST, max(map(len, names), default=0))
    table = _table(rows, names, report, size)
    if many and max(map(len, table), default=0) > width:
        table = _stacked(rows, names, report)
    yield from table
    yield from _reasons(report, file, many=many)
    for each in report.actual(file):
        word = "error" if each.strict else "warning"
        yield f"  {word}: {each.message}{_with(each.choices)}"
    if file.varying:
        yield from _choices(report, file, many=many)


def _fold(file: CheckedFile) -> list[list[CheckedPin]]:
    """Group builds into rows: NVIDIA libraries with the same verdicts share a row."""
    rows: dict[object, list[CheckedPin]] = {}
    for item in file.pins:
        verdicts = tuple(judgement.verdict for judgement in item.judgements)
        key: object = id(item)
        if item.known.is_library:
            cuda = item.known.named and item.known.named.cuda
            key = verdicts, item.choices, cuda and cuda.major
        rows.setdefault(key, []).append(item)
    order = {verdict: place for place, verdict in enumerate(WORST)}
    return sorted(
        rows.values(),
        key=lambda items: (items[0].known.is_library, order[items[0].worst.verdict]),
    )


def _name(items: Sequence[CheckedPin]) -> str:
    first = items[0]
    title = first.pin.title
    if len(items) > 1:
        title = f"{first.pin.name} and {len(items) - 1} more of NVIDIA"
    return f"{title}{_with(first.choices)}"


def _with(choices: Sequence[object]) -> str:
    return f" ({', '.join(map(str, choices))})" if choices else ""


def _table(
    rows: Sequence[Sequence[CheckedPin]],
    names: Sequence[str],
    report: CheckReport,
    size: int,
) -> list[str]:
    heads = marks(len(report.machines)) if len(report.machines) > 1 else []
    lines = []
    if heads and rows:
        lines.append(f"  {'':{size}}  {'  '.join(f'{x:7}' for x in heads)}".rstrip())
    for items, name in zip(rows, names, strict=True):
        cells = [f"{item.verdict:7}" for item in items[0].judgements]
        if not heads:
            cells.append(items[0].judgements[0].evidence or "")
        if len(name) > size:
            lines.append(f"  {name}")
        start = "" if len(name) > size else name
        lines.append(f"  {start:{size}}  {'  '.join(cells)}".rstrip())
    return lines


def _stacked(
    rows: Sequence[Sequence[CheckedPin]], names: Sequence[str], report: CheckReport
) -> list[str]:
    heads = marks(len(report.machines))
    lines = []
    for items, name in zip(rows, names, strict=True):
        found: dict[str, list[str]] = {}
        for mark, judgement in zip(heads, items[0].judgements, strict=True):
            found.setdefault(judgement.verdict, []).append(mark)
        said = [
            f"{verdict} on {' '.join(found[verdict])}"
            for verdict in WORST
            if verdict in found
        ]
        lines.append(f"  {name}: {'; '.join(said)}")
    return lines


def _reasons(report: CheckReport, file: CheckedFile, *, many: bool) -> Iterator[str]:
    """Yield a line for each reason, with all builds that do not run because of it."""
    heads = marks(len(report.machines))
    said: dict[tuple[str, str], tuple[list[CheckedPin], dict[str, None]]] = {}
    libraries: dict[tuple[str, tuple[Choice, ...]], str] = {}
    for item in file.pins:
        for mark, judgement in zip(heads, item.judgements, strict=True):
            if judgement.verdict in ("runs", "cpu"):
                continue
            reason = "; ".join(judgement.reasons[:2])
            if many:  # the list of machines already shows each CUDA version
                reason = BUT.sub("", reason)
            if item.known.is_library:
                first = libraries.setdefault((judgement.verdict, item.choices), reason)
                reason = first
            key = judgement.verdict, reason
            items, groups = said.setdefault(key, ([], {}))
            if not items or items[-1] is not item:  # another machine may have added it
                items.append(item)
            groups[mark] = None
    for (verdict, reason), (items, groups) in said.items():
        where = f" on {' '.join(groups)}" if many else ""
        word = {"cannot": "cannot run", "partly": "runs partly"}.get(verdict, verdict)
        libraries_alone = all(item.known.is_library for item in items)
        who = _name(items) if libraries_alone else say_titles(items)
        yield f"  {who}: {word}{where}: {reason}"


def _choices(report: CheckReport, file: CheckedFile, *, many: bool) -> Iterator[str]:
    listed = ", ".join(map(str, file.varying))
    yield f"  One of these is installed: {listed}"
    needs: dict[str, list[str]] = {}
    for number, mark in enumerate(marks(len(report.machines))):
        verdict, choices = file.best[number]
        names = " or ".join(map(str, choices))
        said = {
            "runs": f"needs {names}",
            "partly": f"needs {names}, which runs partly",
            "cpu": f"needs {names}, which does not use the GPU",
            "unknown": f"may need {names}: nothing is known to run",
            "cannot": "none of them runs",
        }
        needs.setdefault(said[verdict], []).append(mark if many else THIS)
    yield from (f"  {' '.join(who)}: {text}" for text, who in needs.items())


def _summary(report: CheckReport) -> Iterator[str]:
    out = sorted({n for file in report.files for n in report.left_out(file)})
    count = sum(len(file.pins) for file in report.files)
    builds = f"{count} GPU build{'s'[: count != 1]}"
    if out and len(report.machines) > 1:
        names = [name for n in out for name in report.machines[n].names]
        which = " ".join(marks(len(report.machines))[n] for n in out)
        machines = f"{len(names)} machine{'s'[: len(names) != 1]} ({which})"
        yield f"Left out: {machines}: {listed(names, _MOST)}"
    cannot = {
        item.pin.title
        for file in report.files
        for n in report.left_out(file)
        for item in file.counting(n)
        if item.judgements[n].verdict == "cannot"
    }
    yield f"{builds}: {len(cannot)} cannot run, {report.unknown} unknown."


def _rule(code: str, severity: Severity, title: str, what: str, fix: str) -> Rule:
    return Rule(
        code=code,
        severity=severity,
        title=title,
        what=what,
        effect="Users notice it when the program starts, or when it is slow.",
        fix=f"Fix: {fix}",
        example="",
    )


RULES: Mapping[str, Rule] = {
    rule.code: rule
    for rule in (
        _rule(
            *("NC101", "error", "A pinned build cannot run"),
            "A build needs a newer driver, or has no code for a GPU of a machine.",
            "pin a release that runs: nvp check --suggest names it.",
        ),
        _rule(
            *("NC102", "warning", "A pinned build runs in part"),
            "Some of the build's own libraries have no code for a GPU.",
            "check that you do not need what these libraries do.",
        ),
        _rule(
            *("NC103", "note", "Nothing says whether a pinned build runs"),
            "Neither the table of builds nor METADATA says what the build needs.",
            "pin a version, and let nvp check --inspect read the wheel.",
        ),
        _rule(
            *("NC104", "error", "Pinned packages do not belong together"),
            "A build was made for another release or CUDA than is pinned with it.",
            "pin the release that it requires.",
        ),
    )
}
_CODES: Mapping[Verdict, str] = {
    "cannot": "NC101",
    "partly": "NC102",
    "unknown": "NC103",
}


def find_findings(report: CheckReport) -> list[Finding]:
    """Return a finding for each build that is not known to run, and each disagreement.

    Builds that are in no machine's best choice are omitted.
    """
    findings: list[Finding] = []
    for file in report.files:
        for item in file.pins:
            findings += _of_pin(report, file, item)
        for each in report.actual(file):
            findings.append(
                Finding(
                    code="NC104",
                    severity="error" if each.strict else "warning",
                    path=each.pin.path,
                    place=each.pin.title,
                    message=each.message,
                    hint="pin releases that belong together",
                    line=each.pin.line,
                    column=None if each.pin.line is None else 1,
                )
            )
    return findings


def _of_pin(
    report: CheckReport, file: CheckedFile, item: CheckedPin
) -> Iterator[Finding]:
    said: dict[tuple[Verdict, str], list[str]] = {}
    for number, group in enumerate(report.machines):
        judgement = item.judgements[number]
        if judgement.verdict in _CODES and file.counts(item, number):
            key = judgement.verdict, "; ".join(judgement.reasons)
            said.setdefault(key, []).append(group.names[0])
    for (verdict, reason), names in said.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        code = _CODES[verdict]
        yield Finding(
            code=code,
            severity=RULES[code].severity,
            path=item.pin.path,
            place=item.pin.title,
            message=f"{verdict} on {names[0]}{more}: {reason}",
            hint=_HINT if verdict == "cannot" else RULES[code].fix[5:].rstrip("."),
            line=item.pin.line,
            column=None if item.pin.line is None else 1,
        )


def html_lines(report: CheckReport) -> list[str]:
    """Return the lines of an HTML page about packages and machines, in ASCII."""
    names = ", ".join(file.file.path for file in report.files)
    count = sum(len(group.names) for group in report.machines)
    plural = "s" if count > 1 else ""
    lead = f"What is pinned, on {count} machine{plural}. The reasons stand below."
    body: list[str] = []
    for file in report.files:
        body += _html_table(report, file)
    body.append("<h2>Machines</h2>")
    body.append('<ul class="legend">')
    for mark, group in zip(marks(len(report.machines)), report.machines, strict=True):
        more = f" and {len(group.names) - 1} like it" if len(group.names) > 1 else ""
        who = as_html(f"{group.title}: {group.names[0]}{more}")
        body.append(f'<li><span class="key t1">{mark}</span> <span>{who}</span></li>')
    body += ["</ul>", *as_notes(_notes(report))]
    return list(
        as_page(
            title=as_html(f"nvp check {names}"),
            heading=as_html(names),
            lead=as_html(lead),
            body=body,
        )
    )


_TONES: Mapping[Verdict, str] = {
    "runs": "t2",
    "partly": "t4",
    "cannot": "t6",
    "cpu": "cpu",
    "unknown": "gone",
}


def _html_table(report: CheckReport, file: CheckedFile) -> Iterator[str]:
    if not file.pins:
        yield f"<p>{as_html(file.file.path)} pins no GPU build.</p>"
        return
    caption = as_html(file.file.path)
    yield (
        '<div class="scroll" role="region" tabindex="0" '
        f'aria-label="{caption}"><table class="whole"><caption>{caption}</caption>'
    )
    heads = "".join(
        f'<th scope="col">{mark}</th>' for mark in marks(len(report.machines))
    )
    yield f'<thead><tr><th scope="col">Package</th>{heads}</tr></thead><tbody>'
    for item in file.pins:
        choices = as_html(", ".join(map(str, item.choices)))
        small = f" <small>{choices}</small>" if choices else ""
        cells = "".join(
            f'<td class="{_TONES[x.verdict]}" title="{as_html("; ".join(x.reasons))}">'
            f"{x.verdict}</td>"
            for x in item.judgements
        )
        title = as_html(item.pin.title)
        yield f'<tr><th scope="row">{title}{small}</th>{cells}</tr>'
    yield "</tbody></table></div>"


def _notes(report: CheckReport) -> list[str]:
    notes: dict[str, list[CheckedPin]] = {}
    for file in report.files:
        for item in file.pins:
            for judgement in item.judgements:
                if judgement.verdict not in ("runs", "cpu"):
                    reason = "; ".join(judgement.reasons)
                    items = notes.setdefault(reason, [])
                    items += [] if items and items[-1] is item else [item]
    told = [f"{say_titles(items)}: {reason}" for reason, items in notes.items()]
    disagreements = [x.message for file in report.files for x in report.actual(file)]
    return [*told, *disagreements, *report.notes]
