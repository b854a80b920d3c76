"""The options that several verbs have, named as pip does where pip has them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nvidia_variant_provider.errors import UsageError

from .parsers import one_of, whole_number

__all__ = [
    "add_format",
    "add_index_options",
    "add_jobs",
    "add_label_option",
    "add_shared_options",
    "require_jobs",
]

_SHARED: Mapping[str, Mapping[str, Any]] = {
    "--all-lanes": {
        "action": "store_true",
        "help": "show drivers with GPUs that they do not support as well, marked",
    },
    "--assume": {
        "metavar": "NAMESPACE",
        "action": "append",
        "default": [],
        "help": "assume that all machines have what this namespace names, such as "
        "intel; hardware of other makers is absent otherwise",
    },
    "--every-gpu": {
        "action": "store_true",
        "help": "accept only builds with code for every GPU, not just for the newest "
        "one",
    },
    "--index-url": {
        "metavar": "URL",
        "help": "the index of a project (default: the one that pip is configured for)",
    },
    "--minor-version-compatibility": {
        "action": "store_true",
        "help": "accept builds for a newer minor version of the driver's CUDA major "
        "version as well, after all others",
    },
}
"""The options that are the same for each verb that has them."""


def add_shared_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add options that are the same for each verb that has them."""
    for name in names:
        short = ["-i"] if name == "--index-url" else []
        parser.add_argument(*short, name, **_SHARED[name])


def add_index_options(
    parser: argparse.ArgumentParser, *, index: str, extra: str, python: str
) -> argparse._ArgumentGroup:
    """Add ``--index-url`` and what belongs to it.

    :param index: what the help says of ``--index-url``.
    :param extra: what it says of ``--extra-index-url``.
    :param python: what it says of ``--python``.
    :returns: the group of the options, for others of the verb.
    """
    group = parser.add_argument_group(
        "indexes (default: those that pip is configured for)"
    )
    group.add_argument("-i", "--index-url", metavar="URL", help=index)
    _add_list(group, "--extra-index-url", metavar="URL", text=extra)
    _add_list(
        group,
        "--trusted-host",
        metavar="HOST",
        text="as for pip: do not verify this host, and allow plain HTTP",
    )
    group.add_argument("--python", metavar="PATH", help=python)
    return group


def _add_list(
    group: argparse._ArgumentGroup, name: str, *, metavar: str, text: str
) -> None:
    group.add_argument(name, metavar=metavar, action="append", default=[], help=text)


def add_label_option(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``--label``, whose values `selection.options.parse_pins` parses.

    :param text: what the help says of it.
    """
    parser.add_argument(
        "--label", metavar="[PROJECT=]LABEL", action="append", default=[], help=text
    )


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add ``--jobs`` to a verb that reads the files in wheels."""
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=whole_number,
        default=min(4, os.cpu_count() or 1),
        help="read this many files at the same time (default: %(default)s)",
    )


def require_jobs(options: argparse.Namespace) -> int:
    """Return the value of ``--jobs``.

    :raises UsageError: it is not positive.
    """
    jobs: int = options.jobs
    if jobs < 1:
        raise UsageError("--jobs must be at least 1", hint=f"{jobs} was given")
    return jobs


def add_format(parser: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    """Add ``--format``, whose default is ``text``."""
    parser.add_argument(
        "--format",
        choices=formats,
        type=one_of(formats),
        default="text",
        help="the form of the output, where json means the same as --json (default: "
        "%(default)s)",
    )
