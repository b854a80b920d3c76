"""Documents about a fleet, and documents for its machines.

The table of the fleet is in Markdown, CSV or HTML. The commands and manifests are for
one group of machines and its selected build.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nvidia_variant_provider.errors import InputError, printable, redacted, shown
from nvidia_variant_provider.machine.environment import (
    CUDA_DRIVER_VERSION,
    SM_ARCH,
    CudaVersion,
    Environment,
)

from ..matrix.style import (
    as_csv,
    as_html,
    as_markdown,
    as_notes,
    as_page,
    markdown_table,
    tone_classes,
)
from ..metadata.requirements import parse_requirement
from .serving import Fleet, Served

Rows = Sequence[Sequence[str]]

_TITLE = "Which build each machine gets"

_DRIVER_LABELS = ("nvidia.com/cuda.runtime-version", "nvidia.com/cuda.runtime")
"""The new and the old prefix of the node labels for the driver's CUDA version."""

_GPU_LABEL = "nvidia.com/gpu.compute"


def markdown_lines(
    header: Sequence[str], rows: Rows, notes: Sequence[str]
) -> list[str]:
    """Return the lines of a table in Markdown, with the summary below it."""
    lines = markdown_table(header, ([*map(as_markdown, row)] for row in rows))
    return [f"# {_TITLE}", "", *lines, "", *(f"- {as_markdown(n)}" for n in notes)]


def csv_lines(header: Sequence[str], rows: Rows) -> list[str]:
    """Return the lines of a table in CSV, each row on one line."""
    text = io.StringIO()
    cells = ([*map(as_csv, row)] for row in (header, *rows))
    csv.writer(text, lineterminator="\n").writerows(cells)
    return text.getvalue().splitlines()


def html_lines(
    fleet: Fleet,
    builds: Sequence[str | None],
    *,
    title: str | None,
    notes: Sequence[str],
) -> list[str]:
    """Return the lines of the HTML page, in ASCII and in the style of `matrix`.

    :param builds: the text of each group's tile; ``None`` if no build was selected for
        any machine.
    :param title: the release, such as ``torch 2.10.0``.
    :param notes: sentences for the end of the page.
    """
    tones = _tones(fleet)
    heading = as_html(title or _TITLE)
    lead = "Machines with the same driver and the same GPUs are in one row"
    if title is not None:
        lead = f"{_TITLE}. {lead}"
    body = [*_table(fleet, builds, tones), *_fewest(fleet, tones), *as_notes(notes)]
    name = f"{heading}: the machines"
    return list(as_page(title=name, heading=heading, lead=f"{lead}.", body=body))


def _tones(fleet: Fleet) -> Mapping[str, str]:
    """Return the CSS class of each build that uses a GPU."""
    used = {
        served.selection.selected
        for served in fleet.served
        if served.selection and served.selection.selected in served.selection.gpu
    }
    listed = fleet.cover.labels if fleet.cover is not None else ()
    return tone_classes(sorted({*filter(None, used), *listed}))


def _table(
    fleet: Fleet, builds: Sequence[str | None], tones: Mapping[str, str]
) -> Iterator[str]:
    heads = ["Driver and GPU", "Machines", *(["Build"] if any(builds) else [])]
    yield (
        '<div class="scroll" role="region" tabindex="0" aria-labelledby="groups">'
        '<table class="groups">'
    )
    yield f'<caption id="groups">{_TITLE}</caption>'
    cells = "".join(f'<th scope="col">{head}</th>' for head in heads)
    yield f"<thead><tr>{cells}</tr></thead>"
    yield "<tbody>"
    for served, build in zip(fleet.served, builds, strict=True):
        names = served.group.names
        others = f" and {len(names) - 1} like it" if len(names) > 1 else ""
        tile = ""
        if build is not None:
            tile = f'<td class="{_classes(served, tones)}">{as_html(build)}</td>'
        yield (
            f'<tr><th scope="row"><b>{as_html(served.group.title)}</b> '
            f"<small>{as_html(names[0] + others)}</small></th>"
            f'<td class="count">{len(names)}</td>{tile}</tr>'
        )
    yield "</tbody></table></div>"


def _classes(served: Served, tones: Mapping[str, str]) -> str:
    if served.selection is None:
        return "gone"
    if served.selection.selected not in served.selection.gpu:
        return "cpu"
    return tones[served.selection.selected]


