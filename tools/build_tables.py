"""Build the GPU table and the driver table from checked-in sources.

``python -m tools.build_tables`` writes ``gpus.json`` and ``drivers.json`` in
``nvidia_variant_provider/knowledge``, and ``machine/driver_table.py``, the part of
them that installers load. ``--check`` writes nothing and exits with 1 if a file would
change.

The sources are ``toolkits.json``, which ``python -m tools.measure`` writes, and the
files in ``tools/sources``. Those quote public documents, each with its URL and the day
on which it was read:

- ``ptx_history.json``: which CUDA release and driver branch brought each target;
- ``drivers.json``: the drivers of toolkit releases, and where a GPU's branches differ
  from the rule in `first_branch`;
- ``gpus.json``: names of GPUs.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.records import KNOWLEDGE, MACHINE, SOURCES, read, render

__all__ = ["build", "main"]

Record = dict[str, Any]

_GENERATED = '''\
"""The part of `knowledge/drivers.json` that a detected machine needs.

``python -m tools.build_tables`` writes this module; do not edit it. Reading the
JSON file would cost an installer the import of `json` in every process.
"""

from __future__ import annotations

__all__ = ["CUDA_OF_BRANCH", "FLOORS"]

'''


def main() -> None:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    changed = False
    for path, text in build(read(KNOWLEDGE / "toolkits.json")).items():
        if path.read_text(encoding="utf-8") == text:
            continue
        changed = True
        print(f"{path.name}: {'would change' if check else 'written'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and changed:
        raise SystemExit(1)


def build(toolkits: list[Record]) -> Mapping[Path, str]:
    """Return the text of each generated file.

    :param toolkits: the records of ``toolkits.json``.
    """
    history = read(SOURCES / "ptx_history.json")
    sources = read(SOURCES / "drivers.json")
    gpus = build_gpus(toolkits, history, read(SOURCES / "gpus.json"))
    drivers = build_drivers(gpus, history, sources)
    return {
        KNOWLEDGE / "gpus.json": render(gpus),
        KNOWLEDGE / "drivers.json": render(drivers),
        MACHINE / "driver_table.py": build_module(drivers),
    }


def build_gpus(
    toolkits: list[Record], history: Record, sources: Record
) -> list[Record]:
    """Return the GPU table.

    The first and the last toolkit are measured. Where the oldest measured toolkit
    already knows a GPU, the history of PTX says which release brought it.
    """
    records = []
    for gpu in sources["gpus"]:
        target = gpu["compute_capability"].replace(".", "")
        having = [kit["version"] for kit in toolkits if target in kit["targets"]]
        first, last = having[0], having[-1]
        basis = "first and last toolkit: ptxas of the toolkits on PyPI"
        dates = [max(kit["date"] for kit in toolkits)]
        if first == toolkits[0]["version"]:
            (first,) = (
                r["cuda"] for r in history["releases"] if target in r["new_targets"]
            )
            basis = f"first toolkit: {_cite(history['document'])}; last toolkit: "
            basis += "ptxas of the toolkits on PyPI"
            dates.append(history["document"]["read"])
        document = sources["documents"].get(gpu["document"])
        if document is not None:
            dates.append(document["read"])
        records.append(
            {
                "compute_capability": gpu["compute_capability"],
                "architecture": gpu["architecture"],
                "products": gpu["products"],
                "tegra": gpu["tegra"],
                "first_toolkit": first,
                "last_toolkit": None if last == toolkits[-1]["version"] else last,
                "source": f"{basis}; products: "
                + (_cite(document) if document else gpu["note"]),
                "date": max(dates),
            }
        )
    return records


def build_drivers(gpus: list[Record], history: Record, sources: Record) -> Record:
    """Return the driver table."""
    documents = sources["documents"]
    toolkit_drivers = [
        {
            "release": record["release"],
            "cuda": _cuda(record),
            "linux": record["linux"],
            "windows": record["windows"],
            **_source(documents.get(record["document"]), record, history),
        }
        for record in sources["toolkit_drivers"]
    ]
    floors = [
        {
            "major": record["major"],
            "linux": record["linux"],
            "windows": record["windows"],
            **_source(documents[record["document"]], record, history),
        }
        for record in sources["minor_version_floors"]
    ]
    branches = build_branches(toolkit_drivers, history)
    return {
        "branches": branches,
        "gpu_drivers": build_gpu_drivers(gpus, branches, history, sources),
        "toolkit_drivers": toolkit_drivers,
        "minor_version_floors": floors,
    }


def build_branches(toolkit_drivers: list[Record], history: Record) -> list[Record]:
    """Return the CUDA version that each driver branch reports, from CUDA 11.0 on.

    The branch is that of the driver with which a toolkit was published. The history
    of PTX adds CUDA 12.7, which has no toolkit, and branches whose lowest version is
    not known.
    """
    by_cuda: dict[str, Record] = {}
    for release in history["releases"]:
        if _numbers(release["cuda"]) >= (11, 0):
            document = history["document"]
            by_cuda[release["cuda"]] = {
                "branch": release["driver"],
                "cuda": release["cuda"],
                "source": _cite(document),
                "date": document["read"],
            }
    for record in toolkit_drivers:
        if record["linux"] is not None:
            by_cuda[record["cuda"]] = {
                "branch": int(record["linux"].partition(".")[0]),
                "cuda": record["cuda"],
                "source": record["source"],
                "date": record["date"],
            }
    return sorted(by_cuda.values(), key=lambda record: record["branch"])


def build_gpu_drivers(
    gpus: list[Record], branches: list[Record], history: Record, sources: Record
) -> list[Record]:
    """Return the first and the last driver branch of each compute capability."""
    documents = sources["documents"]
    last_branches = {
        r.get("compute_capability") or r["architecture"]: r
        for r in sources["last_branches"]
    }
    first_branches = {r["compute_capability"]: r for r in sources["first_branches"]}
    records = []
    for gpu in gpus:
        first, basis, date = first_branch(gpu["first_toolkit"], branches, history)
        exception = first_branches.get(gpu["compute_capability"])
        if exception:
            first = exception["branch"]
            document = documents[exception["document"]]
            basis, date = _cite(document), document["read"]
        last, last_basis = None, "none is known"
        ending = last_branches.get(gpu["compute_capability"]) or last_branches.get(
            gpu["architecture"].partition(" ")[0]
        )
        if ending:
            last, document = ending["branch"], documents[ending["document"]]
            last_basis, date = _cite(document), max(date, document["read"])
        records.append(
            {
                "compute_capability": gpu["compute_capability"],
                "first_branch": first,
                "last_branch": last,
                "source": f"first branch: {basis}; last branch: {last_basis}",
                "date": date,
            }
        )
    return records


def first_branch(
    cuda: str, branches: list[Record], history: Record
) -> tuple[int, str, str]:
    """Return the branch of a CUDA version, with its source and date.

    A toolkit that compiles for a new GPU is published with the driver that runs it,
    so that this is also the first branch of the GPU.
    """
    for record in branches:
        if record["cuda"] == cuda:
            return (
                record["branch"],
                f"the branch of CUDA {cuda}, {record['source']}",
                record["date"],
            )
    document = history["document"]
    drivers = {r["cuda"]: r["driver"] for r in history["releases"]}
    if cuda not in drivers:
        raise SystemExit(f"add CUDA {cuda} to tools/sources/ptx_history.json")
    basis = f"the branch of CUDA {cuda}, {_cite(document)}"
    return drivers[cuda], basis, document["read"]


def build_module(drivers: Record) -> str:
    """Return the text of ``machine/driver_table.py``."""
    lines = ["CUDA_OF_BRANCH = {"]
    lines += [
        f"    {record['branch']}: {_numbers(record['cuda'])},"
        for record in drivers["branches"]
    ]
    lines += ["}", '"""The CUDA version that the drivers of a branch report."""', ""]
    lines.append("FLOORS = {")
    for system in ("linux", "windows"):
        lines.append(f'    "{system}": {{')
        lines += [
            f"        {record['major']}: {_numbers(f'{record[system]}.0')[:2]},"
            for record in reversed(drivers["minor_version_floors"])
        ]
        lines.append("    },")
    lines += [
        "}",
        '"""The lowest driver of each CUDA major for minor-version compatibility."""',
    ]
    return _GENERATED + "\n".join(lines) + "\n"


def _cuda(record: Record) -> str:
    """Return ``11.0`` for the release ``11.0.2 GA``."""
    major, minor = record["release"].split()[0].split(".")[:2]
    return f"{major}.{minor}"


def _source(document: Record | None, record: Record, history: Record) -> Record:
    if document is None:
        return {"source": record["note"], "date": history["document"]["read"]}
    return {"source": _cite(document), "date": document["read"]}


def _cite(document: Record) -> str:
    return f"{document['title']}, {document['url']}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


if __name__ == "__main__":
    main()
