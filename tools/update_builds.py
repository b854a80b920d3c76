"""Regenerate the table of builds from released wheels and from torch's build scripts.

``python -m tools.update_builds read STORE`` inspects the newest wheels of each project
on the index that pip is configured for, one after the other, and keeps a record of
each in the folder STORE. A second run reads only what is not there yet: the run may be
interrupted. It reads 17 GB in half an hour, and needs the extra ``index``.
``python -m tools.update_builds write STORE`` makes
``nvidia_variant_provider/knowledge/builds.json`` out of STORE and of
``tools/sources/torch_builds.json``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from packaging.version import Version

from nvidia_variant_provider import api
from nvidia_variant_provider.builds.needs import needs_of_report
from nvidia_variant_provider.builds.table import PROJECTS, record_of_needs
from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.index.connection import connect
from nvidia_variant_provider.index.http.blocking import RemoteFile
from nvidia_variant_provider.index.pip.command import Pip
from nvidia_variant_provider.knowledge.builds import BuildRecord, LibraryRecord
from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvidia_variant_provider.wheels.names import parse_wheel_name, platform_of

__all__ = [
    "choose_wheels",
    "inspect_wheel",
    "merge",
    "read_all",
    "records_of_scripts",
    "render",
]

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "nvidia_variant_provider" / "knowledge" / "builds.json"
SCRIPTS = ROOT / "tools" / "sources" / "torch_builds.json"


def main() -> None:
    """Read wheels, or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=["read", "write"])
    parser.add_argument("store", type=Path, help="a folder with one record per wheel")
    options = parser.parse_args()
    if options.command == "read":
        options.store.mkdir(parents=True, exist_ok=True)
        read_all(options.store)
        return
    stored = [
        BuildRecord.from_dict(json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(options.store.glob("*.json"))
    ]
    scripts = json.loads(SCRIPTS.read_text(encoding="utf-8"))
    TABLE.write_text(
        render(merge(stored, records_of_scripts(scripts))), encoding="utf-8"
    )


def read_all(store: Path) -> None:
    """Inspect what STORE does not have yet."""
    environ = dict(os.environ)
    command = Pip(sys.executable, environ).understand(["download", "torch"])
    index = f"{command.indexes[0].rstrip('/')}/"
    with connect(environ) as client:
        for project in sorted(PROJECTS):
            files = client.read_page(f"{index}{project}/").files
            for file in choose_wheels(project, files):
                path = store / f"{file.sha256}.json"
                if path.exists():
                    continue
                with io.BufferedReader(client.open(file.url)) as wheel:
                    record = inspect_wheel(project, file, wheel)
                if record is None:
                    print(f"{file.name}: could not be read completely")
                    continue
                # A file that is not complete would count as read.
                unfinished = path.with_suffix(".part")
                unfinished.write_text(json.dumps(record.to_dict()), encoding="utf-8")
                unfinished.replace(path)
                print(f"{file.name}: CUDA {record.cuda}")


def choose_wheels(project: str, files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """Choose one wheel for Linux x86_64 of each release that the table has.

    These are the newest three releases, and of torch the newest patch of each minor
    release since 2.0.
    """
    releases: dict[Version, list[RemoteFile]] = {}
    for file in files:
        if file.yanked or file.sha256 is None or not file.name.endswith(".whl"):
            continue
        try:
            name = parse_wheel_name(file.name)
        except InputError:
            continue
        version = Version(name.version)
        if name.label or version.is_prerelease or version.local:
            continue
        if platform_of(file.name.rpartition("-")[2]) == "linux_x86_64":
            releases.setdefault(version, []).append(file)
    versions = sorted(releases)
    if project == "torch":
        minors = {v.release[:2]: v for v in versions if v >= Version("2.0")}
        chosen = list(minors.values())
    else:
        chosen = versions[-3:]
    # Wheels for several versions of Python have the same GPU code.
    return [max(releases[v], key=lambda f: ("cp311" in f.name, f.name)) for v in chosen]


def inspect_wheel(
    project: str, file: RemoteFile, wheel: IO[bytes]
) -> BuildRecord | None:
    """Return the record of a wheel; ``None`` if it cannot be read completely."""
    needs = needs_of_report(api.inspect(wheel, name=file.name))
    if needs is None:
        return None
    return record_of_needs(
        needs,
        project=project,
        version=parse_wheel_name(file.name).version,
        label=None,
        platform="linux_x86_64",
        wheels={file.name: file.sha256 or ""},
        date=dt.datetime.now(dt.timezone.utc).date().isoformat(),
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
    library = LibraryRecord(
        name="torch",
        cuda=cuda,
        machine_code=tuple(map(_target, build["archs"])),
        ptx={_target(text): cuda for text in build["ptx"]},
    )
    return BuildRecord(
        project="torch",
        version=version,
        label=label,
        platform=platform,
        cuda=cuda,
        pieces=((library,),),
        gpu=True,
        requires=(),
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
    """Join records; a wheel that was inspected goes before a script."""
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
