"""Builds that a machine can run from an index that the user does not use.

The table of builds has those of PyTorch's index. Of other indexes it is known where
they are and for which CUDA they have builds, but not what: that is said as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from nvidia_variant_provider.machine.environment import CudaVersion, Environment

from ..knowledge import tables as table
from ..knowledge.builds import Needs, build_records, required_projects
from ..knowledge.tables import MISSING, VendorIndex
from ..metadata.requirements import parse_requirement
from .needs import Backend, needs_of_backend, parse_backend
from .verdicts import UNKNOWN, Judgement, Verdict, judge

_RUNNING = ("runs", "partly")

_Judge: TypeAlias = Callable[["Needs | None"], Judgement]
"""Judges a build for one machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Elsewhere:
    """A build of a project on an index of its maker.

    :param version: the release; ``None`` where it is not known what the index has.
    :param backend: such as ``cu126``; ``None`` where the project's name says it.
    :param url: with `MISSING` in the place of what is not known.
    :param urls: the indexes that its requirements need besides.
    :param verdict: ``unknown`` where ``version`` is ``None``.
    """

    project: str
    version: str | None
    backend: Backend | None
    index: VendorIndex
    url: str
    urls: tuple[str, ...] = ()
    verdict: Verdict = "unknown"

    @property
    def options(self) -> list[str]:
        """The options of pip that name the index and those that it needs."""
        option = "--find-links" if self.index.kind == "links" else "--extra-index-url"
        words = ["--index-url" if self.index.complete else option, self.url]
        for url in self.urls:
            words += ["--extra-index-url", url]
        return words

    @property
    def command(self) -> str | None:
        """The command line that installs it; ``None`` where the URL is not known."""
        return _command([self], _install)

    @property
    def sentence(self) -> str:
        """What people read, without a full stop."""
        return say_elsewhere([self])[0]

    def to_dict(self) -> dict[str, object]:
        """Return the object of a report."""
        return {
            "project": self.project,
            "version": self.version,
            "label": self.backend.label if self.backend else None,
            "verdict": self.verdict,
            "maker": self.index.maker,
            "url": self.url,
            "kind": self.index.kind,
            "confidence": self.index.confidence,
            "command": self.command,
            "sentence": self.sentence,
        }


class _Candidate(NamedTuple):
    version: Version | None
    backend: Backend | None
    judgement: Judgement

    @property
    def order(self) -> tuple[object, ...]:
        """The newest release comes last, and of that the best build."""
        judgement, cuda = self.judgement, self.backend and self.backend.cuda
        nearest = cuda or (0, 0)
        if not judgement.strict:
            nearest = (-nearest[0], -nearest[1])
        runs = judgement.verdict == "runs"
        return self.version or Version("0"), runs, judgement.strict, nearest


def find_elsewhere(
    project: str,
    environment: Environment,
    platform: str,
    *,
    newer_than: str | None = None,
    wanted: str | None = None,
    torch: tuple[int, int] | None = None,
    cuda: CudaVersion | None = None,
    used: Iterable[str] = (),
    allows: Callable[[Version], bool] = lambda _: True,
    every_gpu: bool = False,
) -> tuple[Elsewhere, ...]:
    """Find builds that run on a machine, from indexes that the user does not use.

    Nothing is read from these indexes.

    :param platform: such as ``linux_x86_64``.
    :param newer_than: the newest release that runs from the user's own indexes;
        ``None`` where none does.
    :param wanted: the release that the user would have without this GPU or driver.
        Indexes of which nothing more is known are named only where there is one, or
        where nothing runs.
    :param torch: the minor release that extensions are built for, if it is known.
    :param cuda: the CUDA of that torch.
    :param used: the URLs of the user's indexes.
    :param allows: whether the user's requirements allow a release.
    :param every_gpu: only builds that run on each GPU of the machine count.
    """
    if environment.cuda_driver_version is None:
        return ()
    own = list(map(_place, used))
    found: dict[str, tuple[_Candidate, Elsewhere]] = {}
    for index in table.find_vendors(project):
        if platform not in index.platforms or not _is_for(index, environment):
            continue
        judge_for = partial(judge, environment=environment, every_gpu=every_gpu)
        known = _known(index, canonicalize_name(project), judge_for, platform)
        fitting = [each for each in known if each.version and allows(each.version)]
        if index.leader is None or index.gpus:
            fitting = _find_backends(index, project, environment, cuda)
        best = max(fitting, key=lambda each: each.order, default=None)
        if best is None or (
            best.version
            and newer_than is not None
            and best.version <= Version(newer_than)
        ):
            continue
        if best.version is None and not (
            (newer_than is None or wanted is not None) and _may_have(index, wanted)
        ):
            continue
        item = _make(index, project, best, wanted, torch)
        place = _place(item.url)
        if any(place[: len(other)] == other for other in own):
            continue
        same = found.get(index.maker)
        if same is None or best.order > same[0].order:
            found[index.maker] = best, item
    items = [item for _, item in found.values()]
    return tuple([item for item in items if item.version] or items)


