"""Which build of a release each group of machines gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..machine.supported import NAMESPACE
from ..metadata.model import VariantsMetadata
from ..resolution.resolver import Resolution, resolve_metadata
from .covering import Cover, find_cover
from .groups import Group

__all__ = ["Choice", "Fleet", "choose"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What a group of machines gets.

    :param resolution: ``None`` where no release was given, or where the inventory does
        not say which driver the machines have.
    """

    group: Group
    resolution: Resolution | None

    @property
    def gpu_labels(self) -> tuple[str, ...]:
        """The labels that fit and use the GPU, best first."""
        if self.resolution is None:
            return ()
        variants = self.resolution.metadata.variants
        return tuple(
            label
            for label in self.resolution.compatible
            if NAMESPACE in variants[label]
        )

    def to_dict(self) -> dict[str, object]:
        """Return an element of ``machines`` in the report of ``fleet``."""
        found = self.resolution
        return {
            "name": self.group.names[0],
            "count": len(self.group.names),
            "names": list(self.group.names),
            "environment": self.group.environment.to_dict(),
            "selected": None if found is None else found.selected,
            "rejected": {}
            if found is None
            else {
                label: list(dict.fromkeys(reason.sentence for reason in reasons))
                for label, reasons in found.rejected.items()
            },
            "notes": list(self.group.notes),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """Many machines with the builds of a release that they get.

    :param covering: the labels that run on every machine, in the order of the release.
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


def choose(
    groups: Sequence[Group],
    metadata: VariantsMetadata | None,
    *,
    every_gpu: bool = False,
    minor_version_compatibility: bool = False,
) -> Fleet:
    """Choose a build for each group.

    The user's ``variants.toml`` does not count, since the machines are other ones.

    :param metadata: the release; ``None`` to choose nothing.
    """
    choices = [
        Choice(
            group=group,
            resolution=None
            if metadata is None or not group.is_known
            else resolve_metadata(
                metadata,
                group.environment,
                every_gpu=every_gpu,
                minor_version_compatibility=minor_version_compatibility,
            ),
        )
        for group in groups
    ]
    if metadata is None:
        return Fleet(choices=tuple(choices))
    known = [item.resolution for item in choices if item.resolution is not None]
    return Fleet(
        choices=tuple(choices),
        covering=tuple(
            label
            for label in metadata.variants
            if known and all(label in item.compatible for item in known)
        ),
        cover=find_cover(
            [(len(item.group.names), item.gpu_labels) for item in choices]
        ),
    )
