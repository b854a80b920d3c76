"""Builds that a machine can run, from indexes that the user has not configured.

The table of builds covers PyTorch's index. For other indexes, only the URL and the CUDA
versions of the builds are known, and messages say that the releases are unknown.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from nvidia_variant_provider.machine.environment import CudaVersion, Environment

from ..knowledge import tables as table
from ..knowledge.builds import (
    Needs,
    build_records,
    find_record,
    required_projects,
)
from ..knowledge.tables import MISSING, VendorIndex
from ..metadata.requirements import parse_requirement
from .needs import Backend, needs_of_backend, parse_backend
from .verdicts import Judgement, Verdict, judge

_RUNNING = ("runs", "partly")

_Judge: TypeAlias = Callable[["Needs | None"], Judgement]
"""A function that judges a build for one machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Elsewhere:
    """A build of a project on an index of its vendor.

    :param version: the release; ``None`` if the releases of the index are unknown.
    :param backend: the target, such as ``cu126``; ``None`` if the name of the project
        contains it.
    :param url: the URL of the index, with `MISSING` in place of unknown parts.
    :param urls: further indexes, for the requirements of the build.
    :param leader: the release of the project that the build depends on, such as torch.
    :param torch: the requirement on torch, such as ``torch==2.8.*``, if ``url`` is only
        for builds for that release.
    :param verdict: ``unknown`` if ``version`` is ``None``.
    """

    project: str
    version: str | None
    backend: Backend | None
    index: VendorIndex
    url: str
    urls: tuple[str, ...] = ()
    leader: Version | None = None
    torch: str | None = None
    verdict: Verdict = "unknown"

    @property
    def options(self) -> list[str]:
        """The options of pip for the index and for the further indexes."""
        option = "--find-links" if self.index.kind == "links" else "--extra-index-url"
        words = ["--index-url" if self.index.complete else option, self.url]
        for url in self.urls:
            words += ["--extra-index-url", url]
        return words

    @property
    def command(self) -> str | None:
        """The command line that installs the build; ``None`` if the URL is unknown."""
        return _command([self], pip_command)

    @property
    def sentence(self) -> str:
        """The message about the build, without a period."""
        return say_elsewhere([self])[0]

    def to_dict(self) -> dict[str, object]:
        """Return the build for a JSON report."""
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
    leader: Version | None = None

    @property
    def order(self) -> tuple[object, ...]:
        """A sort key, by which the best build of the newest release comes last."""
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
    torch: str | None = None,
    cuda: CudaVersion | None = None,
    used: Iterable[str] = (),
    allows: Callable[[str, Version], bool] = lambda *_: True,
    beside: Iterable[Elsewhere] = (),
    every_gpu: bool = False,
) -> tuple[Elsewhere, ...]:
    """Find builds that run on a machine, on indexes that the user has not configured.

    The function uses only the tables, and does not read the indexes.

    :param platform: such as ``linux_x86_64``.
    :param newer_than: the newest runnable release on the user's own indexes; ``None``
        if no release runs.
    :param wanted: the release that the user would get if GPUs did not matter. An index
        whose releases are unknown is reported only if it may have this release, and if
        ``wanted`` is given or ``newer_than`` is ``None``.
    :param torch: the release of torch for which extensions must be built; by default
        the newest runnable release on PyPI.
    :param cuda: the CUDA version of that torch, if known.
    :param used: the URLs of the user's indexes. If one belongs to a vendor of the
        project, indexes with unknown releases are not reported.
    :param allows: whether the user's requirements allow a release of a project.
    :param beside: builds found for other projects. If an index has one of them, only
        builds for the same release of the leader and the same backend are accepted.
    :param every_gpu: accept only builds that run on every GPU of the machine.
    """
    if environment.cuda_driver_version is None:
        return ()
    own = list(map(_place, used))
    indexes = table.find_vendors(project)
    known_only = any(_is_in(each, [_place(x.folder) for x in indexes]) for each in own)
    if torch is None and any("torch" in index.needs for index in indexes):
        torch = newest_in_table("torch", environment, platform, every_gpu=every_gpu)
    if torch is not None and cuda is None:
        label = parse_backend(torch.partition("+")[2])
        record = find_record("torch", torch, platform)
        cuda = label.cuda if label else record.needs.cuda if record else None
    judge_for = partial(judge, environment=environment, every_gpu=every_gpu)
    found: dict[str, tuple[_Candidate, Elsewhere]] = {}
    for index in indexes:
        if platform not in index.platforms or not _is_for(index, environment):
            continue
        same = [each for each in beside if each.index == index and each.version]
        fitting = [
            each
            for each in _known(index, canonicalize_name(project), judge_for, platform)
            if each.version and allows(project, each.version)
            if not each.leader or allows(index.leader or project, each.leader)
            if all((x.leader, x.backend) == (each.leader, each.backend) for x in same)
        ]
        if index.leader is None or index.gpus:
            fitting = _find_backends(index, project, environment, cuda, torch)
        best = max(fitting, key=lambda each: each.order, default=None)
        if best is None or (
            best.version
            and newer_than is not None
            and best.version <= Version(newer_than)
        ):
            continue
        if best.version is None and not (
            (newer_than is None or wanted is not None)
            and _may_have(index, wanted)
            and not known_only
        ):
            continue
        item = _make(index, project, best, wanted, torch)
        if _is_in(_place(item.url), own):
            continue
        urls = tuple(url for url in item.urls if not _is_in(_place(url), own))
        item = replace(item, urls=urls)
        other = found.get(index.maker)
        if other is None or best.order > other[0].order:
            found[index.maker] = best, item
    items = [item for _, item in found.values()]
    return tuple([item for item in items if item.version] or items)


