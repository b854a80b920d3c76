r"""List the wheels for the table of builds, and read METADATA of other releases.

``tools/sources/releases.json`` names, for each project and platform, the releases whose
wheels are read; ``*`` is every release since a date. The output is a directory that
``nvp census`` reads as an index, with one wheel of each release::

    python -m tools.list_builds INDEX directory --metadata metadata.json

``metadata.json`` has a record for each other release of some projects: those whose
METADATA names CUDA or a project of the table. Each record takes a request.
"""

from __future__ import annotations

import argparse
import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from nvidia_variant_provider.errors import InputError
from nvp.builds.needs import needs_of_requirements, requirements_on
from nvp.index.http.blocking import BlockingClient
from nvp.index.http.urls import IndexFile
from nvp.knowledge.builds import (
    PROJECTS,
    BuildRecord,
    Needs,
    find_record,
    required_projects,
)
from nvp.wheels.archive import (
    open_wheel,
    parse_requires,
    platform_of,
    read_dist_info,
)
from tools.update_builds import render

if TYPE_CHECKING:
    from packaging.tags import Tag

ROOT = Path(__file__).resolve().parents[1]
RELEASES = ROOT / "tools" / "sources" / "releases.json"

Wanted = Mapping[str, Mapping[str, str]]
"""The releases whose wheels are read, separated by spaces, by project and platform."""

Listed = Mapping[tuple[Version, str], IndexFile]
"""One wheel of each release and platform."""


def main() -> None:
    """Write the directory, and the records of METADATA."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("index", help="the URL of the root page of an index")
    parser.add_argument("folder", type=Path, help="the directory to write")
    parser.add_argument("--project", action="append", help="list this project only")
    parser.add_argument("--since", default="2023-06-01", help="a day")
    parser.add_argument(
        "--metadata", type=Path, help="the file for records of METADATA"
    )
    options = parser.parse_args()
    sources = json.loads(RELEASES.read_text(encoding="utf-8"))
    wanted: Wanted = sources["projects"]
    since = datetime.fromisoformat(options.since).replace(tzinfo=timezone.utc)
    records: list[BuildRecord] = []
    with BlockingClient() as client:
        for project in options.project or sorted({*wanted, *sources["metadata"]}):
            page = client.read_page(f"{options.index.rstrip('/')}/{project}/")
            listed = list_wheels(project, page.files, since.timestamp())
            chosen = choose(listed, wanted.get(project, {}))
            write_page(options.folder / project, chosen.values())
            print(f"{project}: {len(chosen)} wheels of {len(listed)}")
            if options.metadata is not None and project in sources["metadata"]:
                rest = {k: listed[k] for k in listed.keys() - chosen.keys()}
                records += read_metadata(client, project, rest)
    if options.metadata is not None:
        records.sort(key=lambda r: (r.project, Version(r.version), r.platform))
        options.metadata.write_text(render(records), encoding="utf-8")


def list_wheels(project: str, files: Iterable[IndexFile], since: float) -> Listed:
    """List one wheel of each final release for each platform.

    Wheels for several Pythons have the same GPU code. If a release has wheels for an
    older and a newer Linux, the wheel for the older one may be much smaller, because it
    has no GPU code.

    :param since: the earliest time of an upload, in seconds since 1970.
    """
    groups: dict[tuple[Version, str], list[tuple[IndexFile, frozenset[Tag]]]] = {}
    for file in files:
        try:
            name, version, _, tags = parse_wheel_filename(file.name)
        except (InvalidWheelFilename, InvalidVersion):
            continue
        platform = platform_of(file.name.rpartition("-")[2])
        if file.name.endswith("-any.whl"):
            platform = "any"
        if platform is None or version.is_prerelease or (file.time or since) < since:
            continue
        if name == canonicalize_name(project):
            groups.setdefault((version, platform), []).append((file, tags))
    return {key: _choose(groups[key]) for key in sorted(groups)}


def _choose(group: Sequence[tuple[IndexFile, frozenset[Tag]]]) -> IndexFile:
    largest = max(file.size or 0 for file, _ in group)
    large = [item for item in group if 2 * (item[0].size or 0) >= largest]
    return max(large, key=_newest_python)[0]


def _newest_python(item: tuple[IndexFile, frozenset[Tag]]) -> tuple[int, str]:
    file, tags = item
    return max(len(tag.interpreter) for tag in tags), file.name


def choose(listed: Listed, wanted: Mapping[str, str]) -> Listed:
    """Return the wheels to read.

    :raises ValueError: a release has no such wheel.
    """
    keys = {(version, platform) for version, platform in listed if platform in wanted}
    chosen = {key for key in keys if wanted[key[1]] == "*"}
    for platform, releases in wanted.items():
        chosen |= {
            (Version(text), platform) for text in releases.split() if text != "*"
        }
    if missing := chosen - keys:
        message = f"the index has no wheels of {sorted(missing)}"
        raise ValueError(message)
    return {key: listed[key] for key in sorted(chosen)}


def write_page(folder: Path, files: Iterable[IndexFile]) -> None:
    """Write the page of a project with the URLs of some of its wheels."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f'<a href="{html.escape(file.url)}#sha256={file.sha256}">{file.name}</a><br>'
        for file in files
    ]
    text = "\n".join(["<!DOCTYPE html>", *lines, ""])
    (folder / "index.html").write_text(text, encoding="utf-8")


def read_metadata(
    client: BlockingClient, project: str, listed: Listed
) -> Iterator[BuildRecord]:
    """Yield a record for each release whose METADATA shows the needs of its wheel.

    Releases are left out if the table has a record from their wheel.
    """

    def read(item: tuple[tuple[Version, str], IndexFile]) -> BuildRecord | None:
        (version, platform), file = item
        known = find_record(project, str(version), platform)
        if known is not None and known.wheels:
            return None
        try:
            metadata = client.read(f"{file.url}.metadata", page=file.page)
        except InputError:  # The index has no such file.
            with (
                client.open(file.url, page=file.page) as wheel,
                open_wheel(cast("IO[bytes]", wheel)) as archive,
            ):
                metadata = read_dist_info(archive, "METADATA") or b""
        today = datetime.now(timezone.utc).date().isoformat()
        return record_of_metadata(project, version, platform, metadata, today)

    with ThreadPoolExecutor(4) as pool:
        yield from filter(None, pool.map(read, listed.items()))


def record_of_metadata(
    project: str, version: Version, platform: str, metadata: bytes, date: str
) -> BuildRecord | None:
    """Return the record of a release from its METADATA alone.

    :returns: ``None`` if METADATA names neither CUDA nor a project of the table.
    """
    requires = requirements_on(parse_requires(metadata), platform)
    found = needs_of_requirements(requires, project)
    required = required_projects(requires, PROJECTS)
    if found is None and not required:
        return None
    needs = Needs(
        evidence="metadata",
        source="METADATA" if found is None else found.source,
        cuda=None if found is None else found.cuda,
        requires=(*required.values(),),
    )
    return BuildRecord(
        project=project,
        version=str(version),
        label=None,
        platform=platform,
        needs=needs,
        wheels={},
        source=needs.source,
        date=date,
    )


if __name__ == "__main__":
    main()
