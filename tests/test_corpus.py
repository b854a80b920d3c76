"""The fuzzer of `benchmarks`, and its earlier findings, which must not break a
reader."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import fuzz
from benchmarks.fuzz_rooms import CORPUS, ROOMS
from nvidia_variant_provider.errors import ProviderError

linux = pytest.mark.skipif(sys.platform != "linux", reason="it limits a process")

FOUND = sorted(path for path in CORPUS.glob("*/*") if path.is_file())


@pytest.mark.parametrize(
    "path", FOUND, ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_what_was_found_is_read_or_refused(path: Path, tmp_path: Path) -> None:
    refused = ""
    try:
        ROOMS[path.parent.name].read(path.read_bytes(), tmp_path)
    except ProviderError as error:
        refused = str(error)
    assert "\n" not in refused
    assert not refused or not path.name.startswith("valid")


@linux
@pytest.mark.parametrize("name", ROOMS)
def test_each_room_reads_its_valid_files_and_mutants(name: str) -> None:
    result = fuzz.Result()
    fuzz.fuzz(ROOMS[name], result, "a seed", seconds=60, most=20)
    assert result.findings == {}
    assert result.inputs == 20


def spin(_: bytes, __: Path) -> None:
    while True:
        pass


def fill(_: bytes, __: Path) -> None:
    bytes(fuzz.MEMORY + (64 << 20))


def end(_: bytes, __: Path) -> None:
    os._exit(3)


def refuse(data: bytes, _: Path) -> None:
    if len(data) != 4:
        raise KeyError(data)
    raise ProviderError("no")


@linux
@pytest.mark.parametrize(
    ("read", "what"),
    [
        (spin, "more than 2 seconds in test_corpus.py, spin"),
        (fill, "MemoryError in test_corpus.py, fill"),
        (end, "the process ended with status 768"),
        (refuse, "KeyError in test_corpus.py, refuse"),
    ],
)
def test_what_breaks_a_limit_is_found(
    read: Callable[[bytes, Path], object], what: str
) -> None:
    room = replace(ROOMS["pages"], mutate=lambda *_: b"abc", read=read)
    result = fuzz.Result()
    fuzz.fuzz(room, result, "a seed", seconds=60, most=1)
    assert result.findings == {what: b"abc"}


@linux
def test_an_error_of_ours_is_no_finding_and_the_shortest_input_is_kept() -> None:
    inputs = iter([b"long input", b"ours", b"short", b"longer input"])
    room = replace(ROOMS["pages"], mutate=lambda *_: next(inputs), read=refuse)
    result = fuzz.Result()
    fuzz.fuzz(room, result, "a seed", seconds=60, most=4)
    assert result.findings == {"KeyError in test_corpus.py, refuse": b"short"}
    assert result.inputs == 4


@linux
def test_findings_may_be_long() -> None:
    data = b"long" * 100_000
    room = replace(ROOMS["pages"], mutate=lambda *_: data, read=refuse)
    result = fuzz.Result()
    fuzz.fuzz(room, result, "a seed", seconds=60, most=2)
    assert [*result.findings.values()] == [data]


@linux
def test_a_seed_decides_about_the_inputs(tmp_path: Path) -> None:
    def inputs(seed: str) -> list[bytes]:
        seen = tmp_path / seed
        room = ROOMS["locks"]

        def keep(data: bytes, _: Path) -> None:
            with seen.open("ab") as file:
                file.write(data + b"\0")

        fuzz.fuzz(replace(room, read=keep), fuzz.Result(), seed, seconds=60, most=50)
        data = seen.read_bytes()
        seen.unlink()
        return data.split(b"\0")

    assert inputs("one") == inputs("one") != inputs("two")


@linux
def test_the_command_counts_and_saves(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    room = replace(ROOMS["pages"], mutate=lambda *_: b"abc", read=end)
    monkeypatch.setitem(ROOMS, "pages", room)
    words = ["--minutes", "0.0005", "--room", "pages", "--seed", "7"]
    monkeypatch.setattr(sys, "argv", ["fuzz", *words, "--findings", str(tmp_path)])
    assert fuzz.main() == 1
    said = capsys.readouterr().out
    assert "seed 7" in said
    assert "pages: the process ended with status 768: " in said
    (saved,) = (tmp_path / "pages").iterdir()
    assert saved.read_bytes() == b"abc"
