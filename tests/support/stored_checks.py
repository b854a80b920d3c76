"""Checking an index with a store, and what the run has read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from support.containers import library
from support.gpu_wheels import Wheel
from support.range_server import RangeServer

from nvp.census.checking import StoredIndex
from nvp.census.model import Outcome
from nvp.census.running import Tally
from nvp.lint.findings import Finding
from nvp.lint.runner import check_paths
from nvp.lint.unchecked import Unchecked, UncheckedFiles

__all__ = ["Checked", "Read", "check", "labelled", "same", "wheel_bytes"]


class Read:
    """Which wheels a run has read, and for what."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def listed(self, project: Any, tally: Tally) -> None:
        """Take no note."""

    def finished(self, outcome: Outcome, tally: Tally) -> None:
        del tally
        self.outcomes.append(outcome)

    @property
    def bytes(self) -> int:
        return sum(outcome.bytes_read for outcome in self.outcomes)


class Checked(NamedTuple):
    findings: list[Finding]
    unchecked: list[Unchecked]
    read: Read


def check(
    path: str | os.PathLike[str],
    store: Path | None = None,
    *,
    jobs: int = 1,
    dask: str | None = None,
    **options: Any,
) -> Checked:
    """Check an index, with a store if there is one."""
    unchecked, read = UncheckedFiles(), Read()
    if store is not None:
        options["check_index"] = StoredIndex(
            store=str(store), environ=os.environ, jobs=jobs, dask=dask, observer=read
        ).check
    findings = check_paths([path], unchecked=unchecked, **options)
    return Checked(findings, unchecked.all, read)


def same(one: Checked, other: Checked) -> None:
    """The findings are equal text by text, and so is what was not checked."""
    assert one.findings == other.findings
    assert sorted(map(str, one.unchecked)) == sorted(map(str, other.unchecked))


def wheel_bytes(server: RangeServer) -> int:
    return sum(size for path, size in server.sent.items() if path.endswith(".whl"))


def labelled(folder: Path, label: str = "cu130", **more: Any) -> Path:
    """A wheel whose claim is false."""
    options = {"libraries": {"demo/lib.so": library("80_real")}, "sm": ["90_real"]}
    return Wheel(**{**options, "label": label, **more}).write(folder)
