"""Messages about the builds that an installer selects, printed while it runs."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from .build_text import block, uses_gpu, why_no_gpu, why_nothing
from .render import complain, say, terminal_width

if TYPE_CHECKING:
    from ..builds.page import Build, Visibility
    from ..builds.stepping_back import PassedOver
    from ..builds.vendors import Elsewhere
    from ..index.pip.explain import InstalledBuild
    from ..index.pip.installed import StaleBuild
    from ..index.pip.session import Outcome
    from ..index.selection.options import Pins
    from ..index.selection.shown import ShownRelease
    from ..index.selection.visibility import PageVerdicts

_MOST = 3
"""The maximum number of reasons printed for one project."""

_TOLD = 1000
"""The maximum number of lines that are remembered, to print none twice: `serve` may run
for weeks, and its clients can cause any number of warnings."""

_PLURAL = {
    "needs": "need",
    "requires": "require",
    "does": "do",
    "is": "are",
    "has": "have",
}
_IT = re.compile(rf"it ({'|'.join(_PLURAL)})\b")


class Narration:
    """Prints which builds are selected, also from the thread that serves the index.

    :param aside: print blocks on stderr, because stdout is a document.
    :param quiet: print warnings, but no blocks.
    :param brief: print one line for each release on stderr, and keep no results.
    """

    def __init__(self, *, aside: bool, quiet: bool, brief: bool = False) -> None:
        self._aside = aside
        self._brief = brief
        self._told: dict[str, None] = {}
        self._quiet = quiet
        self._lock = threading.RLock()
        self.selected: dict[tuple[str, str], tuple[ShownRelease, str | None]] = {}
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.unknown: list[str] = []

    def start(self, places: Mapping[str, str]) -> None:
        """Print the files of the user behind the copies in pip's output."""
        if not self._quiet:
            lines = [f"{here} stands for {there}" for here, there in places.items()]
            say(lines, aside=self._aside)

    def page(self, judged: PageVerdicts) -> None:
        """Print which regular builds a page shows, unless it shows all of them."""
        line = _about_page(judged)
        if line is not None:
            self._tell(line)

    def pick(self, shown: ShownRelease, label: str | None) -> None:
        """Print the build that an installer fetches, once for each release."""
        with self._lock:
            key = (shown.project, shown.version)
            if self._brief:
                what = "the non-variant wheel" if label is None else f"variant {label}"
                if not self._tell(f"{shown.project} {shown.version}: {what}"):
                    return
            elif key in self.selected and self.selected[key][1] == label:
                return
            else:
                self.selected[key] = shown, label
        release, resolution = _release(shown), shown.resolution
        missing: list[str] = []
        if resolution and shown.pinned is None and not uses_gpu(label, resolution):
            # Do not hold the lock: a stranger's release may take a second to explain.
            missing = why_no_gpu(release, resolution, label=label)
        with self._lock:
            if label is not None and not self._quiet:
                lines = [f"{shown.project} {shown.version} -> {label}"]
                import logging  # import late: help texts need no logging

                if logging.getLogger(__name__).isEnabledFor(logging.INFO):
                    lines = block(release, label, resolution)
                say(lines, aside=self._aside)
            for note in resolution.notes if resolution else ():
                self.warn(note)
            self._explain(missing)

    def wait(self, project: str) -> None:
        """Print the project that pip is waiting for, if stderr is a terminal."""
        if terminal_width(sys.stderr) and not self._quiet:
            complain(f"reading the pages and METADATA of {project}")

    def warn(self, message: str, kind: str = "warning") -> None:
        """Print a warning, and keep it for the report.

        :param kind: ``error`` for the cause of a failure.
        """
        with self._lock:
            # It may already be printed for another index.
            if self._tell(f"{kind}: {message}") and not self._brief:
                self.warnings.append(message)

    def finish(self, outcome: Outcome, pins: Pins, *, dry_run: bool) -> None:
        """Print the installed builds or the failure, and missing requested labels."""
        self._tell_unused(outcome, pins)
        if outcome.status:
            for release in _newest(outcome.seen):
                shown = release.offers or release.plain or release.pinned
                if release.resolution and not shown:
                    self._explain(why_nothing(_release(release), release.resolution))
            if outcome.hidden:
                self.warn(_hidden(outcome.hidden))
            return
        would = "Would install" if dry_run else "Installed"
        lines = [
            f"{would} variant {item.label} of {item.project} {item.version}"
            if item.label
            else f"{would} {item.project} {item.version} without a variant"
            for item in outcome.installed
            if item.label or (item.project, item.version) in self.selected
        ]
        for item in outcome.builds:
            is_unknown = item.build.judgement.verdict == "unknown"
            if note := _why_not_newest(item):
                (self.unknown if is_unknown else self.notes).append(note)
        if not self._quiet:
            say([*lines, *self.notes], aside=self._aside)
        rest = [x for x in outcome.builds if x.note and not x.brought][1:]
        for item in outcome.builds:
            if item in rest:
                continue
            sentence = _what_is_wrong(item, dry_run=dry_run, driver=outcome.has_driver)
            if sentence is not None and item.note and outcome.alternatives:
                sentence += f"; try {' and '.join(outcome.alternatives)} instead"
            if sentence is not None:
                self.warn(sentence)
        if rest:
            from nvidia_variant_provider.errors import listed

            names = listed([f"{item.project} {item.version}" for item in rest], _MOST)
            self.warn(f"{names} will not use it either")

    def tell_elsewhere(
        self, found: Sequence[Elsewhere], command: Callable[[Sequence[str]], str]
    ) -> None:
        """Print newer builds on the vendors' own indexes that run on this machine.

        :param command: returns the command line that installs the given arguments.
        """
        from ..builds.vendors import say_elsewhere

        lines = say_elsewhere(found, command)
        self.notes += lines
        if not self._quiet:
            say(lines, aside=self._aside)

    def close(self) -> None:
        """Print, after everything else, which builds are not known to run."""
        self.notes += self.unknown
        if not self._quiet:
            say(self.unknown, aside=self._aside)

    def _tell(self, line: str) -> bool:
        """Print a line on stderr, unless it was printed; return whether it is new."""
        with self._lock:
            if line in self._told:
                return False
            self._told[line] = None
            if len(self._told) > _TOLD:
                del self._told[next(iter(self._told))]
            complain(line)
            return True

    def _explain(self, lines: list[str]) -> None:
        self.warnings += [] if self._brief else lines[:1]
        for line in lines:
            complain(line)

    def _tell_unused(self, outcome: Outcome, pins: Pins) -> None:
        """Warn if a ``--label``'s project was not read, or no build has the label."""
        for project, label in pins.projects.items():
            if project not in outcome.labels:
                self.warn(f"--label {project}={label}: pip did not look at {project}")
        if find_unused(outcome, pins):
            message = f"nothing that pip looked at has the label {pins.everywhere}"
            labels = sorted(set().union(*outcome.labels.values()))
            has = f"labels: {', '.join(labels)}" if labels else "there are no labels"
            self.warn(f"{message}; {has}", "error")


