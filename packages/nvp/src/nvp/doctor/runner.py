"""Run the checks on a stack, and collect the findings.

Optionally, run workloads and make a receipt.
"""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from nvidia_variant_provider.detection.presence import system_root
from nvidia_variant_provider.errors import InputError, listed
from nvidia_variant_provider.machine.environment import Environment

from ..findings import fails, shortened
from ..metadata.requirements import parse_requirement
from ..signals import StoppedError, limited
from .checks import CHECKS
from .distributions import find_distributions, find_leftovers
from .installation import find_installation
from .model import MOST_FINDINGS, Find, Finding, Stack, in_order
from .receipts.comparing import compare, find_differences
from .receipts.making import Receipt, make_receipt, parse_reasons
from .software import CodeReader, Watch
from .workloads import (
    DEADLINE,
    Starting,
    find_broken_graphs,
    find_failed_workloads,
    run_workloads,
)

logger = logging.getLogger(__name__)

_SECONDS = 9.0
"""The processor time of the search, all checks and the receipt together. An environment
of 113 distributions with 8,900 files needs 0.1 seconds."""

_FOR_CHECKS = 2.0  # the seconds that reading GPU code leaves

_MEMORY = 200 << 20
"""The memory of all checks together, in bytes."""

_FOR_RECEIPT = 50 << 20  # the memory of the receipt in bytes

_MOST_NOTES = 500
"""The maximum number of notes about unreadable files."""

