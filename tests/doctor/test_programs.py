"""Programs are asked for their version, whatever they do instead."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.toolchains import NVCC_BANNER, banner, needs_programs, program

from nvidia_variant_provider.doctor.toolchain.programs import ask_version
from nvidia_variant_provider.machine.environment import CudaVersion

pytestmark = needs_programs


def script(folder: Path, data: bytes) -> str:
    path = folder / "ptxas"
    path.write_bytes(data)
    path.chmod(0o755)
    return str(path)


@contextlib.contextmanager
def held_by(folder: Path) -> Iterator[str]:
    """Yield a named pipe that programs can hold, and wait until nobody does."""
    path = folder / "held"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield str(path)
        os.set_blocking(descriptor, True)
        while os.read(descriptor, 4096):
            pass
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("text", [banner("12.9"), NVCC_BANNER.format("12.9")])
def test_what_programs_of_cuda_print(text: str, tmp_path: Path) -> None:
    asked = ask_version(script(tmp_path, program(text)), "PATH")
    assert asked.cuda == CudaVersion(12, 9)
    assert str(asked.release).startswith("12.9.")
    assert asked.problem is None


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    with held_by(tmp_path) as held:
        lines = f"exec 9> {held}\nsleep 1000 &\nwait\n"
        path = script(tmp_path, f"#!/bin/sh\n{lines}".encode())
        asked = ask_version(path, "PATH", deadline=0.5)
    assert asked.failure == "hangs"
    assert asked.problem == "it did not reply in 0.5 seconds"


def test_a_program_that_prints_without_end(tmp_path: Path) -> None:
    with held_by(tmp_path) as held:
        lines = f"exec 9> {held}\nwhile :; do echo '\x1b[31mgarbage'; done\n"
        path = script(tmp_path, f"#!/bin/sh\n{lines}".encode())
        asked = ask_version(path, "PATH")
    assert asked.failure == "garbled"
    assert str(asked.problem).isprintable()


def test_a_program_that_reads_its_input_gets_none(tmp_path: Path) -> None:
    asked = ask_version(script(tmp_path, b"#!/bin/sh\ncat\n"), "PATH")
    assert asked.problem == "it prints nothing instead of its version"


def test_a_long_number_is_no_version(tmp_path: Path) -> None:
    data = program(f"release {'9' * 50}.{'9' * 50}")
    assert ask_version(script(tmp_path, data), "PATH").failure == "garbled"


def test_a_file_that_is_not_executable(tmp_path: Path) -> None:
    path = script(tmp_path, program(banner("12.9")))
    os.chmod(path, 0o644)
    assert ask_version(path, "PATH").failure == "refused"
