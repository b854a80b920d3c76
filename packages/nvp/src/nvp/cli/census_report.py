"""What ``census --report`` and ``census --export`` print of a store."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from nvidia_variant_provider.errors import UsageError

from .result import Result, Table

__all__ = ["add_options", "is_asked_for", "show_store"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..census.summary import ProjectSummary, ReleaseSummary


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that show what a store has, instead of reading an index."""
    group = parser.add_argument_group("options that read the store alone")
    group.add_argument(
        "--export",
        metavar="FILE",
        help="write what the store has to a file: .parquet, .jsonl and .csv have a row "
        "for each target of each library; .json is a table of builds",
    )
    group.add_argument(
        "--report",
        action="store_true",
        help="print the builds of each project, and what changed between releases",
    )
    group.add_argument(
        "--format",
        choices=("text", "html"),
        default="text",
        help="the form of the report (default: %(default)s)",
    )


def is_asked_for(options: argparse.Namespace) -> bool:
    """Return whether the store is shown, and no index read.

    :raises UsageError: an index is named as well, or nothing at all.
    """
    shows = options.report or options.export is not None
    if shows and options.index is not None:
        message = "--report and --export read the store alone"
        raise UsageError(message, hint="leave out the index, or read it first")
    if not shows and options.index is None:
        hint = "name one, or give --report or --export"
        raise UsageError("there is no index to read", hint=hint)
    if options.format != "text" and not options.report:
        raise UsageError("--format is for --report", hint="give --report as well")
    return shows


def show_store(options: argparse.Namespace) -> Result:
    """Export the store, print its report, or do both."""
    from ..census.export import export
    from ..census.store import Store
    from ..census.summary import count_wheels, summarize

    with Store(options.output, create=False) as store:
        data: dict[str, object] = {**count_wheels(store), "store": options.output}
        text: list[str | Table] = []
        if options.export is not None:
            rows = export(store, options.export)
            data["exported"] = {"path": options.export, "rows": rows}
            if not options.report:
                count = "1 row" if rows == 1 else f"{rows} rows"
                text.append(f"{options.export}: {count} written")
        if options.report:
            projects = list(summarize(store))
            data["projects"] = [item.to_dict() for item in projects]
            text += _report(options.format, projects)
    return Result(data=data, text=text, verbatim=options.format == "html")


def _report(form: str, projects: Sequence[ProjectSummary]) -> Iterator[str | Table]:
    if form == "html":
        from ..census.page import census_page

        yield from census_page(projects)
        return
    for number, project in enumerate(projects):
        if number:
            yield ""
        yield f"{project.project}: CUDA {', '.join(project.cuda) or 'unknown'}"
        builds = project.with_gpu_code
        if builds:
            header = (
                *("Release", "Build", "Platform", "CUDA"),
                *("Oldest", "Newest", "PTX", "Changes"),
            )
            yield Table(header=header, rows=[_row(item) for item in builds])
        others = len(project.releases) - len(builds)
        if others:
            yield f"{others} more without kernels, skipped or failed"
    if not projects:
        yield "The store has no wheel."


def _row(item: ReleaseSummary) -> tuple[str, ...]:
    machine_code = _numbers(item, "real")
    ptx = _numbers(item, "virtual")
    changes = [f"+{target}" for target in item.gained]
    changes += [f"-{target}" for target in item.lost]
    return (
        item.version,
        item.label or "-",
        item.platform.partition(".")[0],
        item.cuda or "-",
        machine_code[0] if machine_code else "-",
        machine_code[-1] if machine_code else "-",
        ", ".join(ptx) or "-",
        " ".join(changes),
    )


def _numbers(item: ReleaseSummary, kind: str) -> list[str]:
    ending = f"_{kind}"
    return [t.removesuffix(ending) for t in item.targets if t.endswith(ending)]
