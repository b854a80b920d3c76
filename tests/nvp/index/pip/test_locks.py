"""``pip``: lock files that last, and installing from them with variants (PEP 825)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from packaging.tags import platform_tags
from support.builds import gpu_build, metadata
from support.index_server import serve
from support.processes import PIPS, Done, Pip, installed_labels
from support.range_server import Answer, serve_answers
from support.wheels import publish, stub_wheel, variants_json_name, write_page

from nvp.index.pip.locks import parse_toml

OLD, NEW = PIPS[-2:]
BUILDS = {
    "cu126": gpu_build("12.6"),
    "cu128": gpu_build("12.8"),
    "cu130": gpu_build("13.0"),
    "null": {},
}
MARKERS = [
    'old; variant_label == "cu126"',
    'new; "nvidia :: cuda_version_lower_bound" in variant_features',
]


def machine(cuda: str) -> tuple[str, ...]:
    return ("--cuda-driver", cuda, "--sm-arch", "8.0")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an index: the newest build of torch needs another runtime."""
    root = tmp_path / "index"
    runtimes: dict[str | None, list[str]] = {
        label: ["runtime==1"] for label in ("cu126", "cu128")
    }
    publish(
        root,
        metadata(BUILDS),
        "torch",
        "1.0",
        requires={**runtimes, "cu130": ["runtime==2"]},
    )
    for version in "12":
        stub_wheel(root / "runtime", "runtime", version)
    write_page(root / "runtime")
    return root


def wheel_names(document: dict[str, Any], project: str) -> list[str]:
    (table,) = (item for item in document["packages"] if item["name"] == project)
    return [wheel["name"] for wheel in table["wheels"]]


def read(path: Path) -> dict[str, Any]:
    return parse_toml(path.read_text(), str(path))


