"""``diff``: show which machines get another build from a new release."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ..errors import UsageError
from . import machine
from .parsers import add_examples
from .result import Result

__all__ = ["configure_parser", "execute"]

_FORMATS = ("text", "markdown", "json")


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    for name in ("old", "new"):
        parser.add_argument(
            name,
            metavar=name.upper(),
            help=f"the {name} release: a {{name}}-{{version}}-variants.json, a folder "
            "that holds one, or - for stdin",
        )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="text",
        help="the form of the output, where json means the same as --json (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--all", action="store_true", help="show the lanes that stay the same as well"
    )
    machine.add_compatibility_option(parser)
    add_examples(
        parser,
        "diff old-variants.json new-variants.json",
        "diff old/ new/ --format markdown",
        notes=[
            "A lane is one driver together with one GPU. The exit code is 1 when a "
            "lane loses its GPU build."
        ],
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """``data``: all ``lanes``; exit code 1 when one of them is lost."""
    from ..machine.overrides import minor_version_compatibility
    from ..matrix.changes import LOST, compare, release_names
    from ..matrix.differences import Differences, markdown_lines, text_lines
    from .release_file import read_release

    relaxed = minor_version_compatibility(machine.with_compatibility(options, environ))
    if options.old == options.new == "-":
        raise UsageError("OLD and NEW are both stdin", hint="name a file for one")
    old, new = read_release(options.old), read_release(options.new)
    lanes = compare(old, new, minor_version_compatibility=relaxed)
    names = release_names(old, new)
    notes = []
    if old.name and new.name and old.name != new.name:
        notes.append(f"{names[0]} and {names[1]} are different projects")
    data = {"lanes": [lane.to_dict() for lane in lanes]}
    differences = Differences(old=names[0], new=names[1], lanes=lanes)
    lines = markdown_lines if options.format == "markdown" else text_lines
    return Result(
        exit_code=1 if any(lane.change == LOST for lane in lanes) else 0,
        data=data,
        text=lines(differences, with_same=options.all),
        verbatim=options.format == "markdown",
        notes=notes,
        as_json=options.format == "json",
    )
