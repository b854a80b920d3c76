"""Two releases, lane by lane: which machines change their build, and why.

A lane is one driver's CUDA version with one compute capability. An upgrade has
no verdict of its own: each lane has one, and what it is (the default), how to
get round it (workaround) and what nobody has promised (risk) stay apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..knowledge.tables import NATIVE, PTX, runs_machine_code
from ..machine.environment import ComputeCapability, CudaVersion
from ..machine.overrides import MINOR_VERSION_COMPATIBILITY
from ..machine.supported import LOWER_BOUND, NAMESPACE, SM_ARCH
from ..metadata.model import NULL_LABELS, VariantsMetadata
from ..resolution.resolver import Resolution, resolve_metadata
from .cells import (
    CPU,
    Cell,
    all_capabilities,
    all_drivers,
    every_value,
    find_cells,
    machine,
)

__all__ = [
    "CHANGED",
    "CHANGES",
    "GAINED",
    "LOST",
    "SAME",
    "Lane",
    "compare",
    "find_risks",
    "release_names",
]

LOST, CHANGED, GAINED, SAME = "lost", "changed", "gained", "same"
CHANGES = (LOST, CHANGED, GAINED, SAME)
"""All of them, those that want attention first."""

_MOST_LABELS = 3
"""So many labels are named in the reason of a lost lane."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One driver with one GPU, in the old release and in the new one.

    :param change: `SAME`; `GAINED`: a GPU build in place of none; `LOST`: the
        reverse; `CHANGED`: another label, or the same one in another way.
    :param reason: a sentence for what was lost or changed.
    :param causes: the reason without the lane's numbers, the same for all lanes
        that have the same thing wrong with them.
    :param workaround: for a lost lane, what its user can do, best first.
    :param risk: what stays open with the new pick.
    """

    old: Cell
    new: Cell
    change: str
    reason: str | None = None
    causes: tuple[str, ...] = ()
    workaround: tuple[str, ...] = ()
    risk: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[CudaVersion, ComputeCapability]:
        """The lane itself: driver and GPU."""
        return self.new.cuda, self.new.capability

    def to_dict(self) -> dict[str, object]:
        """Keys: ``cuda sm old new change reason workaround risk``."""
        return {
            "cuda": str(self.new.cuda),
            "sm": str(self.new.capability),
            "old": self.old.label,
            "new": self.new.label,
            "change": self.change,
            "reason": self.reason,
            "workaround": list(self.workaround),
            "risk": list(self.risk),
        }


def release_names(old: VariantsMetadata, new: VariantsMetadata) -> tuple[str, str]:
    """What to call the two releases: ``torch 2.8.0``, or ``OLD`` and ``NEW``."""
    first, second = (
        f"{item.name} {item.version}" if item.name else None for item in (old, new)
    )
    if first == second and first is not None:
        return f"{first} (OLD)", f"{second} (NEW)"
    return first or "OLD", second or "NEW"


def compare(
    old: VariantsMetadata,
    new: VariantsMetadata,
    *,
    drivers: Iterable[CudaVersion] | None = None,
    capabilities: Iterable[ComputeCapability] | None = None,
    minor_version_compatibility: bool = False,
) -> list[Lane]:
    """The lanes of all drivers, each with all GPUs; both ascending."""
    rows = tuple(all_drivers() if drivers is None else drivers)
    columns = tuple(all_capabilities() if capabilities is None else capabilities)
    before, after = (
        find_cells(
            metadata,
            drivers=rows,
            capabilities=columns,
            minor_version_compatibility=minor_version_compatibility,
        )
        for metadata in (old, new)
    )
    comparison = _Comparison(
        old=old,
        new=new,
        names=release_names(old, new),
        answers=every_value(new),
        after={(cell.cuda, cell.capability): cell for cell in after},
        relaxed=minor_version_compatibility,
    )
    return [comparison.lane(was, now) for was, now in zip(before, after, strict=True)]


def find_risks(metadata: VariantsMetadata, cell: Cell) -> tuple[str, ...]:
    """What a pick leaves open: sentences about ``the build``, without numbers."""
    if cell.label is None or cell.how == CPU:
        return ()
    features = metadata.variants[cell.label][NAMESPACE]
    risks = []
    if cell.how == PTX:
        risks.append(
            "the build has only PTX for the GPU: the driver compiles it at first use, "
            "and refuses it when the build's CUDA toolkit is newer than the driver"
        )
    targets = features.get(SM_ARCH)
    if targets is None:
        risks.append(
            f"the build does not say which GPUs it has kernels for (no {SM_ARCH})"
        )
    elif cell.how == NATIVE and not any(
        _is_promised(target, cell.capability) for target in targets
    ):
        risks.append(
            "the build's machine code matches by number only: NVIDIA does not "
            "promise that code runs on both desktop GPUs and Tegra"
        )
    bounds = features.get(LOWER_BOUND)
    if bounds is None:
        risks.append(f"the build does not say which driver it needs (no {LOWER_BOUND})")
    elif not any(_is_met(bound, cell.cuda) for bound in bounds):
        risks.append(
            "the build is for a newer CUDA minor version than the driver's: its "
            "machine code runs, PTX and functions of the newer version do not"
        )
    return tuple(risks)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Comparison:
    """What the lanes of one comparison share."""

    old: VariantsMetadata
    new: VariantsMetadata
    names: tuple[str, str]
    answers: dict[str, dict[str, list[str]]]
    after: dict[tuple[CudaVersion, ComputeCapability], Cell]
    relaxed: bool

    def lane(self, was: Cell, now: Cell) -> Lane:
        change = _change(was, now)
        risk = find_risks(self.new, now)
        if change == LOST:
            reason, causes = self._why_lost(now)
            return Lane(
                old=was,
                new=now,
                change=change,
                reason=reason,
                causes=causes,
                workaround=self._workarounds(was, now),
                risk=(_silent(now),),
            )
        if change == CHANGED:
            reason, cause = self._why_changed(was, now)
            return Lane(
                old=was,
                new=now,
                change=change,
                reason=reason,
                causes=(cause,),
                risk=risk,
            )
        return Lane(old=was, new=now, change=change, risk=risk)

    def _resolve(self, cell: Cell) -> Resolution:
        return resolve_metadata(
            self.new,
            machine(cell.cuda, cell.capability),
            supported=self.answers,
            enable_optional=True,
            minor_version_compatibility=self.relaxed,
        )

    def _why_lost(self, now: Cell) -> tuple[str, tuple[str, ...]]:
        """Why the GPU labels of the new release do not fit, nearest first."""
        gpu = [label for label, item in self.new.variants.items() if NAMESPACE in item]
        if not gpu:
            sentence = f"{self.names[1]} has no build with {NAMESPACE} properties"
            return sentence, (sentence,)
        resolution = self._resolve(now)
        fitting = [label for label in resolution.compatible if label in gpu]
        if fitting:
            sentence = f"{fitting[0]} fits, but {now.label} goes before it"
            return sentence, (sentence,)
        # What fails on one count alone is nearer than what fails on two.
        nearest = sorted(gpu, key=lambda label: len(resolution.rejected[label]))
        named = nearest[:_MOST_LABELS]
        sentences = [_why(label, resolution) for label in named]
        if len(gpu) > len(named):
            sentences.append(f"{len(gpu) - len(named)} more do not fit either")
        causes = [f"{label}: {_features(label, resolution)}" for label in named]
        return "; ".join(sentences), tuple(causes)

    def _why_changed(self, was: Cell, now: Cell) -> tuple[str, str]:
        before, after = self.names
        if was.label is None:
            sentence = f"no label of {before} fits"
            return sentence, sentence
        if was.label == now.label:
            words = {NATIVE: "has machine code for the GPU", PTX: "has only PTX for it"}
            sentence = (
                f"{now.label} {words.get(was.how, 'uses no GPU')} in {before} and "
                f"{words.get(now.how, 'uses no GPU')} in {after}"
            )
            return sentence, sentence
        if was.label not in self.new.variants:
            sentence = f"{after} has no {was.label}"
            return sentence, sentence
        resolution = self._resolve(now)
        if was.label in resolution.compatible:
            sentence = f"{was.label} still fits, {now.label} goes before it"
            return sentence, sentence
        cause = f"{was.label}: {_features(was.label, resolution)}"
        return _why(was.label, resolution), cause

    def _workarounds(self, was: Cell, now: Cell) -> tuple[str, ...]:
        found = []
        if not self.relaxed:
            (cell,) = find_cells(
                self.new,
                drivers=[now.cuda],
                capabilities=[now.capability],
                supported=self.answers,
                minor_version_compatibility=True,
            )
            if cell.how != CPU:
                found.append(
                    f"{MINOR_VERSION_COMPATIBILITY}=1 gets {cell.label}: minor-version "
                    "compatibility runs its machine code"
                )
        for (cuda, capability), cell in sorted(self.after.items()):
            if capability == now.capability and cuda > now.cuda and cell.how != CPU:
                found.append(f"a driver for CUDA {cuda} gets {cell.label}")
                break
        found.append(f"stay with {self.names[0]}: it has {was.label}")
        return tuple(found)


def _change(was: Cell, now: Cell) -> str:
    if (was.how == CPU) != (now.how == CPU):
        return GAINED if was.how == CPU else LOST
    if was.label in NULL_LABELS and now.label in NULL_LABELS:
        return SAME  # one variant, with an old spelling and a new one
    return SAME if (was.label, was.how) == (now.label, now.how) else CHANGED


def _silent(now: Cell) -> str:
    if now.label is None:
        return "an installer takes the non-variant wheel, whatever that holds"
    return "an installer takes the CPU build without a word; the GPU stays idle"


def _why(label: str, resolution: Resolution) -> str:
    sentences = ", and ".join(reason.cause for reason in resolution.rejected[label])
    return f"{label} does not fit ({_features(label, resolution)}): {sentences}"


def _features(label: str, resolution: Resolution) -> str:
    return ", ".join(
        reason.feature
        if reason.namespace == NAMESPACE
        else f"{reason.namespace} :: {reason.feature}"
        for reason in resolution.rejected[label]
    )


def _is_promised(target: str, capability: ComputeCapability) -> bool:
    """Is ``target`` machine code that NVIDIA's rules let the GPU run?"""
    number, _, kind = target.partition("_")
    # The grammar of metadata allows any text; what is no number matches nothing.
    is_number = number.isdigit() and len(number) > 1
    return kind == "real" and is_number and runs_machine_code(number, capability)


def _is_met(bound: str, driver: CudaVersion) -> bool:
    try:
        return CudaVersion.parse(bound if "." in bound else f"{bound}.0") <= driver
    except ValueError:
        return False
