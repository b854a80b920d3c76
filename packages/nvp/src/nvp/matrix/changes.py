"""The machines that get a different build from a new release, and why.

A pair is a driver's CUDA version with a compute capability. Pairs are compared one by
one, without judging the whole release. The new default build, workarounds for users,
and risks (possible failures of the new build) are reported separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from nvidia_variant_provider.errors import listed
from nvidia_variant_provider.machine.environment import (
    MINOR_VERSION_COMPATIBILITY,
    ComputeCapability,
    CudaVersion,
)
from nvidia_variant_provider.machine.supported import NAMESPACE
from nvidia_variant_provider.metadata.model import NULL_LABELS, VariantsMetadata
from nvidia_variant_provider.resolution.inputs import find_answers
from nvidia_variant_provider.resolution.ordering import Mismatch, Rejections
from nvidia_variant_provider.resolution.resolver import (
    Resolution,
    explain,
    resolve_metadata,
)

from ..knowledge.tables import NATIVE, PTX, driver_versions
from .cells import (
    CPU,
    UNKNOWN,
    Cell,
    Pair,
    all_capabilities,
    assumed_values,
    describe_pairs,
    find_cells,
    machine,
)
from .grid import find_risks

LOST, CHANGED, GAINED, SAME = "lost", "changed", "gained", "same"
CHANGES = (LOST, CHANGED, GAINED, SAME)
"""All changes, most severe first."""

_MOST_LABELS = 3
"""The maximum number of labels in the reason for a lost pair."""

_MOST_FEATURES = 8
"""The maximum number of features in the reason for each label."""

_MOST_JUDGED = 50
"""The maximum number of labels among which those for the reason are searched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairChange:
    """The builds for a driver with a GPU in the old release and in the new one.

    :param change: `SAME`; `GAINED` if only the new build uses the GPU; `LOST` if only
        the old build does; `CHANGED` if the label or `Cell.how` differs.
    :param reason: a sentence on why the pair was lost or changed.
    :param causes: the reason without driver and GPU numbers, so pairs with the same
        problem have equal causes.
    :param workaround: options for users of a lost pair, best first.
    :param risk: risks of the new build.
    """

    old: Cell
    new: Cell
    change: str
    reason: str | None = None
    causes: tuple[str, ...] = ()
    workaround: tuple[str, ...] = ()
    risk: tuple[str, ...] = ()

    @property
    def key(self) -> Pair:
        """The driver and the GPU of the pair."""
        return self.new.cuda, self.new.capability

    @property
    def exists(self) -> bool:
        """Whether some driver for this CUDA version supports the GPU."""
        return self.new.exists

    def to_dict(self) -> dict[str, object]:
        """Return the change as in the JSON report; ``cuda`` and ``sm`` are the pair."""
        return {
            "cuda": str(self.new.cuda),
            "sm": str(self.new.capability),
            "old": self.old.label,
            "new": self.new.label,
            "change": self.change,
            "reason": self.reason,
            "workaround": list(self.workaround),
            "risk": list(self.risk),
            "exists": self.exists,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """The changes in a new release.

    :param old: the name of the old release.
    :param new: the name of the new release.
    :param pairs: the change for each driver-GPU pair, sorted by driver, then by GPU.
    """

    old: str
    new: str
    pairs: tuple[PairChange, ...]

    @property
    def counts(self) -> dict[str, int]:
        """The number of existing pairs with each change, including zeros."""
        counter = Counter(pair.change for pair in self.pairs if pair.exists)
        return {change: counter[change] for change in CHANGES}

    def where(self, pairs: Collection[PairChange]) -> list[str]:
        """Return rectangles that cover ``pairs``; see `describe_pairs`."""
        exist = all(pair.exists for pair in pairs)
        known = {pair.key for pair in self.pairs if pair.exists or not exist}
        return describe_pairs({pair.key for pair in pairs}, known)

    def to_dict(self) -> dict[str, object]:
        """Return the ``data`` of the ``diff --json`` report."""
        return {"pairs": [pair.to_dict() for pair in self.pairs]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pick:
    """The build that an installer selects for a machine from all releases.

    :param version: the release; ``None`` if no build runs.
    """

    cell: Cell
    version: Version | None = None
    is_variant: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexDifferences:
    """The changes in a new state of an index.

    :param projects: for each project with changed files, the changes.
    :param unchanged: the names of the projects whose files are the same.
    :param platform: the platform of the compared wheels, such as ``linux_x86_64``.
    :param notes: sentences about unknown facts and unreadable files.
    """

    projects: Mapping[str, Differences]
    unchanged: tuple[str, ...] = ()
    platform: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """The number of pairs with each change, in all of ``projects``."""
        counters = [Counter(item.counts) for item in self.projects.values()]
        total = sum(counters, Counter[str]())
        return {change: total[change] for change in CHANGES}

    def to_dict(self) -> dict[str, object]:
        """Return the ``data`` of the ``diff --json`` report."""
        return {
            "pairs": [
                {"project": project, **pair.to_dict()}
                for project, item in self.projects.items()
                for pair in item.pairs
            ],
            "unchanged": list(self.unchanged),
            "platform": self.platform,
            "notes": list(self.notes),
        }


def find_index_change(was: Pick, now: Pick) -> str:
    """Return the change between two selected builds of an index: one of `CHANGES`.

    A pair is also lost if the new build is of an older release, or is a regular wheel
    that replaces a variant and is not known to run.
    """
    change = find_change(was.cell, now.cell)
    if was.version is not None and (
        now.version is None
        or now.version < was.version
        or (was.is_variant and not now.is_variant and now.cell.how == UNKNOWN)
    ):
        return LOST
    return CHANGED if change == GAINED and now.cell.how == UNKNOWN else change


def release_names(old: VariantsMetadata, new: VariantsMetadata) -> tuple[str, str]:
    """Return the names of two releases, by default ``OLD`` and ``NEW``."""
    first, second = (
        f"{item.name} {item.version}" if item.name else None for item in (old, new)
    )
    if first == second and first is not None:
        return f"{first} (OLD)", f"{second} (NEW)"
    return first or "OLD", second or "NEW"


def find_differences(
    old: VariantsMetadata,
    new: VariantsMetadata,
    *,
    assume: Collection[str] = (),
    minor_version_compatibility: bool = False,
    all_pairs: bool = False,
) -> Differences:
    """Return the changes in a new release for all machines, as `nvp.api.diff` does."""
    names = release_names(old, new)
    pairs = compare(
        old,
        new,
        assume=assume,
        minor_version_compatibility=minor_version_compatibility,
        all_pairs=all_pairs,
    )
    return Differences(old=names[0], new=names[1], pairs=tuple(pairs))


def compare(
    old: VariantsMetadata,
    new: VariantsMetadata,
    *,
    drivers: Iterable[CudaVersion] | None = None,
    capabilities: Iterable[ComputeCapability] | None = None,
    assume: Collection[str] = (),
    minor_version_compatibility: bool = False,
    all_pairs: bool = True,
) -> list[PairChange]:
    """Return the change for each driver-GPU pair, sorted by driver, then by GPU."""
    rows = tuple(driver_versions() if drivers is None else drivers)
    columns = tuple(all_capabilities() if capabilities is None else capabilities)
    before, after = (
        find_cells(
            metadata,
            drivers=rows,
            capabilities=columns,
            supported=assumed_values(metadata, assume),
            minor_version_compatibility=minor_version_compatibility,
        )
        for metadata in (old, new)
    )
    comparison = _Comparison(
        old=old,
        new=new,
        names=release_names(old, new),
        answers=assumed_values(new, assume),
        after={(cell.cuda, cell.capability): cell for cell in after},
        relaxed=minor_version_compatibility,
    )
    return [
        comparison.pair(was, now)
        for was, now in zip(before, after, strict=True)
        if all_pairs or now.exists
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Comparison:
    """The data that all pairs of a comparison share."""

    old: VariantsMetadata
    new: VariantsMetadata
    names: tuple[str, str]
    answers: dict[str, dict[str, list[str]]]
    after: dict[Pair, Cell]
    relaxed: bool

    def pair(self, was: Cell, now: Cell) -> PairChange:
        change = find_change(was, now)
        pair = PairChange(
            old=was, new=now, change=change, risk=find_risks(self.new, now)
        )
        if change == LOST:
            reason, causes = self._why_lost(now)
            risk = "an installer silently takes the CPU build, and the GPU stays idle"
            if now.label is None:
                risk = "an installer takes the non-variant wheel, whatever that holds"
            return replace(
                pair,
                reason=reason,
                causes=causes,
                workaround=self._workarounds(was, now),
                risk=(risk,),
            )
        if change == CHANGED:
            reason, *cause = self._why_changed(was, now)
            return replace(pair, reason=reason, causes=tuple(cause) or (reason,))
        return pair

    def _resolve(self, cell: Cell) -> Resolution:
        return resolve_metadata(
            self.new,
            machine(cell.cuda, cell.capability),
            supported=self.answers,
            enable_optional=True,
            minor_version_compatibility=self.relaxed,
        )

    def _rejections(self, resolution: Resolution, labels: Sequence[str]) -> Rejections:
        return Rejections(self.new.variants, labels, resolution.supported)

    def _why(
        self, resolution: Resolution, rejected: Mapping[str, Sequence[Mismatch]]
    ) -> list[str]:
        """Return a sentence for each label on why it does not fit.

        `Resolution.rejected` would explain all features, and a label may have 9,000.
        """
        answers = find_answers(
            self.new,
            resolution.environment,
            supported=self.answers,
            enable_optional=True,
            minor_version_compatibility=self.relaxed,
        )
        sentences = []
        for label, mismatches in rejected.items():
            causes = [
                explain(mismatch, resolution.environment, answers).cause
                for mismatch in mismatches[:_MOST_FEATURES]
            ]
            if rest := len(mismatches[_MOST_FEATURES:]):
                causes.append(f"{rest} more features do not fit either")
            reasons = ", and ".join(causes)
            sentences.append(
                f"{label} does not fit ({_features(mismatches)}): {reasons}"
            )
        return sentences

    def _why_lost(self, now: Cell) -> tuple[str, tuple[str, ...]]:
        """Return why the new release gives no GPU build: a sentence, and the causes."""
        variants = self.new.variants
        gpu = [label for label, item in variants.items() if NAMESPACE in item]
        if not gpu:
            sentence = f"{self.names[1]} has no build with {NAMESPACE} properties"
            return sentence, (sentence,)
        resolution = self._resolve(now)
        fitting = [x for x in resolution.compatible if NAMESPACE in variants[x]]
        if fitting:
            sentence = f"{fitting[0]} fits, but {now.label} goes before it"
            return sentence, (sentence,)
        # Put the labels with the fewest reasons for rejection first: they nearly fit.
        rejections = self._rejections(resolution, gpu[:_MOST_JUDGED])
        nearest = sorted(rejections.items(), key=lambda item: len(item[1]))
        named = dict(nearest[:_MOST_LABELS])
        sentences = self._why(resolution, named)
        if len(gpu) > len(named):
            sentences.append(f"{len(gpu) - len(named)} more do not fit either")
        causes = (f"{label}: {_features(items)}" for label, items in named.items())
        return "; ".join(sentences), tuple(causes)

    def _why_changed(self, was: Cell, now: Cell) -> Sequence[str]:
        """Return a sentence with the reason, followed by the cause if it differs."""
        before, after = self.names
        if was.label is None:
            return [f"no label of {before} fits"]
        if was.label == now.label:
            words = {NATIVE: "has machine code for the GPU", PTX: "has only PTX for it"}
            return [
                f"{now.label} {words.get(was.how, 'uses no GPU')} in {before} and "
                f"{words.get(now.how, 'uses no GPU')} in {after}"
            ]
        if was.label not in self.new.variants:
            return [f"{after} has no {was.label}"]
        resolution = self._resolve(now)
        if was.label in resolution.compatible:
            return [f"{was.label} still fits, {now.label} goes before it"]
        rejected = {**self._rejections(resolution, [was.label])}
        cause = f"{was.label}: {_features(rejected[was.label])}"
        return *self._why(resolution, rejected), cause

    def _workarounds(self, was: Cell, now: Cell) -> tuple[str, ...]:
        ways = []
        if not self.relaxed:
            (cell,) = find_cells(
                self.new,
                drivers=[now.cuda],
                capabilities=[now.capability],
                supported=self.answers,
                minor_version_compatibility=True,
            )
            if cell.how != CPU:
                ways.append(
                    f"{MINOR_VERSION_COMPATIBILITY}=1 gets {cell.label}: minor-version "
                    "compatibility runs its machine code"
                )
        for (cuda, capability), cell in sorted(self.after.items()):
            is_newer = capability == now.capability and cuda > now.cuda
            if is_newer and cell.exists and cell.how != CPU:
                ways.append(f"a driver for CUDA {cuda} gets {cell.label}")
                break
        ways.append(f"stay with {self.names[0]}: it has {was.label}")
        return tuple(ways)


def find_change(was: Cell, now: Cell) -> str:
    """Return the change between two cells of one pair: one of `CHANGES`."""
    if was.uses_gpu != now.uses_gpu:
        return GAINED if now.uses_gpu else LOST
    if was.label in NULL_LABELS and now.label in NULL_LABELS:
        return SAME  # two spellings of the null variant
    return SAME if (was.label, was.how) == (now.label, now.how) else CHANGED


def _features(mismatches: Sequence[Mismatch]) -> str:
    names = [
        item.feature
        if item.namespace == NAMESPACE
        else f"{item.namespace} :: {item.feature}"
        for item in mismatches
    ]
    return listed(names, _MOST_FEATURES)
