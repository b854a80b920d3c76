"""What people read while an installer chooses among the builds that it is shown."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .build_text import block, uses_gpu, why_no_gpu, why_nothing
from .render import complain, say
from .taken_text import about_page, cannot_run, why_not_newest, without_gpu

if TYPE_CHECKING:
    from ..index.pip.session import Outcome
    from ..index.selection.choice import Choice
    from ..index.selection.decisions import JudgedPage
    from ..index.selection.options import Pins

__all__ = ["Narration", "find_unused"]


class Narration:
    """Prints what is chosen; the thread that serves the index may call it as well.

    :param aside: print blocks on stderr, because stdout is a document.
    :param quiet: print warnings, but no blocks.
    :param brief: print one line for each choice on stderr, and no line twice.
    """

    def __init__(self, *, aside: bool, quiet: bool, brief: bool = False) -> None:
        self._aside = aside
        self._brief = brief
        self._told: set[str] = set()
        self._quiet = quiet
        self._lock = threading.RLock()
        self.chosen: dict[tuple[str, str], tuple[Choice, str | None]] = {}
        self.warnings: list[str] = []
        self.notes: list[str] = []

    def start(self, places: Mapping[str, str]) -> None:
        """Say which local URLs stand for which indexes in the output of pip."""
        if not self._quiet:
            lines = [f"{here} stands for {there}" for here, there in places.items()]
            say(lines, aside=self._aside)

    def page(self, judged: JudgedPage) -> None:
        """Say what the page of a project shows of its ordinary wheels."""
        line = about_page(judged)
        if line is not None:
            self._tell(line)

    def pick(self, choice: Choice, label: str | None) -> None:
        """Say which build an installer fetches, once for each release."""
        with self._lock:
            key = (choice.project, choice.version)
            known = self.chosen.get(key)
            if known is not None and known[1] == label:
                return
            self.chosen[key] = choice, label
            release = _release(choice)
            if self._brief:
                what = "the non-variant wheel" if label is None else f"variant {label}"
                self._tell(f"{choice.project} {choice.version}: {what}")
            if label is not None and not self._quiet:
                say(block(release, label, choice.resolution), aside=self._aside)
            resolution = choice.resolution
            if resolution is None:
                return
            for note in resolution.notes:
                self.warn(note)
            if choice.pinned is None and not uses_gpu(label, resolution):
                self._explain(why_no_gpu(release, resolution, label=label))

    def warn(self, message: str) -> None:
        """Print a warning, and keep it for the report."""
        with self._lock:
            self.warnings.append(message)
            complain(f"warning: {message}")

    def fail(self, message: str) -> None:
        """Print why the command failed, and keep it for the report."""
        with self._lock:
            self.warnings.append(message)
            complain(f"error: {message}")

    def finish(self, outcome: Outcome, pins: Pins, *, dry_run: bool) -> None:
        """Say which builds were installed, and which requested labels do not exist."""
        self._tell_unused(outcome, pins)
        if outcome.status:
            for choice in _newest(outcome.seen):
                shown = choice.offers or choice.plain or choice.pinned
                if choice.resolution and not shown:
                    self._explain(why_nothing(_release(choice), choice.resolution))
            return
        would = "Would install" if dry_run else "Installed"
        lines = [
            f"{would} variant {item.label} of {item.project} {item.version}"
            if item.label
            else f"{would} {item.project} {item.version} without a variant"
            for item in outcome.installed
            if item.label or (item.project, item.version) in self.chosen
        ]
        taken = outcome.taken
        self.notes += filter(None, map(why_not_newest, taken))
        if not self._quiet:
            say([*lines, *self.notes], aside=self._aside)
        for item in taken:
            sentence = cannot_run(item, dry_run=dry_run, driver=outcome.has_driver)
            if sentence is None and outcome.has_driver:
                sentence = without_gpu(item)
            if sentence is not None:
                self.warn(sentence)

    def _tell(self, line: str) -> None:
        with self._lock:
            if line not in self._told:
                self._told.add(line)
                complain(line)

    def _explain(self, lines: list[str]) -> None:
        self.warnings += lines[:1]
        for line in lines:
            complain(line)

    def _tell_unused(self, outcome: Outcome, pins: Pins) -> None:
        """Tell each ``--label`` that nothing has, unless the index has told it."""
        for project, label in pins.projects.items():
            if project not in outcome.labels:
                self.warn(f"--label {project}={label}: pip did not look at {project}")
        if find_unused(outcome, pins):
            message = f"nothing that pip looked at has the label {pins.everywhere}"
            labels = sorted(set().union(*outcome.labels.values()))
            has = f"there are {', '.join(labels)}" if labels else "there are no labels"
            with self._lock:
                self.warnings.append(f"{message}: {has}")
                complain(f"error: {message}: {has}")


def find_unused(outcome: Outcome, pins: Pins) -> bool:
    """Return whether no project has the label that was asked for of all projects."""
    return bool(pins.everywhere and outcome.labels) and not any(
        pins.everywhere in labels for labels in outcome.labels.values()
    )


def _release(choice: Choice) -> str:
    return f"{choice.project}=={choice.version}"


def _newest(seen: Iterable[Choice]) -> list[Choice]:
    """Return the newest release of each project, which pip would have installed."""
    from packaging.version import Version

    newest: dict[str, Choice] = {}
    for choice in seen:
        other = newest.get(choice.project)
        if other is None or Version(choice.version) > Version(other.version):
            newest[choice.project] = choice
    return list(newest.values())
