"""METADATA of wheels: read once, compared with its hash, and kept."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import threading
import time
import traceback
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import pytest
from simple_repository import model
from simple_repository.components.core import SimpleRepository
from support.label_index import Pages
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import InputError
from nvp.index.http import threads
from nvp.index.http.client import Client
from nvp.index.http.ranges import Comparison, RangeSupport
from nvp.index.releases.pinned import _Wheels
from nvp.index.selection import kept
from nvp.index.selection.core_metadata import Announcer
from nvp.index.selection.kept import (
    FRESH,
    LONGEST,
    Kept,
    MetadataStore,
    kept_path,
    key_of,
)
from nvp.index.selection.pieces import CopiedWheel
from nvp.index.selection.reader import Reader
from nvp.index.server.served_locks import ListedUpstream

NAME = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
TEXT = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"


def file(wheel: str = "a", metadata: bool | dict[str, str] = False) -> model.File:
    return model.File(
        filename=NAME,
        url=f"https://files.example/{wheel}/{NAME}",
        hashes={"sha256": wheel * 64},
        dist_info_metadata=metadata,
    )


def announced(wheel: str, text: str = TEXT) -> model.File:
    return file(wheel, {"sha256": hashlib.sha256(text.encode()).hexdigest()})


@dataclass
class Reading:
    """Reads METADATA from an index that has it as a file."""

    source: Pages
    reader: Reader

    def read(self, wheel: model.File) -> bytes:
        return asyncio.run(self.reader.read_metadata(self.source, "demo", wheel))

    def find(self, wheel: model.File) -> bytes | None:
        kept = self.reader.metadata.find(wheel)
        return None if kept is None else kept.content


def reader(text: str, folder: Path | None = None) -> tuple[Reading, Pages]:
    source = Pages({"demo": ""}, {f"{NAME}.metadata": text})
    return Reading(source, Reader(Client(), folder)), source


def test_it_is_read_once_for_ever(tmp_path: Path) -> None:
    for _ in range(2):
        metadata, source = reader(TEXT, tmp_path)
        for _ in range(2):
            content = metadata.read(announced("a"))
            assert content == TEXT.encode()
        assert metadata.find(announced("a")) == content
    # The second reader has found it in the directory.
    assert source.asked == []


def test_it_belongs_to_the_hash_of_the_wheel(tmp_path: Path) -> None:
    one, other = announced("a"), announced("b", another := f"{TEXT}Summary: another\n")
    reader(TEXT, tmp_path)[0].read(one)
    metadata, _ = reader(another, tmp_path)
    assert b"another" not in metadata.read(one)
    assert b"another" in metadata.read(other)
    assert b"another" in (metadata.find(other) or b"")
    assert metadata.find(one) == TEXT.encode()


@pytest.mark.parametrize(
    "damage", [b"", b"garbage", TEXT.encode(), b"\n", b"\xff" * 99]
)
def test_a_damaged_file_of_the_cache_is_read_again(
    damage: bytes, tmp_path: Path
) -> None:
    """An installer would refuse the wheel for ever."""
    reader(TEXT, tmp_path)[0].read(announced("a"))
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    whole = kept.read_bytes()
    for content in (damage, whole[:-1]):
        kept.write_bytes(content)
        metadata, source = reader(TEXT, tmp_path)
        assert metadata.read(announced("a")) == TEXT.encode()
        assert source.asked
        assert kept.read_bytes() == whole


def test_a_page_says_nothing_of_the_files_of_another_one(tmp_path: Path) -> None:
    """A page may have the hash of any wheel, with false METADATA."""
    other = replace(announced("a"), url=f"https://other.example/{NAME}")
    MetadataStore(tmp_path, time.monotonic).keep(other, Kept(b"a lie"))
    for wheel, content in ((other, b"a lie"), (announced("a"), None)):
        kept = MetadataStore(tmp_path, time.monotonic).read(wheel)
        assert (kept and kept.content) == content


def test_metadata_may_not_grow() -> None:
    """Each byte that is no UTF-8 becomes three: 100 requests took 1.3 GB."""
    text = TEXT.encode() + b"\n" + b"\xff" * (LONGEST // 2)
    with pytest.raises(InputError, match="larger than 4 MiB"):
        reader("")[0].reader._keep(file(), Kept(text))


ALGORITHM = pytest.mark.parametrize("algorithm", ["sha256", "sha512", "md5"])


@ALGORITHM
@pytest.mark.parametrize("upper", [False, True])
def test_the_hash_that_the_page_gives(algorithm: str, upper: bool) -> None:
    digest = hashlib.new(algorithm, TEXT.encode()).hexdigest()
    announced = {"unknown": "x", algorithm: digest.upper() if upper else digest}
    metadata, _ = reader(TEXT)
    assert metadata.read(file(metadata=announced))


@ALGORITHM
def test_another_hash_than_the_page_gives(algorithm: str, tmp_path: Path) -> None:
    metadata, _ = reader(TEXT, tmp_path)
    with pytest.raises(InputError, match=f"another {algorithm} than the page says"):
        metadata.read(file(metadata={algorithm: "00"}))
    assert metadata.find(file()) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_error_does_not_keep_metadata(tmp_path: Path) -> None:
    """An error may be in a cycle with its frames, which took gigabytes for METADATA."""
    metadata, _ = reader("Name: other\nVersion: 1.0\n", tmp_path)
    with pytest.raises(InputError, match=r"its METADATA is of 'other 1\.0'") as caught:
        metadata.read(file(metadata=True))
    frames = [frame for frame, _ in traceback.walk_tb(caught.tb)]
    values = chain.from_iterable(frame.f_locals.values() for frame in frames)
    assert not any(isinstance(value, Kept) for value in values)


def test_it_is_too_large(tmp_path: Path) -> None:
    metadata, _ = reader(text := TEXT + "x" * 10_000_000, tmp_path)
    wheel = announced("a", text)
    with pytest.raises(InputError, match="larger than 4 MiB"):
        metadata.read(wheel)
    assert metadata.find(wheel) is None


def test_only_the_query_may_name_a_file(tmp_path: Path) -> None:
    """A page can give the hash of one file to another on the same server."""
    for memory in (True, False):
        store = MetadataStore(tmp_path, time.monotonic)
        wheel, url = file("a"), "https://files.example/get?index={}"
        store.keep(replace(wheel, url=url.format("hostile")), Kept(b"hostile"))
        honest = replace(wheel, url=url.format("company"))
        assert (store.find if memory else store.read)(honest) is None


@pytest.mark.parametrize(
    "line",
    [
        *(
            b'["9", []]',
            b'[9, [["a", "b", "c"]]]',
            b"[9, [[0, null, 1]]]",
            b"[1.5, []]",
        ),
        *(b"[9]", b"[9, 9]", b"{}", b"[" * 10_000, b"[9, [[0, 9, []]]]"),
    ],
)
def test_odd_parts_in_the_cache(line: bytes, tmp_path: Path) -> None:
    """The comparison with the wheel would fail while the wheel is sent."""
    rest = line + b"\n" + TEXT.encode()
    path = kept_path(tmp_path, file("a"), "metadata")
    assert path is not None
    head = hashlib.sha256(rest).hexdigest().encode()
    path.write_bytes(head + b"\n" + rest)
    path.chmod(0o600)
    assert MetadataStore(tmp_path, time.monotonic).read(file("a")) is None


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_one_name_twice_on_a_page(before: bool, local: bool, tmp_path: Path) -> None:
    """A page could give METADATA for the wheel of another index, also later."""
    wheel = stub_wheel(tmp_path, "demo", "1.0").read_bytes()
    digest = hashlib.sha256(wheel).hexdigest()
    evil = b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nRequires-Dist: evil\n"
    answers = {
        f"/a/{NAME}": Answer(body=wheel),
        # The server of the files may lie too, in a file that its page does not name.
        f"/a/{NAME}.metadata": Answer(body=evil),
        f"/b/{NAME}.metadata": Answer(body=evil),
    }
    with serve_answers(answers) as server:
        own = replace(
            file(),
            url=f"{server.url}/a/{NAME}",
            hashes={"sha256": digest},
        )
        other = replace(own, url=f"{server.url}/b/{NAME}", dist_info_metadata=True)
        if local:
            (tmp_path / f"{NAME}.metadata").write_bytes(evil)
            other = replace(other, url=(tmp_path / NAME).as_uri())
        files = [other, own] if before else [own, other]
        upstream = ListedUpstream({"demo": files})
        asyncio.run(_read(Reader(Client(), tmp_path / "cache"), upstream, own))
        upstream = ListedUpstream({"demo": [own]})
        content = asyncio.run(
            _read(Reader(Client(), tmp_path / "cache"), upstream, own)
        )
    assert b"evil" not in content


async def _read(reader: Reader, upstream: SimpleRepository, wheel: model.File) -> bytes:
    try:
        return await reader.read_metadata(upstream, "demo", wheel)
    except InputError as error:
        return str(error).encode()
    finally:
        await reader.client.close()


@pytest.mark.parametrize("has_url", [True, False])
def test_a_local_wheel_is_read_each_time(has_url: bool, tmp_path: Path) -> None:
    """pip refuses a wheel with another hash, so nothing of it may be used later."""
    path = stub_wheel(tmp_path, "demo", "1.0")
    good = path.read_bytes()
    stub_wheel(tmp_path, "demo", "1.0", requires=("evil",))
    digest = hashlib.sha256(good).hexdigest()
    wheel = model.File(path.name, path.as_uri(), {"sha256": digest})
    upstream: SimpleRepository = ListedUpstream({"demo": [wheel]})
    if not has_url:  # as in a lock file
        wheel = replace(wheel, url=str(path))
        upstream = _Wheels({path.name: wheel})
    reader = Reader(Client(), tmp_path / "cache")
    assert b"evil" in asyncio.run(_read(reader, upstream, wheel))
    path.write_bytes(good)
    for later in (reader, Reader(Client(), tmp_path / "cache")):
        assert b"evil" not in asyncio.run(_read(later, upstream, wheel))
        assert later.metadata.find(wheel) is None


def test_the_key_of_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything on which the result depends must be part of the key."""
    local, wheel = tmp_path / NAME, file()
    keys = [key_of(wheel)]
    for content in (b"one", b"two"):
        local.write_bytes(content)
        os.utime(local, (0, 0))
        keys += [
            key_of(replace(wheel, url=url)) for url in (str(local), local.as_uri())
        ]
    keys += [
        key_of(replace(wheel, filename=f"x-{NAME}")),
        key_of(replace(wheel, hashes={"md5": "a" * 32, **wheel.hashes})),
        key_of(file(metadata=True)),
        key_of(file(metadata={"sha256": "a" * 64})),
    ]
    monkeypatch.setattr(kept, "__version__", "0")
    keys.append(key_of(wheel))
    assert len(set(keys)) == len(keys)
    upper = replace(wheel, hashes={"sha256": "A" * 64})
    assert key_of(upper) == keys[-1]