def _install(words: Sequence[str]) -> str:
    return shlex.join(["nvp", "pip", "install", *words])


def newest_in_table(
    project: str, environment: Environment, platform: str, *, every_gpu: bool = False
) -> str | None:
    """Return the newest release on PyPI that the table says to run on a machine.

    :param every_gpu: on each GPU of it.
    """
    running = [
        Version(row.version)
        for row in build_records().get(canonicalize_name(project), ())
        if row.label is None
        and row.platform == platform
        and judge(row.needs, environment, every_gpu=every_gpu).verdict in _RUNNING
    ]
    return str(max(running)) if running else None


def say_elsewhere(
    found: Sequence[Elsewhere], command: Callable[[Sequence[str]], str] = _install
) -> list[str]:
    """Return sentences without a full stop, one for all builds of one index.

    :param command: returns the command line that installs what the words say.
    """
    sentences: list[str] = []
    known: dict[str, list[Elsewhere]] = {}
    for item in found:
        if item.version is not None:
            known.setdefault(item.url, []).append(item)
    for items in known.values():
        names = " and ".join(f"{x.project} {_version(x)}" for x in items)
        verb = "run" if len(items) > 1 else "runs"
        if any(item.verdict == "partly" for item in items):
            verb += " in part"
        maker = items[0].index.maker
        sentences.append(
            f"{names} {verb} here, from {maker}'s index: {_command(items, command)}"
        )
    sentences += [_unknown(item, command) for item in found if item.version is None]
    return sentences


def find_vendor_places(
    projects: Collection[str],
    environment: Environment,
    platform: str,
    *,
    pinned: Callable[[str], str | None] = lambda _: None,
) -> tuple[Elsewhere, ...]:
    """Return the places of vendors' indexes for projects, one for each index.

    :param projects: normalized names.
    :param pinned: returns the release of a project that the user pins, if any.
    """
    places: dict[str, Elsewhere] = {}
    for project in projects:
        for item in find_elsewhere(
            project, environment, platform, wanted=pinned(project)
        ):
            if MISSING in item.url:
                continue
            places.setdefault(item.url, item)
            for name in item.index.needs:
                for needed in _find_needed(name, item.backend):
                    places.setdefault(needed.url, needed)
    return tuple(places.values())


def _find_needed(project: str, backend: Backend | None) -> Iterator[Elsewhere]:
    for index in table.find_vendors(project):
        if backend is not None and backend.base in index.backends and not index.gpus:
            yield _make(index, project, _Candidate(None, backend, UNKNOWN))


def _find_backends(
    index: VendorIndex,
    project: str,
    environment: Environment,
    cuda: CudaVersion | None,
) -> list[_Candidate]:
    """Return the backends of an index that may run, by what their labels say.

    :param cuda: the one to prefer.
    """
    names = index.backends or (project.rpartition("-")[2],)
    candidates = []
    for backend in map(parse_backend, names):
        judgement = judge(needs_of_backend(backend), environment)
        if judgement.verdict != "cannot":
            known = backend if index.backends else None
            candidates.append(_Candidate(None, known, judgement))
    same = [x for x in candidates if x.backend and x.backend.cuda == cuda]
    return same or candidates


