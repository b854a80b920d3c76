"""Build the tables of GPUs, drivers and older toolkits from checked-in sources.

``python -m tools.build_tables`` writes ``gpus.json``, ``drivers.json``, ``tegra.json``
and ``older_toolkits.json`` in ``packages/nvp/src/nvp/knowledge``, and
``machine/driver_table.py``, the part of them that installers load. ``--check`` writes
nothing and exits with 1 if a file would change.

The sources are ``toolkits.json``, which ``python -m tools.measure`` writes, and the
files in ``tools/sources``. Those quote public documents, each with its URL and the day
on which it was read:

- ``ptx_history.json``: which CUDA release and driver branch brought each target;
- ``drivers.json``: the drivers of toolkit releases, and the GPUs whose branches differ
  from the rule in `first_branch`;
- ``gpus.json``: names of GPUs, and the last toolkit of the GPUs that no measured
  toolkit supports;
- ``tegra.json``: the first driver and toolkit with which SASS of systems on a chip runs
  on other GPUs, and the reverse.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.records import KNOWLEDGE, MACHINE, SOURCES, is_measured, read, render

__all__ = ["build", "main"]

Record = dict[str, Any]

OLDEST = (9, 0)
"""The oldest toolkit of the table; wheels were built with it in 2018."""

_GENERATED = '''\
"""The CUDA versions and the minimum versions of drivers, for detected machines.

