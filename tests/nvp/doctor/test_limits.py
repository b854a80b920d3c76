"""Hostile environments: `doctor` reads each with bounded work, and adds a note."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.containers import library, linked
from support.gpu_wheels import binary
from support.stacks import Installed, machine, make_environment, make_stack

from nvp.doctor import (
    abi,
    distributions,
    installation,
    loader,
    loading,
    runner,
    software,
    system,
)
from nvp.doctor.abi import abi_of
from nvp.doctor.distributions import Distribution
from nvp.doctor.loading import load_jax, load_torch
from nvp.doctor.model import Stack
from nvp.doctor.runner import Diagnosis, diagnose
from nvp.gpu_code.dynamic import Symbol, read_symbols

PLAIN = {"demo/plain.so": binary("plain.so")}
HERE = machine("13.4", "9.0")

needs_holes = pytest.mark.skipif(sys.platform != "linux", reason="needs SEEK_HOLE")


def notes_of(diagnosis: Diagnosis) -> str:
    return "\n".join(diagnosis.notes)


def change(stack: Stack, name: str, text: str) -> None:
    for item in stack.distributions.values():
        Path(item.folder, name).write_text(text)


def lower(monkeypatch: pytest.MonkeyPatch, **most: int) -> None:
    for name, value in most.items():
        monkeypatch.setitem(installation.MOST, getattr(installation, name), value)


class Counter:
    """Counts the calls of a function, which it passes on."""

    def __init__(self, patch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.calls = 0
        self._function = getattr(module, name)
        patch.setattr(module, name, self)

    def __call__(self, *given: Any, **options: Any) -> Any:
        self.calls += 1
        return self._function(*given, **options)


@pytest.mark.parametrize("digits", [18, 19, 5000])
def test_a_size_of_many_digits(digits: int, tmp_path: Path) -> None:
    stack = make_stack(tmp_path, Installed(files=PLAIN), environment=HERE)
    change(stack, "RECORD", f"demo/plain.so,,{'9' * digits}\n")
    (file,) = stack.distributions["demo"].files
    assert (file.size is None) == (digits > 18)
    assert diagnose(stack).notes == ()


@pytest.mark.parametrize("where", ["headers", "one header", "description"])
def test_of_long_metadata_the_headers_are_read(where: str, tmp_path: Path) -> None:
    line = "Requires-Dist: nvidia-demo\n"
    text = {
        "headers": line * 500_000,
        "one header": "Keywords: " + " x\n" * 5_000_000,
        "description": f"{line}\n" + "word " * 3_000_000,
    }[where]
    stack = make_stack(tmp_path, Installed(files=PLAIN), environment=HERE)
    change(stack, "METADATA", f"Name: demo\n{text}")
    found = notes_of(diagnose(stack))
    (demo,) = stack.distributions.values()
    if where == "description":
        assert (demo.metadata, found) == (f"Name: demo\n{line}\n".encode(), "")
    else:
        assert found == "demo: its METADATA is not read: more than 1,024 KiB"
    spent = (
        installation.MOST[installation.BYTES] - stack.limits._left[installation.BYTES]
    )
    assert spent < 1 << 20


def test_the_bytes_of_all_distributions_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower(monkeypatch, BYTES=100_000)
    installed = [Installed(name=f"demo{n}", files=PLAIN) for n in range(8)]
    stack = make_stack(tmp_path, *installed, environment=HERE)
    change(stack, "METADATA", "Name: demo\nKeywords: " + "x" * 30_000)
    assert (
        "only 100,000 bytes of METADATA, RECORD and the like are looked at, and not "
        "all of demo3, demo4, demo5, demo6, demo7"
    ) in notes_of(diagnose(stack))


@pytest.mark.parametrize("wide", ["\U0001f600", ""])
def test_wide_characters_count_by_their_memory(
    wide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # RECORDs of 30 MB took 415 MB: one such character makes a text four times as long.
    lower(monkeypatch, BYTES=250_000)
    stack = make_stack(tmp_path, Installed(name="demo"), environment=HERE)
    change(stack, "RECORD", f"{wide}{'a' * 60}.py,,\n" * 1_000)
    (item,) = stack.distributions.values()
    assert bool(item.files) is not bool(wide)
    change(stack, "METADATA", f"Name: a\nRequires-Dist: a {wide}{'a' * 30_000}\n" * 2)
    assert bool(item.requires) is not bool(wide)
    assert bool(list(item.limits.notes())) is bool(wide)


@pytest.mark.parametrize("kind", ["FILES", "CODE"])
def test_files_are_bounded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower(monkeypatch, **{kind: 10})
    stack = make_stack(tmp_path, Installed(files=PLAIN), environment=HERE)
    # Links make many paths of one file.
    rows = [f"demo/{'./' * number}plain.so,,\n" for number in range(1000)]
    change(stack, "RECORD", "".join(rows))
    diagnosis = diagnose(stack)
    assert f"only 10 {getattr(installation, kind)} are looked at" in notes_of(diagnosis)


def test_many_lines_of_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvp.gpu_code.files.MAX_RECORDED", 100)
    stack = make_stack(tmp_path, Installed(files=PLAIN), environment=HERE)
    change(stack, "RECORD", "a.py,,\n" * 5000)
    assert notes_of(diagnose(stack)) == (
        "demo: only the first 100 lines of its RECORD are read"
    )


def test_many_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lower(monkeypatch, DISTRIBUTIONS=3)
    installed = [Installed(name=f"demo{number}") for number in range(5)]
    stack = make_stack(tmp_path, *installed, environment=HERE)
    assert sorted(stack.distributions) == ["demo0", "demo1", "demo2"]
    assert "only 3 distributions are looked at" in notes_of(diagnose(stack))


@pytest.mark.parametrize("project", ["demo{}", "nvidia-demo{}"])
def test_requirements_are_parsed_where_they_lead_to_gpu_code(
    project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower(monkeypatch, REQUIREMENTS=300)
    installed = [
        Installed(
            name=project.format(number),
            requires=[
                f"{project.format((number * 7 + other) % 40)}[a{other}]>=1; "
                f'extra == "a{other}" or sys_platform != "nowhere"'
                for other in range(20)
            ],
        )
        for number in range(40)
    ]
    parsed = Counter(monkeypatch, distributions, "parse_requirement")
    held = Counter(monkeypatch, distributions, "holds")
    stack = make_stack(tmp_path, *installed, environment=HERE)
    found = notes_of(diagnose(stack))
    if project == "demo{}":
        assert (parsed.calls, held.calls, found) == (0, 0, "")
    else:
        # The requirements of a distribution are read for each of its extras, which is
        # fast.
        assert (parsed.calls, held.calls) <= (300, 300 * 20)
        assert "only 300 requirements that lead to GPU code are looked at" in found


def test_a_requirement_counts_by_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower(monkeypatch, REQUIREMENTS=100)
    text = "nvidia-demo; " + " or ".join(['extra == "a"'] * 5000)
    parsed = Counter(monkeypatch, distributions, "parse_requirement")
    stack = make_stack(tmp_path, Installed(requires=[text]), environment=HERE)
    assert "only 100 requirements" in notes_of(diagnose(stack))
    assert parsed.calls == 0


def test_a_folder_that_is_proposed_is_one_word(tmp_path: Path) -> None:
    libraries = {"nvidia/cublas/lib/libcublas.so.13": linked(soname="libcublas.so.13")}
    installed = [
        Installed(name="nvidia-cublas", version="13.0", files=libraries),
        Installed(files={"demo/a.so": linked("libcublas.so.13")}),
    ]
    stack = make_stack(tmp_path / "x $(id)", *installed, environment=HERE)
    (finding,) = diagnose(stack).findings
    folder = os.path.join(stack.distributions["demo"].root, "nvidia/cublas/lib")
    assert finding.hint.endswith(f"LD_LIBRARY_PATH: {shlex.quote(folder)}")
    assert shlex.quote(folder) != folder


RUNPATH = ":".join(f"/{number}" for number in range(3300))[: 16 * 1024]
"""Thousands of directories that do not exist."""

NEEDED = [f"libcudart{number}.so.13" for number in range(500)]


def linked_stack(tmp_path: Path, runpath: str, *, files: int = 4) -> Stack:
    data = linked(*NEEDED, "libcudart.so.13", runpath=runpath)
    return make_stack(
        tmp_path,
        Installed(files={f"demo/lib{number}.so": data for number in range(files)}),
        environment=HERE,
    )


def test_a_folder_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = linked_stack(tmp_path, RUNPATH)
    looked = [
        Counter(monkeypatch, os, "stat"),
        Counter(monkeypatch, os, "scandir"),
        Counter(monkeypatch, system, "open_regular"),
    ]
    (finding,) = diagnose(stack).findings
    assert finding.code == "ND301"
    # 4 libraries, 501 names and 3,300 directories are 6,600,000 places.
    assert sum(counter.calls for counter in looked) < 4000


def test_paths_of_one_folder_share_its_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runpath = ":".join(f"{tmp_path}/{'./' * number}" for number in range(20))
    stack = linked_stack(tmp_path, runpath)
    listed = Counter(monkeypatch, os, "scandir")
    diagnose(stack)
    assert listed.calls < 20


@pytest.mark.parametrize("length", [3, 200])
def test_a_listing_counts_by_its_size(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower(monkeypatch, SEARCHES=1000)
    for number in range(100):
        (tmp_path / str(number).zfill(length)).touch()
    files = system.System(str(tmp_path))
    assert len(files.names(str(tmp_path))) == (100 if length == 3 else 0)
    assert files.is_searched == (length == 3)


def test_an_endless_search_ends_without_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower(monkeypatch, SEARCHES=500)
    diagnosis = diagnose(linked_stack(tmp_path, "/.:/./.:/usr:/usr/."))
    assert diagnosis.findings == ()
    assert "only 500 steps of the search for libraries" in notes_of(diagnosis)


def test_a_library_that_is_damaged_counts_for_each_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower(monkeypatch, SEARCHES=20_000)
    (tmp_path / "libbad.so").write_bytes(b"damaged")
    (tmp_path / "liba.so").write_bytes(linked("libbad.so", runpath="$ORIGIN"))
    process = loader.Process(system.System(str(tmp_path)))
    failed = [process.load(str(tmp_path / "liba.so")) for _ in range(200)]
    assert "cannot be loaded" in failed[0][0].reason
    assert 10 < len([x for x in failed if x]) < 40


def test_libraries_that_fail_leave_nothing_behind(tmp_path: Path) -> None:
    for name, needed in {
        "liba.so": ("libb.so", "libmissing.so"),
        "libb.so": (),
        "libc.so": ("libb.so",),
    }.items():
        data = linked(*needed, runpath="$ORIGIN", soname=name)
        (tmp_path / name).write_bytes(data)
    process = loader.Process(system.System(str(tmp_path)))
    assert [x.name for x in process.load(str(tmp_path / "liba.so"))] == [
        "libmissing.so"
    ]
    assert (process.loaded, process.find("libb.so")) == ([], None)
    assert process.load(str(tmp_path / "libc.so")) == []
    found = process.find("libb.so")
    assert found is not None
    assert found.loader is process.find("libc.so")


@needs_holes
@pytest.mark.parametrize("name", ["demo/plain.so", "demo/data.bin"])
def test_holes_of_a_file_are_not_read(name: str, tmp_path: Path) -> None:
    files = {**PLAIN, "demo/data.bin": b"data" * 1000}
    stack = make_stack(tmp_path, Installed(files=files), environment=HERE)
    code = library("90_real")
    with Path(stack.distributions["demo"].locate(name)).open("r+b") as file:
        file.seek(20 << 30)
        file.write(code)
        file.truncate(40 << 30)
    report = stack.code_of(stack.distributions["demo"])
    assert report is not None
    targets = {item.path: set(item.targets) for item in report.libraries}
    assert "90_real" in targets[name]
    assert diagnose(stack).notes == ()


@pytest.mark.parametrize(("size", "seconds"), [(1000, 0), (3 << 20, 0), (3 << 20, 4)])
def test_the_search_of_files_is_bounded(
    size: int, seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Bytes that look like the start of GPU code took 13 seconds for 4 GiB.
    monkeypatch.setattr(time, "process_time", itertools.count().__next__)
    monkeypatch.setattr(runner, "_SECONDS", 1e9)
    monkeypatch.setattr(software, "_SECONDS", seconds)
    files = {f"demo/{number}.bin": os.urandom(size) for number in range(3)}
    stack = make_stack(tmp_path, Installed(files=files), environment=HERE)
    found = diagnose(stack).notes
    assert len(found) == 3
    assert all("not searched completely: there is too much" in x for x in found)


def test_names_with_no_end_are_read_in_proportion() -> None:
    # Each "S" may begin a substitution, whose end is searched for.
    assert abi_of(b"_ZN2at1fESs" + b"S" * 60_000) == "old"
    assert abi_of(b"_ZN2at1fE" + b"S" * 60_000 + b"Ss") == "old"
    assert abi_of(b"_ZN2at1fE" + b"La" + b"1" * 60_000 + b"Ss") in ("old", None)


def test_sources_of_torch_and_jax_are_read_in_proportion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = make_environment(
        tmp_path,
        Installed(
            name="torch",
            files={
                "torch/version.py": b"cuda\n" * 200_000,
                "torch/__init__.py": b'"a":"lib1.so/../../*/*/*","b":"lib2.so*",' * 9000
                + b"def _load_global_deps",
                "torch/lib/libtorch_global_deps.so": linked("lib2.so", "libcudart.so"),
                "jax_plugins/xla_cuda12/__init__.py": b'_load("a",["lib1.so",' * 50_000,
                "b/lib/other.so": b"",
            },
        ),
    )
    looked = Counter(monkeypatch, os, "scandir")
    process = loader.Process(system.System(str(tmp_path)))
    assert load_torch(process, [str(packages)])
    load_jax(process, [str(packages)])
    assert looked.calls < loading._MOST


@pytest.mark.parametrize("text", ["[" * 500_000, "*a" * 250_000, "lib1.so" * 9])
def test_a_long_pattern_of_torch_is_not_used(text: str) -> None:
    # Translating a pattern takes quadratic time: minutes for these brackets.
    assert loading._pairs(f'{{"cublas": "lib1.so.{text}"}}') == []
    assert loading._pairs('("cublas", "lib1.so.*[0-9]")') == [
        ("cublas", "lib1.so.*[0-9]")
    ]


def test_symbols_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(distribution: Distribution, _: str) -> Iterator[Symbol]:
        while distribution.limits.take(installation.SYMBOLS, 5, of=distribution.name):
            yield Symbol(b"_ZN3c104nameEv", True)
        raise ValueError("its symbols are not read: there are too many")

    lower(monkeypatch, SYMBOLS=1000)
    monkeypatch.setattr(abi, "read_library", rows)
    torch = Installed(name="torch", files={"torch/lib/libc10.so": linked("libm.so")})
    user = Installed(files={"demo/_C.so": linked("libc10.so")})
    found = notes_of(diagnose(make_stack(tmp_path, torch, user, environment=HERE)))
    assert "torch: torch/lib/libc10.so: its symbols are not read" in found
    assert "only 1,000 symbols of libraries (or as much work)" in found


def test_symbols_that_cannot_be_seeked_to(tmp_path: Path) -> None:
    data = bytearray(binary("plain.so"))
    sections = int.from_bytes(data[40:48], "little")
    for at in range(sections, len(data) - 63, 64):
        if int.from_bytes(data[at + 4 : at + 8], "little") == 11:  # SHT_DYNSYM
            data[at + 24 : at + 32] = ((1 << 63) - 24).to_bytes(8, "little")
    (tmp_path / "a.so").write_bytes(data)
    with (tmp_path / "a.so").open("rb") as file, pytest.raises(ValueError, match="cut"):
        list(read_symbols(file))


def test_thousands_of_notes_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_MOST_NOTES", 3)
    installed = [Installed(name=f"demo{number}", files=PLAIN) for number in range(8)]
    stack = make_stack(tmp_path, *installed, environment=HERE)
    change(stack, "METADATA", "no name")
    notes = diagnose(stack).notes
    assert notes[2:] == ("demo2: its METADATA is missing or damaged", "5 more notes")


def test_a_note_is_short(tmp_path: Path) -> None:
    stack = make_stack(tmp_path, Installed(files=PLAIN), environment=HERE)
    change(stack, "RECORD", f"/{'ab:/x:' * 20_000},,\n")
    (note,) = diagnose(stack).notes[:1]
    assert note.startswith("demo: ")
    assert len(note) <= 2_000
