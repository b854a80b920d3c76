"""What is said while an installer chooses among the builds that it is shown."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .build_text import block, uses_gpu, why_no_gpu, why_nothing
from .render import complain, say

if TYPE_CHECKING:
    from ..index.pip.session import Outcome
    from ..index.selection.pins import Pins
    from ..index.selection.repository import Choice

__all__ = ["Talk"]


class Talk:
    """Says what is chosen; also from the thread that serves it.

    :param aside: blocks go to stderr, since stdout is a document.
    :param quiet: no blocks; warnings all the same.
    """

    def __init__(self, *, aside: bool, quiet: bool) -> None:
        self._aside = aside
        self._quiet = quiet
        self._lock = threading.RLock()
        self.chosen: dict[tuple[str, str], tuple[Choice, str | None]] = {}
        self.warnings: list[str] = []

    def start(self, places: Mapping[str, str]) -> None:
        """What pip is going to call indexes."""
        if not self._quiet:
            lines = [f"{here} stands for {there}" for here, there in places.items()]
            say(lines, aside=self._aside)

    def pick(self, choice: Choice, label: str | None) -> None:
        """A build that is fetched, or whose METADATA is read."""
        with self._lock:
            key = (choice.project, choice.version)
            known = self.chosen.get(key)
            if known is not None and known[1] == label:
                return
            self.chosen[key] = choice, label
            release = _release(choice)
            if label is not None and not self._quiet:
                say(block(release, label, choice.resolution), aside=self._aside)
            resolution = choice.resolution
            if resolution is None:
                return
            for note in resolution.notes:
                self.warn(note)
            if choice.pinned is not None:
                for reason in resolution.rejected.get(choice.pinned, ())[:1]:
                    message = f"{release}: {label} does not fit this machine"
                    self.warn(f"{message}: {reason.sentence}")
            elif not uses_gpu(label, resolution):
                self._explain(why_no_gpu(release, resolution))

    def warn(self, message: str) -> None:
        """Something that its user should know."""
        with self._lock:
            self.warnings.append(message)
            complain(f"warning: {message}")

    def finish(self, outcome: Outcome, pins: Pins, *, dry_run: bool) -> None:
        """Say at the end what became of the builds, and of the labels asked for."""
        self._find_unused(outcome.seen, pins)
        if outcome.status:
            for choice in _newest(outcome.seen):
                if choice.resolution and not (choice.offers or choice.plain):
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
        if not self._quiet:
            say(lines, aside=self._aside)

    def _explain(self, lines: list[str]) -> None:
        self.warnings += lines[:1]
        for line in lines:
            complain(line)

    def _find_unused(self, seen: Iterable[Choice], pins: Pins) -> None:
        """Warn of each ``--label`` that nothing had."""
        labels: dict[str, set[str]] = {}
        for choice in seen:
            labels.setdefault(choice.project, set()).update(choice.available)
        found = set().union(*labels.values())
        if pins.everywhere and pins.everywhere not in found:
            has = f"they have {', '.join(sorted(found))}" if found else "none has any"
            self.warn(f"no release that was looked at has {pins.everywhere}: {has}")
        for project, label in pins.projects.items():
            if label not in labels.get(project, ()):
                has = ", ".join(sorted(labels.get(project, ()))) or "no variants"
                self.warn(f"{project} has no {label}, as far as was looked: {has}")


def _release(choice: Choice) -> str:
    return f"{choice.project}=={choice.version}"


def _newest(seen: Iterable[Choice]) -> list[Choice]:
    """Of each project the release that its user would have had."""
    from packaging.version import Version

    found: dict[str, Choice] = {}
    for choice in seen:
        other = found.get(choice.project)
        if other is None or Version(choice.version) > Version(other.version):
            found[choice.project] = choice
    return list(found.values())
