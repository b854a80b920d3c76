"""The text about the releases of a project: a sentence and a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from packaging.version import Version

from nvidia_variant_provider.machine.environment import Environment

from ..builds.releases import (
    PLAIN,
    GpuRequirement,
    ListedBuild,
    ListedRelease,
    ReleaseTable,
    say_lacking,
)
from ..builds.stepping_back import (
    common_reason,
    fold,
    say_range,
    without_source,
)
from ..builds.vendors import pip_command, say_elsewhere, say_source_build
from ..knowledge.builds import PROJECTS
from ..wheels.archive import without_gpu
from .render import Table

_NOTHING_RUNS = 1

_MOST = 20
"""The maximum number of rows without ``--all``."""

_WIDTH = 80
"""The width of the table; longer reasons are printed below it."""

_BUT = re.compile(r", but this one is for CUDA [0-9.]+$")
"""The part of a reason that the first line of the output already shows."""

_SELF = re.compile(r"^it (?:has (?=no )|is (?=unknown))?")

_WORDS = {
    "runs": "yes",
    "partly": "partly",
    "cannot": "no",
    "cpu": "CPU",
    "unknown": "unknown",
}
"""The text in the table for each verdict."""


class _Row(NamedTuple):
    """A row of the table, for consecutive releases with the same text.

    :param cuda: the CUDA version, if the build runs.
    """

    label: str
    word: str
    why: str
    cuda: str | None


_Groups: TypeAlias = Sequence[tuple[tuple[Version, ...], tuple[_Row, ...]]]
"""Groups of consecutive releases with the same rows, as ``(versions, rows)``."""


def say_releases(
    table: ReleaseTable,
    environment: Environment,
    *,
    everything: bool,
    every_gpu: bool,
    labels: Sequence[str],
    platforms: Sequence[str],
    machine: Sequence[str] = (),
) -> tuple[list[str | Table], int]:
    """Return the text about the releases of a project, and the exit code.

    :param everything: show each release in its own row, including development releases.
    :param every_gpu: accept only builds that run on every GPU.
    :param labels: the labels that the user requested.
    :param platforms: the platform tags that the user gave; empty for this machine's.
    :param machine: the user's options for another machine.
    """
    where = " or ".join(platforms) or "the platform of this machine"
    facts = _facts(environment, platforms)
    own = [x for x in labels if "=" not in x or x.startswith(f"{table.project}=")]
    has_driver = environment.cuda_driver_version is not None
    text: list[str | Table] = []
    if table.newest is not None:
        text += _say_newest(table, environment, facts, where, every_gpu=every_gpu)
    elif not own:
        text += _say_open(table, facts, where, has_driver=has_driver)
    status = 0 if text else _NOTHING_RUNS
    text = text or [_say_none(table, facts, where, own)]
    wanted = [x for x in table.gpu_requirements if {*x.extras} & {*table.extras}]
    if has_driver and wanted and all(item.reason for item in wanted):
        status = _NOTHING_RUNS
    if table.extras and not table.is_for_any_platform:
        name = f"{table.project}[{','.join(table.extras)}]"
        text.append(f"{name} is the same build, and requires other projects besides.")
    text += _say_rows(table, where, everything=everything)
    if table.elsewhere:
        command = partial(pip_command, platforms=platforms, machine=machine)
        text += ["", *say_elsewhere(table.elsewhere, command)]
    if has_driver and table.unknown_pick is not None:
        name = f"{table.project} {table.unknown_pick}"
        text += ["", f"{name}, which pip takes, is not known to run here."]
    return text, status


def _say_rows(
    table: ReleaseTable, where: str, *, everything: bool
) -> Iterator[str | Table]:
    shown = [r for r in table.releases if r.builds]
    without = len(table.releases) - len(shown)
    if not everything and not Version(table.newest or "0").is_prerelease:
        final = [r for r in shown if not Version(r.version).is_prerelease]
        shown = final or shown
    # Merge consecutive releases with the same row.
    said = [
        (
            Version(r.version),
            tuple(_row(b, where, briefly=not everything) for b in r.builds),
        )
        for r in shown
    ]
    groups: _Groups = fold(said)
    if everything:
        groups = [((version,), rows) for version, rows in said]
    elif table.is_for_any_platform or table.only_source is not None:
        return
    wanted = {Version(x) for x in (table.newest, table.taken, table.for_all) if x}
    named = [n for n, (versions, _) in enumerate(groups, 1) if wanted & {*versions}]
    end = len(groups) if everything else max([_MOST, *named])
    if groups:
        yield from ["", *_table(groups[:end], shown)]
    if left_out := sum(len(versions) for versions, _ in groups[end:]):
        yield from ["", f"{left_out} older releases are left out; see --all."]
    elif everything and without:
        yield from ["", f"{without} more have no wheel for {where}."]


def _table(
    groups: _Groups,
    shown: Sequence[ListedRelease],
) -> list[str | Table]:
    """Return the table, followed by the reasons that do not fit into it."""
    cuda: dict[tuple[Version, str], str | None] = {
        (Version(release.version), build.label or PLAIN): build.cuda
        for release in shown
        for build in release.builds
    }
    lines = []
    for versions, rows in groups:
        for number, row in enumerate(rows):
            found = [cuda.get((version, row.label)) for version in versions]
            several = sorted({*filter(None, found)}, key=Version)
            span = "-".join(dict.fromkeys([*several[:1], *several[-1:]]))
            name = "" if number else say_range(versions)
            lines.append([name, row.label, span, row.word, row.why])
    header = ("release", "build", "CUDA", "runs", "why")
    columns = list(zip(header, *lines, strict=True))[:-1]
    room = _WIDTH - sum(max(map(len, column)) + 2 for column in columns)
    below: dict[str, str] = {}
    for line in lines:
        if len(line[-1]) > max(room, len(header[-1])):
            line[-1] = below.setdefault(line[-1], f"[{len(below) + 1}]")
    table = Table(header=header, rows=lines)
    reasons = [f"{mark} {reason}" for reason, mark in below.items()]
    return [table, *(["", *reasons] if reasons else [])]


def _say_newest(
    table: ReleaseTable,
    environment: Environment,
    facts: str,
    where: str,
    *,
    every_gpu: bool,
) -> Iterator[str]:
    """Yield sentences on the newest release that runs."""
    version = table.taken or table.newest
    newest = next(r for r in table.releases if r.version == version)
    build = newest.builds[0]
    name = "" if build.label is None else f", build {build.label}"
    cuda = "" if build.cuda is None else f" (CUDA {build.cuda})"
    each = "each GPU of " if every_gpu and len(environment.gpus) > 1 else ""
    says = (
        f"{table.project} {newest.version}{name}{cuda} is the newest release that runs "
        f"on {each}a machine with {facts}"
    )
    if newest.selected is None:
        taker = _taker(newest.builds, where)
        says += f", but it has no wheel that pip takes for {taker}"
    yield f"{says}."
    if table.newest not in (None, version):
        newer = next(r for r in table.releases if r.version == table.newest)
        yield (
            f"{table.project} {table.newest} would run here too, but has no wheel that "
            f"pip takes for {_taker(newer.builds, where)}."
        )
    if build.lacking:
        title = f"{table.project} {newest.version}"
        more = say_lacking(title, build.lacking, environment, table.for_all)
        wanted = f"--every-gpu {table.project}=={table.for_all}"
        yield f"{more}: nvp pip install {wanted}" if table.for_all else f"{more}."


def _say_open(
    table: ReleaseTable, facts: str, where: str, *, has_driver: bool
) -> Iterator[str]:
    """Yield sentences on the selected release, unless that release is known to fail."""
    project, chosen = table.project, table.chosen
    if table.only_source is not None:
        yield (
            f"{project} {table.only_source} has no wheel for {where}: pip builds "
            f"{table.only_source} from source."
        )
        if needs := say_source_build(project, None):
            yield f"{needs[0].upper()}{needs[1:]}."
        # The wheels may belong to other projects, as cupy's belong to cupy-cuda12x.
        for name in sorted(x for x in PROJECTS if x.startswith(f"{project}-cu")):
            yield f"{name} has wheels: nvp releases {name}"
    elif chosen is None:
        return
    elif table.is_for_any_platform:
        yield f"{table.without_code}."
        required = table.gpu_requirements
        wanted = {*table.extras}
        asked = [x for x in required if not x.extras or wanted & {*x.extras}]
        if any(item.reason for item in asked):
            known = {*asked}
            asked += [x for x in required if x not in known and not x.reason]
        for item in asked or required:
            yield _say_required(project, item, wanted)
    elif not has_driver:
        yield (
            f"pip takes {project} {chosen.version} on a machine with {facts}, and it "
            "will not use a GPU."
        )
    elif chosen.verdict == "unknown" and not any(
        release.verdict == "cannot"
        for release in takewhile(lambda release: release is not chosen, table.releases)
    ):
        yield (
            f"pip takes {project} {chosen.version}, and it is unknown whether it runs "
            f"on the GPU of a machine with {facts}: its code was not read, which "
            "--inspect does."
        )


def _say_none(
    table: ReleaseTable, facts: str, where: str, labels: Sequence[str]
) -> str:
    """State that no release runs, or is known to run, on the GPU."""
    final = [x for x in table.releases if not Version(x.version).is_prerelease]
    verdicts = {release.verdict for release in final or table.releases}
    if verdicts <= {None}:
        return f"{table.project} has no wheel for {where}."
    if table.is_cpu_only and not labels:
        return f"{without_gpu(table.project, table.platform)}."
    known = "is known to run" if labels or "unknown" in verdicts else "runs"
    label = f" with --label {' '.join(labels)}" if labels else ""
    runs = f"{known} on the GPU of" if facts.startswith("a driver") else "uses a GPU on"
    return f"No build of {table.project}{label} {runs} a machine with {facts}."


def _say_required(project: str, required: GpuRequirement, wanted: set[str]) -> str:
    name = required.project
    extras = wanted.intersection(required.extras) or required.extras
    # Prefer an extra that is part of the required project's name, such as cuda12.
    extra = max(
        extras, key=lambda e: (e in name, len(e) if e in name else -len(e)), default=""
    )
    who = f"{project}[{extra}]" if extra else project
    reason = f"; {common_reason(required.reason)}" if required.reason else ""
    return f"{who} requires {name}: nvp releases {name}{reason}"


def _facts(environment: Environment, platforms: Sequence[str]) -> str:
    where = f", for {' or '.join(platforms)}" if platforms else ""
    if environment.cuda_driver_version is None:
        return f"no NVIDIA driver{where}"
    facts = [f"a driver for CUDA {environment.cuda_driver_version}"]
    capabilities = dict.fromkeys(map(str, environment.compute_capabilities))
    if capabilities:
        facts.append(f"compute capability {', '.join(capabilities)}")
    return " and ".join(facts) + where


def _taker(builds: Sequence[ListedBuild], where: str) -> str:
    """Name the target that the builds do not fit: this Python, or else the platform."""
    return "this Python" if any(build.fits_platform for build in builds) else where


def _row(build: ListedBuild, where: str, *, briefly: bool) -> _Row:
    # Keep the name of a library without code: it shows which part does not run.
    is_common = briefly and (build.verdict != "partly" or build.lacking)
    shorten = common_reason if is_common else without_source
    why = [_SELF.sub("", _BUT.sub("", shorten(reason))) for reason in build.reasons]
    runs = build.verdict in ("runs", "partly")
    if runs and build.how == "ptx":
        why.insert(0, "PTX, compiled at the first start")
    if not build.installable:
        known = why if build.verdict == "cannot" else []
        why = [f"no wheel for {_taker([build], where)}", *known]
    word = _WORDS[build.verdict]
    return _Row(
        label=build.label or PLAIN,
        word=f"({word})" if runs and not build.installable else word,
        why="; ".join(dict.fromkeys(why)),
        cuda=build.cuda if runs else None,
    )
