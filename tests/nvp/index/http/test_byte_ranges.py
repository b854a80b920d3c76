"""Reading wheels by range requests, for releases without a metadata file."""

from __future__ import annotations

import asyncio
import gc
import gzip
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from support.documents import of_one
from support.loopback import PLAIN, passed_over, start, wheels
from support.range_server import Answer, RangeServer, serve_answers
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import InputError
from nvp.index.http import ranges
from nvp.index.http.blocking import BlockingClient
from nvp.index.http.client import Client
from nvp.index.http.ranges import RangeFile, RangeSupport, _get_range
from nvp.index.http.threads import LoopThread, Turn, Turns
from nvp.index.http.urls import NoRangesError, PassingError, Settings, TooLargeError
from nvp.index.selection.shown import Room

PAGE = "/simple/torch/"
IMPATIENT = Settings(timeout=0.2, deadline=60, trust_env=False)


class _Count:
    def __init__(self, server: RangeServer, answers: dict[str, Answer]) -> None:
        self.requests = server.requests
        self.answers = answers

    @property
    def bytes(self) -> int:
        """Return the number of bytes of wheels that were sent."""
        total = 0
        for request in self.requests:
            path, _, asked = request.partition(" ")
            if not path.endswith(".whl"):
                continue
            size = len(self.answers[path].body)
            first, _, last = asked.removeprefix("bytes=").partition("-")
            if asked == "whole":
                total += size
            elif not first:
                total += min(size, int(last))
            else:
                total += min(size - 1, int(last)) - int(first) + 1
        return total


class TestWithoutMetadataFile:
    SIZE = 4_000_000

    def answers(self, folder: Path, **changes: Any) -> dict[str, Answer]:
        """Return large wheels with three labels, for two platforms each."""
        found = {}
        padding = folder / "padding"
        padding.write_bytes(bytes(range(256)) * (self.SIZE // 256))
        names = [PLAIN]
        for label in ("cu126", "cu128", "cu130"):
            for tag in ("py3-none-any", "cp312-cp312-win_amd64"):
                path = stub_wheel(
                    folder, "torch", "2.8.0", label, variant_json=of_one(label), tag=tag
                )
                body = padding.read_bytes() + path.read_bytes()
                found[f"{PAGE}{path.name}"] = Answer(body=body, **changes)
                names.append(path.name)
        page = "".join(f'<a href="{name}">x</a>' for name in names)
        found[PAGE] = Answer(body=page.encode(), kind="text/html")
        found[f"{PAGE}{PLAIN}"] = Answer()
        return found

    def test_one_wheel_of_each_label_is_read_in_part(self, tmp_path: Path) -> None:
        answers = self.answers(tmp_path)
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/") as running,
        ):
            count = _Count(server, answers)
            assert "torch-2.8.0-2cu128-py3-none-any.whl" in wheels(running)
            asked = {r.split()[0] for r in server.requests if ".whl" in r}
            assert len(asked) == 3
            assert count.bytes < 3 * 1_000_000
            assert not any(r.endswith("whole") for r in server.requests if ".whl" in r)
            before = len(server.requests)
            running.page()
            assert len(server.requests) == before + 1  # Only the page is read again.
            assert running.warnings == []

    @pytest.mark.parametrize(
        ("changes", "works"),
        [
            # The wheels are small, so the client may read each as a whole.
            ({"ranges": False}, True),
            ({"status": 404, "ranges": False}, False),
            ({"fault": "lie"}, False),
            ({"fault": "cut"}, False),
            ({"fault": "hang"}, False),
        ],
    )
    def test_servers_without_ranges_and_with_faults(
        self, changes: dict[str, Any], works: bool, tmp_path: Path
    ) -> None:
        settings = IMPATIENT if changes.get("fault") == "hang" else None
        with (
            serve_answers(self.answers(tmp_path, **changes)) as server,
            start(f"{server.url}/simple/", settings=settings) as running,
        ):
            if works:
                assert "torch-2.8.0-2cu128-py3-none-any.whl" in wheels(running)
            else:
                passed_over(running)

    @pytest.mark.parametrize(
        "length", ["0", "-1", "9" * 17, "9" * 30, "9" * 5000, "*", "1/2"]
    )
    def test_impossible_lengths_of_a_range(self, length: str, tmp_path: Path) -> None:
        changes = {
            "status": 206,
            "ranges": False,
            "headers": {"Content-Range": f"bytes 0-1/{length}"},
        }
        with (
            serve_answers(self.answers(tmp_path, **changes)) as server,
            start(f"{server.url}/simple/") as running,
        ):
            passed_over(running)

    def test_a_large_wheel_is_not_downloaded(self, tmp_path: Path) -> None:
        self.SIZE = 17 << 20
        answers = self.answers(tmp_path, ranges=False)
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/") as running,
        ):
            assert "larger than 16 MiB" in passed_over(running)


def test_any_part_of_a_remote_file_can_be_read() -> None:
    body = bytes(range(256)) * 3000
    with (
        serve_answers({"/x": Answer(body=body)}) as server,
        BlockingClient() as client,
    ):
        file = client.open(f"{server.url}/x")
        assert file.seek(0, 2) == len(body)
        for start, size in ((0, 10), (262_140, 10), (700_000, 100_000), (5, 300_000)):
            file.seek(start)
            buffer = bytearray(size)
            count = file.readinto(buffer)
            assert bytes(buffer[:count]) == body[start : start + size]


