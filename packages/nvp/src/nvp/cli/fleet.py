"""``fleet``: show each machine's build, and the fewest builds that serve the fleet."""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence

from nvidia_variant_provider.errors import (
    InputError,
    UsageError,
    printable,
    redacted,
    shown,
)

from .arguments import add_options, choice
from .parsers import PROGRAM, add_examples
from .render import Result, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..fleet.serving import Fleet, Served

NOTHING_FITS = 1


_OPTIONS = """
inventories INVENTORY...
  file that describes machines, such as the output of kubectl get nodes -o json, or -
  for stdin
"""

_BUILDS = """
--release FILE
  choose among the builds of this {name}-{version}-variants.json
--project NAME
  choose among the releases of this project on an index, such as torch or torch==2.15.0,
  with regular wheels
"""

_OUTPUT = """
--index-url
--format
--emit
  print how to use the build of one group: variables that force its machines, lines of a
  Dockerfile, or a Kubernetes node affinity
--node NAME
  machine whose group --emit uses (default: the largest group)
--explain
  show why a machine does not get the other builds
--per-machine
  list every machine instead of groups of equal machines
--every-gpu
--minor-version-compatibility
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, _OPTIONS)
    add_options(parser.add_mutually_exclusive_group(), _BUILDS)
    add_options(
        parser,
        _OUTPUT,
        format=choice("text", "markdown", "html", "csv", "json"),
        emit={**choice("env", "dockerfile", "affinity"), "default": None},
    )
    add_examples(
        parser,
        "fleet nodes.json --release torch-2.10.0-variants.json",
        "fleet node.xml node.csv",
        "fleet nodes.json --project torch",
        "fleet nodes.json --project torch --emit affinity",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Choose builds; ``data`` has ``machines``, ``covering`` and ``smallest_set``."""
    from ..api import fleet
    from ..inventories.reading import read_inventories
    from .arguments import read_release

    _check(options)
    metadata = read_release(options.release, environ) if options.release else None
    machines, errors = read_inventories(options.inventories)
    if not machines:
        return Result(exit_code=errors[0].exit_code, errors=errors)
    result = fleet(
        machines,
        metadata,
        project=options.project,
        index_url=options.index_url,
        per_machine=options.per_machine,
        every_gpu=options.every_gpu,
        minor_version_compatibility=options.minor_version_compatibility or None,
        environ=environ,
    )
    unserved = [item for item in result.served if item.is_unserved]
    title: str | None = options.project
    if metadata is not None:
        title = f"{metadata.name} {metadata.version}" if metadata.name else "a release"
    emits = options.emit is not None
    code = NOTHING_FITS if unserved and not emits else 0
    text: Sequence[str | Table]
    following = None
    if emits:
        name = options.project
        if metadata is not None and metadata.name is not None:
            name = f"{metadata.name}=={metadata.version}"
        text = _emit(options, result, name)
    else:
        text = _text(result, chooses=title is not None, explain=options.explain)
        text = _document(options, result, text, title)
        if options.format == "text":
            following = _following(options, result, title)
    notes = [*map(str, errors), *dict.fromkeys(() if emits else _notes(result))]
    as_json = options.json or options.format == "json"
    return Result(
        exit_code=InputError.exit_code if errors else code,
        # Only the JSON report needs all reasons, which take long for many labels.
        data=result.to_dict() if as_json else {},
        text=text,
        verbatim=emits or options.format != "text",
        as_json=options.format == "json" and not emits,
        notes=notes,
        following=following,
        errors=errors,
    )


def _following(
    options: argparse.Namespace, fleet: Fleet, title: str | None
) -> str | None:
    """Return the next step: choose builds, use a build, or see why no build fits."""
    line = shlex.join([PROGRAM, "fleet", *map(redacted, options.ours)])
    if title is None:
        return f"to choose builds: {line} --project torch"
    known = next((x.selection for x in fleet.served if x.group.is_known), None)
    if known is not None and known.gpu:
        return f"to build an image for the largest group: {line} --emit dockerfile"
    return f"to see why: {line} --explain" if known and not options.explain else None


def _check(options: argparse.Namespace) -> None:
    """Reject options without effect."""
    # A Dockerfile names the index even if the release comes from a file.
    uses_index = options.project is not None or options.emit == "dockerfile"
    if options.index_url is not None and not uses_index:
        message = "only a project is looked up on an index"
        raise UsageError(message, path="--index-url", hint="give --project NAME")
    if options.emit is None and options.node is not None:
        hint = "give --emit as well, or --per-machine to see every machine"
        raise UsageError("it is for --emit", path="--node", hint=hint)
    if options.emit is not None and options.format not in ("text", "json"):
        message = "the output of --emit has its own form"
        raise UsageError(message, path="--format", hint="leave one of them out")


