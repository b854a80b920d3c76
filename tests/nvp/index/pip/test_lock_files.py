"""Reading lock files: their names, and any contents."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from simple_repository import model
from support.builds import gpu_build, metadata
from support.index_server import serve
from support.processes import Pip, installed_labels
from support.wheels import publish, stub_wheel, variants_json_name

from nvidia_variant_provider.errors import InputError
from nvp.index.pip.locks import LockCopies, _best, is_lock, parse_toml, read_lock
from nvp.index.selection.visibility import PageVerdicts
from nvp.index.server import served_locks

KEYS = ("name", "version", "wheels", "url", "path", "hashes", "variants-json")

VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-9, 9), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    ),
    max_leaves=20,
)

FILE = st.fixed_dictionaries(
    {},
    optional={
        "name": st.one_of(st.just("torch-1.0-py3-none-any-cu126.whl"), VALUES),
        "url": st.one_of(st.just("https://wheels.example/torch.whl"), VALUES),
        "path": st.one_of(st.just("../torch.whl"), VALUES),
        "hashes": st.one_of(st.just({"sha256": "0"}), VALUES),
    },
)

PACKAGE = st.fixed_dictionaries(
    {"name": st.one_of(st.just("torch"), VALUES)},
    optional={
        "version": st.one_of(st.just("1.0"), VALUES),
        "wheels": st.one_of(st.lists(FILE, max_size=3), VALUES),
        "variants-json": st.one_of(FILE, VALUES),
    },
)


@given(
    packages=st.one_of(st.lists(PACKAGE, max_size=3), VALUES),
)
def test_no_document_is_a_defect(
    tmp_path_factory: pytest.TempPathFactory, packages: object
) -> None:
    """Every lock file is read, or causes a message about its defect."""
    path = tmp_path_factory.getbasetemp() / "pylock.toml"
    document = {"lock-version": "1.0", "packages": packages}
    path.write_text(tomli_w.dumps(document), encoding="utf-8")
    try:
        lock = read_lock(str(path))
    except InputError as error:
        message = str(error)
    else:
        message = ""
        assert len(lock.packages) <= len(lock.document["packages"])
    assert not message or message.startswith(f"{path}: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("pylock.toml", True),
        ("a/pylock.dev.toml", True),
        ("pylock.a.b.toml", False),
        ("pylock..toml", False),
        ("Pylock.toml", False),
        ("https://wheels.example/pylock.toml", False),
        ("requirements.txt", False),
    ],
)
def test_names_of_lock_files(path: str, is_one: bool) -> None:
    assert is_lock(path) is is_one


@pytest.mark.parametrize(
    ("name", "version"), [("torch", "../1"), ("../torch", "1.0"), ("torch", "x")]
)
def test_inlined_metadata_is_written_nowhere_else(
    name: str, version: str, tmp_path: Path
) -> None:
    """The metadata is written to a file with the name and the version of the
    package."""
    path = tmp_path / "pylock.toml"
    inlined = metadata({"cu126": gpu_build("12.6")})
    table = {"name": name, "version": version, "wheels": [], "variants-json": inlined}
    path.write_text(tomli_w.dumps({"lock-version": "1.0", "packages": [table]}))
    with pytest.raises(InputError, match="the name or the version is not valid"):
        read_lock(str(path))


def test_a_project_is_judged_once(tmp_path: Path) -> None:
    """A lock file of 300 KB with a thousand packages of one name took 70 seconds."""
    judged: list[tuple[int, str]] = []
    locks = SimpleNamespace(add=lambda _: 0, judge=lambda *asked: judged.append(asked))
    index: Any = SimpleNamespace(locks=locks, is_reachable=lambda _: True)
    hashes = {"sha256": "0" * 64}
    packages = []
    for version in ("2.1.0+cu118", "2.2.0+cu118", "2.3.0+cu118"):
        name = f"torch-{version}-cp311-cp311-linux_x86_64.whl"
        wheel = {"url": f"https://wheels.example/{name}", "hashes": hashes}
        packages.append({"name": "torch", "version": version, "wheels": [wheel]})
    path = tmp_path / "pylock.toml"
    path.write_text(tomli_w.dumps({"lock-version": "1.0", "packages": packages}))
    copies = LockCopies(local_index=index, folder=tmp_path, paths=(), copied={})
    copies.add(str(path))
    copies.fill(sys.executable, os.environ, judges=True)
    assert judged == [(0, "torch")]


def test_the_files_of_a_project_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock file with 450 packages of one name took 93 seconds."""
    asked: list[str] = []

    async def read(_: object, project: str, __: str) -> served_locks.LockedPage:
        asked.append(project)
        return served_locks.LockedPage(files={}, releases={})

    monkeypatch.setattr(served_locks, "_read_locked", read)
    server: Any = SimpleNamespace(url="", call=asyncio.run)
    locks = served_locks.LockFiles(server, "", print)
    source: Any = SimpleNamespace(path="/0")
    locks._sources.append(source)
    assert locks.read(0, "torch") is locks.read(0, "torch")
    locks.read(0, "kern")
    assert asked == ["torch", "kern"]