def test_another_part_than_the_requested_one_is_refused() -> None:
    answer = Answer(body=bytes(range(256)) * 3000, fault="other")
    with serve_answers({"/x": answer}) as server, BlockingClient() as client:
        file = client.open(f"{server.url}/x")
        file.seek(300_000)
        with pytest.raises(NoRangesError, match="a range that was not requested"):
            file.read(10)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_compressed_file_is_refused(ranges: bool) -> None:
    """RFC 9110, section 14: positions of parts are those of the compressed file."""
    body = gzip.compress(bytes(3000), 0)
    answer = Answer(body=body, headers={"Content-Encoding": "gzip"}, ranges=ranges)
    with (
        serve_answers({"/x": answer}) as server,
        BlockingClient() as client,
        pytest.raises(NoRangesError, match="the server compresses it"),
    ):
        client.open(f"{server.url}/x")


def test_a_small_compressed_file_is_not_unpacked() -> None:
    """64 such replies took 1.4 GB."""
    body = gzip.compress(bytes(1_000_000))
    headers = {"Content-Encoding": "gzip"}
    answers = {"/x": Answer(body=body, headers=headers, ranges=False)}
    with serve_answers(answers) as server, BlockingClient() as client:
        with pytest.raises(NoRangesError, match="larger than"):
            client.open(f"{server.url}/x")
        assert client.read(f"{server.url}/x") == bytes(1_000_000)


@pytest.mark.parametrize("coding", ["identity", "aws-chunked", "none", ""])
def test_a_coding_that_is_no_compression(coding: str) -> None:
    """Some object stores send one with each part."""
    answer = Answer(body=b"abc", headers={"Content-Encoding": coding})
    with serve_answers({"/x": answer}) as server, BlockingClient() as client:
        assert client.open(f"{server.url}/x").read(3) == b"abc"


def test_a_thread_ends_with_its_caller() -> None:
    """Two pages with slow wheels took all threads: other pages waited 256 seconds."""
    ended, thread = threading.Event(), LoopThread()
    ended.set()
    with serve_answers({"/x": Answer(fault="hang")}) as server:
        with pytest.raises(PassingError, match="not read in time"):
            RangeFile(Client(), f"{server.url}/x", thread.loop, ended=ended)
        thread.close()


def test_a_turn_lasts_as_long_as_its_thread() -> None:
    """Otherwise, each page may start as many threads again."""
    started, go_on = threading.Event(), threading.Event()
    url = "https://a.example/"

    def work(ended: threading.Event) -> None:
        started.set()
        assert ended.wait(30)
        assert go_on.wait(30)

    async def run() -> None:
        turns = Turns(1, 1)
        first = asyncio.ensure_future(turns.run(url, work))
        assert await asyncio.to_thread(started.wait, 30)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.ensure_future(turns.run(url, lambda _: 2))
        done, _ = await asyncio.wait([second], timeout=0.2)
        assert not done
        go_on.set()
        assert await second == 2

    asyncio.run(run())


class _Reading:
    """Makes the error of a response, which refers to itself and to the response."""

    async def read(self, *_: object, **__: object) -> None:
        body = type("Body", (), {})()
        self.body = weakref.ref(body)
        error = TooLargeError("larger than 16 MiB", "https://a.example/x")
        raise error


@pytest.mark.parametrize("of_page", [False, True])
def test_an_error_does_not_keep_the_response(
    of_page: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 responses took 5 GB, until Python looked for reference cycles."""
    reading = _Reading()

    async def fail() -> None:
        if of_page:
            with Room(Turn(asyncio.Lock())).reading():
                await reading.read()
        await _get_range(Client(), "https://a.example/x", "bytes=-9", 9)

    monkeypatch.setattr(Client, "_read_whole", reading.read)
    gc.disable()
    try:
        with pytest.raises(TooLargeError if of_page else NoRangesError):
            asyncio.run(fail())
        assert reading.body() is None
    finally:
        gc.enable()


def test_the_error_of_a_thread_whose_caller_has_ended() -> None:
    """asyncio would print it: "Task exception was never retrieved"."""
    started, go_on = threading.Event(), threading.Event()
    reported: list[object] = []

    def work(_: threading.Event) -> None:
        started.set()
        assert go_on.wait(30)
        raise InputError("not read in time")

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context)
        )
        turns = Turns(1, 1)
        task = asyncio.ensure_future(turns.run("https://a.example/", work))
        assert await asyncio.to_thread(started.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        async with turns.of("https://a.example/"):  # the thread has ended
            pass
        del task
        gc.collect()

    asyncio.run(run())
    gc.collect()
    assert reported == []


def test_the_tests_of_few_servers_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page can name any number of servers, and `serve` runs for weeks."""
    monkeypatch.setattr(ranges, "_SERVERS", 2)
    asked: list[str] = []

    async def ask(_: object, url: str, __: object) -> bool:
        asked.append(url)
        await asyncio.sleep(0)
        return True

    async def run() -> None:
        monkeypatch.setattr(RangeSupport, "_ask", ask)
        support = RangeSupport(Client())
        urls = [f"https://{name}.example/" for name in "abc"]
        assert all(await asyncio.gather(*map(support.has, urls)))
        assert asked == urls
        assert await support.has(urls[2])
        assert asked == urls
        assert await support.has(urls[0])
        assert asked == [*urls, urls[0]]

    asyncio.run(run())
