"""``doctor`` on hostile environments: time, and peak memory.

The benchmark makes each environment in a temporary directory. Libraries of 3 GB are
sparse files: they take no space on the disk, but reading them takes as long as reading
normal files.
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from pathlib import Path

from benchmarks.harness import (
    CHECKOUT,
    Command,
    Environment,
    Sample,
    fresh_environment,
    options,
    print_machine,
    print_table,
    run,
)

MANY = 10_000
HUGE = 3 * 10**9
PROGBITS, DYNSYM = 1, 11
ALLOC, EXEC = 2, 4
LIBRARY = CHECKOUT / "fixtures" / "binaries" / "plain.so"
"""A small library with GPU code, which is linked with the CUDA runtime."""

# ``ru_maxrss`` of a new process begins at that of its parent, so the process itself
# reports its peak.
PROGRAM = """
import contextlib, io, json, os, sys, time
from nvp.cli import main
sys.argv[:1] = ["nvidia-variant-provider"]
start = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(sys.stdout):
    with contextlib.suppress(SystemExit):
        main()
seconds = time.perf_counter() - start
with open("/proc/self/status") as file:
    (peak,) = [line.split()[1] for line in file if line.startswith("VmHWM")]
print(json.dumps([seconds, sum(os.times()[:2]), int(peak) / 1024]))
"""


def main() -> None:
    parser = options(__doc__, 3)
    arguments = parser.parse_args()
    rows = []
    with fresh_environment("isal", "zstandard") as environment:
        print_machine(arguments.runs)
        for name, make in CASES.items():
            with tempfile.TemporaryDirectory() as folder:
                packages = Path(folder, "stack/lib/python3.11/site-packages")
                packages.mkdir(parents=True)
                Path(folder, "stack/pyvenv.cfg").write_text("version = 3.11.7\n")
                make(packages)
                rows.append([name, *_measure(environment, folder, arguments.runs)])
    header = ["", "first s", "of processor", "second s", "of processor", "MiB"]
    print_table("In a fresh process, without and with what doctor keeps", header, rows)


def _measure(environment: Environment, folder: str, runs: int) -> list[str]:
    """Return the medians of a first and of a second run, and the highest peak."""
    command = Command(
        [
            *("-c", PROGRAM, "doctor", "--python", f"{folder}/stack"),
            *("--cuda-driver", "13.4", "--sm-arch", "9.0"),
        ],
        {"XDG_CACHE_HOME": f"{folder}/cache"},
    )
    first, second = [], []
    for _ in range(runs):
        shutil.rmtree(f"{folder}/cache", ignore_errors=True)
        first.append(json.loads(run(environment, command)))
        second.append(json.loads(run(environment, command)))
    medians = [
        f"{Sample([item[index] for item in samples]).median:.2f}"
        for samples in (first, second)
        for index in (0, 1)
    ]
    return [*medians, f"{max(item[2] for item in (*first, *second)):.0f}"]


def _install(
    packages: Path, name: str, *files: str, requires: str = "", recorded: bool = True
) -> None:
    folder = packages / f"{name}-1.0.dist-info"
    folder.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    if requires:
        text += f"Requires-Dist: {requires}\n"
    (folder / "METADATA").write_text(text)
    if recorded:
        (folder / "RECORD").write_text("".join(f"{path},,\n" for path in files))


def _huge(path: Path, kind: int, flags: int, name: bytes, start: bytes = b"") -> None:
    """Write an ELF file with one section of 3 GB.

    :param start: the first bytes of the section.
    """
    names = b"\0.shstrtab\0" + name + b"\0"
    place = 4096
    rows = [(0, 0, 0, 0, 0, 0), (1, 3, 0, 0, 64, len(names))]
    rows.append((11, kind, flags, 0, place, HUGE))
    counts = (64, 0, 0, 64, len(rows), 1)
    ident = b"\x7fELF\2\1\1"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.write(
            struct.pack(
                "<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 0, place + HUGE, 0, *counts
            )
        )
        file.write(names)
        file.seek(place)
        file.write(start)
        file.seek(place + HUGE)
        for row in rows:
            file.write(struct.pack("<IIQQQQIIQQ", *row, 0, 0, 1, 0))


def _huge_code(packages: Path) -> None:
    entry = (2, 0x101, 64, HUGE - 80, 0, 0, 7, 1, 90, 0, 0, 0x11, 0, 0)
    start = struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, HUGE - 16)
    start += struct.pack("<HHIQIIHHIIIQQQ", *entry)
    _huge(packages / "demo/lib.so", PROGBITS, ALLOC, b".nv_fatbin", start)
    _install(packages, "demo", "demo/lib.so")


def _huge_data(packages: Path) -> None:
    _huge(packages / "demo/lib.so", PROGBITS, ALLOC, b".rodata")
    _install(packages, "demo", "demo/lib.so")


def _huge_instructions(packages: Path) -> None:
    _huge(packages / "demo/lib.so", PROGBITS, ALLOC | EXEC, b".text")
    _install(packages, "demo", "demo/lib.so")


def _huge_symbols(packages: Path) -> None:
    _huge(packages / "torch/lib/libtorch_cpu.so", DYNSYM, ALLOC, b".dynsym")
    _install(packages, "torch", "torch/lib/libtorch_cpu.so")


def _distributions(packages: Path) -> None:
    for number in range(MANY):
        others = f"demo{number + 1}"
        _install(packages, f"demo{number}", f"demo{number}.py", requires=others)


def _with_libraries(packages: Path) -> None:
    for number in range(MANY):
        path = f"demo{number}/lib.so"
        (packages / path).parent.mkdir()
        shutil.copyfile(LIBRARY, packages / path)
        _install(packages, f"demo{number}", path, requires=f"demo{number // 2}")


def _without_record(packages: Path) -> None:
    for number in range(MANY):
        _install(packages, f"demo{number}", recorded=False)


def _links(packages: Path) -> None:
    names = [f"demo/link{number}.so" for number in range(MANY)]
    (packages / "demo").mkdir()
    for number, name in enumerate(names):
        (packages / name).symlink_to(f"link{(number + 1) % MANY}.so")
    (packages / "again").symlink_to(packages)
    _install(packages, "demo", *names)


CASES = {
    "3 GB of machine code for GPUs": _huge_code,
    "3 GB of data": _huge_data,
    "3 GB of instructions": _huge_instructions,
    "3 GB of symbols, in torch": _huge_symbols,
    "10,000 distributions": _distributions,
    "the same, each with a library": _with_libraries,
    "the same without RECORD": _without_record,
    "10,000 links in a circle": _links,
}


if __name__ == "__main__":
    main()