def find_unused(outcome: Outcome, pins: Pins) -> bool:
    """Return whether no project has the label that was requested for all projects."""
    return bool(pins.everywhere and outcome.labels) and not any(
        pins.everywhere in labels for labels in outcome.labels.values()
    )


def _release(release: ShownRelease) -> str:
    return f"{release.project}=={release.version}"


def _newest(seen: Iterable[ShownRelease]) -> list[ShownRelease]:
    """Return each project's newest release, which pip would install."""
    from packaging.version import Version

    newest: dict[str, ShownRelease] = {}
    for release in seen:
        other = newest.get(release.project)
        if other is None or Version(release.version) > Version(other.version):
            newest[release.project] = release
    return list(newest.values())


def _why_not_newest(item: InstalledBuild) -> str | None:
    """Explain skipped newer releases, or why it is unknown whether the build runs."""
    judgement = item.build.judgement
    name = f"{item.project} {item.version}{_cuda(item.build)}"
    if item.passed_over:
        return f"{name}: {_reasons(item.passed_over, item.build)}"
    if judgement.verdict != "unknown":
        return None
    return f"{name} is not known to run here: {'; '.join(judgement.reasons)}"


def _hidden(hidden: Mapping[str, Sequence[PassedOver]]) -> str:
    """Return a sentence on releases hidden from pip, which may be why pip failed."""
    found = [f"{name} {_reasons(groups)}" for name, groups in hidden.items()]
    more = f"; and releases of {len(found) - _MOST} others" if found[_MOST:] else ""
    return (
        f"pip was not shown what cannot run here: {'; '.join(found[:_MOST])}{more}; "
        "with --unchecked, it is shown all"
    )