def _known(
    index: VendorIndex, project: str, judge_for: _Judge, platform: str
) -> Iterator[_Candidate]:
    """Yield the builds of the table that run; those of companions by their leader."""
    leader = index.leader or project
    rows = [row for row in build_records().get(leader, ()) if row.platform == platform]
    running = [
        _Candidate(Version(row.version), parse_backend(row.label), judgement)
        for row in rows
        if row.label in index.backends
        and (judgement := judge_for(row.needs)).verdict in _RUNNING
        and not Version(row.version).is_prerelease
    ]
    if project == leader:
        yield from running
        return
    plain = [row for row in build_records().get(leader, ()) if row.label is None]
    for row in build_records().get(project, ()):
        requirement = parse_requirement(
            required_projects(row.needs.requires, (leader,)).get(leader, "")
        )
        if requirement is None:
            continue
        allowed = [x for x in running if requirement.specifier.contains(x[0] or "")]
        if any(item.operator != "==" for item in requirement.specifier):
            # What only sets a lower bound was built with the release that is for the
            # same CUDA on PyPI, and has the builds of that one.
            cuda = row.needs.cuda
            built = [Version(x.version) for x in plain if x.needs.cuda == cuda]
            newest = max(built, default=None)
            allowed = [each for each in allowed if each.version == newest]
        for each in allowed:
            yield each._replace(version=Version(row.version))


def _may_have(index: VendorIndex, wanted: str | None) -> bool:
    try:
        return SpecifierSet(index.releases).contains(wanted or "0", prereleases=True)
    except InvalidVersion:  # of something installed
        return False


def _is_for(index: VendorIndex, environment: Environment) -> bool:
    if not index.gpus:
        return True
    return bool({*index.gpus} & {*environment.compute_capabilities})


def _make(
    index: VendorIndex,
    project: str,
    best: _Candidate,
    wanted: str | None = None,
    torch: tuple[int, int] | None = None,
) -> Elsewhere:
    label = best.backend.label if best.backend else None
    url = index.find_url(label, version=wanted, torch=torch)
    needed = [
        item.find_url(label)
        for name in index.needs
        for item in table.find_vendors(name)
        if label in item.backends and not item.gpus
    ]
    return Elsewhere(
        project=project,
        version=None if best.version is None else str(best.version),
        backend=best.backend,
        index=index,
        url=url,
        urls=tuple(item for item in needed if item != url),
        verdict="unknown" if best.version is None else best.judgement.verdict,
    )


def _version(item: Elsewhere) -> str:
    return f"{item.version}+{item.backend.label}" if item.backend else f"{item.version}"


def _unknown(item: Elsewhere, install: Callable[[Sequence[str]], str]) -> str:
    maker, project, backend = item.index.maker, item.project, item.backend
    publishes = "publishes" if item.index.confidence == "seen" else "may publish"
    cuda = ""
    if backend is not None and backend.cuda is not None:
        cuda = f" for CUDA {backend.cuda}"
    command = _command([item], install)
    return (
        f"{maker} {publishes} builds of {project}{cuda} at {item.url} (nvp does not "
        f"know of which releases){'' if command is None else f': {command}'}"
    )


def _command(
    items: Sequence[Elsewhere], install: Callable[[Sequence[str]], str]
) -> str | None:
    if MISSING in items[0].url:
        return None
    names = dict.fromkeys(item.project for item in items)
    return install([*items[0].options, *names])


def _place(url: str) -> tuple[str, ...]:
    """Return the host and the folders of an index, to compare it with others."""
    parts = urlsplit(url)
    folders = [part for part in parts.path.split("/") if part]
    while folders and folders[-1] in ("simple", "+simple"):
        folders.pop()
    return parts.netloc.rpartition("@")[2].lower(), *folders
