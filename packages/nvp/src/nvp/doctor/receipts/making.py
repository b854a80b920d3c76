"""Make the receipt of a stack: a JSON document of plain values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, TypeAlias

from packaging.utils import canonicalize_name

from nvidia_variant_provider.errors import InputError, UsageError, shown
from nvidia_variant_provider.metadata import read_metadata

from ... import __version__
from ..abi import torch_libraries
from ..distributions import Distribution
from ..model import Stack

Receipt: TypeAlias = Mapping[str, Any]
"""A receipt, as ``schemas/receipt.schema.json`` describes it."""

VERSION = 1
"""The version of receipts that is written. A later major change gets another one."""

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
"""The environment variables that a receipt records. No other variable gets into it,
unless ``--reason`` names the variable."""

_OUTSIDE = re.compile(r"(?:\.\./|/)")
_OF_THE_INSTALLER = (
    "INSTALLER",
    "RECORD",
    "REQUESTED",
    "direct_url.json",
    "uv_build.json",
    "uv_cache.json",
)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH")
_WITHOUT_OUTPUT = ("last_lines", "output_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reasons:
    """Why a stack is as it is.

    :param general: what is true of the whole stack.
    :param of: the reason for one distribution or one environment variable, by name.
    """

    general: tuple[str, ...] = ()
    of: Mapping[str, str] = field(default_factory=dict)


def parse_reasons(texts: Sequence[str], stack: Stack) -> Reasons:
    """Sort the values of ``--reason``.

    ``torch=TEXT`` is about a distribution, ``TRITON_PTXAS_PATH=TEXT`` about a variable,
    and every other text about the whole stack. ``=TEXT`` is always about the stack.

    :raises UsageError: a name stands before ``=``, and nothing of that name is there;
        or the text is empty.
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
            if _SECRET.search(name):
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

    :param workloads: what `run_workloads` has returned.
    :param earlier: an earlier receipt, whose reasons hold for what has not changed.
    :param now: the time of the receipt, by default that of the clock.
    """
    reasons = reasons or Reasons()
    if earlier is not None and not reasons.general:
        reasons = replace(reasons, general=tuple(earlier["reasons"]))
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
    """Yield the distributions that have to do with GPUs."""
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
        "reason": reasons.of.get(name, before.get("reason") if same else None),
    }


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
    """Return a hash of the files that a wheel brings, as RECORD lists them.

    Two installations of one wheel have the same hash: the scripts of an environment,
    compiled files and what the installer writes itself are left out.

    :returns: such as ``sha256:...``; ``None`` without a RECORD.
    """
    rows = sorted(
        f"{file.path},{file.digest}\n"
        for file in distribution.files
        if file.digest and not _is_of_the_installer(file.path)
    )
    if not rows:
        return None
    return f"sha256:{hashlib.sha256(''.join(rows).encode()).hexdigest()}"


def _is_of_the_installer(path: str) -> bool:
    if _OUTSIDE.match(path) or path.endswith(".pyc"):
        return True
    folder, _, name = path.rpartition("/")
    return folder.endswith(".dist-info") and name in _OF_THE_INSTALLER


def _overrides(
    stack: Stack, reasons: Reasons, earlier: Receipt | None
) -> Iterator[dict[str, object]]:
    before = {item["name"]: item for item in (earlier or {}).get("overrides", ())}
    named = {name for name in reasons.of if _VARIABLE.fullmatch(name)}
    for name in sorted({*OVERRIDES, *named}):
        value = stack.environ.get(name)
        # An empty value counts: CUDA_VISIBLE_DEVICES= hides all GPUs.
        if value is None:
            continue
        known = before.get(name, {})
        kept = known.get("reason") if known.get("value") == value else None
        yield {"name": name, "value": value, "reason": reasons.of.get(name, kept)}


def _abi(stack: Stack) -> dict[str, object] | None:
    """Return the C++ ABI of torch, by its symbols, and who relies on it."""
    symbols = stack.torch_symbols
    if symbols is None:
        return None
    extensions = [
        f"{distribution.name} {distribution.version}"
        for distribution in stack.distributions.values()
        if torch_libraries(stack, distribution)
    ]
    return {"torch": symbols.abi, "extensions": extensions}