def _what_is_wrong(item: InstalledBuild, *, dry_run: bool, driver: bool) -> str | None:
    """Return a warning if a build cannot run, or has no GPU code.

    :param driver: whether the machine has an NVIDIA driver. Without a driver, a GPU
        build is assumed to run on the CPU.
    """
    judgement = item.build.judgement
    # Print no message about libraries that come with a build, only about the build.
    cannot = judgement.verdict == "cannot" and not (driver and item.brought)
    if not cannot and not (driver and judgement.verdict == "cpu"):
        return None
    name = f"{item.project} {item.version}"
    if item.note is not None:
        return f"{name}: {item.note}"
    why = "; ".join(judgement.reasons)
    if not driver:
        return f"{name} will not use a GPU: {why}"
    if not cannot:
        because = f": {item.cpu_because}" if item.cpu_because else ""
        return f"{name} comes without GPU support{because}"
    verb = "would be" if dry_run else "was"
    who = f"; {'; '.join(item.required_by)}" if item.required_by else ""
    return f"{name} {verb} installed although it cannot run here: {why}{who}"


def stays_installed(item: StaleBuild, command: str) -> str:
    """Return the message about an outdated build, with the command that replaces it."""
    name = f"{item.project}=={item.version}"
    return f"{name} stays installed, but {item.reason}; to replace it: {command}"


def _about_page(page: PageVerdicts) -> str | None:
    """Describe the shown builds of a page in one line; ``None`` if all are shown."""
    from ..builds.releases import newest_for_all, say_lacking
    from ..builds.stepping_back import find_passed_over

    visibility = page.visibility
    if not visibility.files:  # there is no evidence about the wheels
        return None
    is_whole = all(item.action == "show" for item in visibility.files.values())
    if visibility.note is not None and not is_whole:
        return f"{page.project}: {visibility.note}"
    visibilities = [(build, visibility.files[build.file]) for build in page.builds]
    (pythons, best), *others = _find_best(visibilities) or [(set(), None)]
    lacking = best.judgement.lacking if best is not None else ()
    if best is None or (is_whole and not lacking):
        return None
    # Add each Python without a shown build: all releases were skipped for it.
    pythons = pythons.union(*(its for its, it in others if it is None))
    over = find_passed_over(visibilities, best, pythons=pythons)
    why = f": {_reasons(over, best)}" if over else ""
    more = "".join(
        f"; for Python {_span(its)}: {f'{it.version}{_cuda(it)}' if it else 'none'}"
        for its, it in others
    )
    if lacking:
        for_all = newest_for_all(page.builds)
        name = f"{page.project} {best.version}"
        more += f"; {say_lacking(name, lacking, page.environment, for_all)}"
        more += " (--every-gpu)" if for_all else ""
    return f"{page.project} {best.version}{_cuda(best)} is the newest shown{why}{more}"


def _find_best(
    visibilities: Sequence[tuple[Build, Visibility]],
) -> list[tuple[set[int], Build | None]]:
    """Return the newest shown build for each set of Pythons, the newest build first.

    Pythons without a shown build come last, with ``None``.
    """
    found: list[tuple[set[int], Build]] = []
    left = {python for build, _ in visibilities for python in build.pythons}
    shown = [build for build, each in visibilities if each.action == "show"]
    for build in sorted(shown, key=lambda build: build.version, reverse=True):
        if found and found[-1][1].version == build.version:
            found[-1][0].update(left & build.pythons)
        elif left & build.pythons:
            found.append((left & build.pythons, build))
        left -= build.pythons
    return [*found, *([(left, None)] if left else [])]


def _span(pythons: Collection[int]) -> str:
    """Return the versions of Python 3 as words, such as ``3.10 to 3.12``."""
    first, last = min(pythons), max(pythons)
    if len(pythons) > 1 and last - first == len(pythons) - 1:
        return f"3.{first} to 3.{last}"
    return ", ".join(f"3.{minor}" for minor in sorted(pythons))


def _cuda(build: Build) -> str:
    cuda = build.judgement.cuda
    return f" (CUDA {cuda})" if cuda else ""


def _reasons(groups: Sequence[PassedOver], taken: Build | None = None) -> str:
    parts = [_reason(group) for group in groups[:_MOST]]
    more = sum(len(group.versions) for group in groups[_MOST:])
    if more:
        parts.append(f"{more} more {'releases' if more > 1 else 'release'} not shown")
    if taken is not None and taken.judgement.verdict == "unknown":
        parts.append(f"{taken.version} is not known to run here either")
    return "; ".join(parts)


def _reason(group: PassedOver) -> str:
    versions, reason = group.versions, group.reason
    from ..builds.stepping_back import say_range

    span, several = say_range(versions), len(versions) > 1
    match = _IT.match(reason)
    if match is None:
        return f"{span} cannot run here, because {reason}"
    verb = _PLURAL[match[1]] if several else match[1]
    return f"{span} {verb}{reason[match.end() :]}"
