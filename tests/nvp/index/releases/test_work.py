"""The work for a page is counted: it grows with the files, not with their pairs."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.version import Version
from support.builds import machine
from support.range_server import Answer, RangeServer, serve_answers

from nvidia_variant_provider.errors import InputError
from nvp import api
from nvp.builds.releases import ReleaseTable
from nvp.index.releases import reading
from nvp.index.selection import options, variants
from nvp.index.selection.judging import PageJudge
from nvp.index.selection.reader import Reader
from nvp.index.selection.renaming import group, make_offers

MANY = 1_500
LINUX = "py3-none-manylinux_2_17_x86_64"
JSON = "application/vnd.pypi.simple.v1+json"


def answers(files: Sequence[dict[str, Any]]) -> dict[str, Answer]:
    every = [{"url": f"/files/{f['filename']}", "hashes": {}, **f} for f in files]
    page = {"meta": {"api-version": "1.1"}, "name": "demo", "files": every}
    return {"/demo/": Answer(body=json.dumps(page).encode(), kind=JSON)}


def read(server: RangeServer) -> ReleaseTable:
    here = machine("12.8", "9.0")
    return api.releases("demo", index_url=server.url, environment=here)


def count(kind: type, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count how often objects of a class are made from a text."""
    made: Counter[type] = Counter()
    real = kind.__init__  # type: ignore[misc]

    def init(self: Any, *args: Any, **more: Any) -> None:
        made[kind] += 1
        real(self, *args, **more)

    monkeypatch.setattr(kind, "__init__", init)
    return lambda: made[kind]


def wheels(number: int, **more: str) -> Sequence[dict[str, Any]]:
    return [
        {"filename": f"demo-{i}.5.7-{LINUX}.whl"}
        | {key: value.format(i) for key, value in more.items()}
        for i in range(number)
    ]


def test_each_limit_of_python_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    options.allows_python.cache_clear()
    files = wheels(100, **{"requires-python": ">=3.9,!=2.7.{}"})
    made = count(SpecifierSet, monkeypatch)
    with serve_answers(answers(files)) as server:
        table = read(server)
    assert len(table.releases) == 100
    assert 100 <= made() < 120


def test_each_version_is_parsed_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    made = count(Version, monkeypatch)
    with serve_answers(answers(wheels(300))) as server:
        table = read(server)
    assert len(table.releases) == 300
    # Each module and package that parses the names of files parses the version once.
    assert made() < 6 * 300


def test_the_releases_of_a_page_share_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[object] = []

    def make(*args: Any, work: Any, **more: Any) -> Any:
        given.append(work)
        return make_offers(*args, work=work, **more)

    monkeypatch.setattr(variants, "make_offers", make)
    document = {
        "$schema": "https://variants-schema.wheelnext.dev/peps/825/v0.1.0.json",
        "default-priorities": {"namespace": ["nvidia"]},
        "variants": {"x": {"nvidia": {"cuda_version_lower_bound": ["12.0"]}}},
    }
    names = [f"demo-{i}-py3-none-any-x.whl" for i in range(20)]
    texts = [f"demo-{i}-variants.json" for i in range(20)]
    found = answers([{"filename": name} for name in (*names, *texts)])
    metadata = Answer(body=json.dumps(document).encode())
    found |= {f"/files/{name}": metadata for name in texts}
    with serve_answers(found) as server:
        table = read(server)
    assert len(table.releases) == 20
    assert len(given) >= 20
    assert len(set(map(id, given))) == 1


def test_the_tags_of_a_page_are_neither_kept_nor_compared_if_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page may have 60,000 names, and each name a hundred tags."""
    parts = (".".join(f"{x}{i}" for i in range(5)) for x in ("p", "a"))
    tags = "-".join((*parts, "l1.l2.l3.l4"))
    names = [f"demo-1-{tags}_{i}-{x}.whl" for i in range(600) for x in "ab"]
    before = sum(isinstance(item, Tag) for item in gc.get_objects())
    release = group(names, "demo")["1"]
    kept = sum(isinstance(item, Tag) for item in gc.get_objects()) - before
    assert kept <= 100
    made = count(Tag, monkeypatch)
    assert (len(make_offers(release, ["a", "b"])), made()) == (len(names), 0)


def test_unreadable_metadata_is_read_once_for_all_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The files of a saved page are missing, and a server may not answer at all."""
    tried: Counter[str] = Counter()
    fetch = Reader._fetch_metadata

    async def count(self: Reader, index: Any, project: str, file: Any, way: Any) -> Any:
        tried[file.filename] += 1
        if "cu118.x" in file.filename:
            await asyncio.sleep(3600)
        return await fetch(self, index, project, file, way)

    monkeypatch.setattr(Reader, "_fetch_metadata", count)
    defaults = PageJudge.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "patience", 0.2)
    for number, labels in enumerate((("cu118", "cu121"), ("cu118.x", "cu118.xy"))):
        names = [f"torch-2.{number}+{label}-{LINUX}.whl" for label in labels]
        links = "".join(f'<a href="http://a.test/{x}">{x}</a>' for x in names)
        (tmp_path / f"{number}").write_text(f"<!DOCTYPE html>{links}")
    differences = api.diff_of_indexes(tmp_path / "0", tmp_path / "1")
    assert sum(differences.counts.values()) > 300
    assert len(tried) >= 3
    assert set(tried.values()) == {1}


