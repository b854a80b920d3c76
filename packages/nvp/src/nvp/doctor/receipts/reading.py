"""Read receipts, and refuse other documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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

__all__ = ["MAX_RECEIPT", "is_receipt", "read_receipt", "receipt_of"]

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


_Look = Callable[[object, str], object]


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


def _look(value: object, place: str, shape: Mapping[str, _Look]) -> None:
    document = as_object(value, place)
    for key, look in shape.items():
        if key not in document:
            raise InputError(f"the key {shown(key)} is missing", place=place or None)
        look(document[key], join(place, key))


def _record(shape: Mapping[str, _Look]) -> _Look:
    return lambda value, place: _look(value, place, shape)


def _each(look: _Look) -> _Look:
    def look_at_each(value: object, place: str) -> None:
        for index, item in enumerate(as_list(value, place)):
            look(item, join(place, index))

    return look_at_each


def _or_null(look: _Look) -> _Look:
    return lambda value, place: None if value is None else look(value, place)


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


_text: _Look = as_string
_text_or_null = _or_null(as_string)
_number_or_null = _or_null(_number)

_PLACE: Mapping[str, _Look] = {
    "path": _text_or_null,
    "line": _or_null(as_integer),
    "reason": _text_or_null,
    "count": as_integer,
}
_WORKLOAD: Mapping[str, _Look] = {
    "command": _text,
    "outcome": _text,
    "exit_code": _or_null(as_integer),
    "signal": _text_or_null,
    "error": _text_or_null,
    "seconds": _number,
    "deadline": _deadline,
    "graph_breaks": _each(_record(_PLACE)),
    "recompilations": _each(_record({**_PLACE, "function": _text_or_null})),
    "fallbacks": _each(_record({**_PLACE, "function": _text_or_null, "kind": _text})),
    "autotuning": _each(
        _record(
            {
                "by": _text,
                "kernel": _text,
                "key": _text_or_null,
                "config": _text_or_null,
                "seconds": _number_or_null,
                "count": as_integer,
            }
        )
    ),
    "totals": _record(
        {
            "graph_breaks": as_integer,
            "recompilations": as_integer,
            "fallbacks": as_integer,
            "autotuning": as_integer,
        }
    ),
    "gpu_memory": _or_null(
        _each(_record({"index": as_integer, "before": as_integer, "peak": as_integer}))
    ),
    "gpu_memory_reason": _text_or_null,
}
_RECEIPT: Mapping[str, _Look] = {
    "made_by": _text,
    "made_at": _text,
    "reasons": as_strings,
    "environment": as_object,
    "python": _record({"version": _text_or_null, "prefix": _text}),
    "distributions": _each(
        _record(
            {
                "name": _text,
                "version": _text,
                "label": _text_or_null,
                "cuda": _text_or_null,
                "targets": as_object,
                "record": _text_or_null,
                "reason": _text_or_null,
            }
        )
    ),
    "overrides": _each(
        _record({"name": _text, "value": _text, "reason": _text_or_null})
    ),
    "triton": _text_or_null,
    "abi": _or_null(as_object),
    "toolchain": as_object,
    "live": _or_null(as_object),
    "findings": _each(_record({"code": _text, "severity": _text, "message": _text})),
    "workloads": _each(_record(_WORKLOAD)),
}
"""The keys that each part has. Other keys are left alone: a later version adds some."""
