"""What a lock file records of a release with variants (PEP 825)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from simple_repository import model

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.resolution.resolver import Resolution

from ...metadata.markers import NON_VARIANT, SelectedVariant
from .component import VariantRepository
from .reader import UNAVAILABLE
from .renaming import Wheel, group

__all__ = ["LockableRelease", "LockableWheel", "read_lockable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LockableWheel:
    """A wheel of a release, with its own URL.

    :param name: the name on the page, or its own where it is not shown.
    """

    name: str
    wheel: Wheel
    file: model.File


@dataclass(frozen=True, kw_only=True, slots=True)
class LockableRelease:
    """The files of a release, and what they require.

    :param wheels: those with a label in the order of this machine, then the others,
        and the non-variant wheels at last.
    :param metadata: the metadata of its variants, with its hash.
    :param requires: the requirements by label; ``None`` stands for the non-variant
        wheel. Labels of which they could not be read are missing.
    """

    wheels: tuple[LockableWheel, ...]
    metadata: model.File | None
    requires: Mapping[str | None, tuple[str, ...]]


async def read_lockable(
    repository: VariantRepository, project: str, name: str
) -> LockableRelease | None:
    """Read what a lock file needs of the release of a wheel.

    :param name: the name that the page shows.
    :returns: ``None`` for a wheel that is no variant.
    """
    page = repository.last(project)
    found = page.find_offer(name)
    if found is None or found[0].resolution is None:
        return None
    choice, resolution = found[0], found[0].resolution
    files = {file.filename: file for file in page.judged.apply(page.files)}
    release = group(files, choice.project)[choice.version]
    order = {label: rank for rank, label in enumerate(resolution.compatible)}
    labelled = sorted(
        release.labelled,
        key=lambda wheel: (
            order.get(wheel.parts.label or "", len(order)),
            wheel.file_name,
        ),
    )
    wheels = [*labelled, *release.plain]
    names = {offer.wheel.file_name: offer.name for offer in choice.offers}
    requires: dict[str | None, tuple[str, ...]] = {}
    for wheel in wheels:
        label = wheel.parts.label
        if label in requires or (label and label not in resolution.metadata.variants):
            continue
        try:
            requires[label] = await repository.evaluator.read_requirements(
                project,
                files[wheel.file_name],
                _whole_variant(resolution, label),
            )
        except (InputError, *UNAVAILABLE):
            continue
    return LockableRelease(
        wheels=tuple(
            LockableWheel(
                name=names.get(wheel.file_name, wheel.file_name),
                wheel=wheel,
                file=files[wheel.file_name],
            )
            for wheel in wheels
        ),
        metadata=await _read_metadata(
            repository, project, files.get(release.metadata or "")
        ),
        requires=requires,
    )


def _whole_variant(resolution: Resolution, label: str | None) -> SelectedVariant:
    """Return what a label stands for on machines that support all its properties."""
    if label is None:
        return NON_VARIANT
    return SelectedVariant(
        label=label,
        properties=frozenset(
            (item.namespace, item.feature, item.value)
            for item in resolution.properties(label)
        ),
    )


async def _read_metadata(
    repository: VariantRepository, project: str, file: model.File | None
) -> model.File | None:
    """Return the metadata of the variants with its hash; ``None`` if there is none."""
    if file is None or file.hashes:
        return file
    try:
        reader = repository.reader
        content = await reader.read(repository.source, project, file.filename)
    except (InputError, *UNAVAILABLE):
        return None
    return replace(file, hashes={"sha256": hashlib.sha256(content).hexdigest()})
