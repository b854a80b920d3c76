r"""Regenerate the table of builds from a census and from torch's build scripts.

First a census of the projects of the table is taken and exported, which takes a
quarter of an hour for the newest two releases of each::

    nvp census INDEX --project NAME ... --releases 2 \
        --platform '*linux*x86_64' --platform '*linux*aarch64' -o census.sqlite
    nvp census --export census.json -o census.sqlite
    python -m tools.update_builds census.json

The records of older releases, which the census has not read, stay as they are. Those of
``tools/sources/torch_builds.json`` count where no wheel was read.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvp.knowledge.builds import BuildRecord, LibraryCode, Needs

__all__ = [
    "merge",
    "read_inspected",
    "records_of_scripts",
    "render",
]

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "packages" / "nvp" / "src" / "nvp" / "knowledge" / "builds.json"
SCRIPTS = ROOT / "tools" / "sources" / "torch_builds.json"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("census", type=Path, help="the table that census has exported")
    options = parser.parse_args()
    read = [*read_inspected(TABLE), *read_inspected(options.census)]
    scripts = json.loads(SCRIPTS.read_text(encoding="utf-8"))
    TABLE.write_text(render(merge(read, records_of_scripts(scripts))), encoding="utf-8")


def read_inspected(path: Path) -> list[BuildRecord]:
    """Return the records of wheels that were read, and not those of scripts."""
    document = json.loads(path.read_text(encoding="utf-8"))
    records = map(BuildRecord.from_dict, document["records"])
    return [record for record in records if record.wheels]


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


def merge(
    inspected: Iterable[BuildRecord], described: Iterable[BuildRecord]
) -> list[BuildRecord]:
    """Join records; a wheel that was inspected goes before a script.

    Of two wheels of one build, the one that was inspected later counts.
    """
    found = {_key(record): record for record in described}
    found.update((_key(record), record) for record in inspected)
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
