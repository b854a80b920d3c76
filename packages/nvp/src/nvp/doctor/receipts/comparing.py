"""Compare two receipts, fact by fact.

A fact is one property of a stack, such as the version of a distribution, or the result
of one workload.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

from nvidia_variant_provider.machine.environment import Environment

from ..model import Finding, declare
from .making import Receipt

declare("ND701", "warning", "The stack differs from the receipt.")

Change = Literal["lost", "changed", "gained", "same"]

CHANGES: tuple[Change, ...] = ("lost", "changed", "gained", "same")
"""The kinds of change, most severe first."""

_WORSE = {
    "graph_breaks": ("graph break", "graph breaks"),
    "recompilations": ("recompilation", "recompilations"),
    "fallbacks": ("fallback to eager", "fallbacks to eager"),
}
"""Problems of a workload, in the singular and in the plural."""

_WITHOUT_MATTER = re.compile(r"kernel driver|unknown|.*\.(path|named_by|problem)")
"""A pattern for the names of facts whose changes never matter.

A driver from another branch with the same CUDA version runs the same code, and a
program of the same version works the same in every directory.
"""

_SAID_ELSEWHERE = re.compile(r"(torch|triton)\.(version|source|distribution)")
"""Values of the toolchain that describe distributions, which have their own facts."""

_HINTS = {
    "machine": "make a receipt for each kind of machine",
    "gpu": "make a receipt for each kind of machine",
    "distribution": "install what the receipt names, or write a new receipt",
    "override": "set the variable as the receipt has it, or write a new receipt",
    "workload": "look at its graph breaks and fallbacks: TORCH_LOGS shows all of them",
}
_HINT = "find out what has changed, or write a new receipt"

_MOST_LEAVES = 10_000
"""The maximum number of compared values of a toolchain, an ABI or a live proof."""

_MOST_REPLACED = 100_000
"""The maximum number of replaced paths of the environment. The replacement is longer
than a path with one letter, which a receipt of 30 MB can have 30 million times."""

_LONGEST_PLACE = 500
"""The maximum length of the name of a value, in characters. Values share their parents'
names, so that a small receipt with a long name would have gigabytes of names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A fact with its values in both receipts.

    :param kind: the kind of fact, such as ``distribution``.
    :param name: the name, such as ``torch``; kind and name identify the fact.
    :param old: the value in the old receipt as text; ``None`` if missing.
    :param new: the value in the new receipt.
    :param matters: whether the difference is relevant for the stack.
    :param reason: a sentence with details, or ``None``.
    """

    kind: str
    name: str
    old: str | None
    new: str | None
    change: Change
    matters: bool
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All facts of two receipts, in the order of the receipts."""

    facts: tuple[Fact, ...]

    @property
    def counts(self) -> dict[Change, int]:
        """The number of facts for each kind of change."""
        return {
            change: sum(fact.change == change for fact in self.facts)
            for change in CHANGES
        }

    @property
    def has_lost_workloads(self) -> bool:
        """Whether a workload that passed before now fails, or was not run again."""
        return any(
            fact.kind == "workload" and fact.change == "lost" for fact in self.facts
        )

    def to_dict(self) -> dict[str, object]:
        """Return the ``data`` of the JSON report of ``nvp diff``."""
        return {"receipt_facts": [asdict(fact) for fact in self.facts]}


def compare(old: Receipt, new: Receipt) -> Comparison:
    """Compare two receipts.

    Durations, times, other measurements and the tool that made a receipt are not
    compared.
    """
    before, after = dict(_facts(old)), dict(_facts(new))
    keys = list(dict.fromkeys((*before, *after)))
    # Place facts that are in only one receipt next to facts of the same kind.
    kinds = list(dict.fromkeys(kind for kind, _ in keys))
    keys.sort(key=lambda key: kinds.index(key[0]))
    facts = [_fact(*key, before.get(key), after.get(key)) for key in keys]
    then = {record["command"]: record for record in old["workloads"]}
    now = {record["command"]: record for record in new["workloads"]}
    facts += [
        _workload_fact(command, then.get(command), now.get(command))
        for command in dict.fromkeys((*then, *now))
    ]
    return Comparison(facts=tuple(facts))


def find_differences(comparison: Comparison) -> Iterator[Finding]:
    """ND701: the stack differs from the receipt."""
    for fact in comparison.facts:
        if not fact.matters or fact.change == "same":
            continue
        subject = f"{fact.kind} {fact.name}"
        if fact.reason is not None:
            message = f"{subject}: {fact.reason}"
        else:
            now = "is not there" if fact.new is None else f"is {fact.new}"
            then = "has none" if fact.old is None else f"has {fact.old}"
            message = f"{subject} {now}, and the receipt {then}"
        yield Finding.of(
            code="ND701",
            distribution=fact.name if fact.kind == "distribution" else None,
            message=message,
            hint=_HINTS.get(fact.kind, _HINT),
        )


