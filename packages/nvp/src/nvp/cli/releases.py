"""``releases``: show which releases of a project on an index a machine can run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ..api import releases
from . import machine
from .arguments import add_index_options, add_label_option, add_shared_options
from .parsers import add_examples
from .render import Result, progress_bar


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("project", metavar="PROJECT", help="its name, such as torch")
    parser.add_argument(
        "--all",
        action="store_true",
        help="show each release in a row of its own, development releases too; a JSON "
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
    from .release_text import say_releases

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
    text, status = say_releases(
        table,
        environment,
        everything=options.all,
        every_gpu=options.every_gpu,
        labels=options.label,
        platforms=options.platform,
    )
    return Result(
        exit_code=errors[0].exit_code if errors else status,
        data=table.to_dict(),
        text=text,
        notes=[*table.notes, *map(str, errors)],
        errors=errors,
    )
