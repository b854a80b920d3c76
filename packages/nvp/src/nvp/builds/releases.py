"""The table of a project's releases, with the builds that a machine can run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from packaging.utils import canonicalize_name
from packaging.version import Version

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    Environment,
)

from ..knowledge.builds import PROJECTS, Evidence, How
from ..metadata.requirements import parse_requirement
from .needs import needs_of_name
from .page import RUNNING, Build
from .vendors import Elsewhere
from .verdicts import Verdict, judge

PLAIN = "plain"
"""The name of a build without a label in tables and reports."""

_EXTRA = re.compile(r"""extra == ["']([^"']+)""")

_RANKS: dict[Verdict, int] = {
    "runs": 0,
    "partly": 1,
    "unknown": 2,
    "cpu": 3,
    "cannot": 4,
}
"""The rank of each verdict. A release has the verdict of its lowest-ranked build."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedBuild:
    """One build of a release, on the platform of the machine.

    :param file: a wheel of the build: the one for this interpreter if there is one.
    :param label: the variant label or the local version label, such as ``cu128``;
        ``None`` for a build without one.
    :param cuda: the CUDA version that the build was built with, such as ``12.8``, or
        the minimum CUDA version of a variant.
    :param verdict: ``runs``; ``partly``: some of its own libraries have no code for
        the GPU; ``cannot``; ``cpu``: it uses no GPU; ``unknown``.
    :param how: ``native`` for machine code, ``ptx`` if the driver compiles PTX;
        ``None`` if the build does not run or its code is unknown.
    :param evidence: the source of the verdict; ``None`` without evidence.
    :param reasons: why the build does not run or is not selected.
    :param installable: whether ``file`` is for this Python and platform.
    :param fits_platform: whether ``file`` is for the platform; not in the JSON report.
    :param lacking: the compute capabilities of the machine for which the build has no
        code, although it runs on the highest one.
    """

    file: str
    label: str | None
    cuda: str | None
    verdict: Verdict
    how: How | None
    evidence: Evidence | None
    reasons: tuple[str, ...] = ()
    installable: bool = True
    lacking: tuple[ComputeCapability, ...] = ()
    fits_platform: bool = True

    def to_dict(self) -> dict[str, object]:
        """Return the build for the report of ``releases --json``."""
        lists = {"reasons": list(self.reasons), "lacking": list(map(str, self.lacking))}
        report = {**asdict(self), **lists}
        del report["fits_platform"]
        return report


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedRelease:
    """One release.

    :param version: the public version, without a local version label.
    :param selected: the wheel that an installer selects from this release, for this
        interpreter and platform; ``None`` if no wheel fits.
    :param builds: the builds for the platform of this machine, best first.
    """

    version: str
    selected: str | None
    builds: tuple[ListedBuild, ...]

    @property
    def verdict(self) -> Verdict | None:
        """The best verdict of the release's builds; ``None`` without builds."""
        verdicts = [build.verdict for build in self.builds]
        return min(verdicts, key=_RANKS.__getitem__, default=None)

    @property
    def runs(self) -> bool:
        """Whether a build of the release runs on the GPU, at least partly."""
        return self.verdict in ("runs", "partly")

    @property
    def selected_runs(self) -> bool:
        """Whether the build of the selected file runs on the GPU, at least partly."""
        return any(
            build.file == self.selected and build.verdict in ("runs", "partly")
            for build in self.builds
        )

    def to_dict(self) -> dict[str, object]:
        """Return the release for the report of ``releases --json``."""
        return {
            "version": self.version,
            "selected": self.selected,
            "builds": [build.to_dict() for build in self.builds],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuRequirement:
    """A project with GPU code, required by a project that has none of its own.

    :param extras: the requiring project's extras that add this requirement, such as
        ``cuda12``; empty if no extra is needed.
    :param reason: why the project cannot run, judging by its name, or else ``None``.
    """

    project: str
    extras: tuple[str, ...] = ()
    reason: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the keys ``project``, ``extras`` and ``reason``."""
        return {**asdict(self), "extras": list(self.extras)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseTable:
    """The releases of a project.

    :param project: the normalized name.
    :param newest: the newest release with a build that runs. Pre-releases, and
        releases that the index has yanked, are used only if no other release runs.
    :param releases: newest first.
    :param notes: sentences about evidence that could not be read.
    :param elsewhere: newer builds on vendors' indexes, according to the tables, that
        run or may run on the machine.
    :param platform: the target platform, such as ``linux_x86_64``.
    :param sources: the versions that have a source distribution.
    :param gpu_requirements: the projects with the GPU code, if the project's own wheels
        are platform-independent.
    :param extras: the extras that the user named with the project.
    """

    project: str
    newest: str | None
    releases: tuple[ListedRelease, ...]
    notes: tuple[str, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    platform: str | None = None
    sources: frozenset[str] = frozenset()
    gpu_requirements: tuple[GpuRequirement, ...] = ()
    extras: tuple[str, ...] = ()

    @property
    def taken(self) -> str | None:
        """The newest release whose selected build runs."""
        return find_newest([item for item in self.releases if item.selected_runs])

    @property
    def for_all(self) -> str | None:
        """The newest installable release that runs on every GPU of the machine."""
        whole = [
            release
            for release in self.releases
            if release.selected is not None
            and any(
                build.installable
                and build.verdict in ("runs", "partly")
                and not build.lacking
                for build in release.builds
            )
        ]
        return find_newest(whole)

    @property
    def chosen(self) -> ListedRelease | None:
        """The newest release with a selected wheel, preferably not a pre-release."""
        taken = [item for item in self.releases if item.selected is not None]
        # Stop at the first final release: a project may have thousands.
        final = (item for item in taken if not Version(item.version).is_prerelease)
        return next(final, taken[0] if taken else None)

    @property
    def unknown_pick(self) -> str | None:
        """The selected release, if its build is not known to run on the GPU."""
        chosen = self.chosen
        if chosen is None or self.is_for_any_platform:
            return None
        verdicts = {x.verdict for x in chosen.builds if x.file == chosen.selected}
        return chosen.version if verdicts == {"unknown"} else None

    @property
    def gpu_pick(self) -> bool:
        """Whether the build that an installer selects by itself runs on the GPU."""
        return self.chosen is not None and self.chosen.selected_runs

    @property
    def is_for_any_platform(self) -> bool:
        """Whether the selected wheel is platform-independent, and no build uses a GPU.

        A platform-independent wheel has no GPU code of its own.
        """
        chosen = self.chosen
        return bool(
            chosen
            and (chosen.selected or "").endswith("-any.whl")
            and all(build.file.endswith("-any.whl") for build in chosen.builds)
            and {b.verdict for r in self.releases for b in r.builds}
            <= {"unknown", "cpu"}
        )

    @property
    def without_code(self) -> str:
        """The message that the selected wheel has no GPU code, without a period."""
        title = f"{self.project} {self.chosen.version}" if self.chosen else self.project
        return (
            f"{title} is a wheel for any platform, which has no library with GPU code"
        )

    @property
    def only_source(self) -> str | None:
        """The newest final release, if it has an sdist.

        The result is ``None`` if any final release has a wheel.
        """
        final = [x for x in self.releases if not Version(x.version).is_prerelease]
        if not final or any(item.builds for item in final):
            return None
        return final[0].version if final[0].version in self.sources else None

    @property
    def is_cpu_only(self) -> bool:
        """Whether the newest release uses no GPU, and no other is known to use one."""
        verdicts = [verdict for r in self.releases if (verdict := r.verdict)]
        return verdicts[:1] == ["cpu"] and {*verdicts} <= {"cpu", "unknown"}

    def to_dict(self) -> dict[str, object]:
        """Return the ``data`` of the ``releases --json`` report."""
        return {
            "project": self.project,
            "platform": self.platform,
            "newest": self.newest,
            "releases": [release.to_dict() for release in self.releases],
            "elsewhere": [item.to_dict() for item in self.elsewhere],
            "gpu_requirements": [item.to_dict() for item in self.gpu_requirements],
        }


def find_gpu_requirements(
    project: str, requires: Iterable[str], environment: Environment
) -> tuple[GpuRequirement, ...]:
    """Find the GPU projects among the requirements of a project without GPU code.

    NVIDIA's own libraries are left out.

    :param requires: the ``Requires-Dist`` fields.
    """
    found: dict[str, set[str]] = {}
    for text in requires:
        requirement = parse_requirement(text)
        name = canonicalize_name(requirement.name) if requirement else project
        is_known = name in PROJECTS or needs_of_name(name) is not None
        if is_known and name != project and not name.startswith("nvidia-"):
            extras = _EXTRA.findall(str(requirement and requirement.marker))
            found.setdefault(name, set()).update(extras or [""])
    listed = []
    for name, extras_of_name in found.items():
        judgement = judge(needs_of_name(name), environment)
        refused = judgement.verdict == "cannot"
        listed.append(
            GpuRequirement(
                project=name,
                extras=() if "" in extras_of_name else tuple(sorted(extras_of_name)),
                reason=judgement.reasons[0] if refused else None,
            )
        )
    return tuple(sorted(listed, key=lambda item: (bool(item.extras), item.project)))


def find_newest(
    releases: Iterable[ListedRelease], withdrawn: frozenset[str] = frozenset()
) -> str | None:
    """Return the newest release that runs; pre-releases and yanked releases come last.

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
    """Sort the builds of a release: the selected build, then by verdict and label."""
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


def newest_for_all(builds: Iterable[Build]) -> Version | None:
    """Return the newest release with a build that runs on every GPU of the machine."""
    running = [
        build.release
        for build in builds
        if build.pythons
        and build.judgement.verdict in RUNNING
        and not build.judgement.lacking
    ]
    return max(running, default=None)


def say_lacking(
    name: str,
    lacking: Iterable[ComputeCapability],
    environment: Environment,
    newest: Version | str | None,
) -> str:
    """Return a sentence on the GPUs that a build has no code for, and a better release.

    :param name: the build, such as ``torch 2.15.0``.
    :param newest: the newest release that runs on every GPU.
    """
    from ..knowledge.tables import gpu_models

    gpus = []
    for capability in lacking:
        names = {g.name for g in environment.gpus if g.compute_capability == capability}
        model = gpu_models().get(capability)
        name_of_gpu = " and ".join(sorted(filter(None, names)))
        if not name_of_gpu and model is not None:
            name_of_gpu = f"GPU such as {model.products.partition(',')[0]}"
        gpus.append(f"the {name_of_gpu or 'GPU'} (compute capability {capability})")
    project = name.partition(" ")[0]
    all_run = f"{project} {newest} is the newest release that runs on all its GPUs"
    if newest is None:
        all_run = "no release is known to run on all its GPUs"
    return f"{name} has no code for {' and '.join(gpus)} of this machine; {all_run}"
