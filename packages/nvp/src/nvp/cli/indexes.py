"""The options that name indexes and builds on them, as pip does where pip has them."""

from __future__ import annotations

import argparse

__all__ = ["add_index_options", "add_label_option"]


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
