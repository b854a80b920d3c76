"""Listing the releases of a project for a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from packaging.utils import InvalidName, canonicalize_name

from nvidia_variant_provider.errors import UsageError, shown
from nvidia_variant_provider.machine.environment import Environment

from ..http.client import Client
from ..pip.process import find_python
from ..pip.settings import Indexes, find_indexes, make_settings
from ..selection.options import Selection, parse_pins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...builds.releases import ReleaseTable
    from .reading import Inspect, Sources, Watch

__all__ = ["list_releases", "open_sources"]


def list_releases(
    project: str,
    *,
    environment: Environment,
    environ: Mapping[str, str],
    indexes: Indexes,
    every_gpu: bool = False,
    labels: Sequence[str] = (),
    inspect: Inspect = False,
    watch: Watch | None = None,
    cache: str | None = None,
) -> ReleaseTable:
    """Read the releases of a project, and judge their builds for a machine.

    :param labels: the labels that the user wants, each of the form ``LABEL`` or
        ``PROJECT=LABEL``.
    :param watch: watches the reading of each wheel that is inspected.
    :param cache: the folder for what is read once for ever.
    :raises InputError: no index has the project, or none can be read.
    :raises UsageError: the name is malformed, or there is no index or interpreter.
    """
    try:
        name = canonicalize_name(project, validate=True)
    except InvalidName:
        message = f"{shown(project)} is not the name of a project"
        hint = "give the name alone, without a version"
        raise UsageError(message, hint=hint) from None
    # A label for all projects is for the one that the user names, so that a label
    # that none of its releases has is told.
    pins = parse_pins(labels)
    if pins.everywhere is not None and name not in pins.projects:
        pins = replace(pins, projects={**pins.projects, name: pins.everywhere})
    sources = open_sources(indexes, environ, cache)
    from .reading import read_tables

    selection = Selection(
        machine=lambda: environment, pins=pins, every_gpu=every_gpu, environ=environ
    )
    (table,) = read_tables(name, sources, [selection], inspect=inspect, watch=watch)
    return table


def open_sources(
    indexes: Indexes, environ: Mapping[str, str], cache: str | None
) -> Sources:
    """Find out what pip would read, and for which interpreter.

    :param cache: the folder for what is read once for ever.
    :raises UsageError: there is no index or interpreter, or an index cannot be used.
    """
    path = find_python(indexes.python, environ)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(find_indexes, environ, indexes)
        # pip takes half a second to say what its indexes are. Import the rest and
        # look at the interpreter meanwhile.
        from ..pip.interpreter import find_interpreter
        from .reading import make_sources

        interpreter = find_interpreter(path, environ)
        command, ask_credentials = asked.result()
    client = Client(make_settings(command, environ), ask_credentials=ask_credentials)
    return make_sources(command, client, interpreter, cache)