def test_an_inspection_is_of_the_wheel_that_was_read(tmp_path: Path) -> None:
    """A local wheel may change while it is read, and later."""
    path = stub_wheel(tmp_path, "demo", "1.0", members={"a.bin": bytes(99)})
    wheel = model.File(path.name, path.as_uri(), {"sha256": "a" * 64})
    upstream = ListedUpstream({"demo": [wheel]})
    reader = Reader(Client(), tmp_path / "cache")
    folder = reader._inspected

    def change(*_: object) -> None:
        os.utime(path, (0, 0))

    work = reader.inspect(upstream, "demo", wheel, "linux_x86_64", change)
    before = kept_path(folder, wheel, "json")
    assert asyncio.run(work) is not None
    assert before != kept_path(folder, wheel, "json")
    assert before is not None
    assert before.is_file()
    assert reader.find_inspected(wheel) is None


def test_few_servers_of_a_page_are_tested() -> None:
    """A page of 5 MB could make nvp send 30,000 requests."""
    asked = []

    class Ranges(RangeSupport):
        async def has(self, url: str, index: str | None = None) -> bool:  # noqa: ARG002
            asked.append(url)
            return True

    client = Client()
    announcer = Announcer(Reader(client), Ranges(client), "linux_x86_64")
    files = [
        replace(file(), filename=f"a{n}-{NAME}", url=f"https://h{n}/{NAME}")
        for n in range(50)
    ]
    shown, _ = asyncio.run(announcer.announce(files))
    assert [bool(file.dist_info_metadata) for file in shown] == [False] * 34 + [
        True
    ] * 16
    assert len(asked) == 16