def test_only_the_variants_of_the_newest_releases_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(variants, "_REMEMBERED", 3)
    files = [{"filename": f"demo-{n}.0-{LINUX}-cuda.whl"} for n in range(12)]
    with serve_answers(answers(files)) as server:
        table = read(server)
        asked = {item.split()[0] for item in server.requests if "/files/" in item}
    assert asked == {f"/files/demo-{n}.0-{LINUX}-cuda.whl" for n in (9, 10, 11)}
    assert len(table.releases) == 12
    old = [note for note in table.notes if "newest" in note]
    assert old == ["demo: only the variants of the newest 1,024 releases are read"]


def test_a_release_with_many_files_is_not_judged_for_each_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[object] = []
    real = reading._Reader.make_table

    def counted(self: object, **options: Any) -> Any:
        judged.append(self)
        return real(self, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(reading._Reader, "make_table", counted)
    files = [{"filename": f"demo-1.0-{n}-{LINUX}.whl"} for n in range(1, 1100)]
    with (
        serve_answers(answers(files)) as server,
        pytest.raises(InputError, match="1,099 files are too many for 347 machines"),
    ):
        api.matrix(project="demo==1.0", index_url=server.url)
    assert judged == []


@pytest.mark.parametrize("place", ["file", "wheel"])
@pytest.mark.parametrize("valid", [True, False])
def test_the_variants_of_a_release_are_read_once_for_all_machines(
    monkeypatch: pytest.MonkeyPatch, place: str, valid: bool
) -> None:
    """Each machine would request them, and keep the reasons for each label."""
    alive: weakref.WeakSet[object] = weakref.WeakSet()
    most: list[int] = []
    real = reading._Reader.make_table

    async def counted(self: Any, **more: Any) -> Any:
        alive.add(self._repositories[0])
        if len(alive) == 50:
            gc.collect()
        most.append(len(alive))
        return await real(self, **more)

    monkeypatch.setattr(reading._Reader, "make_table", counted)
    labels = {"x": {"nvidia": {"cuda_version_lower_bound": ["12.0"]}}}
    document = {
        "$schema": "https://variants-schema.wheelnext.dev/peps/825/v0.1.0.json",
        "default-priorities": {"namespace": ["nvidia"]},
        "variants": labels if valid else {**labels, "y": 5},
    }
    names = ["demo-1.0-py3-none-any-x.whl", "demo-1.0-variants.json"]
    found = answers([{"filename": name} for name in names[: 1 + (place == "file")]])
    if place == "file":
        found[f"/files/{names[1]}"] = Answer(body=json.dumps(document).encode())
    with serve_answers(found) as server:
        made = api.matrix(project="demo==1.0", index_url=server.url)
        asked = [item for item in server.requests if "/files/demo-1.0-" in item]
    assert len(made.cells) == len(most) == 347
    assert len(asked) == 1
    assert max(most) < 50


def test_a_wrong_hash_on_one_page_says_nothing_of_another_page() -> None:
    """A page can name the metadata of another index, and give another hash for it."""
    document = {
        "$schema": "https://variants-schema.wheelnext.dev/peps/825/v0.1.0.json",
        "default-priorities": {"namespace": ["nvidia"]},
        "variants": {
            label: {"nvidia": {"cuda_version_lower_bound": ["12.0"]}} for label in "ab"
        },
    }
    name, found = "demo-1.0-variants.json", {}
    for index, hashes in (("a", {"sha256": "0" * 64}), ("b", {})):
        wheel = {"filename": f"demo-1.0-py3-none-any-{index}.whl"}
        page = answers([wheel, {"filename": name, "hashes": hashes}])["/demo/"]
        found[f"/{index}/demo/"] = page
    found[f"/files/{name}"] = Answer(body=json.dumps(document).encode())
    with serve_answers(found) as server:
        table = api.releases(
            "demo",
            index_url=f"{server.url}/a",
            extra_index_urls=[f"{server.url}/b"],
            environment=machine("12.8", "9.0"),
        )
    (release,) = table.releases
    verdicts = {build.label: build.verdict for build in release.builds}
    assert verdicts == {"a": "unknown", "b": "runs"}
