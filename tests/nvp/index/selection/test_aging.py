"""The caches of a server remove old entries, and limit the number of entries."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from simple_repository import model
from support.builds import machine
from support.judged_pages import make_judge
from support.label_index import Pages
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel

from nvp.index.http.client import Client
from nvp.index.http.ranges import Comparison, Parts
from nvp.index.http.urls import Settings
from nvp.index.selection import reader as reading
from nvp.index.selection.indexes import MINUTE
from nvp.index.selection.kept import (
    FRESH,
    Aging,
    Kept,
    MetadataStore,
    kept_path,
)
from nvp.index.selection.options import trusted_cache
from nvp.index.selection.pieces import CopiedWheel
from nvp.index.selection.reader import Reader
from nvp.index.server.served_locks import ListedUpstream

TAG = "cp311-cp311-manylinux_2_28_x86_64"

T = TypeVar("T")


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_entry_goes_with_its_age() -> None:
    clock = Clock()
    known: Aging[str, int] = Aging(8, clock=clock)
    known.put("a", 1)
    clock.now = FRESH - 1
    assert known.get("a") == 1
    known.put("b", 2)
    clock.now = FRESH
    assert (known.get("a"), known.get("b"), len(known)) == (None, 2, 1)


def test_a_copy_is_closed_when_it_has_expired(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A server that nobody uses keeps no wheels."""
    monkeypatch.setattr(reading, "FRESH", -1.0)
    wheel = file("demo", "1.0")
    opened = stub_wheel(tmp_path, "demo", "1.0").open("rb")

    async def work() -> None:
        copy = CopiedWheel(file=opened, url=wheel.url, received=Comparison({}))
        reader = Reader(Client())
        await reader.keep_copy(wheel, copy)
        del copy
        while not opened.closed:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(work(), 30))


def test_heavy_entries_displace_others() -> None:
    known: Aging[str, int] = Aging(8, weigh=abs)
    for key, weight in zip("abcab", (4, 3, 9, 5, 3), strict=True):
        known.put(key, weight)
        assert known.get(key) == weight  # the newest always stays
    assert (known.get("a"), known.get("c")) == (5, None)
    known.drop("a")
    known.put("d", 5)
    assert known.values() == [3, 5]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers()), max_size=60))
def test_the_entries_put_last_stay(puts: list[tuple[int, int]]) -> None:
    known: Aging[int, int] = Aging(5)
    for key, value in puts:
        known.put(key, value)
    last = list(dict.fromkeys(key for key, _ in reversed(puts)))[:5]
    assert len(known) == len(last)
    assert [known.get(key) for key in last] == [dict(puts)[key] for key in last]


def file(project: str, version: str) -> model.File:
    name = f"{project}-{version}-{TAG}.whl"
    url = f"https://wheels.example/{name}"
    return model.File(filename=name, url=url, hashes={}, size=50_000_000)


def test_new_releases_of_a_required_project_are_seen() -> None:
    """No torch of the first page runs on this machine; a later release does."""
    clock = Clock()
    requires = {"torchvision": "torch>=2.14", "torch": "nvidia-cuda-runtime==13.0.48"}
    torch = [file("torch", "9.0")]

    async def read_metadata(
        project: str, wheel: model.File, parse: Callable[[bytes], T]
    ) -> T:
        version = wheel.filename.split("-")[1]
        head = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
        text = requires.get(f"{project} {version}", requires[project])
        return parse(f"{head}Requires-Dist: {text}\n".encode())

    async def read_page(_: str) -> Sequence[model.File]:
        return torch

    environment = machine("12.8", "8.0")
    judge = make_judge(environment, read_metadata, read_page, pytest.fail, clock=clock)

    async def verdict() -> str:
        builds, required = await judge.judge(
            "torchvision", [file("torchvision", "9.0")]
        )
        assert required == {Version("9.0"): {"torch": "torch>=2.14"}}
        return builds[0].judgement.verdict

    async def work() -> list[str]:
        verdicts = [await verdict()]
        torch.append(file("torch", "9.1"))
        requires["torch 9.1"] = "nvidia-cuda-runtime-cu12==12.8.90"
        verdicts.append(await verdict())
        clock.now = 2 * MINUTE
        verdicts.append(await verdict())
        return verdicts

    assert asyncio.run(work()) == ["cannot", "cannot", "unknown"]


