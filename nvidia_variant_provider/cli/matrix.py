"""``matrix``: show which build of a release each driver and each GPU gets."""

from __future__ import annotations

import argparse
import contextlib
import io
import textwrap
from collections.abc import Mapping, Sequence

from . import machine
from .parsers import add_examples
from .render import render
from .result import Result, Table

__all__ = ["configure_parser", "execute"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..matrix.cells import Cell
    from ..matrix.grid import Grid
    from ..metadata import VariantsMetadata

_FORMATS = ("text", "markdown", "html", "svg", "json")


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a {name}-{version}-variants.json, a folder with one, or - for stdin",
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="text",
        help="the form of the output, where json means the same as --json (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="write the document to this file, completely or not at all; --json still "
        "prints its report",
    )
    machine.add_compatibility_option(parser)
    add_examples(
        parser,
        "matrix torch-2.8.0-variants.json",
        "matrix dist/ --format html --output matrix.html",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """``data``: ``cells``, each with ``cuda``, ``sm``, ``label`` and ``how``."""
    from ..machine.overrides import minor_version_compatibility
    from ..matrix.cells import find_cells
    from ..matrix.grid import make_grid
    from ..metadata.writing import replace_file
    from .release_file import read_release

    relaxed = minor_version_compatibility(machine.with_compatibility(options, environ))
    metadata = read_release(options.file)
    cells = find_cells(metadata, minor_version_compatibility=relaxed)
    data = {
        "cells": [
            {
                "cuda": str(cell.cuda),
                "sm": str(cell.capability),
                "label": cell.label,
                "how": cell.how,
            }
            for cell in cells
        ]
    }
    grid = make_grid(
        cells,
        title=_title(metadata),
        variants=metadata.variants,
        notes=_notes(metadata, cells, relaxed=relaxed),
    )
    as_json = options.format == "json"
    text = () if as_json else _document(options.format, grid)
    result = Result(
        data=data, text=text, verbatim=options.format != "text", as_json=as_json
    )
    if options.output in (None, "-"):
        return result
    replace_file(options.output, _printed(result))
    return Result(data=data, text=[f"{options.output}: written"])


def _title(metadata: VariantsMetadata) -> str:
    if metadata.name is None:
        return "This release"
    return f"{metadata.name.replace('_', '-')} {metadata.version}"


def _notes(
    metadata: VariantsMetadata, cells: Sequence[Cell], *, relaxed: bool
) -> list[str]:
    """What the picks leave open, each with where."""
    from ..machine.environment import ComputeCapability, CudaVersion
    from ..matrix.changes import find_risks
    from ..matrix.lanes import describe_lanes

    found: dict[str, set[tuple[CudaVersion, ComputeCapability]]] = {}
    for cell in cells:
        for risk in find_risks(metadata, cell):
            found.setdefault(risk, set()).add((cell.cuda, cell.capability))
    drivers = sorted({cell.cuda for cell in cells})
    gpus = sorted({cell.capability for cell in cells})
    opted = "Minor-version compatibility is on: not what installers do by default"
    return [
        *([opted] if relaxed else []),
        *(
            f"{risk[0].upper()}{risk[1:]}: "
            + "; ".join(describe_lanes(lanes, drivers=drivers, gpus=gpus))
            for risk, lanes in found.items()
        ),
    ]


def _document(form: str, grid: Grid) -> Sequence[str | Table]:
    if form == "html":
        from ..matrix.html import html_page

        return html_page(grid)
    if form == "svg":
        from ..matrix.svg import svg_drawing

        return svg_drawing(grid)
    from ..matrix.text import WIDTH, legend, markdown, text_blocks

    if form == "markdown":
        return markdown(grid)
    text: list[str | Table] = [
        f"{grid.title}: the build for each GPU and CUDA version of the driver",
        "",
    ]
    for block in text_blocks(grid):
        text += [Table(block.header, block.rows), ""]
    sentences = (*legend(grid), *grid.notes)
    return [*text, *(line for item in sentences for line in textwrap.wrap(item, WIDTH))]


def _printed(result: Result) -> str:
    """What `render` prints into a pipe, so that a file has the same."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        render(result, command="matrix", as_json=False)
    return printed.getvalue()