def _document(
    options: argparse.Namespace,
    fleet: Fleet,
    text: Sequence[str | Table],
    title: str | None,
) -> Sequence[str | Table]:
    from ..fleet.documents import csv_lines, html_lines, markdown_lines

    table = text[0]
    if options.format in ("text", "json") or not isinstance(table, Table):
        return text
    if options.format == "csv":
        return csv_lines(table.header, table.rows)
    notes = [line.strip() for line in text[1:] if isinstance(line, str) and line]
    if options.format == "markdown":
        return markdown_lines(table.header, table.rows, notes)
    chooses = title is not None
    covering = itertools.islice(_summary(fleet), 1) if chooses else ()
    return html_lines(
        fleet,
        [_build(served) if chooses else None for served in fleet.served],
        title=title,
        notes=list(dict.fromkeys((*covering, *_notes(fleet)))),
    )


def _emit(
    options: argparse.Namespace, fleet: Fleet, project: str | None
) -> Sequence[str]:
    from ..fleet.documents import affinity_lines, dockerfile_lines, env_lines

    served = _find_served(fleet, options.node)
    environment = served.group.environment
    if options.emit == "env":
        return env_lines(environment)
    if project is None or served.selection is None or not served.selection.gpu:
        message = f"there is no build for the GPU of {served.group.names[0]}"
        hint = "give --release or --project with one, or another --node"
        raise UsageError(message, path="--emit", hint=hint)
    build = served.selection.selected
    if build not in served.selection.gpu:
        build = served.selection.gpu[0]
    if options.emit == "dockerfile":
        if options.project is not None:
            # Pin the build: its version includes the label.
            version = served.selection.versions.get(build, build)
            project = f"{project.partition('==')[0].strip()}=={version}"
        return dockerfile_lines(environment, project, options.index_url)
    others = [
        item.group.environment
        for item in fleet.served
        if item.selection is not None and build in item.selection.gpu
    ]
    return [f"# nodes that run {printable(build)}", *affinity_lines(others)]


def _find_served(fleet: Fleet, node: str | None) -> Served:
    for served in fleet.served:
        if served.group.is_known if node is None else node in served.group.names:
            return served
    names = [served.group.names[0] for served in fleet.served][:10]
    message = f"no machine is called {shown(node)}" if node else "no machine is known"
    hint = f"there are {', '.join(map(shown, names))}"
    raise UsageError(message, path="--node", hint=hint)


def _text(fleet: Fleet, *, chooses: bool, explain: bool) -> Sequence[str | Table]:
    header = (
        "Machines",
        "First machine",
        "Driver and GPU",
        *(["Build"] if chooses else []),
    )
    rows = [
        (
            str(len(served.group.names)),
            served.group.names[0],
            served.group.title,
            *([_build(served)] if chooses else []),
        )
        for served in fleet.served
    ]
    text: list[str | Table] = [Table(header=header, rows=rows)]
    if chooses:
        text += ["", *_summary(fleet)]
    if explain:
        rejected = [
            f"{served.group.title}: not {name}: {'; '.join(reasons)}"
            for served in fleet.served
            if served.selection
            for name, reasons in served.selection.rejected.items()
        ]
        text += ["", *dict.fromkeys(rejected)]
    return text


def _build(served: Served) -> str:
    if served.selection is None:
        return "unknown"
    if served.selection.selected is None:
        return "none for the GPU"
    return served.selection.selected


def _summary(fleet: Fleet) -> Iterator[str]:
    if not any(served.group.is_known for served in fleet.served):
        yield "Nothing is chosen: too little is known about each machine."
        return
    listed = ", ".join(fleet.covering)
    known = all(served.group.is_known for served in fleet.served)
    which = "machine" if known else "known machine"
    yield f"Builds that run on every {which}: {listed or 'none'}"
    if fleet.cover is None or not fleet.cover.labels:
        yield "No build uses the GPU of any machine."
        return
    word = "Fewest" if fleet.cover.is_smallest else "Few"
    total = sum(len(served.group.names) for served in fleet.served)
    yield f"{word} builds that give each machine one for its GPU:"
    for label, count in fleet.cover.gains.items():
        yield f"  {label}: {count} of {total} machine{'s' if total > 1 else ''}"


def _notes(fleet: Fleet) -> Iterator[str]:
    for served in fleet.served:
        group = served.group
        others = len(group.names) - 1
        name = f"{group.names[0]} and {others} like it" if others else group.names[0]
        for note in group.notes:
            yield f"{name}: {note}"
        if group.missing is not None:
            yield f"{name}: the inventory does not say {group.missing}"
        if served.is_unserved:
            changes = "; ".join(_changes(served)) or "no newer driver changes that"
            yield f"{group.title}: no build for the GPU fits; {changes}"


def _changes(served: Served) -> Iterator[str]:
    """Yield changes that lead to a GPU build, the smallest first."""
    if served.of_another_release is not None:
        yield f"{served.of_another_release} runs with the installed driver"
    if served.with_compatibility is not None:
        yield f"--minor-version-compatibility gets {served.with_compatibility}"
    if served.driver is not None:
        yield f"a driver for CUDA {served.driver} gets {served.with_driver}"
