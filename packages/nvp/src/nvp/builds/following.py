"""Companions: projects whose builds have to be of the same backend as another's.

torchvision for CUDA 12.6 breaks at import with torch for CUDA 13.0, and an installer
that compares versions only does not see that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.version import Version

from .backends import Backend
from .page import Build, Decisions

__all__ = ["find_strays", "follow"]


def follow(
    builds: Iterable[Build],
    requirements: Mapping[Version, str],
    leader: Sequence[Build],
    decisions: Decisions,
) -> dict[Version, Backend]:
    """Find the backend that each release of a companion has to be of.

    It is that of the newest release of the leader which an installer may take with
    the companion. Where its requirements are not known, it was most likely built for
    a release of the leader that has builds for the same backends.

    :param builds: the companion's.
    :param requirements: by release of the companion, what it requires of the leader,
        such as ``torch==2.10.0``.
    :param leader: the builds of the project that it requires.
    :param decisions: what becomes of these.
    """
    newest = decisions.newest
    chosen = sorted(
        (
            (version, backend)
            for version, backend in decisions.chosen.items()
            if newest is None or version <= newest
        ),
        reverse=True,
        key=lambda item: item[0],
    )
    if not chosen:
        return {}
    from nvidia_variant_provider.metadata.requirements import parse_requirement

    theirs = _labels(leader)
    followed: dict[Version, Backend] = {}
    for release, labels in _labels(builds).items():
        text = requirements.get(release)
        parsed = None if text is None else parse_requirement(text)
        if parsed is not None:
            fitting = [
                backend
                for version, backend in chosen
                if parsed.specifier.contains(version, prereleases=True)
            ]
        else:
            fitting = [
                backend for version, backend in chosen if theirs[version] == labels
            ]
        followed[release] = (fitting or [chosen[0][1]])[0]
    return followed


def find_strays(
    decisions: Decisions, followed: Mapping[Version, Backend]
) -> dict[Version, tuple[Backend, Backend]]:
    """Find the releases that are shown with another backend than they should be of.

    :returns: by release, the backend that is shown and the one that it should be of.
    """
    return {
        release: (backend, followed[release])
        for release, backend in decisions.chosen.items()
        if release in followed and followed[release].label != backend.label
    }


def _labels(builds: Iterable[Build]) -> dict[Version, frozenset[str]]:
    labels: dict[Version, set[str]] = {}
    for build in builds:
        of_release = labels.setdefault(build.release, set())
        if build.backend is not None and build.backend.kind == "cuda":
            of_release.add(build.backend.label)
    return {release: frozenset(of_release) for release, of_release in labels.items()}
