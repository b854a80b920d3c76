"""The file ld.so.cache, as ldconfig reads it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from support.gpu_wheels import binary
from support.loader_cache import cache_file
from support.shared_objects import SharedObject, needs_compiler
from support.stacks import Installed, machine, make_stack

from nvp.doctor import system
from nvp.doctor.runner import Diagnosis, diagnose
from nvp.doctor.system import System, read_cache

CACHE = Path("/etc/ld.so.cache")
LIBRARIES = {"libcuda.so.1": "/usr/lib64/libcuda.so.1", "libc.so.6": "/lib64/libc.so.6"}

needs_ldconfig = pytest.mark.skipif(
    shutil.which("ldconfig", path=system._FOLDERS_OF_LDCONFIG) is None,
    reason="needs ldconfig",
)


@needs_ldconfig
@pytest.mark.skipif(not CACHE.exists(), reason="needs a cache")
def test_the_cache_of_this_machine_has_the_c_library() -> None:
    libraries = read_cache(str(CACHE), platform.machine())
    assert Path(libraries["libc.so.6"][0]).exists()
    assert all(Path(path).name == n for n, paths in libraries.items() for path in paths)


@needs_ldconfig
@pytest.mark.parametrize("old", [False, True])
def test_both_formats_are_read(old: bool, tmp_path: Path) -> None:
    path = tmp_path / "ld.so.cache"
    path.write_bytes(cache_file(LIBRARIES, old=old))
    assert read_cache(str(path), "x86_64") == {n: (p,) for n, p in LIBRARIES.items()}


@needs_ldconfig
def test_libraries_for_other_processors_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "ld.so.cache"
    path.write_bytes(cache_file(LIBRARIES, flags=0x0A03))
    assert read_cache(str(path), "x86_64") == {}
    assert set(read_cache(str(path), "aarch64")) == set(LIBRARIES)


@needs_compiler
@needs_ldconfig
def test_a_cache_that_ldconfig_makes_is_read(tmp_path: Path) -> None:
    for folder, name in [
        ("opt/one", "libboth.so.1"),
        ("opt/one", "libplain.so.1"),
        ("opt/two", "libboth.so.1"),
        ("opt/one/glibc-hwcaps/x86-64-v2", "libboth.so.1"),
    ]:
        SharedObject(soname=name).compile(tmp_path / folder)
    settings, cache = tmp_path / "ld.so.conf", tmp_path / "ld.so.cache"
    settings.write_text(f"{tmp_path}/opt/one\n{tmp_path}/opt/two\n")
    command = ["ldconfig", "-X", "-C", str(cache), "-f", str(settings)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"this user may not write a cache: {made.stderr}")
    libraries = read_cache(str(cache), platform.machine())
    assert libraries["libplain.so.1"] == (f"{tmp_path}/opt/one/libplain.so.1",)
    # The cache also has the copy for certain processors, as the last one.
    assert libraries["libboth.so.1"][:2] == (
        f"{tmp_path}/opt/one/libboth.so.1",
        f"{tmp_path}/opt/two/libboth.so.1",
    )
    # The paths in a cache are relative to the root directory of its system.
    root = tmp_path / "system"
    (root / "etc").mkdir(parents=True)
    shutil.copy(cache, root / "etc/ld.so.cache")
    found = System(str(root), machine=platform.machine()).cached("libplain.so.1")
    assert list(found) == [f"{root}{tmp_path}/opt/one/libplain.so.1"]


def test_a_system_without_the_file_has_nothing(tmp_path: Path) -> None:
    empty = System(str(tmp_path))
    assert list(empty.cached("libc.so.6")) == []
    assert empty.is_cache_known
    assert empty.notes == []


@needs_ldconfig
def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ld.so.cache"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="cache file"):
        read_cache(str(path), "x86_64")


def missing_library(tmp_path: Path) -> Diagnosis:
    """Check a build whose library is missing, on a system with a cache."""
    # The build is linked with libcudart.so.13.
    installed = Installed(files={"demo/plain.so": binary("plain.so")})
    root = tmp_path / "other"
    environment = machine("13.5", "9.0")
    stack = make_stack(tmp_path, installed, environment=environment, root=root)
    (root / "etc").mkdir(parents=True)
    (root / "etc/ld.so.cache").write_bytes(cache_file(LIBRARIES))
    return diagnose(stack)


@needs_ldconfig
def test_a_library_that_is_not_in_the_cache_is_missing(tmp_path: Path) -> None:
    diagnosis = missing_library(tmp_path)
    assert [finding.code for finding in diagnosis.findings] == ["ND301"]
    assert diagnosis.notes == ()


def test_without_ldconfig_no_library_is_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "_FOLDERS_OF_LDCONFIG", str(tmp_path))
    diagnosis = missing_library(tmp_path)
    assert diagnosis.findings == ()
    (note,) = diagnosis.notes
    assert note == (
        f"{tmp_path}/other/etc/ld.so.cache cannot be read: there is no ldconfig on "
        "this system; a library that is found nowhere else may be listed there, and "
        "is not reported as missing"
    )


def test_an_ldconfig_that_fails_is_named(tmp_path: Path) -> None:
    program = tmp_path / "ldconfig"
    program.write_text("#!/bin/sh\necho 'ldconfig: no option -p' >&2\nexit 2\n")
    program.chmod(0o755)
    with pytest.raises(ValueError, match="ldconfig says: ldconfig: no option -p"):
        read_cache("/etc/ld.so.cache", "x86_64", str(program))
    with pytest.raises(ValueError, match=r"cannot be run: .*No such file"):
        read_cache("/etc/ld.so.cache", "x86_64", str(tmp_path / "none"))
