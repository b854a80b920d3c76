"""A label for all projects that no project has: told before pip installs anything."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from ...builds.backends import parse_backend
from ...metadata.requirements import parse_requirement
from ..selection.options import Pins
from ..server.local_index import LocalIndex
from .command import PipCommand
from .named_labels import read_requirements

__all__ = ["refuse_unknown_label"]

_MOST = 16
"""Projects whose pages are read before pip starts."""


def refuse_unknown_label(
    command: PipCommand, pins: Pins, local_index: LocalIndex
) -> str | None:
    """Say that none of the projects that the user names has the label for all.

    A backend, such as ``cu126``, needs no such check: a project with builds for other
    backends is not shown without it. Where none of the projects has any label, it may
    be that of a dependency, and the end of the run tells.

    :param local_index: it has to serve.
    :returns: ``None`` where pip may run.
    """
    label = pins.everywhere
    if label is None or parse_backend(label) is not None:
        return None
    lines = [*command.positional, *read_requirements(command)]
    names = dict.fromkeys(
        canonicalize_name(requirement.name)
        for line in lines
        if (requirement := parse_requirement(line)) is not None
    )
    for name in list(names)[:_MOST]:
        if name not in pins.projects:
            local_index.find_shown(name)
    labels = local_index.asked_labels()
    known = frozenset[str]().union(*labels.values())
    if label in known or not known:
        return None
    first = next(name for name, its in labels.items() if its)
    has = ", ".join(sorted(labels[first]))
    return (
        f"no project that you name has the label {label}, so pip was not started: "
        f"{first} has {has}; for a dependency, give --label PROJECT={label}"
    )
