"""Select the build of a release or a project for each group of machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    is_failure,
)
from nvidia_variant_provider.machine.reasons import NO_DEVICE, NO_GPU, NOT_GIVEN
from nvidia_variant_provider.machine.supported import NAMESPACE
from nvidia_variant_provider.metadata.model import VariantsMetadata
from nvidia_variant_provider.resolution.resolver import (
    Reason,
    Resolution,
    resolve_metadata,
)

from ..inventories.model import Machine
from ..knowledge.tables import can_exist, driver_branches
from .covering import Cover, find_cover


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Machines with the same driver and GPUs of the same compute capabilities.

    :param names: the machines, in the order of their inventories.
    :param environment: the environment of the first machine.
    :param notes: sentences about facts that the inventories do not contain.
    """

    names: tuple[str, ...]
    environment: Environment
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The title, such as ``CUDA 12.9, compute capability 9.0``."""
        cuda = self.environment.cuda_driver_version
        capabilities = self.environment.compute_capabilities
        driver = f"CUDA {cuda}" if cuda else "an unknown driver"
        if self.environment.reason == NO_DEVICE:
            return "no NVIDIA driver"
        if self.environment.reason == NO_GPU:
            return f"{driver}, no GPU"
        if not capabilities:
            return f"{driver}, compute capability unknown"
        return f"{driver}, compute capability {' and '.join(map(str, capabilities))}"

    @property
    def is_known(self) -> bool:
        """Whether the inventory contains the driver and the GPUs."""
        return not self.missing

    @property
    def missing(self) -> str | None:
        """The fact that the inventory lacks but a selection needs, if any."""
        environment = self.environment
        if environment.cuda_driver_version is None:
            return "the CUDA version of its driver"
        # Known capabilities are enough for an installer. With another reason, the
        # machine itself could not query the capability, so an installer cannot either.
        if not environment.compute_capabilities and any(
            gpu.reason == NOT_GIVEN for gpu in environment.gpus
        ):
            return "the compute capability of its GPU"
        return None


Kind = tuple[CudaVersion | None, tuple[ComputeCapability, ...], bool]
"""The facts that determine the build: driver, GPUs, and whether a fact is unknown."""


def group_machines(
    machines: Iterable[Machine], *, per_machine: bool = False
) -> Sequence[Group]:
    """Group machines that get the same build from every release.

    :param per_machine: make a group of each machine, in the order of ``machines``.
    :returns: the groups, largest first, then in the order of their first machines.
    """
    members: dict[object, list[Machine]] = {}
    kinds: dict[int, Kind] = {}  # identical machines share one object
    for machine in machines:
        key: object = machine.name
        if not per_machine:
            place = id(machine.environment)
            if place not in kinds:
                kinds[place] = kind_of(machine.environment)
            key = kinds[place]
        members.setdefault(key, []).append(machine)
    groups = [
        Group(
            names=tuple(machine.name for machine in alike),
            environment=alike[0].environment,
            notes=tuple(dict.fromkeys(n for machine in alike for n in machine.notes)),
        )
        for alike in members.values()
    ]
    return sorted(groups, key=lambda group: -len(group.names))


def kind_of(environment: Environment) -> Kind:
    """Return a key that is equal for machines of the same group."""
    unknown = any(gpu.compute_capability is None for gpu in environment.gpus)
    # A driver that could not be queried is unknown, unlike a missing driver.
    unknown = unknown or is_failure(environment.reason)
    return environment.cuda_driver_version, environment.compute_capabilities, unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class Selected:
    """The builds for one machine.

    :param selected: the build that an installer selects; ``None`` if no label of a
        release fits, or no build on an index runs.
    :param runs: the builds that run on the machine, best first.
    :param gpu: the builds in ``runs`` that use the GPU.
    :param rejected: the reasons against each build that does not run.
    :param versions: for each variant on an index, the version to request from an
        installer: the name of the build without the label.
    """

    selected: str | None
    runs: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    rejected: Mapping[str, Sequence[str]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


Select = Callable[[Sequence[Environment]], Sequence[Selected]]
"""Selects the builds for each of several machines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """The builds for a group of machines.

    :param selection: ``None`` if builds were not selected or facts are missing.
    :param driver: for machines without a GPU build, the lowest CUDA version of a newer
        driver with which a GPU build runs, or ``None``.
    :param with_driver: the GPU build for that driver.
    :param with_compatibility: the build for the installed driver under minor-version
        compatibility.
    :param of_another_release: the newest build of another release that runs with the
        installed driver.
    """

    group: Group
    selection: Selected | None
    driver: CudaVersion | None = None
    with_driver: str | None = None
    with_compatibility: str | None = None
    of_another_release: str | None = None

    @property
    def is_unserved(self) -> bool:
        """Whether it is certain that no build uses the GPU."""
        return self.selection is not None and not self.selection.gpu

    def to_dict(self) -> dict[str, object]:
        """Return an element of ``machines`` in the report of ``fleet``."""
        selection = self.selection or Selected(selected=None)
        return {
            "name": self.group.names[0],
            "count": len(self.group.names),
            "names": list(self.group.names),
            "environment": self.group.environment.to_dict(),
            "selected": selection.selected,
            "rejected": {name: list(why) for name, why in selection.rejected.items()},
            "notes": list(self.group.notes),
            "driver": None if self.driver is None else str(self.driver),
            "with_compatibility": self.with_compatibility,
            "of_another_release": self.of_another_release,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """Groups of machines with their builds.

    :param covering: the builds that run on every machine, in the first machine's order.
    :param cover: the smallest set of builds that has a build for the GPU of each
        machine.
    """

    served: tuple[Served, ...]
    covering: tuple[str, ...] = ()
    cover: Cover | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the ``data`` of the report of ``fleet``."""
        return {
            "machines": [item.to_dict() for item in self.served],
            "covering": list(self.covering),
            "smallest_set": [] if self.cover is None else list(self.cover.labels),
            "gains": {} if self.cover is None else dict(self.cover.gains),
        }


def choose(
    groups: Sequence[Group],
    select: Select | None,
    *,
    with_compatibility: Select | None = None,
    of_other_releases: Select | None = None,
) -> Fleet:
    """Choose a build for each group.

    :param select: selects builds, such as the result of `select_by_metadata`; with
        ``None``, no build is selected.
    :param with_compatibility: like ``select``, but with minor-version compatibility,
        for machines without a GPU build.
    :param of_other_releases: like ``select``, for these machines, among all releases.
    """
    if select is None:
        return Fleet(served=tuple(Served(group=g, selection=None) for g in groups))
    select = _once_for_each_kind(select)
    known = [group for group in groups if group.is_known]
    selections = select([group.environment for group in known])
    by_group = {
        id(group): selection for group, selection in zip(known, selections, strict=True)
    }
    all_served = [
        Served(group=group, selection=by_group.get(id(group))) for group in groups
    ]
    unserved = [served for served in all_served if served.is_unserved]
    # Select for all machines at once, because each call may read an index.
    changes = zip(
        unserved,
        _find_drivers(unserved, select),
        _find_builds(unserved, with_compatibility),
        _find_builds(unserved, of_other_releases),
        strict=True,
    )
    changed = {
        id(served): replace(
            served,
            driver=driver,
            with_driver=label,
            with_compatibility=compatible,
            of_another_release=other,
        )
        for served, (driver, label), compatible, other in changes
    }
    first = selections[0].runs if selections else ()
    runs_of = {id(selection): frozenset(selection.runs) for selection in selections}
    different = [*runs_of.values()]
    return Fleet(
        served=tuple(changed.get(id(served), served) for served in all_served),
        covering=tuple(x for x in first if all(x in runs for runs in different)),
        cover=find_cover(
            [
                (len(c.group.names), c.selection.gpu)
                for c in all_served
                if c.selection is not None
            ]
        ),
    )


def _once_for_each_kind(select: Select) -> Select:
    """Return a function that selects only once for identical machines."""
    known: dict[Kind, Selected] = {}

    def select_once(environments: Sequence[Environment]) -> list[Selected]:
        kinds = [kind_of(environment) for environment in environments]
        new = {
            kind: environment
            for kind, environment in zip(kinds, environments, strict=True)
            if kind not in known
        }
        known.update(zip(new, select(list(new.values())) if new else (), strict=True))
        return [known[kind] for kind in kinds]

    return select_once


def _find_drivers(
    unserved: Sequence[Served], select: Select
) -> list[tuple[CudaVersion | None, str | None]]:
    """Return the first newer driver with a GPU build for each group, and the build."""
    tries = [
        (served, served.group.environment.replace(cuda_driver_version=cuda), cuda)
        for served in unserved
        for cuda in sorted(set(driver_branches().values()))
        if (current := served.group.environment.cuda_driver_version) is not None
        and cuda > current
        and all(
            can_exist(cuda, gpu)
            for gpu in served.group.environment.compute_capabilities
        )
    ]
    selections = select([environment for _, environment, _ in tries])
    oldest: dict[int, tuple[CudaVersion | None, str | None]] = {}
    for (served, _, cuda), selection in zip(tries, selections, strict=True):
        if selection.gpu:
            oldest.setdefault(id(served), (cuda, selection.gpu[0]))
    return [oldest.get(id(served), (None, None)) for served in unserved]


def _find_builds(unserved: Sequence[Served], select: Select | None) -> list[str | None]:
    """Return the GPU build that ``select`` finds for each group, if any."""
    if select is None or not unserved:
        return [None] * len(unserved)
    select = _once_for_each_kind(select)
    selections = select([served.group.environment for served in unserved])
    return [
        selection.selected
        if selection.selected in selection.gpu
        else next(iter(selection.gpu), None)
        for selection in selections
    ]


def select_by_metadata(
    metadata: VariantsMetadata,
    *,
    every_gpu: bool = False,
    minor_version_compatibility: bool = False,
) -> Select:
    """Return a function that selects among the variants of a release.

    The user's ``variants.toml`` is ignored, because it is for this machine.
    """

    def select(environments: Sequence[Environment]) -> list[Selected]:
        return [
            _selected(
                resolve_metadata(
                    metadata,
                    environment,
                    every_gpu=every_gpu,
                    minor_version_compatibility=minor_version_compatibility,
                )
            )
            for environment in environments
        ]

    return select


def _selected(resolution: Resolution) -> Selected:
    variants = resolution.metadata.variants
    return Selected(
        selected=resolution.selected,
        runs=resolution.compatible,
        gpu=tuple(x for x in resolution.compatible if NAMESPACE in variants[x]),
        rejected=_Rejected(resolution.rejected),
    )


class _Rejected(Mapping[str, Sequence[str]]):
    """The reasons against each label as sentences, which are written on access.

    Many labels are judged for many machines and drivers, and few reasons are read.
    """

    def __init__(self, reasons: Mapping[str, Sequence[Reason]]) -> None:
        self._reasons = reasons

    def __getitem__(self, label: str) -> Sequence[str]:
        return list(dict.fromkeys(x.sentence for x in self._reasons[label]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._reasons)

    def __len__(self) -> int:
        return len(self._reasons)
