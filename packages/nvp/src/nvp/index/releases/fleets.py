"""What the machines of a fleet get of a project on an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nvidia_variant_provider.machine.environment import Environment

from ...builds.releases import ReleaseTable
from ...fleet.choosing import Decide, Pick
from ...wheels.names import parse_wheel_name
from .machines import judge_project, parse_project

__all__ = ["decide_by_project"]


def decide_by_project(
    project: str,
    *,
    environ: Mapping[str, str],
    index_url: str | None = None,
    every_gpu: bool = False,
    cache: str | None = None,
) -> Decide:
    """Return what decides by the releases of a project, ordinary wheels included.

    A build is called by its version and its label, such as ``2.14.1+cu126``.

    :param project: such as ``torch``, or ``torch==2.15.0`` for one release.
    """
    name, version = parse_project(project)

    def decide(environments: Sequence[Environment]) -> list[Pick]:
        tables = judge_project(
            name,
            version,
            environments,
            environ=environ,
            index_url=index_url,
            every_gpu=every_gpu,
            cache=cache,
        )
        return [_pick(table) for table in tables]

    return decide


def _pick(table: ReleaseTable) -> Pick:
    runs: list[str] = []
    gpu: list[str] = []
    rejected: dict[str, Sequence[str]] = {}
    versions: dict[str, str] = {}
    selected = None
    for release in table.releases:
        for build in release.builds:
            name = (
                f"{release.version}+{build.label}" if build.label else release.version
            )
            if build.verdict in ("runs", "partly"):
                gpu.append(name)
            elif build.verdict != "cpu":
                rejected[name] = build.reasons
                continue
            runs.append(name)
            if parse_wheel_name(build.file).label is not None:
                versions[name] = release.version
            if release.version == table.newest and build.file == release.selected:
                selected = name
    return Pick(
        selected=selected,
        runs=tuple(runs),
        gpu=tuple(gpu),
        rejected=rejected,
        versions=versions,
    )
