"""Run the checks on a stack, and put together what they found."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nvidia_variant_provider.detection.presence import system_root
from nvidia_variant_provider.machine.environment import Environment

from ..findings import fails, listed
from .checks import CHECKS
from .distributions import find_distributions, find_leftovers
from .installation import find_installation
from .model import Finding, Stack
from .software import CodeReader, Watch

logger = logging.getLogger(__name__)

_NAMED = 5
"""How many distributions one note names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What is wrong with a stack, and what it consists of.

    :param findings: in the order of their codes.
    :param notes: what could not be read, in sentences.
    :param toolchain: the compilers and the assemblers that would be used.
    :param live: what the GPUs themselves have shown; ``None`` where nobody asked.
    :param workloads: what the user's own commands did.
    :param receipt: the receipt of the stack; ``None`` where nobody asked for one.
    """

    stack: Stack
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    toolchain: Mapping[str, object] = field(default_factory=dict)
    live: Mapping[str, object] | None = None
    workloads: tuple[Mapping[str, Any], ...] = ()
    receipt: Mapping[str, object] | None = None

    @property
    def has_errors(self) -> bool:
        """Whether a finding is an error."""
        return fails(self.findings)

    def to_dict(self) -> dict[str, object]:
        """Return the ``data`` of the JSON report of ``doctor``."""
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
) -> Diagnosis:
    """Find an environment with what is installed in it, and run the checks.

    :param cache: the folder for what is read once; ``None`` keeps nothing.
    :param live: the deadline of the live proof in seconds; ``None`` for no proof. The
        other arguments are those of `api.doctor`.
    """
    if live is not None:
        from .live.processes import check_possible

        check_possible(environment, is_here=is_here)
    installation = find_installation(python, environ)
    distributions = find_distributions(installation.folders)
    logger.info(
        "%s: %d distributions in %s",
        installation.prefix,
        len(distributions),
        ", ".join(installation.folders),
    )
    folder = None if cache is None else os.path.join(cache, "installed")
    stack = Stack(
        environment=environment,
        installation=installation,
        distributions=distributions,
        reader=CodeReader(folder, jobs=jobs, watch=watch),
        environ=environ,
        is_here=is_here,
        root=system_root(environ),
        machine_options=machine_options,
    )
    diagnosis = diagnose(stack)
    return diagnosis if live is None else prove_live(diagnosis, live)


def diagnose(stack: Stack) -> Diagnosis:
    """Run all checks that need no GPU."""
    findings: list[Finding] = []
    for code, check in sorted(CHECKS.items()):
        if check.find is None:
            continue
        started = time.monotonic()
        reported = list(check.find(stack))
        logger.info(
            "%s: %d findings in %.3f seconds",
            code,
            len(reported),
            time.monotonic() - started,
        )
        findings += reported
    paths = {finding.path for finding in findings}
    return Diagnosis(
        stack=stack,
        findings=tuple(findings),
        notes=(
            *_unreadable(stack),
            *_foreign_provider(stack),
            *stack.toolchain.problems(paths),
        ),
        toolchain=stack.toolchain.to_dict(),
    )


def prove_live(diagnosis: Diagnosis, seconds: float) -> Diagnosis:
    """Add what the GPUs of this machine show when code runs on them.

    :param seconds: the deadline for each GPU, and for torch.
    """
    from .live.findings import find_live
    from .live.proof import prove

    stack = diagnosis.stack
    proof = prove(stack, seconds)
    findings = [*diagnosis.findings, *find_live(stack, proof)]
    # The sort keeps the order of findings with the same code.
    findings.sort(key=lambda finding: finding.code)
    return replace(diagnosis, findings=tuple(findings), live=proof.to_dict())


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
    return notes


def _foreign_provider(stack: Stack) -> list[str]:
    """Return a note if the environment's own ``nvp`` cannot start.

    Installers put another release of the provider, or a successor with the same name,
    where ``nvp`` expects the provider of its own version.
    """
    command = stack.distributions.get("nvp")
    provider = stack.distributions.get("nvidia-variant-provider")
    if command is None or provider is None or provider.version == command.version:
        return []
    return [
        f"nvp {command.version} does not run with nvidia-variant-provider "
        f"{provider.version}; pip install --force-reinstall "
        f"nvidia-variant-provider=={command.version}"
    ]
