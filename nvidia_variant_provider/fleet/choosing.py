"""Which build of a release or a project each group of machines gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..knowledge.tables import can_exist, driver_branches
from ..machine.environment import CudaVersion, Environment
from ..machine.supported import NAMESPACE
from ..metadata.model import VariantsMetadata
from ..resolution.resolver import Resolution, resolve_metadata
from .covering import Cover, find_cover
from .groups import Group

__all__ = ["Choice", "Decide", "Fleet", "Pick", "choose", "decide_by_metadata"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pick:
    """What one machine gets.

    :param selected: the build that an installer takes; ``None`` for one without a name.
    :param runs: the builds that run on the machine, best first.
    :param gpu: those of them that use the GPU.
    :param rejected: the reasons against each other build.
    """

    selected: str | None
    runs: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    rejected: Mapping[str, Sequence[str]] = field(default_factory=dict)


Decide = Callable[[Sequence[Environment]], Sequence[Pick]]
"""Decides what each of several machines gets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What a group of machines gets.

    :param pick: ``None`` where nothing was chosen, or where the inventory does not say
        which driver the machines have.
    :param driver: for machines that get no build for their GPU, the oldest driver that
        is newer and supports one; ``None`` if there is none.
    :param with_driver: the build that this driver gets.
    """

    group: Group
    pick: Pick | None
    driver: CudaVersion | None = None
    with_driver: str | None = None

    @property
    def is_unserved(self) -> bool:
        """Whether it is known that no build uses the GPU."""
        return self.pick is not None and not self.pick.gpu

    def to_dict(self) -> dict[str, object]:
        """Return an element of ``machines`` in the report of ``fleet``."""
        pick = self.pick or Pick(selected=None)
        return {
            "name": self.group.names[0],
            "count": len(self.group.names),
            "names": list(self.group.names),
            "environment": self.group.environment.to_dict(),
            "selected": pick.selected,
            "rejected": {name: list(why) for name, why in pick.rejected.items()},
            "notes": list(self.group.notes),
            "driver": None if self.driver is None else str(self.driver),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """Many machines with the builds that they get.

    :param covering: the builds that run on every machine, in the order of the first.
    :param cover: the fewest builds that give each machine one that uses its GPU.
    """

    choices: tuple[Choice, ...]
    covering: tuple[str, ...] = ()
    cover: Cover | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the ``data`` of the report of ``fleet``."""
        return {
            "machines": [item.to_dict() for item in self.choices],
            "covering": list(self.covering),
            "smallest_set": [] if self.cover is None else list(self.cover.labels),
            "gains": {} if self.cover is None else dict(self.cover.gains),
        }


def choose(groups: Sequence[Group], decide: Decide | None) -> Fleet:
    """Choose a build for each group.

    :param decide: such as `decide_by_metadata` returns it; ``None`` to choose nothing.
    """
    if decide is None:
        return Fleet(choices=tuple(Choice(group=g, pick=None) for g in groups))
    known = [group for group in groups if group.is_known]
    picks = decide([group.environment for group in known])
    by_group = {id(group): pick for group, pick in zip(known, picks, strict=True)}
    choices = [
        _with_driver(Choice(group=group, pick=by_group.get(id(group))), decide)
        for group in groups
    ]
    first = picks[0].runs if picks else ()
    return Fleet(
        choices=tuple(choices),
        covering=tuple(x for x in first if all(x in pick.runs for pick in picks)),
        cover=find_cover(
            [(len(c.group.names), c.pick.gpu) for c in choices if c.pick is not None]
        ),
    )


def _with_driver(choice: Choice, decide: Decide) -> Choice:
    """Add the smallest change that gives the machines a build for their GPU."""
    environment = choice.group.environment
    current = environment.cuda_driver_version
    if not choice.is_unserved or current is None:
        return choice
    drivers = [
        cuda
        for cuda in sorted(set(driver_branches().values()))
        if cuda > current
        and all(can_exist(cuda, gpu) for gpu in environment.compute_capabilities)
    ]
    newer = [environment.replace(cuda_driver_version=cuda) for cuda in drivers]
    for cuda, pick in zip(drivers, decide(newer), strict=True):
        if pick.gpu:
            return Choice(
                group=choice.group,
                pick=choice.pick,
                driver=cuda,
                with_driver=pick.gpu[0],
            )
    return choice


def decide_by_metadata(
    metadata: VariantsMetadata,
    *,
    every_gpu: bool = False,
    minor_version_compatibility: bool = False,
) -> Decide:
    """Return what decides by the variants of a release.

    The user's ``variants.toml`` does not count, since these are other machines.
    """

    def decide(environments: Sequence[Environment]) -> list[Pick]:
        return [
            _pick(
                resolve_metadata(
                    metadata,
                    environment,
                    every_gpu=every_gpu,
                    minor_version_compatibility=minor_version_compatibility,
                )
            )
            for environment in environments
        ]

    return decide


def _pick(resolution: Resolution) -> Pick:
    variants = resolution.metadata.variants
    return Pick(
        selected=resolution.selected,
        runs=resolution.compatible,
        gpu=tuple(x for x in resolution.compatible if NAMESPACE in variants[x]),
        rejected={
            label: list(dict.fromkeys(reason.sentence for reason in reasons))
            for label, reasons in resolution.rejected.items()
        },
    )
