"""The option ``--label``, of verbs whose user may want another build than the best."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from ..index.selection.options import Pins

__all__ = ["add_label_option", "parse_pins"]


def add_label_option(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``--label``, whose values `parse_pins` parses.

    :param text: what the help says of it.
    """
    parser.add_argument(
        "--label", metavar="[PROJECT=]LABEL", action="append", default=[], help=text
    )


def parse_pins(texts: Sequence[str]) -> Pins:
    """Parse the values of ``--label``.

    :raises UsageError: a value is not a label.
    """
    from ..index.selection.options import Pins

    if not texts:  # Most runs have none, and the grammar takes a moment to load.
        return Pins()
    from packaging.utils import canonicalize_name

    from ..metadata.grammar import GRAMMARS, explain

    everywhere = None
    projects: dict[str, str] = {}
    for text in texts:
        project, equals, label = text.rpartition("=")
        if not GRAMMARS["label"].fullmatch(label):
            message = explain(text, "label")
            raise UsageError(message, path="--label", hint="give one such as cu126")
        if equals:
            projects[canonicalize_name(project.rstrip("="))] = label
        else:
            everywhere = label
    return Pins(everywhere=everywhere, projects=projects)