def test_announced_metadata_is_not_for_other_pages(tmp_path: Path) -> None:
    """A page that announces it without a hash decides nothing for other pages."""
    digest = {"sha256": hashlib.sha256(b"").hexdigest()}
    for folder in (None, tmp_path):
        metadata, _ = reader(TEXT, folder)
        announced = file(metadata=True)
        assert metadata.read(announced) == TEXT.encode() == metadata.find(announced)
        for own in (file(), file(metadata=digest)):
            assert metadata.find(own) is None
            assert metadata.reader.metadata.read(own) is None


@pytest.mark.parametrize("announced", [True, {"blake2b": "00"}])
def test_metadata_that_cannot_be_compared_does_not_stay(
    announced: bool | dict[str, str], tmp_path: Path
) -> None:
    """A server of files that sends wrong METADATA once decides about one run."""
    wheel = file(metadata=announced)
    reader(f"{TEXT}Requires-Dist: evil\n", tmp_path)[0].read(wheel)
    assert reader(TEXT, tmp_path)[0].read(wheel) == TEXT.encode()
    times = [0.0, FRESH]
    store = MetadataStore(None, lambda: times.pop(0))
    store.keep(wheel, Kept(b""))
    assert store.find(wheel) is None


@pytest.mark.parametrize("same", [False, True])
def test_metadata_of_a_copy(same: bool, tmp_path: Path) -> None:
    """The copy may be of a download for an index that gives no hash."""
    data = stub_wheel(tmp_path, "demo", "1.0").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    own = file()
    own = replace(own, hashes={"sha256": digest}) if same else own
    reader = Reader(Client())
    reader._copies.put(own.url, copied_wheel(data, own.url))
    content = asyncio.run(_read(reader, ListedUpstream({"demo": [own]}), own))
    assert (b"Name: demo" in content) == same
    assert (reader.metadata.find(own) == Kept(content)) == same


