"""``matrix``: show which build of a release each driver and each GPU gets."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Mapping, Sequence

from .arguments import (
    add_options,
    choice,
    read_releases,
)
from .parsers import add_examples
from .render import Result, Table, render, terminal_width, wrap_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..matrix.cells import Matrix
    from ..matrix.grid import Grid

_OPTIONS = """
file FILE
  {name}-{version}-variants.json, its URL, a directory with one, - for stdin, or a
  release on an index, such as torch==2.15.0
--format
-o, --output OUT
  write the document to this file, atomically; --json still prints its report
--all-pairs
--index-url
--assume
--minor-version-compatibility
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    formats = choice("text", "markdown", "html", "svg", "json")
    add_options(parser, _OPTIONS, format=formats)
    add_examples(
        parser,
        "matrix torch-2.8.0-variants.json",
        "matrix dist/ --format html --output matrix.html",
        "matrix torch==2.15.0",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Find builds; each of ``data.cells`` has ``cuda``, ``sm``, ``label``, ``how``."""
    from ..files import replace_file
    from ..matrix.grid import grid_of

    builds = _find_matrix(options, environ)
    data = builds.to_dict()
    as_json = options.format == "json"
    into_file = options.output not in (None, "-")
    width = None if into_file else terminal_width(sys.stdout)
    text = () if as_json else _document(options.format, grid_of(builds), width)
    result = Result(
        data=data, text=text, verbatim=options.format != "text", as_json=as_json
    )
    if not into_file:
        return result
    replace_file(options.output, _printed(result))
    return Result(data=data, text=[f"{options.output}: written"])


def _find_matrix(options: argparse.Namespace, environ: Mapping[str, str]) -> Matrix:
    from ..api import matrix

    releases = read_releases(options, environ, options.file)
    return matrix(
        *releases,
        project=None if releases else options.file,
        index_url=options.index_url,
        assume=options.assume,
        all_pairs=options.all_pairs,
        minor_version_compatibility=options.minor_version_compatibility or None,
        environ=environ,
    )


def _document(form: str, grid: Grid, width: int | None) -> Sequence[str | Table]:
    if form == "html":
        from ..matrix.pictures import html_page

        return html_page(grid)
    if form == "svg":
        from ..matrix.pictures import svg_drawing

        return svg_drawing(grid)
    from ..matrix.text import WIDTH, legend, markdown, text_blocks

    if form == "markdown":
        return markdown(grid)
    columns = WIDTH if width is None else width
    text: list[str | Table] = [
        f"{grid.title}: the build for each GPU and CUDA version of the driver",
        "",
    ]
    for header, rows in text_blocks(grid, width=columns):
        text += [Table(header=header, rows=rows), ""]
    for sentence in (*legend(grid), *grid.notes):
        text += wrap_line(sentence, columns)
    return text


def _printed(result: Result) -> str:
    """Return the text that `render` prints to a pipe, to write it to a file."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        render(result, command="matrix", as_json=False)
    return printed.getvalue()
