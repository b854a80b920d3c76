"""Machines: this one, a snapshot, or those that others describe."""

from __future__ import annotations

import os

from nvidia_variant_provider.errors import InputError, UsageError, shown
from nvidia_variant_provider.light import Logger
from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.strict_json import parse_json, read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..inventories.model import Machine


_logger = Logger("nvp.api")


_LARGEST_SNAPSHOT = 1024 * 1024

_MOST_NAMES = 10
"""The machines that a message names."""


def read_environment(path: str | os.PathLike[str]) -> Environment:
    """Read a snapshot of a machine.

    :param path: a file with what ``detect --json`` printed, or with the ``data`` of
        that report alone. Its schema is ``schemas/environment.schema.json``.
    :raises InputError: the file cannot be read, or is not valid.
    """
    from ..inventories.model import environment_of_snapshot

    name = str(path)
    try:
        environment = environment_of_snapshot(parse_json(read_bytes(path)))
    except InputError as error:
        error.path = name
        raise
    _logger.info("the machine of %s: %s", name, environment.to_dict())
    return environment.replace(source="snapshot")


def read_machines(path: str | os.PathLike[str]) -> list[Machine]:
    """Read the machines that somebody else describes.

    :param path: a file whose form is told by its content: a snapshot, ``kubectl get``
        of nodes or resourceslices (JSON or YAML), ``condor_status -json``, ``pixi info
        --json``, ``conda info --json``, ``nvidia-smi -q -x``, ``nvidia-smi
        --query-gpu``, or metrics of the DCGM exporter. ``-`` is standard input.
    :return: the machines that have a GPU, in the order of the file. What the file does
        not say is ``None`` with the reason ``not-given``.
    :raises InputError: the file cannot be read, has another form, or has no machine.
    :raises MissingExtraError: the form needs the extra ``fleet``.
    """
    from ..inventories.reading import read_inventory

    return read_inventory(os.fspath(path))


def read_machine(path: str | os.PathLike[str], node: str | None = None) -> Machine:
    """Read one machine from a snapshot or from an inventory.

    :param path: a file as for `read_environment` or `read_machines`.
    :param node: the name of the machine, which an inventory of several has to have.
    :raises UsageError: there are several machines, or none has this name; the hint
        names those that there are.
    :raises InputError: the file cannot be read, or is not valid.
    :raises MissingExtraError: the form needs the extra ``fleet``.
    """
    from ..inventories.model import Machine

    name = os.fspath(path)
    if node is None and _is_snapshot(name):
        return Machine(name=name, environment=read_environment(name))
    machines = read_machines(name)
    named = [item for item in machines if node in (None, item.name)]
    if len(named) == 1:
        _logger.info("the machine %s of %s", named[0].to_dict(), name)
        return named[0]
    shown_names = [shown(item.name) for item in machines[:_MOST_NAMES]]
    if len(machines) > _MOST_NAMES:
        shown_names.append(f"{len(machines) - _MOST_NAMES} more")
    listed = ", ".join(shown_names)
    if node is None:
        message = f"it describes {len(machines)} machines"
        raise UsageError(message, path=name, hint=f"choose one with --node: {listed}")
    message = f"it has no machine {shown(node)}"
    raise UsageError(message, path=name, hint=f"there are {listed}")


def _is_snapshot(path: str) -> bool:
    """Tell whether a file is for `read_environment`, whose errors are exact.

    That is a file which cannot be read or has broken JSON, too.
    """
    if path == "-":
        return False
    try:
        if os.path.getsize(path) > _LARGEST_SNAPSHOT:
            return False
        body = read_bytes(path)
        if body.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
            return False
        document = parse_json(body)
    except (OSError, InputError):
        return True
    keys = {"cuda_driver_version", "gpus", "schema_version", "variants"}
    return isinstance(document, dict) and bool(keys & document.keys())