def copied_wheel(data: bytes, url: str) -> CopiedWheel:
    received = Comparison({})
    received.feed(data)
    return CopiedWheel(file=io.BytesIO(data), url=url, received=received)


def test_the_size_of_a_copy_that_is_read() -> None:
    """The event loop would wait for the thread that reads the copy."""
    copy, sizes = copied_wheel(b"wheel", "https://files.example/a"), list[int]()
    thread = threading.Thread(target=lambda: sizes.append(copy.size), daemon=True)
    with copy._turn:
        thread.start()
        thread.join(5)
        assert sizes == [5]


def test_a_page_with_many_files_leaves_time_for_other_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 160,000 files, other users of a server would wait for seconds."""
    monkeypatch.setattr(threads, "_STEP", 0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> tuple[int, list[model.File]]:
        client = Client()
        announcer = Announcer(Reader(client, None), RangeSupport(client), "any")
        waiting = asyncio.ensure_future(others())
        await asyncio.sleep(0)
        before = turns
        shown, _ = await announcer.announce(
            [replace(file(), filename=f"demo-{n}.zip") for n in range(9000)]
        )
        waiting.cancel()
        return turns - before, shown

    between, shown = asyncio.run(run())
    assert between >= 9000
    assert [each.filename for each in shown] == [f"demo-{n}.zip" for n in range(9000)]


def test_kept_metadata_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 7 wheels of 4 MiB, each page of 1 KB that names them took 0.5 seconds.

    100 pages of the same time delayed another index by 49 seconds.
    """
    seen: list[str] = []

    def is_used(_: Announcer, file: model.File, __: bytes) -> bool:
        seen.append(file.filename)
        return file.filename == NAME

    monkeypatch.setattr(Announcer, "_is_used", is_used)
    client = Client()
    reader = Reader(client)
    announcer = Announcer(reader, RangeSupport(client), "linux_x86_64")
    other = replace(file("b"), filename=f"other-{NAME}")
    for each in (file(), other):
        reader.metadata.keep(each, Kept(TEXT.encode()))
    digest = hashlib.sha256(TEXT.encode()).hexdigest()

    async def announce() -> None:
        pages = (announcer.announce([file(), other]) for _ in range(3))
        for shown, _ in await asyncio.gather(*pages):
            metadata = [each.dist_info_metadata for each in shown]
            assert metadata == [{"sha256": digest}, True]

    for _ in range(2):
        asyncio.run(announce())
    assert seen == [NAME, other.filename]
