"""Give damaged and hostile inputs to all readers of files from other people.

Each input of a room is a valid input with changes of its structure. A reader may only
return or raise a `ProviderError`, within `SECONDS` of processor time and `MEMORY`. An
input that breaks this rule is saved: put the file into `tests/corpus`, whose files a
test reads.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks.fuzz_rooms import ROOMS, Room
from benchmarks.harness import print_table
from nvidia_variant_provider.errors import ProviderError

__all__ = ["MEMORY", "SECONDS", "Result", "fuzz"]

SECONDS = 2.0
"""The maximum processor time of an input in seconds, which other programs do not
affect."""

MEMORY = 500 * 1024 * 1024
"""The maximum memory of an input in bytes, above that of the process before."""

_SLICE = 5.0
"""The seconds of a room before the turn of the next room, when its process ends."""

_PATIENCE = 60.0
"""The seconds before a process is killed because of one input."""

_HEAD = struct.Struct("<QQd")
"""The number of inputs that a process has begun, the length of the last, and the
slowest."""

_LARGEST = 4 << 20


class _TooSlowError(BaseException):
    """An input has taken longer than `SECONDS`."""


@dataclass
class Result:
    """The results of the inputs of one room.

    :param slowest: the seconds of the processor of the slowest input.
    :param peak: the largest memory of a process, in bytes.
    :param findings: the shortest input for each finding, by its error and place.
    """

    inputs: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    peak: int = 0
    findings: dict[str, bytes] = field(default_factory=dict)

    def add(self, what: str, data: bytes) -> None:
        """Add a finding, unless a shorter input shows the same."""
        if what not in self.findings or len(data) < len(self.findings[what]):
            self.findings[what] = data


def fuzz(
    room: Room, result: Result, seed: str, *, seconds: float, most: int = 1 << 62
) -> None:
    """Give a room inputs for some seconds, in a process of its own.

    :param seed: the seed of the random inputs.
    :param most: the maximum number of inputs.
    """
    shared = mmap.mmap(-1, _HEAD.size + _LARGEST)
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-", dir=_memory_folder()) as folder,
        # Use a file: the process would wait for a reader when a pipe is full.
        tempfile.TemporaryFile("w+", encoding="ascii") as found,
    ):
        pid = os.fork()
        if not pid:
            # Code of the parent must never run in this process, also after an
            # exception.
            status = 70
            try:
                _work(
                    room, seed, shared, Path(folder), found, seconds=seconds, most=most
                )
                found.flush()
                status = 0
            except BaseException:  # noqa: BLE001  # a defect of the fuzzer itself
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(status)
        ended = _wait(pid, shared)
        found.seek(0)
        for line in found:
            if line.endswith("\n"):
                what, data = json.loads(line)
                result.add(what, bytes.fromhex(data))
    inputs, length, slowest = _HEAD.unpack_from(shared)
    if ended.status:
        last = shared[_HEAD.size : _HEAD.size + length]
        result.add(f"the process ended with status {ended.status}", last)
    result.inputs += inputs
    result.seconds += ended.seconds
    result.slowest = max(result.slowest, slowest)
    result.peak = max(result.peak, ended.peak)


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass(frozen=True)
class _Ended:
    status: int
    seconds: float
    peak: int


def _wait(pid: int, shared: mmap.mmap) -> _Ended:
    """Wait for a process, and kill the process if one input takes too long by the
    clock."""
    begun, since = -1, time.monotonic()
    while True:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            unit = 1 if sys.platform == "darwin" else 1024
            seconds = used.ru_utime + used.ru_stime
            return _Ended(status, seconds, used.ru_maxrss * unit)
        now, (inputs, *_) = time.monotonic(), _HEAD.unpack_from(shared)
        if inputs != begun:
            begun, since = inputs, now
        elif now - since > _PATIENCE:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _work(
    room: Room,
    seed: str,
    shared: mmap.mmap,
    folder: Path,
    found: IO[str],
    *,
    seconds: float,
    most: int,
) -> None:
    """Read inputs, and write a line about each finding."""
    rng = random.Random(seed)
    seeds = room.seeds()
    known: dict[str, int] = {}
    slowest, until = 0.0, time.monotonic() + seconds
    _limit_memory()
    signal.signal(signal.SIGPROF, _stop)
    with open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        for number in range(1, most + 1):
            data = room.mutate(rng, seeds)[:_LARGEST]
            shared[_HEAD.size : _HEAD.size + len(data)] = data
            _HEAD.pack_into(shared, 0, number, len(data), slowest)
            what, taken = attempt(room, data, folder)
            slowest = max(slowest, taken)
            if what is not None and len(data) < known.get(what, _LARGEST + 1):
                known[what] = len(data)
                found.write(json.dumps([what, data.hex()]) + "\n")
            if time.monotonic() > until:
                break
        _HEAD.pack_into(shared, 0, number, len(data), slowest)


def attempt(room: Room, data: bytes, folder: Path) -> tuple[str | None, float]:
    """Read an input; return the defect, and the processor time in seconds."""
    what = None
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        room.read(data, folder)
    except ProviderError as error:
        str(error)
    except _TooSlowError as error:
        what = f"more than {SECONDS:g} seconds in {_place(error)}"
    except Exception as error:  # noqa: BLE001  # whatever may come of hostile input
        what = f"{type(error).__name__} in {_place(error)}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    taken = time.process_time() - start
    if what is None and taken > SECONDS:
        what = f"more than {SECONDS:g} seconds"
    return what, taken


def _stop(*_: object) -> None:
    raise _TooSlowError


def _place(error: BaseException) -> str:
    """Return the innermost function of this project in the traceback of an
    exception."""
    read = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in read if frame.filename != __file__]
    ours = [x for x in frames if "/nvp/" in x.filename or "_provider/" in x.filename]
    frame = (ours or frames)[-1]
    return f"{Path(frame.filename).name}, {frame.name}"


def _limit_memory() -> None:
    import resource  # Windows has no such module

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))


def _turns(
    names: Sequence[str], seed: str, minutes: float
) -> Iterator[tuple[str, str, float]]:
    """Yield a room, its seed and its seconds, in turn until the time is over."""
    until = time.monotonic() + 60 * minutes
    number = 0
    while (left := until - time.monotonic()) > 0:
        name = names[number % len(names)]
        yield name, f"{seed}/{name}/{number // len(names)}", min(_SLICE, left)
        number += 1


def _save(results: dict[str, Result], folder: Path) -> list[str]:
    """Write the findings; return a line about each."""
    lines = []
    for name, result in results.items():
        for what, data in result.findings.items():
            path = folder / name / hashlib.sha256(what.encode()).hexdigest()[:12]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            lines.append(f"{name}: {what}: {path} ({len(data)} bytes)")
    return lines


def main() -> int:
    """Fuzz; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="in all")
    parser.add_argument("--room", action="append", choices=ROOMS, help="default: all")
    parser.add_argument("--seed", default=None, help="default: another one each time")
    parser.add_argument(
        "--findings", type=Path, default=Path("fuzz-findings"), help="%(default)s"
    )
    options = parser.parse_args()
    if not hasattr(os, "fork") or not os.path.exists("/proc/self/statm"):
        parser.error("this runs on Linux only")
    seed = options.seed or str(random.SystemRandom().randrange(10**9))
    results = {name: Result() for name in options.room or ROOMS}
    print(f"seed {seed}", flush=True)
    start = time.monotonic()
    try:
        for name, own, seconds in _turns([*results], seed, options.minutes):
            fuzz(ROOMS[name], results[name], own, seconds=seconds)
            count = len(_save(results, options.findings))
            if name == [*results][-1]:
                total = sum(item.inputs for item in results.values())
                print(f"{total:,} inputs, {count} findings", flush=True)
    except KeyboardInterrupt:
        print("interrupted")
    rows = [
        [
            name,
            f"{item.inputs:,}",
            f"{item.inputs / item.seconds:.0f}" if item.seconds else "",
            f"{item.seconds:.0f} s",
            f"{item.slowest * 1000:.0f} ms",
            f"{item.peak >> 20} MiB",
            str(len(item.findings)),
        ]
        for name, item in results.items()
    ]
    total = sum(item.inputs for item in results.values())
    header = ("room", "inputs", "a second", "processor", "slowest", "peak", "findings")
    print_table(f"{total:,} inputs in {time.monotonic() - start:.0f} s", header, rows)
    lines = _save(results, options.findings)
    print("", *lines, sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
