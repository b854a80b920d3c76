"""Measure the targets that each CUDA toolkit on the package index assembles.

``python -m tools.measure`` writes ``toolkits.json`` and ``ptx_targets.json`` in
``packages/nvp/src/nvp/knowledge``. It downloads the wheels that
``tools/sources/toolkits.json`` pins, about 500 MB, once. To add a toolkit, add its
requirement there. ``python -m tools.measure REQUIREMENT`` prints the record of one
toolkit and writes nothing.

The key ``announced`` of that file has the toolkits that are not yet on the index, with
the values of their documents. ``python -m tools.measure --announced`` adds these to the
measured ones without a download; a measured record replaces the announced one.

A record keeps its date as long as the measured values stay the same.
"""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Iterable
from typing import Any

from tools.ptxas import Ptxas, fetch
from tools.records import KNOWLEDGE, SOURCES, is_measured, read, render

__all__ = ["main", "measure_ptx_targets", "measure_toolkit"]

_SOURCES_OF_PTX = [
    *("90a", "100a", "100f", "101a", "101f", "103a", "103f", "107a", "107f"),
    *("110a", "110f", "120a", "120f", "121a", "121f"),
    *("50", "75", "90", "100", "101", "103", "110", "120"),
]
"""The targets of the PTX that the measurement tries to assemble."""


def main() -> None:
    """Measure, and write or print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("requirement", nargs="?", help="print the record of this one")
    parser.add_argument(
        "--announced", action="store_true", help="add announced toolkits, measure none"
    )
    options = parser.parse_args()
    if options.requirement:
        print(render(measure_toolkit(fetch(options.requirement))), end="")
        return
    pins = read(SOURCES / "toolkits.json")
    announced = pins.get("announced", [])
    if options.announced:
        known = read(KNOWLEDGE / "toolkits.json")
        measured = [kit for kit in known if is_measured(kit)]
        _write("toolkits", with_announced(measured, announced))
        return
    assemblers = [fetch(pin) for pin in pins["toolkits"]]
    _write(
        "toolkits", with_announced(list(map(measure_toolkit, assemblers)), announced)
    )
    by_release = {assembler.release(): assembler for assembler in assemblers}
    chosen = [by_release[release] for release in pins["ptx_targets"]]
    _write("ptx_targets", map(measure_ptx_targets, chosen))


def with_announced(
    measured: list[dict[str, Any]], announced: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the measured records, without dates, and the announced ones after them."""
    versions = {kit["version"] for kit in measured}
    kept = [kit for kit in announced if kit["version"] not in versions]
    return [
        {key: value for key, value in kit.items() if key != "date"}
        for kit in (*measured, *kept)
    ]


def measure_toolkit(ptxas: Ptxas) -> dict[str, Any]:
    """Return the record of a toolkit, without a date."""
    return {
        "version": ptxas.release().rpartition(".")[0],
        "ptx_isa": ptxas.isa(),
        "targets": ptxas.targets(),
        "source": f"ptxas of {ptxas.requirement}, "
        "which assembled a kernel for each target",
    }


def measure_ptx_targets(ptxas: Ptxas) -> dict[str, Any]:
    """Return the targets for which PTX of each target assembles, without a date."""
    targets = ptxas.targets()
    assembles = {source: ptxas.assembles(source, targets) for source in _SOURCES_OF_PTX}
    release = ptxas.release()
    return {
        "ptxas": release,
        "assembles": {
            source: assembled for source, assembled in assembles.items() if assembled
        },
        "source": f"ptxas {release} on PTX of each target",
    }


def _write(name: str, records: Iterable[dict[str, Any]]) -> None:
    path = KNOWLEDGE / f"{name}.json"
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    old = read(path)
    dated = []
    for record in records:
        known = [
            x["date"] for x in old if {**x, "date": None} == {**record, "date": None}
        ]
        dated.append({**record, "date": known[0] if known else today})
    path.write_text(render(dated), encoding="utf-8")
    print(f"{path.name}: {'unchanged' if dated == old else 'written'}")


if __name__ == "__main__":
    main()