def _fact(kind: str, name: str, old: str | None, new: str | None) -> Fact:
    change: Change = "gained" if old is None else "lost" if new is None else "changed"
    if old == new:
        change = "same"
    # A live proof that is only in the old receipt was not repeated, so ignore it.
    matters = kind in ("distribution", "override") or not (
        _WITHOUT_MATTER.fullmatch(name) or (kind == "live" and new is None)
    )
    return Fact(
        kind=kind,
        name=name,
        old=old,
        new=new,
        change=change,
        matters=matters and change != "same",
    )


def _facts(receipt: Receipt) -> Iterator[tuple[tuple[str, str], str]]:
    environment = Environment.from_dict(receipt["environment"])
    yield ("machine", "CUDA driver"), str(environment.cuda_driver_version or "none")
    if environment.kernel_driver_version:
        yield ("machine", "kernel driver"), environment.kernel_driver_version
    for gpu in environment.gpus:
        name = gpu.name or "a GPU"
        capability = gpu.compute_capability or "unknown"
        yield ("gpu", str(gpu.index)), f"{name}, compute capability {capability}"
    prefix = receipt["python"]["prefix"]
    left = _MOST_REPLACED

    def plain(text: str) -> str:
        """Replace the path of the environment with ``{environment}``."""
        nonlocal left
        left -= text.count(prefix) if prefix else 0
        return text.replace(prefix, "{environment}") if prefix and left >= 0 else text

    if receipt["python"]["version"] is not None:
        yield ("python", "version"), receipt["python"]["version"]
    for item in receipt["distributions"]:
        yield ("distribution", item["name"]), _distribution(item)
    for item in receipt["overrides"]:
        yield ("override", item["name"]), plain(item["value"]) or "an empty text"
    for kind in ("toolchain", "abi", "live"):
        for name, value in islice(_leaves(receipt[kind] or {}, ""), _MOST_LEAVES):
            if kind != "toolchain" or not _SAID_ELSEWHERE.fullmatch(name):
                yield (kind, name), plain(value)


def _distribution(item: Mapping[str, Any]) -> str:
    text = str(item["version"])
    if item["label"] and not text.endswith(f"+{item['label']}"):
        text += f" ({item['label']})"
    if item["record"]:
        # Twelve digits of the hash are enough to distinguish builds of a version.
        text += f" {item['record'][:19]}"
    return text


def _leaves(value: object, place: str) -> Iterator[tuple[str, str]]:
    """Yield the paths and values in a document, without measurements.

    Floats are skipped, because only measured times are floats.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            inner = f"{place}.{key}" if place else str(key)
            yield from _leaves(item, inner[:_LONGEST_PLACE])
    elif isinstance(value, (list, tuple)):
        if all(isinstance(item, str) for item in value):
            if value:
                yield place, ", ".join(value)
            return
        names: set[str] = set()
        for index, item in enumerate(value):
            name = _name_of(item)
            if name is None or name in names:
                name = str(index)
            names.add(name)
            yield from _leaves(item, f"{place}[{name}]"[:_LONGEST_PLACE])
    elif value is not None and not isinstance(value, float):
        yield place, str(value)


def _name_of(item: object) -> str | None:
    """Return a name that identifies an item of a list independently of its position.

    With positions as names, a new item would change the names of all later items.
    """
    if not isinstance(item, Mapping):
        return None
    if isinstance(item.get("distribution"), str):
        # Only libraries in a live proof have a target. Their paths are relative to the
        # distribution; other paths may differ between machines.
        path = item.get("path") if "target" in item else None
        return " ".join(str(word) for word in (item["distribution"], path) if word)
    for key in ("index", "version", "name"):
        if isinstance(item.get(key), (str, int)):
            return str(item[key])
    return None


def _workload_fact(
    command: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> Fact:
    passed = [
        record is not None and record["outcome"] == "passed" for record in (old, new)
    ]
    change: Change = "same"
    matters = False
    reason: str | None = None
    if passed == [True, False]:
        change, matters = "lost", True
        reason = "it was not run" if new is None else "it has passed, and fails now"
    elif passed == [False, True]:
        change = "gained"
    elif old is not None and new is not None:
        worse = [
            f"{new['totals'][name]} {many} instead of {old['totals'][name]}"
            for name, (_, many) in _WORSE.items()
            if new["totals"][name] > old["totals"][name]
        ]
        if worse:
            change, matters, reason = "changed", True, ", ".join(worse)
        elif _summary(old) != _summary(new):
            change = "changed"
    return Fact(
        kind="workload",
        name=command,
        old=None if old is None else _summary(old),
        new=None if new is None else _summary(new),
        change=change,
        matters=matters,
        reason=reason,
    )


def _summary(record: Mapping[str, Any]) -> str:
    """Summarize a workload in a few words."""
    words = [str(record["outcome"])]
    if record["signal"] is not None:
        words = [f"killed by {record['signal']}"]
    elif record["exit_code"]:
        words = [f"exit code {record['exit_code']}"]
    words += [
        f"{total} {one if total == 1 else many}"
        for name, (one, many) in _WORSE.items()
        if (total := record["totals"][name])
    ]
    return ", ".join(words)
