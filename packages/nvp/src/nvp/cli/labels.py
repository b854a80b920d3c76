"""The option ``--label``, of verbs whose user may want another build than the best."""

from __future__ import annotations

import argparse

__all__ = ["add_label_option"]


def add_label_option(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``--label``, whose values `selection.options.parse_pins` parses.

    :param text: what the help says of it.
    """
    parser.add_argument(
        "--label", metavar="[PROJECT=]LABEL", action="append", default=[], help=text
    )
