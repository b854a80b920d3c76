"""The rules of the loader in this project, compared to the loader of this machine."""

from __future__ import annotations

import platform
import random
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.grids import some_of
from support.shared_objects import SharedObject, dlopen, needs_compiler

from nvp.doctor.loader import Process, split_library_path, split_preload
from nvp.doctor.system import System

pytestmark = needs_compiler


def loaded(
    *paths: Path, environ: Mapping[str, str], below: Path
) -> tuple[set[str], set[str]]:
    """Return the files that the rules load, and the names that the rules do not
    find."""
    process = Process(
        System(machine=platform.machine()),
        library_path=split_library_path(environ.get("LD_LIBRARY_PATH", "")),
        program=sys.executable,
        preload=split_preload(environ.get("LD_PRELOAD", "")),
    )
    missing: set[str] = set()
    for path in paths:
        missing = {item.name for item in process.load(str(path))}
        if missing:
            break
    files = {item.real for item in process.loaded}
    return {file for file in files if file.startswith(str(below))}, missing


def agree(*paths: Path, environ: Mapping[str, str], below: Path) -> set[str]:
    """Check that the real loader does the same, and return the files it loads."""
    files, failure = dlopen(*paths, environ=environ)
    ours, missing = loaded(*paths, environ=environ, below=below)
    assert ours == {file for file in files if file.startswith(str(below))}
    if failure is None:
        assert not missing
    else:
        match = re.match(r"(\S+): cannot open shared object file", failure)
        assert match is not None, failure
        assert match[1] in missing
    return {str(Path(file).relative_to(below)) for file in ours}


@pytest.mark.parametrize("seed", some_of(((seed,) for seed in range(10)), 3))
def test_random_libraries_load_as_they_really_do(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    folders = [f"folder{index}" for index in range(4)]
    names = [f"libn{seed}x{index}.so" for index in range(6)]
    for index, name in enumerate(names):
        places = choose.sample(folders, choose.randint(1, 3))
        if choose.random() < 0.1:
            places = []
        for place in places:
            paths = [
                choose.choice(
                    [f"$ORIGIN/../{folder}", f"${{ORIGIN}}/../{folder}", ""]
                    if choose.random() < 0.5
                    else [str(tmp_path / folder)]
                )
                for folder in choose.sample(folders, choose.randint(0, 2))
            ]
            SharedObject(
                soname=name if choose.random() < 0.8 else f"lib{seed}other.so",
                needed=choose.sample(names[index + 1 :], k=min(2, 5 - index)),
                rpath=":".join(filter(None, paths)) or None,
                new_tags=choose.random() < 0.5,
            ).compile(tmp_path / place, name)
    path = [str(tmp_path / name) for name in choose.sample(folders, seed % 3)]
    environ = {"LD_LIBRARY_PATH": choose.choice([":", ";"]).join(path)}
    roots = [
        tmp_path / folder / name
        for name in names[:2]
        for folder in folders
        if (tmp_path / folder / name).exists()
    ]
    agree(*roots, environ=environ, below=tmp_path)


def test_the_rpath_of_the_loading_chain_counts(tmp_path: Path) -> None:
    SharedObject(soname="libchain-c.so").compile(tmp_path / "c")
    SharedObject(soname="libchain-b.so", needed=["libchain-c.so"]).compile(tmp_path)
    outer = SharedObject(
        soname="libchain-a.so", needed=["libchain-b.so"], rpath="$ORIGIN:$ORIGIN/c"
    ).compile(tmp_path)
    assert "c/libchain-c.so" in agree(outer, environ={}, below=tmp_path)


def test_a_runpath_does_not_reach_what_the_libraries_need(tmp_path: Path) -> None:
    SharedObject(soname="libdirect-c.so").compile(tmp_path / "c")
    SharedObject(soname="libdirect-b.so", needed=["libdirect-c.so"]).compile(tmp_path)
    outer = SharedObject(
        soname="libdirect-a.so",
        needed=["libdirect-b.so"],
        rpath="$ORIGIN:$ORIGIN/c",
        new_tags=True,
    ).compile(tmp_path)
    assert agree(outer, environ={}, below=tmp_path) == set()


def test_a_library_that_is_loaded_answers_to_its_soname(tmp_path: Path) -> None:
    first = SharedObject(soname="libloaded-a.so").compile(tmp_path, "another-name.so")
    user = SharedObject(soname="libloaded-b.so", needed=["libloaded-a.so"])
    agree(first, user.compile(tmp_path), environ={}, below=tmp_path)


@pytest.mark.parametrize("new_tags", [False, True])
def test_library_path_comes_between_rpath_and_runpath(
    new_tags: bool, tmp_path: Path
) -> None:
    name = f"liborder{new_tags}.so"
    SharedObject(soname=name).compile(tmp_path / "own")
    SharedObject(soname=name).compile(tmp_path / "path")
    user = SharedObject(
        soname="liborder-user.so",
        needed=[name],
        rpath="$ORIGIN/own",
        new_tags=new_tags,
    ).compile(tmp_path)
    environ = {"LD_LIBRARY_PATH": str(tmp_path / "path")}
    expected = "path" if new_tags else "own"
    assert f"{expected}/{name}" in agree(user, environ=environ, below=tmp_path)


def test_a_library_for_another_processor_is_passed_over(tmp_path: Path) -> None:
    name = "libforeign.so"
    foreign = SharedObject(soname=name).compile(tmp_path / "foreign")
    data = bytearray(foreign.read_bytes())
    data[18:20] = (22).to_bytes(2, "little")
    foreign.write_bytes(data)
    SharedObject(soname=name).compile(tmp_path / "own")
    user = SharedObject(
        soname="libforeign-user.so", needed=[name], rpath="$ORIGIN/foreign:$ORIGIN/own"
    ).compile(tmp_path)
    assert f"own/{name}" in agree(user, environ={}, below=tmp_path)


def test_a_file_that_is_no_library_stops_the_search(tmp_path: Path) -> None:
    name = "libdamaged.so"
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / name).write_text("text")
    SharedObject(soname=name).compile(tmp_path / "own")
    user = SharedObject(
        soname="libdamaged-user.so", needed=[name], rpath="$ORIGIN/damaged:$ORIGIN/own"
    ).compile(tmp_path)
    _, failure = dlopen(user, environ={})
    assert failure is not None
    _, missing = loaded(user, environ={}, below=tmp_path)
    assert missing == {name}


