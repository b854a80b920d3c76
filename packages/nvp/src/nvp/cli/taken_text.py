"""What people read about ordinary wheels that were taken or passed over."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..builds.page import Build
    from ..builds.passing import PassedOver
    from ..index.pip.taking import Kept, Taken
    from ..index.selection.decisions import JudgedPage

__all__ = ["about_page", "cannot_run", "kept", "why_not_newest", "without_gpu"]

_MOST = 3
"""The most reasons that are printed for one project."""

_PLURAL = {"needs": "need", "requires": "require", "does": "do", "is": "are"}
_IT = re.compile(r"it (needs|requires|does|is)\b")


def why_not_newest(taken: Taken) -> str | None:
    """Say in one line why the newest release was not taken; ``None`` if it was."""
    if not taken.passed_over:
        return None
    name = f"{taken.project} {taken.version}{_cuda(taken.build)}"
    return f"{name}: {_reasons(taken.passed_over)}"


def cannot_run(taken: Taken, *, dry_run: bool, driver: bool) -> str | None:
    """Say that a build was taken although it cannot run, and who required it.

    :param driver: the machine has an NVIDIA driver. Without one, a build for GPUs runs
        on the CPU, as far as anybody knows.
    """
    judgement = taken.build.judgement
    if judgement.verdict != "cannot":
        return None
    name = f"{taken.project} {taken.version}"
    if taken.note is not None:
        return f"{name}: {taken.note}"
    if not driver:
        return f"{name} will not use a GPU: {'; '.join(judgement.reasons)}"
    verb = "would be" if dry_run else "was"
    who = f"; {'; '.join(taken.required_by)}" if taken.required_by else ""
    why = "; ".join(judgement.reasons)
    return f"{name} {verb} installed although it cannot run here: {why}{who}"


def without_gpu(taken: Taken) -> str | None:
    """Say that a build has no GPU code, where that is known."""
    if taken.build.judgement.verdict != "cpu":
        return None
    name = f"{taken.project} {taken.version}"
    if taken.note is not None:
        return f"{name}: {taken.note}"
    why = f": {taken.cpu_because}" if taken.cpu_because else ""
    return f"{name} comes without GPU support{why}"


def kept(item: Kept, command: str) -> str:
    """Say what stays installed, with the command that replaces it."""
    name = f"{item.project}=={item.version}"
    return f"{name} stays installed, but {item.reason}; to replace it: {command}"


def about_page(page: JudgedPage) -> str | None:
    """Say in one line what a page shows; ``None`` where that is what it always does."""
    from ..builds.passing import find_passed_over

    decisions = page.decisions
    if not any(item.action != "show" for item in decisions.files.values()):
        return None
    if decisions.note is not None:
        return f"{page.project}: {decisions.note}"
    best = _best(page)
    if best is None:
        return None
    decided = [(build, decisions.files[build.file]) for build in page.builds]
    over = find_passed_over(decided, best)
    why = f": {_reasons(over)}" if over else ""
    return f"{page.project} {best.version}{_cuda(best)} is the newest shown{why}"


def _best(page: JudgedPage) -> Build | None:
    shown = [
        build
        for build in page.builds
        if page.decisions.files[build.file].action == "show"
        and not build.release.is_prerelease
    ]
    return max(shown, key=lambda build: build.version, default=None)


def _cuda(build: Build) -> str:
    cuda = build.judgement.cuda
    return f" (CUDA {cuda})" if cuda else ""


def _reasons(groups: Sequence[PassedOver]) -> str:
    parts = [_reason(group) for group in groups[:_MOST]]
    more = sum(len(group.versions) for group in groups[_MOST:])
    if more:
        parts.append(f"{more} more {'releases' if more > 1 else 'release'} not shown")
    return "; ".join(parts)


def _reason(group: PassedOver) -> str:
    versions, reason = group.versions, group.reason
    several = len(versions) > 1
    span = f"{versions[0]} to {versions[-1]}" if several else str(versions[0])
    match = _IT.match(reason)
    if match is None:
        return f"{span} cannot run here, because {reason}"
    verb = _PLURAL[match[1]] if several else match[1]
    return f"{span} {verb}{reason[match.end() :]}"