``python -m tools.build_tables`` writes this module from the same sources as
`knowledge/drivers.json`; do not edit it. Reading the JSON file would cost an installer
the import of `json` in every process.
"""

from __future__ import annotations

'''


def main() -> None:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    changed = False
    for path, text in build(read(KNOWLEDGE / "toolkits.json")).items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
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
    older = build_older_toolkits(toolkits, gpus, history)
    return {
        KNOWLEDGE / "gpus.json": render(gpus),
        KNOWLEDGE / "older_toolkits.json": render(older),
        KNOWLEDGE / "tegra.json": render(build_tegra(read(SOURCES / "tegra.json"))),
        KNOWLEDGE / "drivers.json": render(drivers),
        MACHINE / "driver_table.py": build_module(drivers, sources),
    }


def build_gpus(
    toolkits: list[Record], history: Record, sources: Record
) -> list[Record]:
    """Return the GPU table.

    The first and the last toolkit are measured, or announced. If the oldest measured
    toolkit already supports a GPU, or no longer does, the release that introduced the
    GPU is from the history of PTX.
    """
    records = []
    measured_on = max(kit["date"] for kit in toolkits if is_measured(kit))
    for gpu in sources["gpus"]:
        target = gpu["compute_capability"].replace(".", "")
        kits = [kit for kit in toolkits if target in kit["targets"]]
        having = [kit["version"] for kit in kits]
        ended = gpu.get("last_toolkit")
        if not having and ended is None:
            raise SystemExit(
                "no toolkit in toolkits.json compiles for "
                f"{gpu['compute_capability']}; add one that does to "
                "tools/sources/toolkits.json, and measure it"
            )
        measured = "ptxas of the toolkits on PyPI"
        dates = [measured_on]
        basis = f"first and last toolkit: {measured}"
        if kits and not is_measured(kits[0]):
            dates = [kits[0]["date"]]
            basis = f"first toolkit: {kits[0]['source']}"
        if having and having[0] != toolkits[0]["version"]:
            first, last = having[0], having[-1]
        else:
            (first,) = (
                r["cuda"] for r in history["releases"] if target in r["new_targets"]
            )
            dates.append(history["document"]["read"])
            basis = f"first toolkit: {_cite(history['document'])}; last toolkit: "
            if having:
                last = having[-1]
                basis += measured
            else:
                ending = sources["documents"][ended["document"]]
                last = ended["cuda"]
                basis += _cite(ending)
                dates.append(ending["read"])
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


def build_tegra(sources: Record) -> list[Record]:
    """Return the table of SASS that runs on both systems on a chip and other GPUs."""
    records = []
    for item in sources["gpus"]:
        document = sources["documents"][item["document"]]
        note = item.get("note")
        records.append(
            {
                "gpu": item["gpu"],
                "code": item["code"],
                "from_driver": item["from_driver"],
                "from_toolkit": item["from_toolkit"],
                "source": _cite(document) + (f"; {note}" if note else ""),
                "date": document["read"],
            }
        )
    return records


def build_older_toolkits(
    toolkits: list[Record], gpus: list[Record], history: Record
) -> list[Record]:
    """Return the toolkits from `OLDEST` up to the first measured one.

    Such a toolkit has the targets that this or an older release introduced, without
    removed targets.
    """
    measured = _numbers(toolkits[0]["version"])
    ends = {
        gpu["compute_capability"].replace(".", ""): gpu["last_toolkit"] for gpu in gpus
    }
    records, targets = [], []
    for release in sorted(history["releases"], key=lambda r: _numbers(r["cuda"])):
        version = _numbers(release["cuda"])
        targets += release["new_targets"]
        if OLDEST <= version < measured:
            kept = [
                target
                for target in sorted(targets, key=int)
                if ends[target] is None or version <= _numbers(ends[target])
            ]
            records.append(
                {
                    "version": release["cuda"],
                    "ptx_isa": release["ptx_isa"],
                    "targets": kept,
                    "source": f"{_cite(history['document'])}; without the targets "
                    "whose last toolkit is older, by gpus.json",
                    "date": max(
                        history["document"]["read"],
                        *(gpu["date"] for gpu in gpus if gpu["last_toolkit"]),
                    ),
                }
            )
    return records


def build_drivers(gpus: list[Record], history: Record, sources: Record) -> Record:
    """Return the driver table."""
    branches = build_branches(history, sources)
    return {
        "branches": branches,
        "gpu_drivers": build_gpu_drivers(gpus, branches, history, sources),
    }


def build_branches(history: Record, sources: Record) -> list[Record]:
    """Return the CUDA version that each driver branch reports, from CUDA 11.0 on.

    The branch is that of the driver that was published with the toolkit. The history of
    PTX adds CUDA 12.7, which has no toolkit, and branches whose lowest version is not
    known.
    """
    by_cuda: dict[str, Record] = {}
    isas: dict[str, str] = {}
    for release in history["releases"]:
        isas[release["cuda"]] = release["ptx_isa"]
        if _numbers(release["cuda"]) >= (11, 0):
            by_cuda[release["cuda"]] = {
                "branch": release["driver"],
                "cuda": release["cuda"],
                "source": _cite(history["document"]),
                "date": history["document"]["read"],
            }
    for driver in sources["toolkit_drivers"]:
        if driver["linux"] is not None:
            document = sources["documents"][driver["document"]]
            by_cuda[driver["cuda"]] = {
                "branch": _numbers(driver["linux"])[0],
                "cuda": driver["cuda"],
                "source": _cite(document),
                "date": document["read"],
            }
    for cuda, record in by_cuda.items():
        record["ptx_isa"] = isas.get(cuda)
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

    A toolkit that compiles for a new GPU is published with a driver for the GPU, so
    this branch is also the first branch of the GPU.
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


def build_module(drivers: Record, sources: Record) -> str:
    """Return the text of ``machine/driver_table.py``."""
    lines = ["CUDA_OF_BRANCH = {"]
    lines += [
        f"    {record['branch']}: {_numbers(record['cuda'])},"
        for record in drivers["branches"]
    ]
    lines += ["}", '"""The CUDA version that the drivers of a branch report."""', ""]
    documents = sources["documents"]
    floors = list(reversed(sources["minor_version_floors"]))
    lines.append("FLOORS = {")
    for system in ("linux", "windows"):
        lines.append(f'    "{system}": {{')
        lines += [
            f"        {floor['major']}: {_numbers(f'{floor[system]}.0')[:2]},"
            for floor in floors
        ]
        lines.append("    },")
    lines += [
        "}",
        '"""The lowest driver of each CUDA major for minor-version compatibility.',
        "",
        f"Source: {documents[floors[-1]['document']]['url']}",
        '"""',
    ]
    return _GENERATED + "\n".join(lines) + "\n"


def _cite(document: Record) -> str:
    return f"{document['title']}, {document['url']}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


if __name__ == "__main__":
    main()
