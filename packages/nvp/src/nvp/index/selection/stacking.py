"""Putting the selection on top of the indexes of a user."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider import detection
from nvidia_variant_provider.machine.environment import Environment

from ..http.client import Client
from ..http.ranges import RangeSupport
from .builds import BuildRepository
from .options import Selection
from .repository import VariantRepository

__all__ = ["find_once", "stack"]


def stack(
    indexes: Sequence[SimpleRepository],
    *,
    selection: Selection,
    client: Client,
    warn: Callable[[str], None],
) -> tuple[list[BuildRepository], list[VariantRepository]]:
    """Return the components that select builds, for each index.

    :param indexes: in the order in which the user gave them.
    :returns: those for ordinary wheels, unless the selection leaves them unchecked,
        and those for variants, which are on top of them.
    """
    # The files of several indexes are often on one server.
    ranges = RangeSupport(client)
    builds = [
        BuildRepository(
            index,
            selection=selection,
            client=client,
            others=[other for other in indexes if other is not index],
            ranges=ranges,
            warn=warn,
        )
        for index in (() if selection.unchecked else indexes)
    ]
    variants = [
        VariantRepository(
            index,
            selection=selection,
            client=client,
            before=indexes[:number],
            after=indexes[number + 1 :],
            warn=warn,
        )
        for number, index in enumerate(builds or indexes)
    ]
    return builds, variants


def find_once(selection: Selection) -> Callable[[], Environment]:
    """Return a function that finds out the machine at its first call."""
    lock = threading.Lock()
    known: list[Environment] = []

    def find() -> Environment:
        with lock:
            if not known:
                machine = selection.machine
                environ = selection.environ
                known.append(machine() if machine else detection.detect(environ))
            return known[0]

    return find