def test_a_file_without_a_hash_may_change_at_its_url() -> None:
    clock = Clock()
    wheel = replace(file("demo", "1.0"), dist_info_metadata=True)
    name = f"{wheel.filename}.metadata"
    text = "Name: demo\nVersion: 1.0\n"
    source = Pages({"demo": ""}, {name: text})
    reader = Reader(Client(), clock=clock)

    def read() -> bytes:
        return asyncio.run(reader.read_metadata(source, "demo", wheel))

    assert read() == text.encode()
    source.contents = {name: f"{text}Summary: other\n"}
    assert read() == text.encode()
    clock.now = FRESH
    assert reader.metadata.find(wheel) is None
    assert read().endswith(b"Summary: other\n")


def test_metadata_in_memory_is_limited_by_its_size() -> None:
    """METADATA of 256 wheels, each of 4 MB, took a gigabyte."""
    store = MetadataStore(None, time.monotonic)
    wheels = [file("torch", f"{number}.0") for number in range(20)]
    for wheel in wheels:
        store.keep(wheel, Kept(bytes(4 * 1024 * 1024)))
    found = [wheel for wheel in wheels if store.find(wheel) is not None]
    assert found == wheels[-len(found) :]
    assert 4 < len(found) < 9


@pytest.mark.parametrize("kind", ["metadata", "json"])
def test_a_record_on_disk_is_for_one_url(kind: str, tmp_path: Path) -> None:
    """Tenants of a file server may differ in the query or in the user alone."""
    wheel = replace(file("torch", "1.0"), hashes={"sha256": "a" * 64})
    urls = [f"{wheel.url}{x}" for x in ("", "?tenant=good", "?tenant=evil")]
    urls += [wheel.url.replace("//", f"//{x}@") for x in ("good", "evil", "evil:s3")]
    places = [kept_path(tmp_path, replace(wheel, url=url), kind) for url in urls]
    assert len(set(places)) == len(urls)
    assert not any("evil" in place.name for place in places if place)
    named = replace(wheel, url=f"{wheel.url}#sha256=a")
    assert kept_path(tmp_path, named, kind) == places[0]


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_was_read_of_one_url_is_not_for_another(
    on_disk: bool, tmp_path: Path
) -> None:
    """A server of files may have two tenants, whose wheels differ in the query."""
    reader = Reader(Client(), tmp_path if on_disk else None)
    path = stub_wheel(tmp_path, "demo", "1.0", members={"a.bin": bytes(99)})
    content, place = path.read_bytes(), f"/{path.name}?tenant=a"
    hashes = {"sha256": hashlib.sha256(content).hexdigest()}
    with serve_answers({place: Answer(body=content)}) as server:
        mine = model.File(path.name, f"{server.url}{place}", hashes)
        other = replace(mine, url=mine.url.replace("=a", "=b"))
        upstream = ListedUpstream({"demo": [mine]})

        async def work() -> None:
            await reader.inspect(upstream, "demo", mine, "linux_x86_64")
            await reader.read_metadata(upstream, "demo", mine)
            await reader.client.close()

        asyncio.run(work())
    for store in (reader.find_inspected, reader.metadata.find, reader.metadata.read):
        assert store(other) is None
    assert reader.find_inspected(mine) is not None
    assert reader.metadata.find(mine) is not None


def test_runs_that_trust_other_hosts_have_a_cache_of_their_own(tmp_path: Path) -> None:
    """What a man in the middle sent must not be used when he is gone."""
    hosts = ((), ("a.example",), ("a.example", "b.example"), ("b.example", "a.example"))
    found = [trusted_cache(tmp_path, Settings(trusted_hosts=x)) for x in hosts]
    assert found[0] == tmp_path
    assert found[2] == found[3]
    assert len(set(found)) == 3
    assert trusted_cache(None, Settings(trusted_hosts=hosts[1])) is None


def test_metadata_of_an_unchecked_server_is_not_used_by_later_runs(
    tmp_path: Path,
) -> None:
    file = model.File(
        filename="kern-1.0-py3-none-any.whl",
        url="https://files.example/kern-1.0-py3-none-any.whl",
        hashes={"sha256": "1" * 64},
    )
    unchecked = Client(Settings(trusted_hosts=["files.example"]))
    Reader(unchecked, tmp_path).metadata.keep(file, Kept(b"Name: kern\n", Parts()))
    assert Reader(unchecked, tmp_path).metadata.read(file) is not None
    assert Reader(Client(Settings()), tmp_path).metadata.read(file) is None