def pip_command(
    words: Sequence[str], *, platforms: Sequence[str] = (), machine: Sequence[str] = ()
) -> str:
    """Return the command line of pip that installs builds, or downloads them.

    pip installs wheels for another machine only into a directory.

    :param platforms: the platform tags of the other machine, if any.
    :param machine: the options that describe its driver and GPUs.
    """
    options = [word for tag in platforms for word in ("--platform", tag)]
    if platforms:
        options += ["--only-binary", ":all:"]
    subcommand = "download" if platforms or machine else "install"
    return shlex.join(["nvp", "pip", subcommand, *words, *options, *machine])


def newest_in_table(
    project: str, environment: Environment, platform: str, *, every_gpu: bool = False
) -> str | None:
    """Return the newest runnable release on PyPI, according to the table of builds.

    :param every_gpu: require the release to run on every GPU of the machine.
    """
    judged = {
        Version(row.version): judge(row.needs, environment, every_gpu=every_gpu).verdict
        for row in build_records().get(canonicalize_name(project), ())
        if row.label is None and row.platform == platform
    }
    several = every_gpu and len(environment.compute_capabilities) > 1
    whole = [release for release, verdict in judged.items() if verdict == "runs"]
    partly = [release for release, verdict in judged.items() if verdict == "partly"]
    running = whole if several and whole else [*whole, *partly]
    return str(max(running)) if running else None


def say_source_build(project: str, torch: str | None, cuda: object = None) -> str:
    """Describe the requirements for building a project from source; empty if unknown.

    :param torch: the torch to build for, if known.
    :param cuda: the CUDA version of that torch.
    """
    indexes = table.find_vendors(project)
    if not any("torch" in index.needs for index in indexes):
        return "a build for the GPU may need nvcc" if indexes else ""
    which = f"torch {torch}" if torch else "torch, installed before it,"
    return (
        f"a build may need {which} with --no-build-isolation, and the nvcc of that "
        f"torch's CUDA{f' {cuda}' if cuda else ''}"
    )


def say_elsewhere(
    found: Sequence[Elsewhere], command: Callable[[Sequence[str]], str] = pip_command
) -> list[str]:
    """Return a sentence without a period for each index that has some of the builds.

    :param command: returns the command line that installs the given arguments.
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


def _find_backends(
    index: VendorIndex,
    project: str,
    environment: Environment,
    cuda: CudaVersion | None,
    torch: str | None = None,
) -> list[_Candidate]:
    """Return a candidate of unknown version for each backend that may run.

    :param cuda: the preferred CUDA version; if no backend has it, all are returned.
    :param torch: the torch version to match; ignored if the builds for it are unknown.
    """
    names = index.backends or (project.rpartition("-")[2],)
    builds = index.builds_for(Version(torch).release) if torch else None
    if builds is not None:
        names = tuple(row[1] for row in builds)
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
    """Yield the runnable builds of a project from the table.

    A project such as torchvision runs with its leader, torch: each of its versions is
    yielded once for each runnable build of the leader that its requirement allows.
    """
    leader = index.leader or project
    rows = [row for row in build_records().get(leader, ()) if row.platform == platform]
    running = [
        _Candidate(version, parse_backend(row.label), judgement, version)
        for row in rows
        if row.label in index.backends
        and (judgement := judge_for(row.needs)).verdict in _RUNNING
        and not (version := Version(row.version)).is_prerelease
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
            # A companion that does not pin its leader was built with the leader's
            # newest release on PyPI for the same CUDA: take the builds of that release.
            cuda = row.needs.cuda
            built = [Version(x.version) for x in plain if x.needs.cuda == cuda]
            newest = max(built, default=None)
            allowed = [each for each in allowed if each.version == newest]
        for each in allowed:
            yield each._replace(version=Version(row.version))


def _may_have(index: VendorIndex, wanted: str | None) -> bool:
    try:
        allowed = SpecifierSet(index.releases)
        return wanted is None or allowed.contains(wanted, prereleases=True)
    except ValueError:  # ``wanted`` may be an installed version that is invalid
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
    torch: str | None = None,
) -> Elsewhere:
    label = best.backend.label if best.backend else None
    minor = Version(torch).release[:2] if torch else None
    url = index.find_url(label, version=wanted, torch=minor)
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
        leader=best.leader,
        torch=f"torch=={minor[0]}.{minor[1]}.*"
        if minor and "{torch}" in index.url
        else None,
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
    place = f"at {item.url}"
    if command is None:
        each = "torch" if "{torch}" in item.index.url else "release"
        place = f"below {item.index.folder}, with a page for each {each}"
    return (
        f"{maker} {publishes} builds of {project}{cuda} {place} (nvp does not "
        f"know of which releases){'' if command is None else f': {command}'}"
    )


def _command(
    items: Sequence[Elsewhere], install: Callable[[Sequence[str]], str]
) -> str | None:
    if MISSING in items[0].url:
        return None
    names = dict.fromkeys(item.project for item in items)
    return install([*items[0].options, *names, *filter(None, [items[0].torch])])


def _is_in(place: tuple[str, ...], others: Iterable[tuple[str, ...]]) -> bool:
    return any(place[: len(other)] == other for other in others)


def _place(url: str) -> tuple[str, ...]:
    """Return the host and the directories in the URL of an index, for comparison."""
    parts = urlsplit(url)
    folders = [part for part in parts.path.split("/") if part]
    while folders and folders[-1] in ("simple", "+simple"):
        folders.pop()
    return parts.netloc.rpartition("@")[2].lower(), *folders
