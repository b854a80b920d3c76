"""Make the receipt of a stack as a JSON document, and read and validate receipts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, TypeAlias

from packaging.utils import canonicalize_name

from nvidia_variant_provider.detection.presence import may_be_secret
from nvidia_variant_provider.errors import (
    InputError,
    UsageError,
    join,
    redacted,
    shown,
)
from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.metadata import read_metadata
from nvidia_variant_provider.strict_json import (
    as_integer,
    as_list,
    as_object,
    as_string,
    as_strings,
    parse_json,
    read_bytes,
)

from ... import __version__
from ...findings import shortened
from ..distributions import Distribution
from ..model import Stack
from ..workloads import LONGEST_DEADLINE

Receipt: TypeAlias = Mapping[str, Any]
"""A receipt, as ``schemas/receipt.schema.json`` describes it."""

VERSION = 1
"""The version of written receipts. Raise it for an incompatible change."""

OVERRIDES = (
    "CUDA_FORCE_PTX_JIT",
    "CUDA_HOME",
    "CUDA_MODULE_LOADING",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS",
    "TORCHDYNAMO_DISABLE",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCH_COMPILE_DISABLE",
    "TORCH_CUDA_ARCH_LIST",
    "TRITON_LIBCUDA_PATH",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_PTXAS_PATH",
    "XLA_FLAGS",
)
"""The environment variables that a receipt records, besides those that ``--reason``
names."""

_OF_THE_INSTALLER = re.compile(
    r"\.\./|/|.*(?:\.pyc|\.dist-info/(?:INSTALLER|RECORD|REQUESTED|direct_url\.json"
    r"|uv_(?:build|cache)\.json))\Z",
    re.DOTALL,
)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_MOST_REASONS = 100
"""The maximum number of reasons from an earlier receipt."""

_WITHOUT_OUTPUT = ("last_lines", "output_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reasons:
    """The user's reasons for the content of a stack.

    :param general: the reasons for the whole stack.
    :param of: the reasons for individual distributions and variables, keyed by name.
    """

    general: tuple[str, ...] = ()
    of: Mapping[str, str] = field(default_factory=dict)


def parse_reasons(texts: Sequence[str], stack: Stack) -> Reasons:
    """Parse the values of ``--reason``.

    ``torch=TEXT`` is about a distribution, ``TRITON_PTXAS_PATH=TEXT`` about a variable,
    and a text without a name, or ``=TEXT``, about the whole stack.

    :raises UsageError: the name before ``=`` is unknown, or the text is empty.
    """
    general: list[str] = []
    of: dict[str, str] = {}
    for given in texts:
        name, mark, text = given.partition("=")
        named = bool(mark) and _NAME.fullmatch(name) is not None
        reason = (text if named or (mark and not name) else given).strip()
        if not reason:
            hint = "write a sentence, such as --reason 'torch=the last one for CUDA 12'"
            raise UsageError(f"--reason: {shown(given)} gives no reason", hint=hint)
        if not named:
            general.append(reason)
        elif _VARIABLE.fullmatch(name) and name in stack.environ:
            if may_be_secret(name):
                message = f"--reason: the value of {name} may be a secret"
                raise UsageError(message, hint="a receipt records no such variable")
            of[name] = reason
        elif (project := canonicalize_name(name)) in stack.distributions:
            of[project] = reason
        else:
            message = f"--reason: {shown(name)} is neither a distribution of "
            message += "the environment nor an environment variable that is set"
            hint = f"check the name; a reason for the whole stack is --reason ={text!r}"
            raise UsageError(message, hint=hint)
    return Reasons(general=tuple(general), of=of)


def make_receipt(
    stack: Stack,
    *,
    toolchain: Mapping[str, object] | None = None,
    live: Mapping[str, object] | None = None,
    workloads: Sequence[Mapping[str, object]] = (),
    reasons: Reasons | None = None,
    earlier: Receipt | None = None,
    now: datetime | None = None,
) -> Receipt:
    """Return the receipt of a stack.

    :param workloads: the result of `run_workloads`.
    :param earlier: an earlier receipt, whose reasons apply to unchanged facts.
    :param now: the time of the receipt; by default, the current time.
    """
    reasons = reasons or Reasons()
    if earlier is not None and not reasons.general:
        general = tuple(map(shortened, earlier["reasons"][:_MOST_REASONS]))
        reasons = replace(reasons, general=general)
    kept = {item["name"]: item for item in (earlier or {}).get("distributions", ())}
    installation = stack.installation
    triton = stack.toolchain.triton
    time = now or datetime.now(timezone.utc)
    return {
        "receipt_version": VERSION,
        "made_by": f"nvidia-variant-provider {__version__}",
        "made_at": time.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "reasons": list(reasons.general),
        "environment": stack.environment.to_dict(),
        "python": {"version": installation.version, "prefix": installation.prefix},
        "distributions": [
            _entry(stack, distribution, reasons, kept)
            for distribution in _recorded(stack, reasons)
        ],
        "overrides": list(_overrides(stack, reasons, earlier)),
        "triton": None if triton is None else triton.version,
        "abi": _abi(stack),
        "toolchain": dict(toolchain or {}),
        "live": live,
        "findings": [],
        "workloads": [
            {key: value for key, value in record.items() if key not in _WITHOUT_OUTPUT}
            for record in workloads
        ],
    }


def _recorded(stack: Stack, reasons: Reasons) -> Iterator[Distribution]:
    """Yield the distributions that are relevant for GPUs."""
    with_code = {distribution.name for distribution, _ in stack.with_gpu_code()}
    for distribution in stack.distributions.values():
        name = distribution.name
        if (
            name in with_code
            or distribution.is_library
            or distribution.variant_json is not None
            or "+" in distribution.version
            or name in reasons.of
            or any(item.startswith("nvidia-") for item in distribution.required)
            or name in ("torch", "triton")
        ):
            yield distribution


def _entry(
    stack: Stack,
    distribution: Distribution,
    reasons: Reasons,
    kept: Mapping[str, Mapping[str, Any]],
) -> dict[str, object]:
    report = stack.code_of(distribution)
    cuda = stack.cuda_of(distribution)
    name, label = distribution.name, _label(distribution)
    before = kept.get(name, {})
    same = (before.get("version"), before.get("label")) == (distribution.version, label)
    return {
        "name": name,
        "version": distribution.version,
        "label": label,
        "cuda": None if cuda is None else str(cuda),
        "targets": {} if report is None else dict(report.targets),
        "record": record_hash(distribution),
        "reason": reasons.of.get(name, _kept(before) if same else None),
    }


def _kept(known: Mapping[str, Any]) -> str | None:
    """Return the reason of a fact in an earlier receipt, which a stranger may make."""
    reason = known.get("reason")
    return None if reason is None else shortened(reason)


def _label(distribution: Distribution) -> str | None:
    """Return the label of a variant, or else the local version, such as ``cu126``."""
    if distribution.variant_json is not None:
        try:
            labels = list(read_metadata(distribution.variant_json).variants)
        except InputError:
            labels = []
        if len(labels) == 1:
            return str(labels[0])
    return distribution.version.partition("+")[2] or None


def record_hash(distribution: Distribution) -> str | None:
    """Return a hash of the files of a wheel, from RECORD.

    Two installations of a wheel have the same hash, because scripts, compiled files and
    files of the installer are left out.

    :returns: the hash, such as ``sha256:...``; ``None`` without a RECORD.
    """
    rows = sorted(
        f"{file.path},{file.digest}\n"
        for file in distribution.files
        if file.digest and not _OF_THE_INSTALLER.match(file.path)
    )
    if not rows:
        return None
    return f"sha256:{hashlib.sha256(''.join(rows).encode()).hexdigest()}"


def _overrides(
    stack: Stack, reasons: Reasons, earlier: Receipt | None
) -> Iterator[dict[str, object]]:
    before = {item["name"]: item for item in (earlier or {}).get("overrides", ())}
    named = {name for name in reasons.of if _VARIABLE.fullmatch(name)}
    for name in sorted({*OVERRIDES, *named}):
        value = stack.environ.get(name)
        # Keep an empty value: CUDA_VISIBLE_DEVICES= hides all GPUs.
        if value is None:
            continue
        value = redacted(value)
        known = before.get(name, {})
        kept = _kept(known) if known.get("value") == value else None
        yield {"name": name, "value": value, "reason": reasons.of.get(name, kept)}


def _abi(stack: Stack) -> dict[str, object] | None:
    """Return torch's C++ ABI from its symbols, and the extensions linked with torch."""
    symbols = stack.torch_symbols
    if symbols is None:
        return None
    extensions = [
        f"{name} {stack.distributions[name].version}"
        for name in stack.linked_with_torch
    ]
    return {"torch": symbols.abi, "extensions": extensions}


