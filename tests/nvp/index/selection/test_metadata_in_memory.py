"""METADATA that is in memory at the same time, to judge the builds of pages."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from simple_repository import model
from support.exposed import index_of, wheel
from support.judged_pages import OLD, Index, linux, make_judge
from support.label_index import Pages

from nvidia_variant_provider.errors import InputError
from nvp.index.http.client import Client
from nvp.index.selection import indexes
from nvp.index.selection.indexes import Indexes
from nvp.index.selection.reader import Reader

T = TypeVar("T")


class Memory(Reader):
    """Reads METADATA of one byte, and counts how often."""

    def __init__(self) -> None:
        super().__init__(Client())
        self.count = 0

    async def read_metadata(self, *_: object) -> bytes:
        self.count += 1
        return b"x"


def test_little_metadata_of_an_index_is_in_memory() -> None:
    """METADATA of 100 pages waited for one parser, and took 1.2 GB.

    A wheel of another index waited for 22 seconds.
    """
    goes_on = threading.Event()
    memory = Memory()

    def parse(metadata: bytes) -> str:
        assert goes_on.wait(60)
        return metadata.decode()

    async def run() -> None:
        pages = [index_of(n, [wheel(f"1.{n}") for n in range(40)]) for n in range(2)]
        every = Indexes(pages)

        async def read(index: Pages, parse: Callable[[bytes], T]) -> list[T]:
            files = (await index.get_project_page("kern")).files
            every.note(index, files)
            many = (every.read_metadata(memory, "kern", x, parse) for x in files)
            return await asyncio.gather(*many)

        first = asyncio.create_task(read(pages[0], parse))
        assert await read(pages[1], bytes.decode) == ["x"] * 40
        assert 40 < memory.count <= 40 + indexes._IN_ALL
        goes_on.set()
        assert await first == ["x"] * 40
        assert memory.count == 80

    asyncio.run(asyncio.wait_for(run(), 60))


def test_errors_do_not_keep_metadata() -> None:
    """The frames of its errors kept METADATA of 40 pages, which took 730 MB."""

    def parse(_: bytes) -> None:
        raise InputError("METADATA of the page is too large")

    async def run() -> None:
        every = Indexes([index_of(0, [wheel("1.0")])])
        (file,) = (await every.all[0].get_project_page("kern")).files
        with pytest.raises(InputError, match="is too large") as caught:
            await every.read_metadata(Memory(), "kern", file, parse)
        frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
        kept = [value for frame in frames for value in frame.f_locals.values()]
        assert file in kept
        assert not [value for value in kept if type(value) is bytes]

    asyncio.run(run())


def test_a_required_project_does_not_use_up_the_limits_of_a_page() -> None:
    """A stranger's page of torch led to an older release, or to none."""
    new = [f"2.{number}.0" for number in range(90, 160)]
    cuda = "nvidia-cuda-runtime==13.0.88"
    torch = {f"torch-{version}": [cuda] for version in new}
    index = Index(
        {
            "ext": [linux("ext", "3.0"), linux("ext", "2.0")],
            "torch": [linux("torch", version) for version in new],
        },
        {
            "ext-3.0": ["torch", cuda],
            "ext-2.0": ["nvidia-cublas-cu12==12.6.4.1"],
            **torch,
        },
    )
    assert index.verdicts("ext") == {"3.0": "cannot", "2.0": "runs"}


def test_metadata_of_a_page_has_a_limit() -> None:
    """64 wheels with METADATA of 4 MB each took 350 MB, and 20 seconds."""

    async def read_metadata(_: str, __: model.File, parse: Callable[[bytes], T]) -> T:
        head = b"Name: kern\nVersion: 1.0\nRequires-Dist: nvidia-cublas-cu13\n"
        return parse(head + b"Description: \n" + b" x\n" * 1_300_000)

    async def read_page(_: str) -> Sequence[model.File]:
        return []

    warned: list[str] = []
    judge = make_judge(OLD, read_metadata, read_page, warned.append)
    files = [linux("kern", f"1.0+x{number}") for number in range(12)]
    found, _ = asyncio.run(judge.judge("kern", files))
    verdicts = [each.judgement.verdict for each in found]
    assert 1 <= verdicts.count("cannot") <= 4
    assert warned == [warned[0]]
    assert warned[0].endswith("METADATA of the page is too large")