def test_two_names_of_one_file_are_loaded_once(tmp_path: Path) -> None:
    SharedObject(soname="libtwin-real.so").compile(tmp_path)
    (tmp_path / "libtwin-link.so").symlink_to("libtwin-real.so")
    user = SharedObject(
        soname="libtwin-user.so",
        needed=["libtwin-link.so", "libtwin-real.so"],
        rpath="$ORIGIN",
    ).compile(tmp_path)
    assert len(agree(user, environ={}, below=tmp_path)) == 2


@pytest.mark.parametrize(
    "value", ["", ":", ";", ":{0}/other", "{0}/other:", "{0}/other;;", ".", "inner/.."]
)
def test_an_empty_entry_is_the_current_folder(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SharedObject(soname="libempty.so").compile(tmp_path / "here")
    (tmp_path / "here/inner").mkdir()
    user = SharedObject(soname="libempty-user.so", needed=["libempty.so"])
    path = user.compile(tmp_path)
    environ = {"LD_LIBRARY_PATH": value.format(tmp_path)}
    monkeypatch.chdir(tmp_path / "here")
    files = agree(path, environ=environ, below=tmp_path)
    assert files == ({"libempty-user.so", "here/libempty.so"} if value else set())


@pytest.mark.parametrize("rpath", ["", ":", "/nowhere:", ":/nowhere"])
@pytest.mark.parametrize("new_tags", [False, True])
def test_an_empty_entry_of_an_rpath(
    rpath: str, new_tags: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SharedObject(soname="libblank.so").compile(tmp_path / "here")
    path = SharedObject(
        soname="libblank-user.so",
        needed=["libblank.so"],
        rpath=rpath,
        new_tags=new_tags,
    ).compile(tmp_path)
    monkeypatch.chdir(tmp_path / "here")
    agree(path, environ={}, below=tmp_path)


@pytest.mark.parametrize("form", ["{0}/own/{1}", "{0}/no.so {0}/own/{1}", "x.so:{1}"])
def test_what_is_preloaded_comes_before_what_is_found(
    form: str, tmp_path: Path
) -> None:
    name = "libpreloaded.so"
    SharedObject(soname="libpreloaded-inner.so").compile(tmp_path / "inner")
    SharedObject(
        soname=name, needed=["libpreloaded-inner.so"], rpath="$ORIGIN/../inner"
    ).compile(tmp_path / "own")
    SharedObject(soname=name).compile(tmp_path / "other")
    user = SharedObject(
        soname="libpreloaded-user.so", needed=[name], rpath="$ORIGIN/other"
    ).compile(tmp_path)
    environ = {
        "LD_PRELOAD": form.format(tmp_path, name),
        "LD_LIBRARY_PATH": f"{tmp_path}/own",
    }
    files = agree(user, environ=environ, below=tmp_path)
    assert files == {
        "libpreloaded-user.so",
        f"own/{name}",
        "inner/libpreloaded-inner.so",
    }


def test_what_the_system_preloads(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    library = SharedObject(soname="libsystem-wide.so").compile(tmp_path)
    text = f"# for all programs\n{library}:/nowhere.so # both\n"
    (tmp_path / "etc/ld.so.preload").write_text(text)
    process = Process(System(str(tmp_path), machine=platform.machine()))
    assert [item.path for item in process.loaded] == [str(library)]


@pytest.mark.parametrize("libc", ["libc.so.6", "libc.musl-x86_64.so.1"])
def test_the_loader_of_musl_is_recognised(libc: str, tmp_path: Path) -> None:
    program = SharedObject(soname="", needed=[libc]).compile(tmp_path, "python")
    process = Process(System(machine=platform.machine()), program=str(program))
    assert process.is_musl == ("musl" in libc)


def test_paths_that_lead_nowhere_end(tmp_path: Path) -> None:
    """The cases are cycles of libraries and of links, long paths, and paths that lead
    outside."""
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    rpath = [
        *("$ORIGIN/../" * 100, "$ORIGIN/circle", "$ORIGIN/" + "x/" * 3000),
        *("$ORIGIN/" + "x" * 300, "$ORIGIN"),
    ]
    for name, other in (("liba-circle.so", "libb"), ("libb-circle.so", "liba")):
        SharedObject(
            soname=name, needed=[f"{other}-circle.so"], rpath=":".join(rpath)
        ).compile(tmp_path)
    files = agree(tmp_path / "liba-circle.so", environ={}, below=tmp_path)
    assert files == {"liba-circle.so", "libb-circle.so"}
