"""The live proof of ``doctor``, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["live_lines"]


def live_lines(live: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the GPUs have shown.

    :param live: ``data.live`` of the report.
    """
    for gpu in live["gpus"]:
        label = f"Live, GPU {gpu['index']}:"
        yield f"{label:13}{', '.join(_gpu_clauses(gpu))}"
    if live["torch"] is not None:
        torch = live["torch"]
        clauses = [_step(step) for step in torch["steps"] if step["name"] in _SHOWN]
        clauses += _products(torch["steps"])
        targets = torch["arch_list"]
        if targets:
            clauses.append(f"built for {' '.join(targets)}")
        yield f"Live, torch: {', '.join(clauses)}"


_SHOWN = ("import", "compile")


def _gpu_clauses(gpu: Mapping[str, Any]) -> Iterator[str]:
    context = gpu["context"]
    if context["status"] != "passed":
        yield f"no context ({context['error']})"
        return
    yield f"context in {_seconds(context)}"
    linked = gpu["machine_code"]
    does = "runs" if linked["status"] == "passed" else "does not run"
    yield f"machine code {does}"
    yield from _ptx_clauses(gpu["ptx"])
    trials = [item["status"] for item in gpu["libraries"]]
    tried = [status for status in trials if status != "skipped"]
    if tried:
        loaded = tried.count("passed")
        yield f"code of {loaded} of {len(tried)} libraries loads"
    if len(tried) < len(trials):
        yield f"{len(trials) - len(tried)} libraries have nothing to load"


def _ptx_clauses(trials: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    words = {
        "passed": "runs",
        "refused": "is refused",
        "skipped": "was not tried",
        "failed": "fails",
    }
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for trial in trials:
        word = words.get(trial["status"], trial["status"])
        groups.setdefault(word, []).append(trial)
    for word, group in groups.items():
        ends = dict.fromkeys([group[0]["version"], group[-1]["version"]])
        times = [item["compiled"] for item in group if item["compiled"] is not None]
        took = f" (compiled in at most {max(times) * 1000:.0f} ms)" if times else ""
        yield f"PTX {' to '.join(ends)} {word}{took}"


def _products(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    products = [step for step in steps if step["name"].startswith("matmul")]
    if products:
        right = sum(step["status"] == "passed" for step in products)
        yield f"matrix product right on {right} of {len(products)} GPUs"


def _step(step: Mapping[str, Any]) -> str:
    if step["status"] == "passed":
        return f"{step['name']} in {_seconds(step)}"
    return f"{step['name']} failed"


def _seconds(trial: Mapping[str, Any]) -> str:
    return f"{trial['seconds'] or 0:.2f} s"
