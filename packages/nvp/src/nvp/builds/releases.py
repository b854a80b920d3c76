"""The table of a project's releases: which builds of each a machine can run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from packaging.version import Version

from ..knowledge.builds import Evidence, How
from .vendors import Elsewhere
from .verdicts import Verdict

_RANKS: dict[Verdict, int] = {
    "runs": 0,
    "partly": 1,
    "unknown": 2,
    "cpu": 3,
    "cannot": 4,
}
"""Of the builds of a release, the verdict with the lowest rank is the release's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedBuild:
    """One build of a release, on the platform of the machine.

    :param file: a wheel of the build: the one for this interpreter if there is one.
    :param label: the variant label or the local version label, such as ``cu128``;
        ``None`` for a build without one.
    :param cuda: the CUDA version that the build was made with, such as ``12.8``, or
        for a variant the oldest one that it accepts.
    :param verdict: ``runs``; ``partly``: some of its own libraries have no code for
        the GPU; ``cannot``; ``cpu``: it uses no GPU; ``unknown``.
    :param how: ``native`` for machine code, ``ptx`` where the driver compiles PTX;
        ``None`` where it does not run, or where its code is not known.
    :param evidence: what the verdict rests on; ``None`` where there is nothing.
    :param reasons: why it does not run, or why an installer does not take it.
    """

    file: str
    label: str | None
    cuda: str | None
    verdict: Verdict
    how: How | None
    evidence: Evidence | None
    reasons: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the build as it stands in the report of ``releases --json``."""
        return {**asdict(self), "reasons": list(self.reasons)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedRelease:
    """One release.

    :param version: the public version, without a local version label.
    :param selected: the wheel that an installer takes of this release, for this
        interpreter and platform; ``None`` where it takes none.
    :param builds: those for the platform of this machine, best first.
    """

    version: str
    selected: str | None
    builds: tuple[ListedBuild, ...]

    @property
    def verdict(self) -> Verdict | None:
        """The best verdict of its builds; ``None`` where it has no build."""
        verdicts = [build.verdict for build in self.builds]
        return min(verdicts, key=_RANKS.__getitem__, default=None)

    @property
    def runs(self) -> bool:
        """Whether one of its builds runs on the GPU, at least partly."""
        return self.verdict in ("runs", "partly")

    @property
    def selected_runs(self) -> bool:
        """Whether the build of the selected file runs on the GPU, at least partly."""
        return any(
            build.file == self.selected and build.verdict in ("runs", "partly")
            for build in self.builds
        )

    def to_dict(self) -> dict[str, object]:
        """Return the release as it stands in the report of ``releases --json``."""
        return {
            "version": self.version,
            "selected": self.selected,
            "builds": [build.to_dict() for build in self.builds],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseTable:
    """The releases of a project.

    :param project: the normalized name.
    :param newest: the newest release with a build that runs. Pre-releases, and
        releases that the index has yanked, count only where nothing else runs.
    :param releases: newest first.
    :param notes: sentences about what could not be read.
    :param elsewhere: newer builds that run, or may run, from indexes of makers that
        were not read.
    :param platform: the one that is installed on, such as ``linux_x86_64``.
    """

    project: str
    newest: str | None
    releases: tuple[ListedRelease, ...]
    notes: tuple[str, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    platform: str | None = None

    @property
    def is_cpu_only(self) -> bool:
        """Whether the newest release has no GPU code, and no older one is known to."""
        verdicts = [verdict for r in self.releases if (verdict := r.verdict)]
        return verdicts[:1] == ["cpu"] and {*verdicts} <= {"cpu", "unknown"}

    def to_dict(self) -> dict[str, object]:
        """Return the ``data`` of the report of ``releases --json``."""
        return {
            "project": self.project,
            "platform": self.platform,
            "newest": self.newest,
            "releases": [release.to_dict() for release in self.releases],
            "elsewhere": [item.to_dict() for item in self.elsewhere],
        }


def find_newest(
    releases: Iterable[ListedRelease], withdrawn: frozenset[str] = frozenset()
) -> str | None:
    """Return the newest release that runs, as installers count.

    :param releases: newest first.
    :param withdrawn: the versions that the index itself has yanked.
    """
    running = [release.version for release in releases if release.runs]
    final = [version for version in running if not Version(version).is_prerelease]
    for versions in (final, running):
        for version in versions:
            if version not in withdrawn:
                return version
    return running[0] if running else None


def sort_builds(
    builds: Iterable[ListedBuild], selected: str | None
) -> tuple[ListedBuild, ...]:
    """Return the builds of a release, the one that is selected first."""
    return tuple(
        sorted(
            builds,
            key=lambda build: (
                build.file != selected,
                _RANKS[build.verdict],
                build.label or "",
            ),
        )
    )