def _fewest(fleet: Fleet, tones: Mapping[str, str]) -> Iterator[str]:
    if fleet.cover is None or not fleet.cover.gains:
        return
    word = "Fewest" if fleet.cover.is_smallest else "Few"
    yield f"<h2>{word} builds that give each machine one for its GPU</h2>"
    yield '<ul class="legend">'
    total = sum(len(served.group.names) for served in fleet.served)
    machines = "machine" if total == 1 else "machines"
    for label, count in fleet.cover.gains.items():
        yield (
            f'<li><span class="key {tones[label]}">{as_html(label)}</span> '
            f"<span>{count} of {total} {machines}</span></li>"
        )
    yield "</ul>"


def env_lines(environment: Environment) -> list[str]:
    """Return the ``NAME=VALUE`` variables that make the provider report the machine.

    Only the newest GPU is used: the provider itself ignores older GPUs.
    """
    lines = []
    if environment.cuda_driver_version is not None:
        lines.append(f"{CUDA_DRIVER_VERSION}={environment.cuda_driver_version}")
    capabilities = environment.compute_capabilities
    if capabilities:
        lines.append(f"{SM_ARCH}={max(capabilities)}")
    return lines


def dockerfile_lines(
    environment: Environment, requirement: str, index_url: str | None = None
) -> list[str]:
    """Return lines for an image that may be built without a GPU.

    :param requirement: the requirement, such as ``torch==2.10.0``.
    :param index_url: the index, unless it is configured. A password in it is left out.
        A directory is also left out, because the build of an image cannot read it.
    :raises InputError: the requirement is invalid, for example because it was made from
        the name of a renamed release file.
    """
    parsed = parse_requirement(requirement)
    if parsed is None or parsed.url is not None:  # the file's name chooses no server
        message = f"{shown(requirement)} is not a name with a version"
        hint = "give the file its name again: NAME-VERSION-variants.json"
        raise InputError(message, hint=hint)
    wanted = shlex.quote(str(parsed))
    lines = [
        "# Select for these machines, whatever machine builds the image.",
        *(f"ARG {line}" for line in env_lines(environment)),
    ]
    index = ""
    if index_url is not None and "://" in index_url:
        public = redacted(index_url)
        index = f" --index-url {shlex.quote(printable(public))}"
        if public != index_url:
            lines.append("# Put the password of the index into a secret of the build.")
    return [
        *lines,
        "RUN pip install --no-cache-dir nvp \\",
        f" && nvp pip install --no-cache-dir{index} {wanted}",
        "# With uv, whose preview knows variants but not regular wheels:",
        f"# RUN uv pip install --system --preview-features wheel-variants{index} "
        f"{wanted}",
    ]


def affinity_lines(environments: Iterable[Environment]) -> list[str]:
    """Return the YAML of a node affinity for nodes that are like these machines.

    The terms of a node selector are alternatives, and all expressions of a term must
    match.

    :param environments: the environments of all machines that run the build.
    """
    minors: dict[tuple[CudaVersion, int], set[int]] = {}
    for environment in environments:
        cuda = environment.cuda_driver_version
        if cuda is None:
            continue
        for capability in environment.compute_capabilities:
            same = minors.setdefault((cuda, capability.major), set())
            same.add(capability.minor)
    lines = [
        "affinity:",
        "  nodeAffinity:",
        "    requiredDuringSchedulingIgnoredDuringExecution:",
        "      nodeSelectorTerms:",
    ]
    for cuda, major in sorted(minors):
        for driver in _DRIVER_LABELS:
            lines += _term(
                [
                    (f"{driver}.major", [cuda.major]),
                    (f"{driver}.minor", [cuda.minor]),
                    (f"{_GPU_LABEL}.major", [major]),
                    (f"{_GPU_LABEL}.minor", sorted(minors[cuda, major])),
                ]
            )
    return lines


def _term(expressions: Sequence[tuple[str, Sequence[int]]]) -> list[str]:
    lines = ["      - matchExpressions:"]
    for key, values in expressions:
        # Quote values: Kubernetes rejects numbers.
        listed = ", ".join(f'"{value}"' for value in values)
        lines += [
            f"        - key: {key}",
            "          operator: In",
            f"          values: [{listed}]",
        ]
    return lines
