"""List the packages of the running program, to check them before they are imported."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from packaging.utils import canonicalize_name

from nvidia_variant_provider.errors import UsageError, shown

from ..doctor.distributions import find_distributions
from ..pins.model import Edge, PinnedFile
from ..pins.reading import pin_of
from .model import CannotRunError, CheckedFile


def pins_of_projects(projects: Sequence[str]) -> PinnedFile:
    """Return pins of installed projects and all their direct and indirect dependencies.

    :param projects: the names of the projects; empty for every installed project.
    :raises UsageError: a project is not installed.
    """
    folders = dict.fromkeys(path or os.curdir for path in sys.path)
    there = find_distributions(folder for folder in folders if os.path.isdir(folder))
    names = dict.fromkeys(str(canonicalize_name(name)) for name in projects)
    for name in names:
        if name not in there:
            message = f"{shown(name)} is not installed here"
            raise UsageError(message, hint=f"install it: nvp pip install {name}")
    reached = dict.fromkeys(names or there)
    waiting = list(names)
    while waiting:
        for name in there[waiting.pop()].required:
            if name in there and name not in reached:
                reached[name] = None
                waiting.append(name)
    pins = tuple(pin_of(there[name]) for name in reached)
    return PinnedFile(
        path=sys.prefix,
        form="environment",
        pins=pins,
        roots=tuple(Edge(number) for number in range(len(pins))),
    )


def refuse(checked: CheckedFile, *, unknown: bool = False) -> None:
    """Raise an error for the first build that cannot run.

    The error names a program rather than the NVIDIA libraries that the program
    requires, or the packages that require the program.

    :param unknown: raise also for a build with the verdict ``unknown``.
    :raises CannotRunError: a build cannot run or, with ``unknown``, might not run.
    """
    verdicts = ("cannot", "unknown") if unknown else ("cannot",)
    found = sorted(
        (item for item in checked.pins if item.worst.verdict in verdicts),
        key=lambda item: (
            item.worst.verdict != "cannot",
            item.known.is_library,
            # Prefer a required build to builds that fail because they require it.
            item.worst.reasons[0].startswith("it requires "),
        ),
    )
    if not found:
        return
    first = found[0]
    word = "cannot run here" if first.worst.verdict == "cannot" else "may not run here"
    reasons = "; ".join(first.worst.reasons)
    names = [x.pin.name for x in found if not x.known.is_library] or [first.pin.name]
    words = ["install", "--upgrade", "--force-reinstall", *names]
    command = shlex.join(["nvp", "pip", "--python", sys.executable, *words])
    raise CannotRunError(f"{first.pin.title} {word}: {reasons}", hint=f"run: {command}")
