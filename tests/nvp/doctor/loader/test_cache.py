"""The file ld.so.cache: compared with ldconfig, and damaged."""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loader_cache import cache_file
from support.shared_objects import SharedObject, needs_compiler

from nvp.doctor.loader.cache import parse_cache, read_cache

CACHE = Path("/etc/ld.so.cache")
LIBRARIES = {"libcuda.so.1": "/usr/lib64/libcuda.so.1", "libc.so.6": "/lib64/libc.so.6"}
_LINE = re.compile(r"^\t(\S+) \((.*?)\) => (.*)$", re.MULTILINE)


@pytest.mark.skipif(
    not CACHE.exists() or shutil.which("ldconfig") is None, reason="needs ldconfig"
)
def test_the_cache_of_this_machine_is_read_as_ldconfig_reads_it() -> None:
    listed = subprocess.run(
        ["ldconfig", "-p"], capture_output=True, text=True, check=True
    ).stdout
    word = {"x86_64": "x86-64", "aarch64": "AArch64"}[platform.machine()]
    expected: dict[str, list[str]] = {}
    for name, kind, path in _LINE.findall(listed):
        if word in kind and "hwcap" not in kind:
            expected.setdefault(name, []).append(path)
    ours = read_cache(str(CACHE), platform.machine())
    plain = {
        name: [path for path in paths if "glibc-hwcaps" not in path]
        for name, paths in ours.items()
    }
    assert expected
    assert {name: paths for name, paths in plain.items() if paths} == expected


@pytest.mark.parametrize("old", [False, True])
def test_both_formats_are_read(old: bool) -> None:
    data = cache_file(LIBRARIES, old=old)
    assert parse_cache(data, "x86_64") == {n: (p,) for n, p in LIBRARIES.items()}


def test_libraries_for_other_processors_are_left_out() -> None:
    data = cache_file(LIBRARIES, flags=0x0A03)
    assert parse_cache(data, "x86_64") == {}
    assert set(parse_cache(data, "aarch64")) == set(LIBRARIES)


def test_a_system_without_the_file_has_nothing(tmp_path: Path) -> None:
    assert read_cache(str(tmp_path / "ld.so.cache"), "x86_64") == {}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a cache"),
        (b"ld.so-1.7.0\0\0\0\0\0", "before glibc 2.2"),
        (cache_file(LIBRARIES)[:60], "cut off"),
        (cache_file(LIBRARIES)[:-5], "cut off"),
        (cache_file({})[:20] + b"\xff" * 4 + bytes(24), "entries"),
        (cache_file({})[:28] + b"\3" + bytes(19), "byte order"),
    ],
)
def test_damage_is_named(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "ld.so.cache"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_cache(str(path), "x86_64")


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="directory"):
        read_cache(str(tmp_path), "x86_64")


@given(st.data())
def test_any_bytes_are_read_or_refused(data: st.DataObject) -> None:
    good = bytearray(cache_file(LIBRARIES, old=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(0, 8))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(good[: data.draw(st.integers(0, len(good)))])
    for item in (cut, data.draw(st.binary(max_size=200))):
        with contextlib.suppress(ValueError):
            assert parse_cache(item, "x86_64") is not None


@needs_compiler
@pytest.mark.skipif(shutil.which("ldconfig") is None, reason="needs ldconfig")
def test_copies_for_newer_processors_are_read_as_ldconfig_lists_them(
    tmp_path: Path,
) -> None:
    for folder, name in [
        ("usr/lib", "libboth.so.1"),
        ("usr/lib", "libplain.so.1"),
        ("usr/lib/glibc-hwcaps/x86-64-v2", "libboth.so.1"),
        ("usr/lib/glibc-hwcaps/x86-64-v3", "libboth.so.1"),
        ("usr/lib/glibc-hwcaps/x86-64-v4", "libonly.so.1"),
    ]:
        SharedObject(soname=name).compile(tmp_path / folder)
    (tmp_path / "etc").mkdir()
    command = ["ldconfig", "-r", str(tmp_path), "-f", "/etc/none", "-X"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    path = tmp_path / "etc/ld.so.cache"
    if made.returncode or not path.exists():
        pytest.skip(f"only root may write another cache: {made.stderr}")
    machine = platform.machine()
    inner = "/usr/lib/glibc-hwcaps"
    levels = ["x86-64-v4", "x86-64-v3", "x86-64-v2"]
    if b"x86-64-v3" not in path.read_bytes():
        pytest.skip("this ldconfig knows no glibc-hwcaps")
    assert read_cache(str(path), machine, levels) == {
        "libboth.so.1": (
            f"{inner}/x86-64-v3/libboth.so.1",
            f"{inner}/x86-64-v2/libboth.so.1",
            "/usr/lib/libboth.so.1",
        ),
        "libplain.so.1": ("/usr/lib/libplain.so.1",),
        "libonly.so.1": (f"{inner}/x86-64-v4/libonly.so.1",),
    }
    assert read_cache(str(path), machine, ["x86-64-v2"]) == {
        "libboth.so.1": (f"{inner}/x86-64-v2/libboth.so.1", "/usr/lib/libboth.so.1"),
        "libplain.so.1": ("/usr/lib/libplain.so.1",),
    }
    assert set(read_cache(str(path), machine)) == {"libboth.so.1", "libplain.so.1"}