class Locked:
    """A lock file of an index, and runs of pip that use it."""

    def __init__(self, pip: Pip, path: Path, index: str) -> None:
        self.pip = pip
        self.path = path
        self.index = index

    def lock(self, *words: str, cuda: str = "12.9") -> Done:
        own = ("lock", "-i", self.index, "--output", self.path)
        done = self.pip(*own, *machine(cuda), *(words or ("torch",)), forced=False)
        assert done.code == 0, done.text
        return done

    def install(self, cuda: str = "12.9", *words: object) -> Done:
        own = ("install", "--no-index", "--target", self.target(cuda), "-r", self.path)
        return self.pip(*own, *machine(cuda), *words, forced=False)

    def target(self, cuda: str) -> Path:
        return self.path.parent / f"target-{cuda}"

    def labels(self, cuda: str) -> dict[str, str]:
        done = self.install(cuda)
        assert done.code == 0, done.text
        return installed_labels(self.target(cuda))

    def name_metadata(self) -> None:
        """Name the file of the metadata, as PEP 825 did before August 2026."""
        name = variants_json_name("torch", "1.0")
        path = self.path.parent / "index" / "torch" / name
        file = {"url": f"{self.index}torch/{name}", "hashes": {"sha256": digest(path)}}
        self.change(lambda table: table.update({"variants-json": file}))

    def change(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the package of torch in the lock file."""
        document = read(self.path)
        for table in document["packages"]:
            if table["name"] == "torch":
                change(table)
        self.path.write_text(tomli_w.dumps(document))


@pytest.fixture
def locked(pip: Pip, folder: Path, tmp_path: Path) -> Any:
    with serve(folder) as index:
        yield Locked(pip, tmp_path / "pylock.toml", index)


def test_a_lock_has_the_variants_that_its_packages_allow(
    locked: Locked, folder: Path
) -> None:
    done = locked.lock()
    document = read(locked.path)
    ends = ("-cu128", "-cu126", "-null", "")
    names = [f"torch-1.0-py3-none-any{end}.whl" for end in ends]
    assert wheel_names(document, "torch") == names
    (torch,) = (item for item in document["packages"] if item["name"] == "torch")
    for wheel in torch["wheels"]:
        assert wheel["url"] == f"{locked.index}torch/{wheel['name']}"
        assert wheel["hashes"] == {"sha256": digest(folder / "torch" / wheel["name"])}
    # PEP 825: the table "MUST inline combined variant metadata".
    name = variants_json_name("torch", "1.0")
    assert torch["variants-json"] == json.loads((folder / "torch" / name).read_text())
    assert done.err.splitlines()[-2:] == [
        f"warning: {locked.path}: wheels of torch are left out: cu130 (it requires "
        "runtime==2, which is not locked)",
        "warning: what pip wrote has the URLs of variant wheels, which no released pip "
        "installs by itself: torch (cu126), torch (cu128), torch (null); install them "
        "with: nvp pip install -r pylock.toml",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_lock_on_stdout_has_the_real_urls(
    version: str, pip_of: Callable[[str], Pip], folder: Path
) -> None:
    with serve(folder) as index:
        done = pip_of(version)("lock", "-i", index, "--output", "-", "torch")
        quiet = pip_of(version)("lock", "-qi", index, "--output", "-", "torch")
    assert done.code == quiet.code == 0, done.text
    before, start, text = done.out.partition("lock-version")
    assert "Collecting torch" in before
    assert start + text == quiet.out
    assert len(wheel_names(parse_toml(quiet.out, "stdout"), "torch")) == 4
    assert quiet.out.count("http://") == quiet.out.count(index)


@pytest.mark.slow
def test_a_failing_lock_prints_what_pip_prints(pip: Pip, folder: Path) -> None:
    with serve(folder) as index:
        done = pip("lock", "-i", index, "--output", "-", "no-such-project")
    assert done.code == 1
    assert "No matching distribution found for no-such-project" in done.err
    assert "lock-version" not in done.out


@pytest.mark.slow
def test_each_machine_gets_its_variant_from_one_lock(locked: Locked) -> None:
    locked.lock()
    assert {cuda: locked.labels(cuda) for cuda in ("12.9", "12.6", "11.8", "13.0")} == {
        "12.9": {"torch": "1.0 cu128", "runtime": "1 None"},
        "12.6": {"torch": "1.0 cu126", "runtime": "1 None"},
        "11.8": {"torch": "1.0 null", "runtime": "1 None"},
        "13.0": {"torch": "1.0 cu128", "runtime": "1 None"},
    }


@pytest.mark.slow
def test_a_lock_in_another_folder_and_with_paths(
    locked: Locked, tmp_path: Path
) -> None:
    """Relative paths are those of the directory of the lock file."""
    locked.lock()
    locked.name_metadata()
    work = tmp_path / "work"
    work.mkdir()

    def use_paths(table: dict[str, Any]) -> None:
        for file in (*table["wheels"], table["variants-json"]):
            file["path"] = f"index/torch/{file.pop('url').rpartition('/')[2]}"

    locked.change(use_paths)
    done = locked.pip(
        *("install", "--no-index", "--target", work / "it", "-r", "../pylock.toml"),
        *machine("12.6"),
        forced=False,
        cwd=work,
    )
    assert done.code == 0, done.text
    assert "stands for ../pylock.toml" in done.out
    assert installed_labels(work / "it")["torch"] == "1.0 cu126"


@pytest.mark.slow
def test_labels_and_reports_of_a_lock(locked: Locked, tmp_path: Path) -> None:
    """``--label`` counts, and the report has the URLs of the lock file."""
    locked.lock()
    report = tmp_path / "report.json"
    done = locked.install("12.9", "--label", "torch=cu126", "--report", report)
    assert done.code == 0, done.text
    items = json.loads(report.read_text())["install"]
    urls = {item["metadata"]["name"]: item["download_info"]["url"] for item in items}
    assert urls["torch"] == f"{locked.index}torch/torch-1.0-py3-none-any-cu126.whl"
    assert "127.0.0.1" in urls["runtime"]
    assert report.read_text().count("http://") == report.read_text().count(locked.index)


@pytest.mark.slow
def test_a_lock_without_metadata_of_variants(locked: Locked) -> None:
    """PEP 825: "the tool SHOULD lock this file"; the wheels have it as well."""
    locked.lock()
    locked.change(lambda table: table.pop("variants-json"))
    assert locked.labels("12.6")["torch"] == "1.0 cu126"


@pytest.mark.slow
def test_inlined_metadata_is_validated(locked: Locked) -> None:
    """PEP 825: tools "MUST validate this table"."""
    locked.lock()
    broken = metadata(BUILDS, variants={"cu126": {"nvidia": {"sm_arch": []}}})
    locked.change(lambda table: table.update({"variants-json": broken}))
    done = locked.install("12.8")
    assert done.code == 3
    assert "sm_arch" in done.err


def test_a_lock_that_is_locked_again(locked: Locked) -> None:
    locked.lock()
    before = locked.path.read_text()
    again = locked.path.with_name("pylock.again.toml")
    done = locked.pip("lock", "--no-index", "-r", locked.path, "--output", again)
    assert done.code == 0, done.text
    assert read(again) == parse_toml(before, "before")


@pytest.mark.slow
def test_rewritten_wheels(pip: Pip, tmp_path: Path) -> None:
    """The lock has the URL and the hash of the original, and installs again."""
    root = tmp_path / "index"
    builds = {label: BUILDS[label] for label in ("cu126", "cu128", "null")}
    requires: dict[str | None, list[str]] = dict.fromkeys(builds, MARKERS)
    publish(root, metadata(builds), "torch", "1.0", requires=requires)
    for name in ("old", "new"):
        stub_wheel(root / name, name, "1.0")
        write_page(root / name)
    with serve(root) as index:
        locked = Locked(pip, tmp_path / "pylock.toml", index)
        # The dependencies of cu126 are those of cu128 and one more.
        locked.lock(cuda="12.6")
        document = read(locked.path)
        ends = ("-cu126", "-null", "-cu128", "")
        names = [f"torch-1.0-py3-none-any{end}.whl" for end in ends]
        assert sorted(wheel_names(document, "torch")) == sorted(names)
        for table in document["packages"]:
            for wheel in table["wheels"]:
                assert wheel["url"] == f"{index}{table['name']}/{wheel['name']}"
                path = root / table["name"] / wheel["name"]
                assert wheel["hashes"] == {"sha256": digest(path)}
        assert locked.labels("12.6")["torch"] == "1.0 cu126"
        assert locked.labels("12.9")["torch"] == "1.0 cu128"
        # METADATA is the file that pip read.
        (info,) = locked.target("12.9").glob("torch-*.dist-info")
        assert "variant_" not in (info / "METADATA").read_text()

        def spoil(table: dict[str, Any]) -> None:
            for wheel in table["wheels"]:
                wheel["hashes"]["sha256"] = "0" * 64

        locked.change(spoil)
        done = locked.install("12.8")
        assert done.code == 1
        assert "variant cu128 is passed over, like 2 more" in done.err
        assert "its sha256 is not the one that the page gives" in done.err
        assert "DO NOT MATCH THE HASHES" in done.err
        assert not locked.target("12.8").exists()


@pytest.mark.slow
def test_a_page_without_hashes(pip: Pip, folder: Path, tmp_path: Path) -> None:
    """pip computes only the hash of the wheel that it selects."""
    page = folder / "torch" / "index.html"
    page.write_text(_without_hashes(page))
    with serve(folder) as index:
        locked = Locked(pip, tmp_path / "pylock.toml", index)
        done = locked.lock()
        assert wheel_names(read(locked.path), "torch") == [
            "torch-1.0-py3-none-any-cu128.whl"
        ]
        assert "cu126 (its index gives no hash)" in done.err
        assert locked.labels("12.9")["torch"] == "1.0 cu128"
        done = locked.install("12.6")
    assert done.code == 1
    assert (
        "no wheel of torch 1.0 in it is for this interpreter and machine; cu128 does "
        "not fit: it needs a driver for CUDA 12.8 or newer"
    ) in done.err.splitlines()[-1]
    assert done.err.endswith("make the lock file again on this machine\n")


def _without_hashes(page: Path) -> str:
    return "".join(
        line.partition("#sha256=")[0] + line[line.index('">') :] + "\n"
        if "#sha256=" in line
        else f"{line}\n"
        for line in page.read_text().splitlines()
    )


@pytest.mark.slow
def test_files_of_a_folder_are_said_to_be_here_alone(
    pip: Pip, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "pylock.toml"
    done = pip("lock", "-i", folder, "--output", path, "torch")
    assert done.code == 0, done.text
    assert (folder / "torch").as_uri() in path.read_text()
    assert "http:" not in path.read_text()
    remark = "URLs of files of this machine (file:) are in it for runtime, torch"
    assert f"warning: {path}: {remark}" in done.err


@pytest.mark.slow
def test_an_old_pip_is_told_to_be_upgraded(
    locked: Locked, pip_of: Callable[[str], Pip]
) -> None:
    locked.lock()
    locked.pip = pip_of(OLD)
    done = locked.install()
    assert done.code == 2
    assert f"pip {OLD} does not install from lock files" in done.err


def _bad(locked: Locked) -> dict[str, Callable[[], object]]:
    """Return functions that damage a lock file, by the message about it."""
    text = locked.path.read_text()

    def write(new: str) -> Callable[[], object]:
        return lambda: locked.path.write_text(new)

    def change(edit: Callable[[dict[str, Any]], object]) -> Callable[[], object]:
        return lambda: locked.change(edit)

    return {
        "not TOML": write(text[:-9]),
        "not UTF-8": lambda: locked.path.write_bytes(b"\xff" + text.encode()),
        "packages: there is no list": write('lock-version = "1.0"\npackages = 1\n'),
        "packages[0]: not a table": write('lock-version = "1.0"\npackages = [1]\n'),
        "there are no hashes": change(lambda t: t["wheels"][1].pop("hashes")),
        "there is neither a path nor a URL": change(
            lambda t: t["wheels"][1].pop("url")
        ),
        "not a URL": change(lambda t: t["wheels"][1].update(url="http://[bad/x.whl")),
        "wheels[1]: not a URL": change(lambda t: t["wheels"][1].update(path="a\0b")),
        "path: empty, or not": change(lambda t: t["wheels"][1].update(path="")),
        "not the name of a file": change(
            lambda t: t["wheels"][1].update(name="torch-1.0-py3-none-../../x-cu126.whl")
        ),
        "of torch 1.0 has another sha256 now": change(
            lambda t: t["variants-json"]["hashes"].update(sha256="0" * 64)
        ),
        "HTTP 404": change(
            lambda t: t["variants-json"].update(url=f"{locked.index}torch/gone.json")
        ),
        "larger than": lambda: os.truncate(locked.path, 65 << 20),
    }


@pytest.mark.slow
def test_bad_lock_files(locked: Locked) -> None:
    """Each lock file causes one line, and the exit code of invalid input."""
    locked.lock()
    locked.name_metadata()
    text = locked.path.read_bytes()
    for message, damage in _bad(locked).items():
        locked.path.write_bytes(text)
        damage()
        done = locked.install()
        assert (done.code, done.out.count("Successfully")) == (3, 0), (
            message,
            done.text,
        )
        assert len(done.err.splitlines()) == 1, (message, done.err)
        assert message in done.err
    locked.path.write_bytes(text)
    locked.change(lambda t: [w["hashes"].update(sha256="0" * 64) for w in t["wheels"]])
    done = locked.install()
    # pip itself reports that a wheel does not have the hash of the lock file.
    assert done.code == 1
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.err


@pytest.mark.slow
def test_wheels_that_need_credentials(pip: Pip, folder: Path, tmp_path: Path) -> None:
    """pip downloads them from its configured index, also for a lock file."""
    with serve(folder, credentials="user:word") as bare:
        index = bare.replace("://", "://user:word@")
        locked = Locked(pip, tmp_path / "pylock.toml", index)
        locked.lock()
        assert "word" not in locked.path.read_text()
        target = tmp_path / "it"
        done = pip("install", "-i", index, "--target", target, "-r", locked.path)
    assert done.code == 0, done.text
    assert installed_labels(target) == {"torch": "1.0 cu128", "runtime": "1 None"}


@pytest.mark.slow
def test_a_stalling_upstream_ends_the_run_with_a_line(
    locked: Locked, folder: Path
) -> None:
    locked.lock()
    locked.name_metadata()
    name = variants_json_name("torch", "1.0")
    body = (folder / "torch" / name).read_bytes()
    with serve_answers({f"/{name}": Answer(body=body, fault="cut")}) as server:
        locked.change(lambda t: t["variants-json"].update(url=f"{server.url}/{name}"))
        done = locked.install()
    assert done.code == 3
    assert len(done.err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("unchecked", [False, True])
def test_a_locked_build_that_cannot_run_is_named(
    pip: Pip, tmp_path: Path, unchecked: bool
) -> None:
    """The build is installed, because the user has locked it."""
    root = tmp_path / "index" / "demo"
    stub_wheel(root, "demo", "2.0+cu130", tag=f"py3-none-{next(platform_tags())}")
    write_page(root)
    with serve(root.parent) as index:
        locked = Locked(pip, tmp_path / "pylock.toml", index)
        locked.lock("demo==2.0+cu130", cuda="13.0")
        done = locked.install("12.8", *(["--unchecked"] if unchecked else []))
    assert done.code == 0, done.text
    assert installed_labels(locked.target("12.8")) == {"demo": "2.0+cu130 None"}
    assert ("needs a driver for CUDA 13" in done.err) is not unchecked
