"""Find machines on which a changed lock file installs worse builds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nvidia_variant_provider.errors import listed

from ..builds.verdicts import Verdict
from ..findings import Reported
from ..fleet.serving import Group
from ..matrix.cells import Pair, describe_pairs
from .model import WORST, CheckedPin, CheckReport
from .text import BUT

LOST, GAINED, CHANGED = "lost", "gained", "changed"
_RUNNING = ("runs", "partly")
_MOST = 4
"""The maximum number of machine groups that are named in a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change(Reported):
    """The change in the verdict on a package, for a group of machines.

    :param old: the old pin, such as ``torch 2.8.0``; ``None`` if the package is new.
    :param change: ``lost``, ``gained``, or ``changed`` if the verdict on a build that
        ran is now ``unknown``.
    :param machine: the first of the ``count`` machines of the group.
    """

    name: str
    old: str | None
    new: str
    before: Verdict | None
    after: Verdict
    change: str
    machine: str
    count: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckDifferences:
    """The changes between two checks, for the best choice of extras on each machine."""

    old: CheckReport
    new: CheckReport
    changes: tuple[Change, ...]

    @property
    def lost(self) -> tuple[Change, ...]:
        """The changes to builds that cannot run, or use the GPU less than before."""
        return tuple(item for item in self.changes if item.change == LOST)

    def fails(self, *, strict: bool = False) -> bool:
        """Return whether a build was lost or, with ``strict``, is now unknown."""
        failing = (LOST, CHANGED) if strict else (LOST,)
        return any(item.change in failing for item in self.changes)

    def to_dict(self) -> dict[str, object]:
        """Return the JSON report's ``data``: the new check's data, and ``changes``."""
        return {
            **self.new.to_dict(),
            "changes": [item.to_dict() for item in self.changes],
        }


def compare(old: CheckReport, new: CheckReport) -> CheckDifferences:
    """Compare two checks of the same machines."""
    changes = []
    for number, group in enumerate(new.machines):
        before, after = _by_name(old, number), _by_name(new, number)
        for name, item in after.items():
            was, judgement = before.get(name), item.judgements[number]
            earlier = was.judgements[number].verdict if was else None
            change = find_change(earlier, judgement.verdict)
            if change is not None:
                changes.append(
                    Change(
                        name=name,
                        old=was.pin.title if was else None,
                        new=item.pin.title,
                        before=earlier,
                        after=judgement.verdict,
                        change=change,
                        machine=group.names[0],
                        count=len(group.names),
                        reasons=judgement.reasons,
                    )
                )
    return CheckDifferences(old=old, new=new, changes=tuple(changes))


def _by_name(report: CheckReport, number: int) -> dict[str, CheckedPin]:
    """Map each project to its worst build in the best choice for a machine group."""
    found: dict[str, CheckedPin] = {}
    for file in report.files:
        for item in file.counting(number):
            other = found.get(item.pin.name)
            if other is None or _rank(item, number) < _rank(other, number):
                found[item.pin.name] = item
    return found


def _rank(item: CheckedPin, number: int) -> int:
    return WORST.index(item.judgements[number].verdict)


def find_change(before: Verdict | None, after: Verdict) -> str | None:
    """Return ``lost``, ``changed`` or ``gained``; ``None`` for other pairs of verdicts.

    :param before: ``None`` for a package that the old file does not have.
    """
    if before == after:
        return None
    if after == "cannot" or (before in _RUNNING and after == "cpu"):
        return LOST
    if (before, after) == ("runs", "partly"):
        return LOST
    if before in _RUNNING and after == "unknown":
        return CHANGED
    return GAINED if before == "cannot" else None


def difference_lines(differences: CheckDifferences) -> Iterator[str]:
    """Yield report lines on lost, changed and gained builds and their machines."""
    groups = {group.names[0]: group for group in differences.new.machines}
    for kind in (LOST, CHANGED, GAINED):
        found: dict[tuple[str | None, ...], list[Change]] = {}
        for item in differences.changes:
            if item.change == kind:
                reason = BUT.sub("", "; ".join(item.reasons[:2]))
                reason = reason if kind != GAINED else ""
                key = item.old, item.new, item.before, item.after, reason
                found.setdefault(key, []).append(item)
        for (*_, why), changes in found.items():
            first = changes[0]
            start = f"{first.new}, which is new"
            if first.old:
                start = f"{first.old} ({first.before}) to {first.new}"
            who = _say(changes, groups)
            yield f"{kind}: {start} ({first.after}) on {who}{f': {why}' if why else ''}"
    lost = {item.machine for item in differences.lost}
    count = sum(len(groups[name].names) for name in lost)
    if count:
        total = sum(len(group.names) for group in groups.values())
        yield f"{count} of {total} machines lose something."
    else:
        yield "No machine loses anything."


def _say(changes: Sequence[Change], groups: Mapping[str, Group]) -> str:
    """Describe machines by count and name; if all are unnamed, by driver and GPU."""
    count = sum(item.count for item in changes)
    start = f"{count} machine{'s'[: count != 1]}"
    own = [groups[item.machine] for item in changes]
    if all(group.names[0] == group.title for group in own):
        pairs, known = ([_pair(x) for x in some] for some in (own, groups.values()))
        return f"{start} ({'; '.join(describe_pairs(pairs, known))})"
    named = []
    for group in own:
        more = f" and {len(group.names) - 1} like it" if len(group.names) > 1 else ""
        named.append(f"{group.names[0]}{more} ({group.title})")
    return f"{start}: {listed(named, _MOST)}"


def _pair(group: Group) -> Pair:
    environment = group.environment
    assert environment.cuda_driver_version is not None  # noqa: S101  # it is a pair
    return environment.cuda_driver_version, environment.compute_capabilities[0]
