"""``releases``: show which releases of a project on an index a machine can run."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from nvidia_variant_provider.machine.environment import Environment

from ..api import releases
from . import machine
from .arguments import add_index_options, add_label_option, add_shared_options
from .parsers import add_examples
from .render import Result, Table, progress_bar

if TYPE_CHECKING:
    from ..builds.releases import ListedBuild, ListedRelease, ReleaseTable

NOTHING_RUNS = 1

_MOST = 10
"""The releases of each verdict that are shown without ``--all``."""

_WORDS = {
    "runs": "yes",
    "partly": "partly",
    "cannot": "no",
    "cpu": "CPU",
    "unknown": "unknown",
}
"""What the table says for each verdict."""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("project", metavar="PROJECT", help="its name, such as torch")
    parser.add_argument(
        "--all",
        action="store_true",
        help="show all releases instead of the newest ten of each verdict; a JSON "
        "report always has all",
    )
    parser.add_argument(
        "--inspect",
        action="store_true",
        help="read the GPU code of large wheels of which nothing is known, newest "
        "first, until one runs, and of at most ten; with --all, of every one",
    )
    group = add_index_options(
        parser,
        index="the index to read",
        extra="another index to read as well",
        python="the interpreter or environment that wheels are selected for, and whose "
        "pip is asked for its indexes (default: the activated one, or else this one)",
    )
    group.add_argument(
        "--platform",
        metavar="TAG",
        action="append",
        default=[],
        help="the platform tag of the wheels, as pip has it, such as win_amd64 or "
        "manylinux_2_28_aarch64 (default: what this machine runs); may be given again",
    )
    group.add_argument(
        "-f",
        "--find-links",
        metavar="PLACE",
        action="append",
        default=[],
        help="a page of links or a folder of wheels to read as well",
    )
    add_label_option(
        parser,
        "take this build instead of the best one, for one project or for every project "
        "that has it",
    )
    add_shared_options(parser, "--vendor-indexes", "--every-gpu")
    machine.add_options(parser)
    add_examples(
        parser,
        "releases torch",
        "releases torch --cuda-driver 12.8 --sm-arch 7.0",
        "releases torch --cuda-driver 12.8 --sm-arch 8.9 --platform win_amd64",
        "releases demo --index-url https://wheels.example/",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Return the keys ``project``, ``newest``, ``releases`` and ``elsewhere``."""
    environment = machine.find_environment(options, environ)
    table = releases(
        options.project,
        index_url=options.index_url,
        extra_index_urls=options.extra_index_url,
        find_links=options.find_links,
        trusted_hosts=options.trusted_host,
        vendor_indexes=options.vendor_indexes,
        every_gpu=options.every_gpu,
        labels=options.label,
        environment=environment,
        environ=environ,
        python=options.python,
        platforms=options.platform,
        inspect=options.inspect and ("all" if options.all else True),
        watch=progress_bar,
    )
    errors = machine.detection_errors(environment)
    status = NOTHING_RUNS if table.newest is None else 0
    return Result(
        exit_code=errors[0].exit_code if errors else status,
        data=table.to_dict(),
        text=_text(
            table,
            _facts(environment, options.platform),
            everything=options.all,
            labels=options.label,
            platforms=options.platform,
        ),
        notes=[*table.notes, *map(str, errors)],
        errors=errors,
    )


def _text(
    table: ReleaseTable,
    facts: str,
    *,
    everything: bool,
    labels: Sequence[str],
    platforms: Sequence[str],
) -> list[str | Table]:
    shown = [r for r in table.releases if r.builds]
    if not everything:
        shown = _newest_of_each(shown)
    rows = [
        _row(release, build, first=number == 0)
        for release in shown
        for number, build in enumerate(release.builds)
    ]
    where = " or ".join(platforms) or "the platform of this machine"
    text: list[str | Table] = [_sentence(table, facts, labels, where)]
    if rows:
        header = ("release", "build", "CUDA", "runs", "why")
        text += ["", Table(header=header, rows=rows)]
    left_out = len(table.releases) - len(shown)
    without = sum(not release.builds for release in table.releases)
    if left_out > without:
        text += ["", f"{left_out - without} older releases are left out; see --all."]
    elif everything and without:
        text += ["", f"{without} more have no wheel for {where}."]
    if table.elsewhere:
        from ..builds.vendors import say_elsewhere

        text += ["", *say_elsewhere(table.elsewhere)]
    return text


def _newest_of_each(listed: Iterable[ListedRelease]) -> list[ListedRelease]:
    counted: Counter[str | None] = Counter()
    shown = []
    for release in listed:
        counted[release.verdict] += 1
        if counted[release.verdict] <= _MOST:
            shown.append(release)
    return shown


def _sentence(
    table: ReleaseTable, facts: str, labels: Sequence[str], where: str
) -> str:
    """Return the first line: the newest release that runs, or that none does."""
    if table.newest is None:
        verdicts = {release.verdict for release in table.releases}
        if verdicts <= {None}:
            return f"{table.project} has no wheel for {where}."
        project = table.project
        if labels := [x for x in labels if "=" not in x or x.startswith(f"{project}=")]:
            return (
                f"No build of {table.project} with --label {' '.join(labels)} is known "
                f"to run on the GPU of a machine with {facts}."
            )
        if table.is_cpu_only:
            from ..wheels.archive import without_gpu

            return f"{without_gpu(table.project, table.platform)}."
        if "unknown" in verdicts:
            return (
                f"No build of {table.project} is known to run on the GPU of a machine "
                f"with {facts}."
            )
        return f"No build of {table.project} runs on the GPU of a machine with {facts}."
    newest = next(r for r in table.releases if r.version == table.newest)
    build = newest.builds[0]
    name = "" if build.label is None else f", build {build.label}"
    cuda = "" if build.cuda is None else f" (CUDA {build.cuda})"
    says = (
        f"{table.project} {newest.version}{name}{cuda} is the newest release that runs "
        f"on a machine with {facts}"
    )
    if newest.selected is None:
        return f"{says}, but it has no wheel that pip takes for this Python."
    return f"{says}."


def _facts(environment: Environment, platforms: Sequence[str]) -> str:
    where = f", for {' or '.join(platforms)}" if platforms else ""
    if environment.cuda_driver_version is None:
        return f"no NVIDIA driver{where}"
    facts = [f"a driver for CUDA {environment.cuda_driver_version}"]
    capabilities = dict.fromkeys(map(str, environment.compute_capabilities))
    if capabilities:
        facts.append(f"compute capability {', '.join(capabilities)}")
    return " and ".join(facts) + where


def _row(
    release: ListedRelease, build: ListedBuild, *, first: bool
) -> tuple[str, str, str, str, str]:
    return (
        release.version if first else "",
        build.label or "plain",
        build.cuda or "",
        _WORDS[build.verdict],
        "; ".join(_why(release, build)),
    )


def _why(release: ListedRelease, build: ListedBuild) -> list[str]:
    why = list(build.reasons)
    if build.verdict in ("runs", "partly"):
        if build.how == "ptx":
            why.insert(0, "PTX, which the driver compiles at the first start")
        elif not why and release.selected is None:
            why.append("no wheel for this Python")
    return why
