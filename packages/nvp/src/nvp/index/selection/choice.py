"""What a machine gets of a release, and the page that says so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from simple_repository import model

from ..http.pages import LABEL_KEY
from .file_labels import has_label
from .renaming import Offer, Release

if TYPE_CHECKING:
    from nvidia_variant_provider.resolution.resolver import Resolution

__all__ = ["Choice", "keep_label", "select_files", "with_files"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What a machine gets of one release.

    :param resolution: of all labels; ``None`` when the metadata cannot be used.
    :param offers: the variant wheels that are shown, best first.
    :param plain: the non-variant wheels that are shown.
    :param available: the labels of all its wheels.
    :param rewritten: the labels whose wheels are rewritten, because their dependencies
        depend on the variant.
    :param unread: why METADATA could not be read, by label. Such wheels may have
        variant markers, and are not shown.
    :param pinned: the label that the user asked for.
    :param problem: why no variant is shown, when that is a defect.
    """

    project: str
    version: str
    resolution: Resolution | None = None
    offers: tuple[Offer, ...] = ()
    plain: frozenset[str] = frozenset()
    available: frozenset[str] = frozenset()
    rewritten: frozenset[str] = frozenset()
    unread: Mapping[str, str] = field(default_factory=dict)
    pinned: str | None = None
    problem: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that are shown, best first."""
        return tuple(dict.fromkeys(offer.label for offer in self.offers))


def keep_label(
    page: model.ProjectDetail, label: str, builds: Collection[str] = ()
) -> model.ProjectDetail:
    """Return a page without the files, sdists too, that are not of a label.

    :param builds: the names of wheels that are of it, whatever their names say.
    """
    files = tuple(
        file
        for file in page.files
        if file.private_metadata.get(LABEL_KEY) == label
        or has_label(file.filename, label)
        or file.filename in builds
    )
    return replace(page, files=files)


def with_files(
    page: model.ProjectDetail, files: Iterable[model.File]
) -> model.ProjectDetail:
    """Return a page with other files, some of which may have no size."""
    shown = tuple(files)
    meta = page.meta
    if any(file.size is None for file in shown):
        # PEP 700 requires a size of each file from version 1.1 on, and that of a
        # rewritten wheel is not known yet.
        meta = replace(meta, api_version="1.0")
    return replace(page, meta=meta, files=shown)


def select_files(
    files: Iterable[model.File],
    releases: Mapping[str, Release],
    choices: Mapping[str, Choice],
    *,
    keeps_hashes: bool = False,
) -> list[model.File]:
    """Return the files of a page: variant wheels are renamed or left out.

    :param keeps_hashes: see `Selection`.

    The order of files matters for two installers. poetry (2.5.1) takes the dependencies
    of a release from the last wheel for any platform or, without one, from the first
    wheel: that must be the best build. pdm (2.22.4) ignores build tags, and takes the
    first of the wheels with equal tags. Wheels for one platform are therefore in the
    order of the selection. Of the wheels for any platform, the best one of a release is
    listed twice: first for pdm, and last for poetry.
    """
    labelled = {w.file_name for r in releases.values() for w in r.labelled}
    plain = {w.file_name for r in releases.values() for w in r.plain}
    shown_plain = frozenset().union(*(choice.plain for choice in choices.values()))
    offers = {o.wheel.file_name: o for c in choices.values() for o in c.offers}
    rewritten = {
        o.wheel.file_name
        for c in choices.values()
        for o in c.offers
        if o.label in c.rewritten
    }
    renamed: dict[str, model.File] = {}
    rest: list[model.File] = []
    for file in files:
        name = file.filename
        if name in offers:
            offer = offers[name]
            changed = replace(file, filename=offer.name)
            if name in rewritten:
                # The hashes and the size are those of the original.
                changed = replace(
                    changed,
                    hashes=file.hashes if keeps_hashes else {},
                    size=None,
                    # Without a hash, an installer has to download the wheel for it.
                    dist_info_metadata=bool(file.hashes) or not keeps_hashes,
                )
            renamed[name] = _with_label(changed, offer.label)
        elif name in plain:
            if name in shown_plain:
                rest.append(_with_label(file, None))
        elif name not in labelled:
            rest.append(file)
    ordered = [renamed[name] for name in offers]
    anywhere = [file for file in ordered if file.filename.endswith("-any.whl")]
    first = [file for file in ordered if not file.filename.endswith("-any.whl")]
    best = [
        file
        for choice in choices.values()
        if choice.offers
        and (file := renamed[choice.offers[0].wheel.file_name]).filename.endswith(
            "-any.whl"
        )
    ]
    return [*first, *best, *rest, *reversed(anywhere)]


def _with_label(file: model.File, label: str | None) -> model.File:
    private = {**dict(file.private_metadata.items()), LABEL_KEY: label}
    return replace(
        file, private_metadata=model.PrivateMetadataMapping.from_any_mapping(private)
    )
