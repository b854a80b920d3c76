r"""Regenerate the table of builds: wheels, METADATA, build scripts, support tables.

``tools/sources/releases.json`` lists the wheels to read: for each project, the newest
release of each CUDA major, and the releases before and after each change of GPUs. INDEX
is the URL of the root page of an index. A census of all these wheels reads 20 GB::

    python -m tools.list_builds INDEX wheels --metadata metadata.json
    nvp census wheels -o census.sqlite
    nvp census --export census.json -o census.sqlite
    python -m tools.update_builds census.json metadata.json

Records of wheels and of METADATA that were not read again stay as they are. If sources
differ, the order is: wheels that were read, the tables of vendors
(``tools/sources/support_tables.json``), the build scripts
(``tools/sources/torch_builds.json``), METADATA.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from packaging.version import Version

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvp.knowledge.builds import BuildRecord, LibraryCode, Needs, parse_cuda

__all__ = [
    "merge",
    "read_kept",
    "records_of_scripts",
    "records_of_tables",
    "render",
]

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "packages" / "nvp" / "src" / "nvp" / "knowledge" / "builds.json"
SCRIPTS = ROOT / "tools" / "sources" / "torch_builds.json"
TABLES = ROOT / "tools" / "sources" / "support_tables.json"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    text = "a table that census has exported, or the one of METADATA"
    parser.add_argument("read", type=Path, nargs="*", help=text)
    options = parser.parse_args()
    records = [record for path in (TABLE, *options.read) for record in read_kept(path)]
    TABLE.write_text(render(merge(records)), encoding="utf-8")


def read_kept(path: Path) -> list[BuildRecord]:
    """Return the records of wheels and of METADATA that were read."""
    document = json.loads(path.read_text(encoding="utf-8"))
    records = map(BuildRecord.from_dict, document["records"])
    return [r for r in records if r.wheels or r.needs.evidence == "metadata"]


def records_of_tables(sources: Mapping[str, Any]) -> Iterator[BuildRecord]:
    """Yield a record for each release in the tables that vendors publish.

    The tables have the CUDA version of a release, or that the release has no CUDA, but
    not the GPUs.
    """
    for table in sources["tables"]:
        document = sources["documents"].get(table["document"], table)
        groups = [(releases, cuda) for cuda, releases in table.get("cuda", {}).items()]
        for releases, cuda in [*groups, (table.get("cpu", ""), None)]:
            needs = Needs(
                evidence="table",
                source=f"table of builds, {document['read']}",
                cuda=parse_cuda(cuda),
                gpu=cuda is not None,
            )
            for version, platform in product(releases.split(), table["platforms"]):
                yield BuildRecord(
                    project=table["project"],
                    version=version,
                    label=None,
                    platform=platform,
                    needs=needs,
                    wheels={},
                    source=document.get("url") or table["note"],
                    date=document["read"],
                )


def records_of_scripts(scripts: Mapping[str, Any]) -> Iterator[BuildRecord]:
    """Yield a record for each build that torch's own scripts describe.

    PyPI's build of a release is the build of one label, without the label.
    """
    date = scripts["about"]["date"]
    for version, labels in scripts["releases"].items():
        plain = scripts["pypi"].get(version)
        for label, build in labels.items():
            platforms = {"linux_x86_64": build, **build.get("other_platforms", {})}
            for platform, described in platforms.items():
                record = _record(version, label, platform, described, date)
                yield record
                # PyPI has no CUDA build of torch for Windows.
                if label == plain and platform.startswith("linux"):
                    yield _without_label(record)


def _record(
    version: str, label: str, platform: str, build: Mapping[str, Any], date: str
) -> BuildRecord:
    digits = label.removeprefix("cu")
    cuda = CudaVersion(int(digits[:-1]), int(digits[-1]))
    library = LibraryCode(
        name="torch",
        cuda=cuda,
        machine_code=frozenset(map(_target, build["archs"])),
        ptx={_target(text): cuda for text in build["ptx"]},
    )
    return BuildRecord(
        project="torch",
        version=version,
        label=label,
        platform=platform,
        needs=Needs(
            evidence="table",
            source=f"table of builds, {date}",
            cuda=cuda,
            pieces=((library,),),
        ),
        wheels={},
        source=f"{build['confidence']}: {build['source']}",
        date=date,
    )


def _target(capability: str) -> str:
    return ComputeCapability.parse(capability).sm


def _without_label(record: BuildRecord) -> BuildRecord:
    return BuildRecord.from_dict({**record.to_dict(), "label": None})


def merge(read: Iterable[BuildRecord]) -> list[BuildRecord]:
    """Merge the records of reading with published facts about builds.

    :param read: records of wheels and of METADATA. If two records are for one build,
        the later one is used.
    """
    by_wheel: dict[bool, list[BuildRecord]] = {True: [], False: []}
    for record in read:
        by_wheel[bool(record.wheels)].append(record)
    groups = (
        by_wheel[False],
        records_of_scripts(json.loads(SCRIPTS.read_text(encoding="utf-8"))),
        records_of_tables(json.loads(TABLES.read_text(encoding="utf-8"))),
        by_wheel[True],
    )
    found = {_key(record): record for group in groups for record in group}
    return [found[key] for key in sorted(found)]


def _key(record: BuildRecord) -> tuple[str, Version, str, str]:
    version = Version(record.version)
    return record.project, version, record.label or "", record.platform


def render(records: Iterable[BuildRecord]) -> str:
    """Return the text of the table, one record on each line."""
    lines = [json.dumps(record.to_dict()) for record in records]
    return '{"records": [\n' + ",\n".join(lines) + "\n]}\n"


if __name__ == "__main__":
    main()
