"""``releases``: show which releases of a project on an index a machine can run."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping

from nvidia_variant_provider.errors import redacted

from ..api import releases
from .arguments import (
    INDEXES,
    add_machine_options,
    add_options,
    detection_errors,
    find_environment,
    words_of,
)
from .parsers import PROGRAM, add_examples
from .render import Result, progress_bar

_OPTIONS = """
project PROJECT
  name of the project, such as torch
--all
  show each release in its own row, with development releases; a JSON report always has
  all
--inspect
  read the GPU code of large unknown wheels, newest first, until one runs, at most ten;
  with --all, of every one
"""

_INDEXES = """
--index-url
--extra-index-url
--trusted-host
--python PATH
  interpreter or environment to select wheels for, whose pip configuration applies
  (default: the activated one, or nvp's own)
--platform
-f, --find-links PLACE...
  another page of links or directory of wheels to read
"""

_BUILDS = """
--label
--vendor-indexes
--every-gpu
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, _OPTIONS)
    add_options(parser.add_argument_group(INDEXES), _INDEXES)
    add_options(parser, _BUILDS)
    add_machine_options(parser)
    add_examples(
        parser,
        "releases torch",
        "releases torch --cuda-driver 12.8 --sm-arch 7.0",
        "releases torch --cuda-driver 12.8 --sm-arch 8.9 --platform win_amd64",
        "releases demo --index-url https://wheels.example/",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """List releases; ``data`` has ``newest``, ``releases``, ``elsewhere`` and more."""
    from .release_text import say_releases

    environment = find_environment(options, environ)
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
    errors = detection_errors(environment)
    # The text ends with a warning if pip's selection is unknown: add no next step.
    is_unknown = environment.cuda_driver_version and table.unknown_pick
    text, status = say_releases(
        table,
        environment,
        everything=options.all,
        every_gpu=options.every_gpu,
        labels=options.label,
        platforms=[*map(redacted, options.platform)],
        machine=words_of(options),
    )
    return Result(
        exit_code=errors[0].exit_code if errors else status,
        data=table.to_dict(),
        text=text,
        notes=[*table.notes, *map(str, errors)],
        following=None if errors or is_unknown else _following(options, status),
        errors=errors,
    )


def _following(options: argparse.Namespace, status: int) -> str:
    """Return the next command, which installs a runnable build or searches further."""
    given = [word for word in options.ours if word not in ("--all", "--inspect")]
    if status:
        more = "--all" if options.vendor_indexes else "--vendor-indexes"
        words = ["releases", *given, more]
    else:
        # Suggest a download for another machine: these builds do not run here.
        other = bool(options.platform or words_of(options))
        binary = ["--only-binary", ":all:"] if options.platform else []
        words = ["pip", "download" if other else "install", *binary, *given]
    return shlex.join([PROGRAM, *map(redacted, words)])