_NAMED = 5
"""The maximum number of distributions named in a note."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """The findings about a stack, and the results of its live proof and workloads.

    :param findings: the findings, most severe first, then by code.
    :param notes: sentences about other problems, such as unreadable files.
    :param toolchain: the compilers and the assemblers in use.
    :param live: the results of the live proof; ``None`` if not requested.
    :param workloads: the results of the workloads.
    :param receipt: the receipt of the stack; ``None`` if not requested.
    :param unfinished: why not all checks were run; ``None`` if all were.
    :param used: the processor time of the search and the checks, in seconds.
    """

    stack: Stack
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    toolchain: Mapping[str, object] = field(default_factory=dict)
    live: Mapping[str, object] | None = None
    workloads: tuple[Mapping[str, Any], ...] = ()
    receipt: Mapping[str, object] | None = None
    unfinished: InputError | None = None
    used: float = 0.0

    @property
    def has_errors(self) -> bool:
        """Whether at least one finding is an error."""
        return fails(self.findings)

    def to_dict(self) -> dict[str, object]:
        """Return the ``data`` of the JSON report of ``nvp doctor``."""
        return {
            "environment": self.stack.environment.to_dict(),
            "python": self.stack.installation.to_dict(),
            "checks": [finding.to_dict() for finding in self.findings],
            "distributions": [
                {
                    "name": distribution.name,
                    "version": distribution.version,
                    "cuda": str(cuda)
                    if (cuda := self.stack.cuda_of(distribution))
                    else None,
                    "targets": dict(report.targets),
                    "path": distribution.folder,
                }
                for distribution, report in self.stack.with_gpu_code()
            ],
            "toolchain": dict(self.toolchain),
            "live": self.live,
            "workloads": list(self.workloads),
            "receipt": self.receipt,
        }


def diagnose_installation(
    python: str | None,
    *,
    environment: Environment,
    is_here: bool,
    environ: Mapping[str, str],
    cache: str | None = None,
    jobs: int = 1,
    watch: Watch | None = None,
    live: float | None = None,
    machine_options: Sequence[str] = (),
    everything: bool = False,
) -> Diagnosis:
    """Find an environment and its distributions, and run the checks.

    The parameters without a description are those of `api.doctor`.

    :param cache: the cache directory; ``None`` disables the cache.
    :param live: the deadline of the live proof in seconds; ``None`` for no proof.
    """
    if live is not None:
        from .live.processes import check_possible

        check_possible(environment, is_here=is_here)
    started = time.process_time()
    try:
        with limited(_SECONDS, _MEMORY):
            installation = find_installation(python, environ)
            distributions = find_distributions(installation.folders)
    except StoppedError as error:
        raise InputError(
            f"the search for distributions was stopped {error}",
            path=python,
            hint="look for directories of packages with millions of files",
        ) from None
    logger.info(
        "%s: %d distributions in %s",
        installation.prefix,
        len(distributions),
        ", ".join(installation.folders),
    )
    folder = None if cache is None else os.path.join(cache, "installed")
    used = time.process_time() - started
    most = max(0.0, _SECONDS - used - _FOR_CHECKS)
    stack = Stack(
        environment=environment,
        installation=installation,
        distributions=distributions,
        reader=CodeReader(folder, jobs=jobs, watch=watch, most=most),
        environ=environ,
        is_here=is_here,
        root=system_root(environ),
        machine_options=machine_options,
        everything=everything,
    )
    diagnosis = diagnose(stack, used=used)
    if live is None or diagnosis.unfinished is not None:
        return diagnosis
    return prove_live(diagnosis, live)


def diagnose(stack: Stack, *, used: float = 0.0) -> Diagnosis:
    """Run all checks that need only a stack, and collect findings and notes.

    The checks have `_SECONDS` of processor time, and `_MEMORY`. Reading GPU code has
    limits of its own: its time counts, but leaves 2 seconds for the checks. If a limit
    is reached, the diagnosis has the findings of the checks that ended, and a stack
    without distributions: whatever took so much is not done again.

    :param used: the processor time that the search took, in seconds.
    """
    findings: list[Finding] = []
    checks = sorted(CHECKS.items())
    waiting = {code: check.find for code, check in checks if check.find is not None}
    started = time.process_time() - used
    try:
        with limited(max(round(_SECONDS - used, 1), 0.1), _MEMORY):
            diagnosis = _diagnose(stack, findings, waiting)
        return replace(diagnosis, used=time.process_time() - started)
    except StoppedError as error:
        unfinished = InputError(
            f"the checks were stopped {error}; "
            f"not checked: {', '.join(waiting) or 'unreadable files'}",
            path=stack.installation.prefix,
            hint="-v shows the time of each check; look for a distribution with huge "
            "METADATA or RECORD, or with many libraries",
        )
    stack = replace(stack, distributions={})
    return Diagnosis(
        stack=stack,
        findings=in_order(findings),
        toolchain=stack.toolchain.to_dict(),
        notes=(str(unfinished),),
        unfinished=unfinished,
    )


def _diagnose(
    stack: Stack, findings: list[Finding], waiting: dict[str, Find]
) -> Diagnosis:
    """Run the checks in ``waiting``, and update the parameters after each of them."""
    left_out: list[str] = []
    for code, find in tuple(waiting.items()):
        started = time.monotonic()
        reported = _first(code, find(stack), left_out)
        logger.info(
            "%s: %d findings in %.3f seconds",
            code,
            len(reported),
            time.monotonic() - started,
        )
        findings += reported
        del waiting[code]
    paths = {finding.path for finding in findings}
    return Diagnosis(
        stack=stack,
        findings=in_order(findings),
        notes=tuple(
            shortened(note)
            for note in (
                *left_out,
                *_unreadable(stack),
                *_foreign_provider(stack),
                *stack.toolchain.problems(paths),
            )
        ),
        toolchain=stack.toolchain.to_dict(),
    )


def _first(code: str, found: Iterable[Finding], notes: list[str]) -> list[Finding]:
    """Return the first findings of a check, with a note if they are not all."""
    reported = list(islice(found, MOST_FINDINGS))
    if len(reported) == MOST_FINDINGS:
        notes.append(f"only the first {MOST_FINDINGS} findings of {code} are reported")
    return reported


def prove_live(diagnosis: Diagnosis, seconds: float) -> Diagnosis:
    """Run code on the GPUs of this machine, and add the results to a diagnosis.

    :param seconds: the time limit for each GPU, and for torch.
    """
    from .live.findings import find_live
    from .live.proof import prove

    stack = diagnosis.stack
    try:
        proof = prove(stack, seconds)
    except OSError as error:
        message = f"--live: temporary files cannot be written: {error.strerror}"
        raise InputError(message, hint="make room, or set TMPDIR") from None
    findings = in_order([*diagnosis.findings, *find_live(stack, proof)])
    return replace(diagnosis, findings=findings, live=proof.to_dict())


def _unreadable(stack: Stack) -> list[str]:
    notes = list(stack.libraries.system.notes)
    notes += stack.limits.notes()
    notes += find_leftovers(stack.installation.folders)
    unlisted = [item.name for item in stack.distributions.values() if not item.files]
    if unlisted:
        named = listed(unlisted, _NAMED)
        notes.append(f"files that no RECORD lists are not looked at: {named}")
    for distribution in stack.distributions.values():
        report = stack.code_of(distribution)
        defects = list(distribution.defects)
        if report is not None:
            defects += [
                ": ".join(filter(None, (item.path, item.place, item.message)))
                for item in report.all_defects
            ]
        notes += [f"{distribution.name}: {defect}" for defect in defects[:3]]
        if len(defects) > 3:
            notes.append(f"{distribution.name}: {len(defects) - 3} more defects")
    left = len(notes) - _MOST_NOTES
    return [*notes[:_MOST_NOTES], f"{left} more notes"] if left > 0 else notes


def _foreign_provider(stack: Stack) -> list[str]:
    """Return a list with a note if the environment's own ``nvp`` cannot start.

    Installers may replace the provider with another release, or with a successor of the
    same name, but ``nvp`` needs the provider of its own version.
    """
    command = stack.distributions.get("nvp")
    provider = stack.distributions.get("nvidia-variant-provider")
    if command is None or provider is None or provider.version == command.version:
        return []
    wanted = shlex.quote(f"nvidia-variant-provider=={command.version}")
    return [
        f"nvp {command.version} does not run with nvidia-variant-provider "
        f"{provider.version}; pip install --force-reinstall {wanted}"
    ]


_NOT_IN_RECEIPTS = ("ND604", "ND605", "ND701")
"""Checks whose findings are left out of a receipt. The receipt's workloads have the
facts of ND604 and ND605 without the output, and ND701 is about another receipt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The requested additions to a diagnosis.

    :param workloads: command lines to run in the environment.
    :param deadline: the time limit of each workload in seconds; by default, the limit
        in ``against``, or else `workloads.DEADLINE`.
    :param reasons: reasons in the receipt; see `receipts.making.parse_reasons`.
    :param with_receipt: whether to make a receipt.
    :param against: a receipt to compare the stack with. Its workloads are run again.
    :param starting: a function that is called before each workload is run.
    """

    workloads: Sequence[str] = ()
    deadline: float | None = None
    reasons: Sequence[str] = ()
    with_receipt: bool = False
    against: Receipt | None = None
    starting: Starting | None = None


def add_evidence(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Run the workloads, make the receipt, and compare it with an earlier receipt.

    :raises UsageError: a workload or a reason is malformed; no workload has been run.
    """
    if diagnosis.unfinished is not None:
        return diagnosis
    stack = diagnosis.stack
    reasons = parse_reasons(evidence.reasons, stack)
    against = evidence.against
    notes = list(diagnosis.notes)
    if against is not None and not stack.is_here:
        # Skip the workloads: they would run on this machine, not on the other one.
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
        try:
            with limited(max(round(_SECONDS - diagnosis.used, 1), 0.5), _FOR_RECEIPT):
                receipt = make_receipt(
                    stack,
                    toolchain=diagnosis.toolchain,
                    live=diagnosis.live,
                    workloads=records,
                    reasons=reasons,
                    earlier=against,
                )
        except StoppedError as error:
            raise InputError(
                f"the receipt was stopped {error}",
                path=stack.installation.prefix,
                hint="look for a distribution with a huge variant.json, or torch with "
                "millions of symbols",
            ) from None
        if against is not None:
            found = find_differences(compare(against, receipt))
            differences = _first("ND701", found, notes)
            versions = {x["name"]: x["version"] for x in against["distributions"]}
            findings += [_with_command(item, stack, versions) for item in differences]
    if receipt is not None:
        recorded = [
            {"code": x.code, "severity": x.severity, "message": x.message}
            for x in sorted(findings, key=lambda x: x.code)
            if x.code not in _NOT_IN_RECEIPTS
        ]
        receipt = {**receipt, "findings": recorded}
    return replace(
        diagnosis,
        findings=in_order(findings),
        notes=tuple(notes),
        workloads=records,
        receipt=receipt if evidence.with_receipt else None,
    )