def test_the_files_of_a_project_are_not_all_compared() -> None:
    """For 40,000 packages of one name, each with its own wheel, it took 134 seconds."""

    class Files(dict[str, tuple[int, model.File]]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError

    names = [f"kern-1.0-{number}-py3-none-any.whl" for number in range(3)]
    files = Files({x: (n, model.File(x, x, {})) for n, x in enumerate(names)})
    page = served_locks.LockedPage(files=files, releases={})
    package: Any = SimpleNamespace(wheels=[SimpleNamespace(name=x) for x in names[1:]])
    interpreter: Any = SimpleNamespace(rank=lambda _: 0)
    found = _best(page, package, interpreter)
    assert found is not None
    assert found[0].name == found[1].filename == names[1]


def test_a_large_lock_file(pip: Pip, tmp_path: Path) -> None:
    wheel = stub_wheel(tmp_path / "index" / "kern", "kern", "1.0")
    with serve(tmp_path / "index") as index:
        table = {"name": "kern", "version": "1.0", "wheels": [entry(wheel, index)]}
        document = {"lock-version": "1.0", "created-by": "a test", "packages": [table]}
        path = tmp_path / "pylock.toml"
        path.write_text(f"# {'x' * (5 << 20)}\n{tomli_w.dumps(document)}")
        done = pip("install", "--target", tmp_path / "it", "-r", path)
    assert done.code == 0, done.text


def test_a_version_that_is_too_long_for_the_name_of_a_file(
    pip: Pip, tmp_path: Path
) -> None:
    path = tmp_path / "pylock.toml"
    inlined = metadata({"cu126": gpu_build("12.6")})
    version = ".".join("1" * 200)
    table = {"name": "kern", "version": version, "wheels": []}
    document = {"packages": [{**table, "variants-json": inlined}]}
    path.write_text(tomli_w.dumps({"lock-version": "1.0", **document}))
    done = pip("install", "--target", tmp_path / "it", "-r", path)
    assert "Missing required value in 'created-by'" in done.err


@pytest.fixture
def grouped(tmp_path: Path) -> Iterator[Path]:
    """Return a lock file whose packages depend on extras, groups and the platform.

    The files of a package for another platform cannot be read.
    """
    path, folder = tmp_path / "pylock.toml", tmp_path / "index"
    builds = {"cu126": gpu_build("12.6"), "cu130": gpu_build("13.0")}
    markers = {
        "always": "python_version > '3'",
        "given": "'x' in extras",
        "grouped": "'x' in dependency_groups",
        "default": "'main' in dependency_groups",
        "elsewhere": "sys_platform == 'beos'",
    }
    with serve(folder) as index:
        tables = []
        for name, marker in markers.items():
            publish(folder, metadata(builds), name, "1.0")
            table: dict[str, Any] = {"name": name, "version": "1.0", "marker": marker}
            wheels = sorted((folder / name).glob("*.whl"))
            table["wheels"] = [entry(wheel, index) for wheel in wheels]
            described = folder / name / variants_json_name(name, "1.0")
            table["variants-json"] = entry(described, index)
            if name == "elsewhere":
                described.unlink()
            tables.append(table)
        document = {
            "lock-version": "1.0",
            "created-by": "a test",
            "extras": ["x"],
            "dependency-groups": ["x"],
            "default-groups": ["main"],
            "packages": tables,
        }
        path.write_text(tomli_w.dumps(document), encoding="utf-8")
        yield path


def entry(path: Path, index: str) -> dict[str, Any]:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    url = f"{index}{path.parent.name}/{path.name}"
    return {"name": path.name, "url": url, "hashes": {"sha256": digest}}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("packages.0.wheels.1.size", "abc"),
        pytest.param("packages.0.wheels.0.size", "abc", marks=pytest.mark.slow),
        pytest.param("packages.0.wheels.0.upload-time", "", marks=pytest.mark.slow),
        pytest.param("packages.0.wheels.2.size", True, marks=pytest.mark.slow),
        pytest.param("packages.1.wheels.0.size", "abc", marks=pytest.mark.slow),
        ("packages.4.wheels.0.name", "other-1.0-py3-none-any-cu126.whl"),
        ("packages.4.marker", "extra == 'x'"),
        ("lock-version", "2.0"),
    ],
)
def test_pip_refuses_every_defect(
    place: str, value: object, grouped: Path, pip: Pip, tmp_path: Path
) -> None:
    """Also defects of files and packages that are not for this machine."""
    document = parse_toml(grouped.read_text(), str(grouped))
    at: Any = document
    *keys, last = (int(x) if x.isdigit() else x for x in place.split("."))
    for key in keys:
        at = at[key]
    at[last] = value
    grouped.write_text(tomli_w.dumps(document), encoding="utf-8")
    done = pip("install", "-r", grouped, "--target", tmp_path / "it")
    assert "pylock file" in done.err.partition("ERROR: ")[2], done.text
    assert done.code == 1
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("-r {}", "always default"),
        pytest.param("-r {}[x]", "always default given", marks=pytest.mark.slow),
        ("-r {} --group {}:x", "always default grouped"),
        pytest.param("--group {}:x", "always grouped", marks=pytest.mark.slow),
        pytest.param(
            "--group {}[x]:x -r pylock.toml",
            "always default given grouped",
            marks=pytest.mark.slow,
        ),
        pytest.param("-r {} -r {}[x]", "always default given", marks=pytest.mark.slow),
        pytest.param("variable", "always grouped", marks=pytest.mark.slow),
        pytest.param("file", "always grouped", marks=pytest.mark.slow),
    ],
)
def test_extras_groups_and_platforms(
    words: str, names: str, grouped: Path, pip: Pip, tmp_path: Path
) -> None:
    """pip combines the extras and groups of a lock file, and skips other packages."""
    if words == "variable":
        pip.environ["PIP_GROUP"] = f"{grouped}:x"
    elif words == "file":
        pip.environ["PIP_CONFIG_FILE"] = str(tmp_path / "pip.conf")
        (tmp_path / "pip.conf").write_text(f"[install]\ngroup = {grouped}:x\n")
    given = words.replace("{}", str(grouped)).split() if "-" in words else []
    own = ("install", "--no-index", "--target", tmp_path / "it")
    done = pip(*own, *given, cwd=tmp_path)
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == dict.fromkeys(
        names.split(), "1.0 cu126"
    )


