"""Read receipts, and refuse other documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from nvidia_variant_provider.errors import InputError, join, shown
from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.strict_json import (
    as_integer,
    as_list,
    as_object,
    as_string,
    as_strings,
    parse_json,
    read_bytes,
)

from ..workloads import LONGEST_DEADLINE
from .making import VERSION, Receipt

MAX_RECEIPT = 32 * 1024 * 1024
"""The most bytes of a receipt. A workload with all places that are kept has 500 kB."""

_HINT = "give a receipt that doctor --receipt FILE.json has written"


def read_receipt(path: str) -> Receipt:
    """Read a receipt, or the report of ``doctor --json`` that has one.

    :raises InputError: the file cannot be read, or holds no receipt of a version that
        is known.
    """
    try:
        data = read_bytes(path, limit=MAX_RECEIPT)
    except InputError as error:
        if error.hint != "check the path":
            error.hint = _HINT
        raise
    if data.lstrip()[:1] not in (b"{", b""):
        raise InputError("not a receipt", path=path, hint=_HINT)
    return receipt_of(parse_json(data, path, limit=MAX_RECEIPT), path)


def is_receipt(document: object) -> bool:
    """Return whether a JSON document claims to be a receipt, or a report with one."""
    return _receipt_in(document) is not None


def receipt_of(document: object, path: str | None = None) -> Receipt:
    """Return the receipt in a JSON document, after a look at every value of it.

    :param path: the name of the file for messages.
    :raises InputError: it is not a receipt, or not valid.
    """
    receipt = _receipt_in(document)
    if receipt is None:
        raise InputError("not a receipt", path=path, hint=_HINT)
    try:
        _check(receipt)
    except InputError as error:
        # Messages about values know their place and not the file.
        raise InputError(
            error.message, path=path, place=error.place, hint=error.hint or _HINT
        ) from None
    return receipt


def _receipt_in(document: object) -> Mapping[str, Any] | None:
    if not isinstance(document, dict):
        return None
    if "receipt_version" in document:
        return document
    data = document.get("data")
    if document.get("command") == "doctor" and isinstance(data, dict):
        return _receipt_in(data.get("receipt"))
    return None


def _check(receipt: Mapping[str, Any]) -> None:
    version = as_integer(receipt["receipt_version"], "receipt_version")
    if version != VERSION:
        hint = "upgrade nvp" if version > VERSION else _HINT
        message = f"version {version} of receipts is not known"
        raise InputError(message, place="receipt_version", hint=hint)
    _look(receipt, "", _RECEIPT)
    try:
        Environment.from_dict(receipt["environment"])
    except InputError as error:
        place = f"environment.{error.place}" if error.place else "environment"
        raise InputError(error.message, place=place, hint=error.hint) from None


def _look(value: object, place: str, shape: _Shape) -> None:
    """Check that a value has a shape.

    :raises InputError: it has another one; the error has its place.
    """
    if isinstance(shape, dict):
        document = as_object(value, place)
        for name, inner in shape.items():
            key = name.removesuffix("?")
            if key not in document:
                message = f"the key {shown(key)} is missing"
                raise InputError(message, place=place or None)
            if key == name or document[key] is not None:
                _look(document[key], join(place, key), inner)
    elif isinstance(shape, list):
        for index, item in enumerate(as_list(value, place)):
            _look(item, join(place, index), shape[0])
    else:
        shape(value, place)


def _number(value: object, place: str) -> float:
    if isinstance(value, float):
        return value
    return as_integer(value, place)


def _deadline(value: object, place: str) -> float:
    seconds = _number(value, place)
    if not 0 < seconds <= LONGEST_DEADLINE:
        message = f"{seconds} is not a number of seconds that a workload can have"
        raise InputError(message, place=place)
    return seconds


_Shape: TypeAlias = "Callable[[object, str], object] | list[_Shape] | dict[str, _Shape]"
"""A function that refuses values of another type; the shape of each item of a list; or
the shapes of the values of an object, by key. The value of a key with ``?`` may be
null. Other keys are left alone: a later version adds some."""

_PLACE: dict[str, _Shape] = {
    "path?": as_string,
    "line?": as_integer,
    "reason?": as_string,
    "count": as_integer,
}
_FUNCTION: dict[str, _Shape] = {**_PLACE, "function?": as_string}
_TUNING: dict[str, _Shape] = {
    "by": as_string,
    "kernel": as_string,
    "key?": as_string,
    "config?": as_string,
    "seconds?": _number,
    "count": as_integer,
}
_KINDS = ("graph_breaks", "recompilations", "fallbacks", "autotuning")
_WORKLOAD: dict[str, _Shape] = {
    "command": as_string,
    "outcome": as_string,
    "exit_code?": as_integer,
    "signal?": as_string,
    "error?": as_string,
    "seconds": _number,
    "deadline": _deadline,
    "graph_breaks": [_PLACE],
    "recompilations": [_FUNCTION],
    "fallbacks": [{**_FUNCTION, "kind": as_string}],
    "autotuning": [_TUNING],
    "totals": dict.fromkeys(_KINDS, as_integer),
    "gpu_memory?": [dict.fromkeys(("index", "before", "peak"), as_integer)],
    "gpu_memory_reason?": as_string,
}
_DISTRIBUTION: dict[str, _Shape] = {
    "name": as_string,
    "version": as_string,
    "label?": as_string,
    "cuda?": as_string,
    "targets": as_object,
    "record?": as_string,
    "reason?": as_string,
}
_RECEIPT: dict[str, _Shape] = {
    "made_by": as_string,
    "made_at": as_string,
    "reasons": as_strings,
    "environment": as_object,
    "python": {"version?": as_string, "prefix": as_string},
    "distributions": [_DISTRIBUTION],
    "overrides": [{"name": as_string, "value": as_string, "reason?": as_string}],
    "triton?": as_string,
    "abi?": as_object,
    "toolchain": as_object,
    "live?": as_object,
    "findings": [dict.fromkeys(("code", "severity", "message"), as_string)],
    "workloads": [_WORKLOAD],
}