def _deadlines(evidence: Evidence, against: Receipt | None) -> dict[str, float]:
    """Map each command to its deadline; duplicate commands run only once."""
    earlier = [] if against is None else against["workloads"]
    deadlines: dict[str, float] = dict.fromkeys(evidence.workloads, DEADLINE)
    for record in earlier:
        deadlines[record["command"]] = record["deadline"]
    if evidence.deadline is not None:
        deadlines = dict.fromkeys(deadlines, evidence.deadline)
    return deadlines


def _with_command(
    finding: Finding, stack: Stack, versions: Mapping[str, str]
) -> Finding:
    """Add the command that restores a distribution to its version in a receipt."""
    name = finding.distribution
    if name is None:
        return finding
    if name not in versions:
        command = stack.pip("uninstall", "--yes", name)
    else:
        # A receipt is untrusted, so its words must not become options.
        wanted = f"{name}=={versions[name]}"
        requirement = parse_requirement(wanted)
        if requirement is None or requirement.url is not None:
            return finding
        installed = stack.distributions.get(name)
        is_same = installed is not None and installed.version == versions[name]
        options = ["--force-reinstall", "--no-deps"] if is_same else []
        command = stack.pip("install", *options, wanted)
    hint = f"{command}, or write a new receipt"
    return replace(finding, hint=hint, commands=(command,))
