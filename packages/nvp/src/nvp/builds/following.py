"""Which backend the builds of a companion have to be of, such as torchvision's.

A companion requires another project, its leader, whose wheels carry the same kind of
labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.version import Version

from .needs import Backend
from .page import RUNNING, Build, PageVisibility


def follow(
    builds: Iterable[Build],
    requirements: Mapping[Version, str],
    leader: Sequence[Build],
    visibility: PageVisibility,
) -> dict[Version, Backend]:
    """Find the backend that each release of a companion has to be of.

    torchvision for CUDA 12.6 breaks at import with torch for CUDA 13.0, and an
    installer that compares versions only does not see that.

    It is that of the newest release of the leader which an installer may take with
    the companion. Where its requirements are not known, it was most likely built for
    a release of the leader that has builds for the same backends.

    :param builds: the companion's.
    :param requirements: by release of the companion, what it requires of the leader,
        such as ``torch==2.10.0``.
    :param leader: the builds of the project that it requires.
    :param visibility: what becomes of these.
    """
    newest = visibility.newest
    backends = sorted(
        (
            (version, backend)
            for version, backend in visibility.backends.items()
            if newest is None or version <= newest
        ),
        reverse=True,
        key=lambda item: item[0],
    )
    followed: dict[Version, Backend] = {}
    own: dict[Version, list[Backend]] = {}
    for build in builds:
        if build.backend is not None and build.judgement.verdict != "cannot":
            own.setdefault(build.release, []).append(build.backend)
    for release, mine in own.items():
        if (named := _for_torch(mine, leader, visibility)) is not None:
            followed[release] = named
    if not backends:
        return followed
    from ..metadata.requirements import parse_requirement

    theirs = _labels(leader)
    for release, labels in _labels(builds).items():
        if release in followed:
            continue
        text = requirements.get(release)
        parsed = None if text is None else parse_requirement(text)
        if parsed is not None:
            fitting = [
                backend
                for version, backend in backends
                if parsed.specifier.contains(version, prereleases=True)
            ]
        else:
            fitting = [
                backend for version, backend in backends if theirs[version] == labels
            ]
        wanted = (fitting or [backends[0][1]])[0]
        same = (mine for mine in own.get(release, ()) if mine.agrees(wanted))
        followed[release] = next(same, wanted)
    return followed


def _for_torch(
    own: Sequence[Backend], leader: Sequence[Build], visibility: PageVisibility
) -> Backend | None:
    """Find the label that names the newest torch which runs, and its CUDA.

    Where no label names the CUDA of that torch, one of the same major has to do.
    """
    running = {
        build.release: build.judgement.cuda
        for build in leader
        if build.judgement.verdict in RUNNING
        and visibility.files[build.file].action == "show"
    }
    for version in sorted(running, reverse=True):
        backend = visibility.backends.get(version)
        cuda = backend.cuda if backend else running[version]
        same = [x for x in own if x.torch == (version.major, version.minor)]
        for digits in (2, 1):
            for mine in same:
                if mine.cuda and cuda and mine.cuda[:digits] == cuda[:digits]:
                    return mine
    return None


def find_strays(
    visibility: PageVisibility, followed: Mapping[Version, Backend]
) -> dict[Version, tuple[Backend, Backend]]:
    """Find the releases that are shown with another backend than they should be of.

    :returns: by release, the backend that is shown and the one that it should be of.
    """
    return {
        release: (backend, followed[release])
        for release, backend in visibility.backends.items()
        if release in followed and followed[release].label != backend.label
    }


def _labels(builds: Iterable[Build]) -> dict[Version, frozenset[str]]:
    labels: dict[Version, set[str]] = {}
    for build in builds:
        of_release = labels.setdefault(build.release, set())
        if build.backend is not None and build.backend.kind == "cuda":
            of_release.add(build.backend.label)
    return {release: frozenset(of_release) for release, of_release in labels.items()}
