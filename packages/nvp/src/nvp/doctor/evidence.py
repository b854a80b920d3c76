"""Add to a diagnosis what the user's own commands prove, and the receipt of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..metadata.requirements import parse_requirement
from .model import Finding, Stack
from .receipts.comparing import compare, find_differences
from .receipts.making import Receipt, make_receipt, parse_reasons
from .runner import Diagnosis
from .workloads import (
    DEADLINE,
    Starting,
    find_broken_graphs,
    find_failed_workloads,
    run_workloads,
)

_NOT_IN_RECEIPTS = ("ND604", "ND605", "ND701")
"""Checks whose findings are not in a receipt. The workloads in the receipt say the same
without the output of the user's programs, and a difference from another receipt does
not belong in this one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What to add to a diagnosis.

    :param workloads: command lines that are run in the environment.
    :param deadline: the seconds that each of them has; by default those that the
        receipt gives it, and else `workloads.DEADLINE`.
    :param reasons: why the stack is as it is; see `receipts.making.parse_reasons`.
    :param with_receipt: whether the diagnosis gets a receipt.
    :param against: a receipt to compare the stack with. Its workloads are run again.
    :param starting: called before each workload is run.
    """

    workloads: Sequence[str] = ()
    deadline: float | None = None
    reasons: Sequence[str] = ()
    with_receipt: bool = False
    against: Receipt | None = None
    starting: Starting | None = None


def add_evidence(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Run the workloads, make the receipt, and compare it with another one.

    :raises UsageError: a workload or a reason is malformed. Nothing has been run then.
    """
    stack = diagnosis.stack
    reasons = parse_reasons(evidence.reasons, stack)
    against = evidence.against
    notes = list(diagnosis.notes)
    if against is not None and not stack.is_here:
        # What runs here proves nothing about another machine.
        if against["workloads"]:
            notes.append(
                "the workloads of the receipt were not run: this is not the "
                "machine that the options name"
            )
        against = {**against, "workloads": []}
    records = run_workloads(
        _deadlines(evidence, against), stack, starting=evidence.starting
    )
    findings = [
        *diagnosis.findings,
        *find_failed_workloads(stack, records),
        *find_broken_graphs(records),
    ]
    receipt: Receipt | None = None
    if evidence.with_receipt or against is not None:
        receipt = make_receipt(
            stack,
            toolchain=diagnosis.toolchain,
            live=diagnosis.live,
            workloads=records,
            reasons=reasons,
            earlier=against,
        )
        if against is not None:
            differences = find_differences(compare(against, receipt))
            findings += [_with_command(item, stack, against) for item in differences]
    # The sort keeps the order of findings with the same code.
    findings.sort(key=lambda finding: finding.code)
    if receipt is not None:
        recorded = [
            {"code": x.code, "severity": x.severity, "message": x.message}
            for x in findings
            if x.code not in _NOT_IN_RECEIPTS
        ]
        receipt = {**receipt, "findings": recorded}
    return replace(
        diagnosis,
        findings=tuple(findings),
        notes=tuple(notes),
        workloads=records,
        receipt=receipt if evidence.with_receipt else None,
    )


def _deadlines(evidence: Evidence, against: Receipt | None) -> dict[str, float]:
    """Return each command with its deadline; one that is given twice is run once."""
    earlier = [] if against is None else against["workloads"]
    deadlines: dict[str, float] = dict.fromkeys(evidence.workloads, DEADLINE)
    for record in earlier:
        deadlines[record["command"]] = record["deadline"]
    if evidence.deadline is not None:
        deadlines = dict.fromkeys(deadlines, evidence.deadline)
    return deadlines


def _with_command(finding: Finding, stack: Stack, receipt: Receipt) -> Finding:
    """Add the command that brings a distribution back to what a receipt says."""
    name = finding.distribution
    if name is None:
        return finding
    versions = {item["name"]: item["version"] for item in receipt["distributions"]}
    if name not in versions:
        command = stack.pip("uninstall", name)
    else:
        # A receipt may come from anywhere, and a word of it must not be an option.
        wanted = f"{name}=={versions[name]}"
        if parse_requirement(wanted) is None:
            return finding
        installed = stack.distributions.get(name)
        is_same = installed is not None and installed.version == versions[name]
        options = ["--force-reinstall", "--no-deps"] if is_same else []
        command = stack.pip("install", *options, wanted)
    return replace(finding, hint=f"{command}, or write a new receipt")
