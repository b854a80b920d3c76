"""Redirect pip to the local index; see ``hooks.py``."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ...files import resource_file
from ..server.local_index import LocalIndex
from .command import PipCommand
from .hooks import HOOKS, PLACES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .locks import LockCopies

_USER_DATA = "PIP_USER_AGENT_USER_DATA"
"""A variable whose value is part of the ``User-Agent`` of pip 19.1 and newer, even with
``--isolated``. Each pip that pip starts inherits the variable."""


def redirect(
    command: PipCommand,
    environ: Mapping[str, str],
    local_index: LocalIndex,
    *,
    copies: LockCopies | None,
) -> dict[str, str]:
    """Return the variables that make pip use the local index.

    :param copies: creates the copies of lock files; ``None`` without lock files.
    """
    pairs = command.credentials
    files = {}
    if copies is not None:
        options = command.options
        groups = [(path, group) for path, group in options.dependency_groups]
        for path, *group in [*((x,) for x in options.requirements), *groups]:
            if copy := copies.add(path, *group):
                files[path] = copy
    told = {
        "local": local_index.url,
        "indexes": {x: local_index.add_index(x, pairs.get(x)) for x in command.indexes},
        "more": [] if command.options.no_index else local_index.add_vendors(),
        "joined": local_index.join_links(command.find_links),
        "links": {
            x: local_index.add_links(x, pairs.get(x)) for x in command.find_links
        },
        "files": files,
        "pages": local_index.pages_of_pip,
    }
    # Variables, not arguments: other users can read those.
    variables = {
        PLACES: json.dumps(told),
        HOOKS: resource_file("index", "pip", "hooks.py"),
    }
    if local_index.token is not None:
        own = environ.get(_USER_DATA)
        token = local_index.token
        variables[_USER_DATA] = f"{own} {token}" if own else token
    return variables


def find_mark(variables: Mapping[str, str]) -> str | None:
    """Return the variable with this pip run's secret, as ``NAME=VALUE``, if any."""
    value = variables.get(_USER_DATA)
    return None if value is None else f"{_USER_DATA}={value}"
