"""Convert the report of a check to findings for other programs, or to an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..builds.verdicts import Verdict
from ..findings import Severity
from ..lint.findings import Finding, Rule
from ..matrix.style import as_html, as_notes, as_page
from .model import CheckedFile, CheckedPin, CheckReport
from .text import marks, say_titles

_HINT = "see what runs instead: nvp check --suggest"


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
        body += _table(report, file)
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


def _table(report: CheckReport, file: CheckedFile) -> Iterator[str]:
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
