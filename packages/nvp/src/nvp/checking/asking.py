"""Read METADATA and wheels of pinned packages if local evidence is not enough."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nvidia_variant_provider.errors import ProviderError

from ..files import cache_folder
from ..pins.targets import PinTarget
from .evidence import Known

if TYPE_CHECKING:
    from packaging.version import Version

    from nvidia_variant_provider.machine.environment import Environment

    from ..index.releases.pinned import Found, Pinned
    from ..index.releases.reading import Watch


_MOST_UNNAMED = 16
_LARGE = 64_000_000
"""If many packages have no evidence but their size, only wheels of at least this size
in bytes are read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asker:
    """Reads METADATA and GPU code of wheels, as far as the user allows.

    :param indexes: the arguments of `Indexes`, a class that is slow to import.
    :param cache: the directory of cached METADATA and inspections.
    :param offline: make no requests.
    :param inspect: read wheels whose METADATA is not enough.
    :param warn: called with a sentence for each wheel that cannot be read.
    """

    environ: Mapping[str, str]
    indexes: Mapping[str, Any]
    target: PinTarget
    warn: Callable[[str], None]
    cache: str | None = None
    offline: bool = False
    inspect: bool = False
    watch: Watch | None = None

    def __call__(self, known: Sequence[Known]) -> Sequence[Known]:
        """Return the packages in the same order, with the evidence that was read."""
        wanted = [
            place
            for place, item in enumerate(known)
            if item.lacks_metadata or (self.inspect and _may_be_read(item))
        ]
        # Most wheels with no evidence other than their size are not for GPUs: if there
        # are many, read only the largest.
        unnamed = sum(not item.is_named for item in known)
        places = [
            place
            for place in wanted
            if known[place].is_named
            or unnamed <= _MOST_UNNAMED
            or _size(known[place]) >= _LARGE
        ]
        left_out = len(wanted) - len(places)
        if left_out and not self.offline:
            what = f"wheels below {_LARGE // 10**6} MB without a sign of GPU code"
            self.warn(f"{what} are not read: {left_out}")
        if not places:
            return known
        has_kept = self.cache and os.path.isdir(os.path.join(self.cache, "inspected"))
        if self.offline and not has_kept:
            return known
        from ..index.releases.pinned import find_kept

        wheels = [_pinned(known[place]) for place in places]
        result = list(known)
        if has_kept:
            for place, found in zip(places, find_kept(wheels, self.cache), strict=True):
                result[place] = _with(result[place], found)
        left = [
            (place, wheel)
            for place, wheel in zip(places, wheels, strict=True)
            if result[place] is known[place]
        ]
        if self.offline or not left:
            return result
        for place, found in zip(
            (place for place, _ in left), self._read(left, known), strict=True
        ):
            result[place] = _with(result[place], found)
        return result

    def _read(
        self, left: Sequence[tuple[int, Pinned]], known: Sequence[Known]
    ) -> Sequence[Found]:
        from ..index.pip.settings import Indexes
        from ..index.releases.pinned import Found, read_pinned

        indexes = Indexes(**self.indexes)
        indexes.check()
        by_wheel = {id(wheel): known[place] for place, wheel in left}

        def inspects(wheel: Pinned, found: Found) -> bool:
            item = _with(by_wheel[id(wheel)], found)
            return self.inspect and item.may_be_build and _may_be_read(item)

        try:
            return read_pinned(
                [wheel for _, wheel in left],
                environ=self.environ,
                indexes=indexes,
                is_taken=self.target.rank,
                cache=self.cache,
                inspects=inspects,
                watch=self.watch or (lambda _: nullcontext()),
                warn=self.warn,
            )
        except ProviderError as error:  # no index can be opened; pip may be missing
            self.warn(f"no METADATA was read: {error}")
            return [Found()] * len(left)


def _size(item: Known) -> int:
    return (item.wheel.size if item.wheel else None) or 0


def _may_be_read(item: Known) -> bool:
    """Return whether reading the wheel may reveal more than its METADATA."""
    if item.pin.version is None or item.platform is None or item.is_library:
        return False
    if item.backend is not None and item.backend.kind != "cuda":
        return False
    return item.needs is None or item.needs.evidence in ("label", "metadata")


def _pinned(item: Known) -> Pinned:
    from packaging.version import Version

    from ..index.releases.pinned import Pinned

    pin, wheel = item.pin, item.wheel
    return Pinned(
        project=pin.name,
        version=pin.version or Version("0"),
        platform=item.platform,
        filename=wheel.filename if wheel else None,
        url=wheel.url if wheel else None,
        sha256=wheel.sha256 if wheel else None,
        size=wheel.size if wheel else None,
    )


def _with(item: Known, found: Found) -> Known:
    if found.requires is not None and item.lacks_metadata:
        item = item.with_metadata(found.requires)
    if found.needs is not None:
        item = replace(item, needs=found.needs)
    return item


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseFinder:
    """Searches the user's indexes for releases that run, like ``nvp releases``.

    :param indexes: as in `Asker`.
    """

    environ: Mapping[str, str]
    indexes: Mapping[str, Any]

    def __call__(
        self, project: str, environments: Sequence[Environment]
    ) -> list[Version] | None:
        """Return the installable releases that run on every machine.

        The result is ``None`` if no index can be read.
        """
        from packaging.version import Version

        from ..index.pip.settings import Indexes
        from ..index.releases.machines import ProjectJudge

        judge = ProjectJudge(
            environ=self.environ,
            indexes=Indexes(**self.indexes),
            cache=cache_folder(self.environ),
        )
        try:
            tables = judge.judge(project, None, environments)
        except ProviderError:
            return None
        running = [
            {item.version for item in table.releases if item.selected_runs}
            for table in tables
        ]
        versions = map(Version, set.intersection(*running))
        return [version for version in versions if not version.is_prerelease]
