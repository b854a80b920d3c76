"""Snapshots of this project: what ``detect --json`` has printed."""

from __future__ import annotations

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import Environment

__all__ = ["environment_of_snapshot"]

_HINT = "make one with: nvidia-variant-provider detect --json"


def environment_of_snapshot(document: object) -> Environment:
    """Return the machine of a snapshot.

    :param document: the report, or its ``data`` alone.
    :raises InputError: it is something else, or is not valid.
    """
    if not isinstance(document, dict) or "schema_version" not in document:
        if isinstance(document, dict) and "variants" in document:
            message = "this is variant metadata, not a snapshot of a machine"
            raise InputError(message, hint=_HINT)
        return Environment.from_dict(document)
    if document.get("command") != "detect":
        raise InputError("this is not the report of detect", hint=_HINT)
    return Environment.from_dict(document.get("data"), "data")