MAX_RECEIPT = 8 * 1024 * 1024
"""The maximum size of a receipt in bytes. A workload with all details has 500 kB."""

_HINT = "give a receipt that doctor --receipt FILE.json has written"


def read_receipt(path: str) -> Receipt:
    """Read a receipt, or a report of ``doctor --json`` that contains one.

    :raises InputError: the file cannot be read, or contains no valid receipt.
    """
    try:
        data = read_bytes(path, limit=MAX_RECEIPT, given=True)
    except InputError as error:
        if error.hint != "check the path":
            error.hint = _HINT
        raise
    if data.lstrip()[:1] not in (b"{", b""):
        raise InputError("not a receipt", path=path, hint=_HINT)
    return receipt_of(parse_json(data, path, limit=MAX_RECEIPT), path)


def is_receipt(document: object) -> bool:
    """Return whether a JSON document looks like a receipt or a report with one."""
    return _receipt_in(document) is not None


def receipt_of(document: object, path: str | None = None) -> Receipt:
    """Return the receipt in a JSON document, after validating every value.

    :param path: the name of the file for messages.
    :raises InputError: the document is not a valid receipt.
    """
    receipt = _receipt_in(document)
    if receipt is None:
        raise InputError("not a receipt", path=path, hint=_HINT)
    try:
        _check(receipt)
    except InputError as error:
        # Add the file name: an error about a value contains only its place.
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

    :raises InputError: the value has another shape.
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
"""A function that rejects values of another type; a list with the shape of its items;
or a mapping from keys to shapes, where a key with ``?`` may have the value null.
Unknown keys are allowed, because later versions may add keys."""

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