def test_two_lock_files(grouped: Path, pip: Pip, tmp_path: Path) -> None:
    document = parse_toml(grouped.read_text(), str(grouped))
    first, *_, second, _, _ = document["packages"]
    words = []
    for name, table in (("pylock.toml", first), ("pylock.b.toml", second)):
        (tmp_path / name).write_text(tomli_w.dumps({**document, "packages": [table]}))
        words += ["-r", tmp_path / name]
    words += ["--group", f"{tmp_path / 'pylock.b.toml'}:x"]
    done = pip("install", "--no-index", "--target", tmp_path / "it", *words)
    assert done.code == 0, done.text
    names = ("always", "grouped")
    assert installed_labels(tmp_path / "it") == dict.fromkeys(names, "1.0 cu126")


def test_projects_are_not_judged_after_a_silent_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them waited for 20 seconds before pip started."""
    asked: list[str] = []
    warnings: list[str] = []

    async def judge(_: object, __: int, project: str) -> PageVerdicts:
        asked.append(project)
        return PageVerdicts(project=project)

    monkeypatch.setattr(served_locks.LockFiles, "_judge", judge)
    server: Any = SimpleNamespace(call=asyncio.run)
    locks = served_locks.LockFiles(server, "", warnings.append)
    locks.judge(0, "torch")
    monkeypatch.setattr(served_locks, "PATIENCE", 0.0)
    for project in ("vllm", "xformers"):
        locks.judge(0, project)
    assert (asked, len(locks.judged)) == (["torch"], 1)
    locks = served_locks.LockFiles(server, "", warnings.append)
    for project in ("vllm", "xformers"):
        locks.judge(0, project)
    assert asked == ["torch", "vllm"]
    (warning,) = warnings
    assert warning.startswith("it is not known which other builds in the lock file")
