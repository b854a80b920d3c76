"""The result of a check: pinned builds with a verdict for each group of machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from nvidia_variant_provider.errors import ProviderError

from ..builds.verdicts import Judgement, Verdict
from ..fleet.serving import Group
from ..pins.model import Choice, Pin, PinnedFile
from .evidence import Known

WORST: tuple[Verdict, ...] = ("cannot", "unknown", "partly", "cpu", "runs")
"""The verdicts, most severe first."""

_BEST: tuple[Verdict, ...] = ("runs", "partly", "unknown", "cpu", "cannot")


class CannotRunError(ProviderError):
    """An installed build certainly cannot run; the hint is a command to replace it."""

    exit_code = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedPin:
    """A pinned build.

    :param known: the evidence about the build.
    :param choices: the conflicting choices that include the build; empty if all do.
    :param judgements: the judgement for each group of machines.
    """

    known: Known
    choices: tuple[Choice, ...]
    judgements: tuple[Judgement, ...]

    @property
    def pin(self) -> Pin:
        """The pinned package."""
        return self.known.pin

    @property
    def worst(self) -> Judgement:
        """The most severe judgement."""
        return min(self.judgements, key=lambda item: WORST.index(item.verdict))

    def to_dict(self, groups: Sequence[Group]) -> dict[str, object]:
        """Return the build as an element of ``requirements`` in the JSON report."""
        worst, pin, wheel = self.worst, self.pin, self.known.wheel
        return {
            "name": pin.name,
            "version": str(pin.version) if pin.version else None,
            "file": pin.path,
            "line": pin.line,
            "wheel": wheel.filename if wheel and not self.known.stands_in else None,
            "choices": list(map(str, self.choices)),
            "verdict": worst.verdict,
            "evidence": worst.evidence,
            "reasons": list(worst.reasons),
            "machines": [
                {
                    "name": group.names[0],
                    "verdict": judgement.verdict,
                    "how": judgement.how,
                    "evidence": judgement.evidence,
                    "reasons": list(judgement.reasons),
                }
                for group, judgement in zip(groups, self.judgements, strict=True)
            ],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """Pinned packages that are incompatible with each other.

    :param choices: as in `CheckedPin`.
    :param strict: whether the packages certainly do not work together.
    :param others: the names of the other packages involved.
    """

    pin: Pin
    message: str
    others: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    strict: bool = True

    def to_dict(self) -> dict[str, object]:
        """Return the conflict as an element of ``disagreements`` in the JSON report."""
        return {
            "name": self.pin.name,
            "file": self.pin.path,
            "line": self.pin.line,
            "others": list(self.others),
            "choices": list(map(str, self.choices)),
            "severity": "error" if self.strict else "warning",
            "message": self.message,
        }


@dataclass(frozen=True, kw_only=True)
class CheckedFile:
    """A checked file with its pinned builds.

    :param rivals: the mutually exclusive choices, if the user has selected none of
        them.
    :param platform: the platform of the checked wheels.
    :param python: the Python version of the checked wheels.
    """

    file: PinnedFile
    pins: tuple[CheckedPin, ...]
    disagreements: tuple[Disagreement, ...] = ()
    rivals: tuple[Choice, ...] = ()
    platform: str | None = None
    python: str = ""

    @cached_property
    def varying(self) -> tuple[Choice, ...]:
        """The choices that install different GPU builds."""
        named = {choice for item in self.pins for choice in item.choices}
        return tuple(choice for choice in self.rivals if choice in named)

    @cached_property
    def best(self) -> Sequence[tuple[Verdict, tuple[Choice, ...]]]:
        """The best verdict for each group, and the choices with that verdict.

        A choice is as good as its worst build. A choice without GPU builds counts as
        ``cpu``.
        """
        return [self._find_best(n) for n in range(len(self.pins[0].judgements))]

    def _find_best(self, group: int) -> tuple[Verdict, tuple[Choice, ...]]:
        found: dict[Verdict, list[Choice]] = {}
        for choice in self.varying:
            own = [x.judgements[group] for x in self.pins if choice in x.choices]
            verdicts: list[Verdict] = [x.verdict for x in own] or ["cpu"]
            worst = min(verdicts, key=WORST.index)
            found.setdefault(worst, []).append(choice)
        verdict = min(found, key=_BEST.index)
        return verdict, tuple(found[verdict])

    def counts(self, item: CheckedPin, group: int) -> bool:
        """Return whether the best choice for a group of machines installs a build."""
        chosen = self.best[group][1][0] if self.varying else None
        return not item.choices or chosen in item.choices

    def counting(self, group: int) -> Iterable[CheckedPin]:
        """Yield the builds that the best choice for a group of machines installs."""
        return (item for item in self.pins if self.counts(item, group))

    def verdicts(self, group: int) -> list[Verdict]:
        """Return the verdict on each build that `counting` yields for a group."""
        return [item.judgements[group].verdict for item in self.counting(group)]


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The report of a check.

    :param machines: the groups of machines, largest first.
    :param notes: sentences about facts that could not be judged.
    """

    machines: tuple[Group, ...]
    files: tuple[CheckedFile, ...]
    notes: tuple[str, ...] = ()
    suggestions: tuple[Suggestion, ...] = field(default=())

    def left_out(self, file: CheckedFile) -> list[int]:
        """Return the indexes of the groups on which a build certainly cannot run."""
        numbers = range(len(self.machines))
        return [number for number in numbers if "cannot" in file.verdicts(number)]

    @property
    def unknown(self) -> int:
        """The number of pinned builds that are ``unknown`` on at least one machine."""
        return sum(
            any(
                item.judgements[number].verdict == "unknown"
                and file.counts(item, number)
                for number in range(len(self.machines))
            )
            for file in self.files
            for item in file.pins
        )

    def fails(self, *, strict: bool = False) -> bool:
        """Return whether the check fails; with ``strict``, also for unknown builds."""
        if strict and self.unknown:
            return True
        return any(
            self.left_out(file) or any(x.strict for x in self.actual(file))
            for file in self.files
        )

    def actual(self, file: CheckedFile) -> list[Disagreement]:
        """Return the conflicts between packages that at least one machine installs."""
        got = {x for n in range(len(self.machines)) for x in self._chosen(file, n)}
        return [
            item
            for item in file.disagreements
            if not item.choices or got.intersection(item.choices)
        ]

    def _chosen(self, file: CheckedFile, number: int) -> tuple[Choice, ...]:
        return file.best[number][1][:1] if file.varying else file.rivals

    def to_dict(self) -> dict[str, object]:
        """Return the ``data`` of the JSON report of ``nvp check``."""
        machines = []
        for number, group in enumerate(self.machines):
            runs_with = {
                file.file.path: list(map(str, file.best[number][1]))
                for file in self.files
                if file.varying and file.best[number][0] != "cannot"
            }
            machines.append(
                {
                    "name": group.names[0],
                    "count": len(group.names),
                    "names": list(group.names),
                    "environment": group.environment.to_dict(),
                    "verdict": min(
                        (v for file in self.files for v in file.verdicts(number)),
                        key=WORST.index,
                        default=None,
                    ),
                    "choices": runs_with,
                    "notes": list(group.notes),
                }
            )
        return {
            "files": [
                {
                    "path": file.file.path,
                    "form": file.file.form,
                    "platform": file.platform,
                    "python": file.python,
                    "pins": len(file.file.pins),
                    "choices": list(map(str, file.varying)),
                }
                for file in self.files
            ],
            "requirements": [
                item.to_dict(self.machines) for file in self.files for item in file.pins
            ],
            "disagreements": [
                item.to_dict() for file in self.files for item in file.disagreements
            ],
            "machines": machines,
            "unknown": self.unknown,
            "suggestions": [item.to_dict() for item in self.suggestions],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """Replacement pins for packages that cannot run.

    :param name: the packages that cannot run, separated by commas.
    :param machines: the first machine of each group to which the suggestion applies.
    :param lines: lines for a requirements file: the releases to pin, then comments,
        such as on pins to remove. Empty if no release is known to run.
    :param titles: the packages that cannot run, with versions.
    """

    path: str
    name: str
    machines: tuple[str, ...]
    lines: tuple[str, ...]
    titles: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The sentence that is printed above the lines."""
        more = f" and {len(self.machines) - 1} more" if len(self.machines) > 1 else ""
        start = f"Instead of {', '.join(self.titles)} on {self.machines[0]}{more}"
        if not self.lines:
            return f"{start}: no release is known to run."
        return f"{start}, pin in {self.path}:"

    def to_dict(self) -> dict[str, object]:
        """Return the suggestion as an element of ``suggestions`` in the JSON report."""
        return {
            "file": self.path,
            "name": self.name,
            "machines": list(self.machines),
            "lines": list(self.lines),
            "sentence": self.sentence,
        }
