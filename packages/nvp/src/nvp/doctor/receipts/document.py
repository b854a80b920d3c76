"""Format receipts and comparisons as Markdown, JSON or text."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nvidia_variant_provider.errors import InputError, UsageError, printable
from nvidia_variant_provider.machine.environment import Environment

from ...files import real_path
from ...matrix.style import as_code, as_markdown, markdown_table
from .comparing import CHANGES, Comparison, Fact
from .making import Receipt

_JSON, _MARKDOWN = ".json", ".md"
_PLACES = ("graph_breaks", "fallbacks", "recompilations")


def check_target(path: str) -> None:
    """Reject a path to which the receipt cannot be written later.

    A workload may take hours, and its results must not be lost.

    :raises UsageError: the name has an unknown suffix.
    :raises InputError: the path is not a file, or its directory is not writable.
    """
    if not path.lower().endswith((_JSON, _MARKDOWN)):
        hint = f"end the name with {_JSON} or {_MARKDOWN}"
        message = "--receipt: the name has no known ending"
        raise UsageError(message, path=path, hint=hint)
    if "\0" in path or (os.path.exists(path) and not os.path.isfile(path)):
        message = "cannot be written: not a file"
        raise InputError(message, path=printable(path), hint="name a file")
    try:
        folder = os.path.dirname(real_path(path))
    except OSError:  # such as a current directory that has been removed
        folder = ""
    if not os.path.isdir(folder):
        message = "cannot be written: there is no such directory"
        raise InputError(message, path=path, hint="make the directory first")
    if not os.access(folder, os.W_OK):
        message = "cannot be written: no permission for its directory"
        raise InputError(message, path=path, hint="name another directory")


def to_text(receipt: Receipt, path: str) -> str:
    """Return a receipt as Markdown or as JSON, depending on the suffix of ``path``."""
    if path.lower().endswith(_MARKDOWN):
        return "\n".join(receipt_lines(receipt)) + "\n"
    # Use ASCII, because a command line need not be valid UTF-8.
    return json.dumps(receipt, indent=2) + "\n"


def receipt_lines(receipt: Receipt) -> Iterator[str]:
    """Yield the lines of a receipt as Markdown."""
    environment = Environment.from_dict(receipt["environment"])
    yield "# Receipt of a GPU stack"
    yield ""
    yield f"Made at {receipt['made_at']} by {as_markdown(receipt['made_by'])}."
    for reason in receipt["reasons"]:
        yield ""
        yield as_markdown(printable(reason))
    yield from _section("Machine", ("what", "value"), _machine(environment, receipt))
    yield from _section(
        "Distributions",
        ("name", "version", "label", "CUDA", "files", "why"),
        _distributions(receipt),
    )
    overrides = [
        _cells(item["name"], item["value"], item["reason"])
        for item in receipt["overrides"]
    ]
    yield from _section("Overrides", ("variable", "value", "why"), overrides)
    for title, key in (
        ("Toolchain", "toolchain"),
        ("ABI", "abi"),
        ("Live proof", "live"),
    ):
        rows = [(as_markdown(n), _plain(v)) for n, v in _flat(receipt[key] or {}, "")]
        yield from _section(title, ("what", "value"), rows)
    totals = ("graph breaks", "fallbacks", "recompilations")
    workloads = [
        (
            _plain(record["command"]),
            _outcome(record),
            f"{record['seconds']:.1f}",
            *(str(record["totals"][name]) for name in _PLACES),
        )
        for record in receipt["workloads"]
    ]
    header = ("command", "outcome", "seconds", *totals)
    yield from _section("Workloads", header, workloads)
    yield from _places(receipt)
    tuning = [
        _cells(entry["kernel"], entry["key"], entry["config"])
        for record in receipt["workloads"]
        for entry in record["autotuning"]
    ]
    yield from _section("Autotuning", ("kernel", "key", "chosen"), tuning)
    findings = [
        _cells(item["code"], item["severity"], item["message"])
        for item in receipt["findings"]
    ]
    yield from _section("Findings", ("code", "severity", "what"), findings)


def _section(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield f"## {title}"
    yield ""
    yield from markdown_table(header, rows)


def _machine(environment: Environment, receipt: Receipt) -> list[tuple[str, str]]:
    rows = [
        ("CUDA version of the driver", str(environment.cuda_driver_version or "none"))
    ]
    if environment.kernel_driver_version:
        rows.append(("kernel driver", _plain(environment.kernel_driver_version)))
    for gpu in environment.gpus:
        name = gpu.name or "a GPU"
        capability = gpu.compute_capability or "unknown"
        value = f"{_plain(name)}, compute capability {capability}"
        rows.append((f"GPU {gpu.index}", value))
    if receipt["python"]["version"]:
        rows.append(("Python", _plain(receipt["python"]["version"])))
    if receipt["triton"]:
        rows.append(("Triton", _plain(receipt["triton"])))
    return rows


def _distributions(receipt: Receipt) -> list[tuple[str, ...]]:
    return [
        (
            *_cells(item["name"], item["version"], item["label"], item["cuda"]),
            as_code(item["record"][:19]) if item["record"] else "",
            _plain(item["reason"]),
        )
        for item in receipt["distributions"]
    ]


def _outcome(record: Mapping[str, Any]) -> str:
    words = [_plain(record["outcome"])]
    if record["exit_code"]:
        words.append(f"exit code {record['exit_code']}")
    if record["signal"]:
        words.append(_plain(record["signal"]))
    words += [
        f"GPU {gpu['index']}: {gpu['peak'] >> 20:,} MiB in use at most"
        for gpu in record["gpu_memory"] or ()
    ]
    return ", ".join(words)


def _places(receipt: Receipt) -> Iterator[str]:
    rows = [
        _cells(
            record["command"],
            name.replace("_", " ").removesuffix("s"),
            f"{entry['path']}:{entry['line']}",
            entry["count"],
            entry["reason"],
        )
        for record in receipt["workloads"]
        for name in _PLACES
        for entry in record[name]
    ]
    header = ("command", "what", "where", "times", "reason")
    yield from _section("Where graphs broke", header, rows)


def _flat(value: object, place: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{place}.{key}" if place else str(key))
    elif isinstance(value, (list, tuple)) and all(isinstance(x, str) for x in value):
        yield place, ", ".join(value)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _flat(item, f"{place}[{index}]")
    elif value is not None:
        yield place, value


def _plain(value: object) -> str:
    return "" if value is None else as_markdown(printable(str(value)))


def _cells(*values: object) -> tuple[str, ...]:
    return tuple(map(_plain, values))


def comparison_lines(comparison: Comparison, *, with_same: bool) -> list[str]:
    """Return the facts as lines of text, sorted by change, most severe first."""
    lines: list[str] = []
    for fact in _sorted(comparison, with_same=with_same):
        lines.append(f"{fact.change}: {fact.kind} {printable(fact.name)}")
        if fact.change == "same":
            lines.append(f"  {printable(fact.new or '')}")
        else:
            lines.append(f"  old: {printable(fact.old or 'none')}")
            lines.append(f"  new: {printable(fact.new or 'none')}")
        if fact.reason:
            lines.append(f"  {fact.reason}")
        lines.append("")
    return [*lines, _counts(comparison)]


def comparison_markdown(comparison: Comparison, *, with_same: bool) -> list[str]:
    """Return the facts as a Markdown table, sorted by change, most severe first."""
    rows = [
        _cells(fact.change, fact.kind, fact.name, fact.old, fact.new, fact.reason)
        for fact in _sorted(comparison, with_same=with_same)
    ]
    header = ("change", "kind", "fact", "old", "new", "reason")
    return [*markdown_table(header, rows), "", _counts(comparison)]


def _sorted(comparison: Comparison, *, with_same: bool) -> list[Fact]:
    facts = [fact for fact in comparison.facts if with_same or fact.change != "same"]
    # The sort is stable, so workloads stay last among facts with the same change.
    return sorted(facts, key=lambda fact: CHANGES.index(fact.change))


def _counts(comparison: Comparison) -> str:
    counted = ", ".join(f"{n} {change}" for change, n in comparison.counts.items())
    return f"{counted}, of {len(comparison.facts)} facts"
