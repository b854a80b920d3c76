"""``diff`` of two states of an index: directories, static pages and saved pages."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from support.command import Run
from support.documents import document, nvidia
from support.range_server import serve_answers
from support.wheels import stub_sdist, stub_wheel

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
)
from nvp import api
from nvp.index.releases import machines
from nvp.index.selection.pieces import SERVED, is_of_index
from nvp.index.server import static_files
from nvp.index.server.static_files import read_index
from nvp.knowledge.tables import NATIVE
from nvp.matrix.cells import CPU, NO_BUILD, UNKNOWN, Cell, Pair, list_pairs
from nvp.matrix.changes import CHANGED, GAINED, LOST, SAME, Pick, find_index_change

COMMAND = "diff"
GPU = nvidia("12.6", sm=["75_real"])
NEWER = nvidia("12.9", sm=["75_real", "90_real"])
LINUX = "py3-none-manylinux_2_17_x86_64"
WHEEL = "demo-1.0-py3-none-any-cu126.whl"
DRIVERS = ("11.8", "12.8", "13.2")


@pytest.fixture
def few_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge for few machines, because each project takes a second for all of them."""

    def some(*, all_pairs: bool) -> list[Pair]:
        pairs = list_pairs(all_pairs=all_pairs)
        return [pair for pair in pairs if str(pair[0]) in DRIVERS]

    monkeypatch.setattr(machines, "list_pairs", some)


def publish(root: Path, project: str, version: str, **labels: Any) -> None:
    """Write a variant for each label, and a regular wheel."""
    for label, properties in labels.items():
        one = document({label: properties})
        stub_wheel(root / project, project, version, label, variant_json=one)
    stub_wheel(root / project, project, version)


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An index with a project for each kind of change, before and after."""
    old = tmp_path_factory.mktemp("indexes") / "old"
    new = old.parent / "new"
    publish(old, "same", "1.0", cu126=GPU)
    publish(old, "fewer", "1.0", cu126=GPU, cu129=NEWER)
    publish(old, "older", "1.0", cu126=GPU)
    publish(old, "null-only", "1.0", cu126=GPU)
    publish(old, "bare", "1.0", cu126=GPU)
    publish(old, "gone", "1.0")
    for label in ("cu126", "cpu"):
        stub_wheel(old / "torch", "torch", f"2.9.1+{label}", tag=LINUX)
    shutil.copytree(old, new)
    publish(old, "older", "2.0", cu126=GPU)
    publish(new, "null-only", "2.0", null={})
    publish(new, "more", "1.0", cu126=GPU)
    (new / "fewer" / "fewer-1.0-py3-none-any-cu129.whl").unlink()
    (new / "torch" / f"torch-2.9.1+cu126-{LINUX}.whl").unlink()
    shutil.rmtree(new / "gone")
    api.write_index(old)
    api.write_index(new)
    # A page without metadata for its variants is what installers see after a mistake.
    (new / "bare" / "bare-1.0-variants.json").unlink()
    for name in ("index.html", "index.json"):
        (new / "bare" / name).unlink()
    return old, new


def changes(data: dict[str, Any], project: str) -> set[tuple[Any, ...]]:
    """Return the changes of one project, with their picks."""
    pairs = [pair for pair in data["pairs"] if pair["project"] == project]
    return {(pair["change"], pair["old"], pair["new"]) for pair in pairs}


@pytest.mark.usefixtures("few_machines")
class TestChanges:
    def test_picks(self, indexes: tuple[Path, Path]) -> None:
        data: dict[str, Any] = api.diff_of_indexes(*indexes).to_dict()
        cases: tuple[tuple[str, set[tuple[Any, ...]]], ...] = (
            (
                "fewer",
                {
                    ("lost", "1.0+cu129", "1.0"),
                    ("changed", "1.0+cu129", "1.0+cu126"),
                    ("same", "1.0+cu126", "1.0+cu126"),
                    ("same", "1.0", "1.0"),
                },
            ),
            ("older", {("lost", "2.0+cu126", "1.0+cu126"), ("lost", "2.0", "1.0")}),
            ("null-only", {("lost", "1.0+cu126", "2.0"), ("changed", "1.0", "2.0")}),
            ("bare", {("lost", "1.0+cu126", "1.0"), ("same", "1.0", "1.0")}),
            ("gone", {("lost", "1.0", None)}),
            ("more", {("gained", None, "1.0+cu126"), ("changed", None, "1.0")}),
            ("torch", {("lost", "2.9.1+cu126", "2.9.1+cpu")}),
        )
        for project, expected in cases:
            found = changes(data, project)
            assert found >= expected
            kinds = {change for change, _, _ in found}
            assert kinds <= {change for change, _, _ in expected} | {"same"}
        assert data["unchanged"] == ["same"]
        assert data["notes"] == [
            "bare: NEW has variants and not their metadata",
            # The table of builds has no entry for some of the GPUs.
            "torch: it is unknown whether 2.9.1+cu126 runs on the GPU",
        ]
        lost = {pair["project"]: pair for pair in data["pairs"] if pair["reason"]}
        where = "for this platform and Python"
        assert lost["gone"]["reason"] == f"NEW has no 1.0 {where}"
        assert lost["torch"]["reason"] == f"NEW has no 2.9.1+cu126 {where}"
        (way,) = {
            tuple(pair["workaround"])
            for pair in data["pairs"]
            if pair["project"] == "null-only" and pair["change"] == "lost"
        }
        assert way == ("ask for null-only==1.0",)

    def test_command(
        self, indexes: tuple[Path, Path], run: Run, tmp_path: Path
    ) -> None:
        old, new = (tmp_path / name for name in ("old", "new"))
        for root, copy in zip(indexes, (old, new), strict=True):
            shutil.copytree(root / "fewer", copy / "fewer")
        outcome = run(old, new)
        assert outcome.code == 1, outcome.err
        assert "fewer (OLD) -> fewer (NEW)" in outcome.out
        assert "lost: 1.0+cu129 -> 1.0 (cpu)" in outcome.out
        assert "1 project changes and 0 stay the same" in outcome.out
        # The reverse is a gain; a page counts as its directory.
        page = new / "fewer" / "index.html"
        outcome = run(page, old / "fewer" / "index.json", "--format", "markdown")
        assert outcome.code == 0, outcome.err
        assert "## Gained: " in outcome.out


@pytest.mark.usefixtures("few_machines")
class TestSavedPages:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        publish(tmp_path, "demo", "1.0", cu126=GPU)
        stub_sdist(tmp_path / "demo", "demo", "1.0")
        api.write_index(tmp_path)
        return tmp_path / "demo"

    @pytest.mark.parametrize(
        "name", ["index.html", pytest.param("index.json", marks=pytest.mark.slow)]
    )
    def test_yanked_release(self, root: Path, run: Run, name: str) -> None:
        publish(root.parent, "demo", "2.0", cu126=GPU)
        api.write_index(root.parent)
        yanked = root / f"yanked-{name}"
        text = (root / name).read_text()
        text = text.replace('<a href="demo-2', '<a data-yanked="slow" href="demo-2')
        text = text.replace(
            '{"filename": "demo-2', '{"yanked": "slow", "filename": "demo-2'
        )
        yanked.write_text(text)
        outcome = run(root / name, yanked, "--format", "json")
        assert outcome.code == 1, outcome.err
        data = json.loads(outcome.out)["data"]
        assert ("lost", "2.0+cu126", "1.0+cu126") in changes(data, "demo")
        assert "the index has yanked it: slow" in outcome.out

    def test_metadata_that_is_not_saved_is_said(
        self, root: Path, run: Run, tmp_path: Path
    ) -> None:
        old, new = tmp_path / "monday.html", tmp_path / "tuesday.html"
        text = (root / "index.html").read_text()
        old.write_text(text)
        new.write_text(text.replace("demo-1.0.tar.gz", "demo-1.1.tar.gz"))
        outcome = run(old, new, "--format", "json")
        assert outcome.code == 0
        assert "it is unknown whether 1.0+cu126 runs on the GPU" in outcome.err
        data = json.loads(outcome.out)["data"]
        assert changes(data, "demo") == {("same", "1.0+cu126", "1.0+cu126")}
        # The same metadata next to the pages has all facts.
        shutil.copy(root / "demo-1.0-variants.json", tmp_path)
        outcome = run(old, new, "--format", "json")
        assert (outcome.code, outcome.err) == (0, "")

    @pytest.mark.parametrize(
        ("projects", "reason"),
        [("", "there is no wheel"), ("[]," * 10**6 + "[]", "is not a project page")],
    )
    def test_a_page_without_files(
        self, tmp_path: Path, projects: str, reason: str
    ) -> None:
        page = tmp_path / "index.json"
        page.write_text(f'{{"meta": {{}}, "projects": [{projects}]}}')
        with pytest.raises(InputError, match=reason):
            read_index(str(page))

    def test_the_same_page_has_no_changes(self, root: Path, run: Run) -> None:
        outcome = run(root / "index.html", root / "index.html")
        assert (outcome.code, outcome.err) == (0, "")
        assert "0 projects change and 1 stay the same" in outcome.out


@pytest.mark.usefixtures("few_machines")
@pytest.mark.parametrize("has_page", [True, False])
@pytest.mark.parametrize("name", ["demo-1.0-variants.json", WHEEL, f"{WHEEL}.metadata"])
def test_a_copied_index_names_no_file_outside(
    tmp_path: Path, run: Run, name: str, has_page: bool
) -> None:
    """The pages and links of a copied mirror may be those of a stranger."""
    root, private = tmp_path / "mirrors" / "new", tmp_path / "private"
    publish(private / "index", "demo", "1.0", cu126=GPU)
    api.write_index(private / "index")
    shutil.copytree(private / "index", root)
    file = root / "demo" / name
    file.rename(private / name)
    if has_page and not name.endswith(".metadata"):
        page = root / "demo" / "index.html"
        outside = (private / name).as_uri()
        text = re.sub("#sha256=[0-9a-f]+", "", page.read_text())
        assert f'"{name}"' in text
        page.write_text(text.replace(f'"{name}"', f'"{outside}"'))
    else:
        file.symlink_to(private / name)
        if not has_page:
            for page in root.rglob("index.*"):
                page.unlink()
    (files,) = read_index(str(root)).values()
    refused = [file.filename for file in files if file.url.startswith("refused:file:")]
    assert refused == [name.removesuffix(".metadata")]
    outcome = run(private / "index", root)
    assert outcome.code in (0, 1), outcome.err
    assert ("must not be named by its index" in outcome.err) == ("json" in name)


def test_each_directory_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a link, a directory can be a thousand deep: 0.03 s for each file in it."""
    root = tmp_path / "mirror"
    names = [f"demo-1.{number}-py3-none-any.whl" for number in range(9)]
    private = tmp_path / "private" / names[0]
    for place in (private, root / "demo" / "x", *(root / "deep" / x for x in names)):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    (root / "deep" / names[0]).unlink()
    (root / "deep" / names[0]).symlink_to(private)
    (root / "link").symlink_to(root / "deep")
    links = (f'<a href="../link/{name}">x</a>' for name in names)
    (page := root / "demo" / "index.html").write_text("".join(links))
    looked_at: list[str] = []

    def look(path: Path, index: Path, names: re.Pattern[str] = SERVED) -> bool:
        looked_at.append(path.name)
        return is_of_index(path, index, names)

    monkeypatch.setattr(static_files, "is_of_index", look)
    (files,) = read_index(str(page)).values()
    assert [file.filename for file in files] == names
    assert [file.url.startswith("refused:") for file in files] == [True, *[False] * 8]
    assert looked_at == [names[0], "link"]


def test_each_metadata_file_is_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6,000 links to a file of 10 MB took 40 s, and each raised the limits."""
    one, two, large = (tmp_path / f"demo-{n}.0-variants.json" for n in (1, 2, 3))
    one.write_text("{}")
    two.symlink_to(one)
    large.write_text("{ }")
    monkeypatch.setattr(static_files, "MAX_BYTES", 2)
    hashed: list[str] = []
    real = static_files._digest

    def digest(file: BinaryIO) -> str:
        hashed.append(file.name)
        return real(file)

    monkeypatch.setattr(static_files, "_digest", digest)
    names = (f"{path.name}?{n}" for n in range(3) for path in (one, two, large))
    page = tmp_path / "index.html"
    page.write_text("".join(f'<a href="{name}">x</a>' for name in names))
    (files,) = read_index(str(page)).values()
    sha256 = hashlib.sha256(b"{}").hexdigest()
    assert [file.hashes.get("sha256") for file in files] == [sha256, sha256, None]
    assert hashed == [str(one)]


@pytest.mark.usefixtures("few_machines")
@pytest.mark.parametrize("make", [(), ("demo",)])
def test_an_empty_directory_is_an_index_without_projects(
    tmp_path: Path, run: Run, make: tuple[str, ...]
) -> None:
    publish(tmp_path / "full", "demo", "1.0", cu126=GPU)
    empty = tmp_path.joinpath("empty", *make)
    empty.mkdir(parents=True)
    outcome = run(tmp_path / "full", tmp_path / "empty", "--json")
    assert outcome.code == 1, outcome.err
    assert ("lost", "1.0+cu126", None) in changes(
        json.loads(outcome.out)["data"], "demo"
    )
    outcome = run(tmp_path / "empty", tmp_path / "full")
    assert (outcome.code, "gained" in outcome.out) == (0, True)
    (empty / "notes.txt").write_text("a directory of something else")
    # An index has no hidden directories.
    (tmp_path / "empty" / ".trash").mkdir()
    stub_wheel(tmp_path / "empty" / ".trash", "demo", "1.0")
    assert run(tmp_path / "empty", tmp_path / "full").code == 2


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("<html><body><a href='/'>nothing</a>", 3),
            ('{"meta": {}, "files": 3}', 3),
            ('{"files": [', 3),
            ("", 3),
        ],
    )
    def test_files_that_are_no_pages(
        self, tmp_path: Path, run: Run, text: str, code: int
    ) -> None:
        (tmp_path / "page").write_text(text)
        outcome = run(tmp_path / "page", tmp_path / "page")
        assert (outcome.code, outcome.out) == (code, "")
        assert str(tmp_path / "page") in outcome.err
        assert outcome.err.count("\n") == 1

    @pytest.mark.parametrize(("tag", "code"), [(LINUX, 3), ("py3-none-win_arm64", 0)])
    def test_pages_with_many_labels(
        self, tmp_path: Path, run: Run, tag: str, code: int
    ) -> None:
        """Otherwise, a hostile page takes minutes, because each machine judges all."""
        for minor in (1, 2):
            names = [f"torch-2.{minor}+cu118.x{i}-{tag}.whl" for i in range(350)]
            links = "".join(f'<a href="{name}">{name}</a>' for name in names)
            (tmp_path / f"{minor}.html").write_text(f"<!DOCTYPE html>{links}")
        outcome = run(tmp_path / "1.html", tmp_path / "2.html")
        assert outcome.code == code
        assert ("torch: 350 files are too many for 347 m" in outcome.err) == bool(code)

    def test_saved_pages_that_name_servers_of_this_machine(
        self, tmp_path: Path, run: Run
    ) -> None:
        names = [
            (f"demo-{n}-py3-none-any-x.whl", f"demo-{n}-variants.json") for n in "12"
        ]
        with serve_answers({}) as server:
            for page, listed in zip(("old", "new"), names, strict=True):
                files = [{"filename": x, "url": f"{server.url}/{x}"} for x in listed]
                document = {"meta": {"api-version": "1.0"}, "name": "demo"}
                every = [{**file, "hashes": {}} for file in files]
                text = json.dumps({**document, "files": every})
                (tmp_path / page).write_text(text)
            outcome = run(tmp_path / "old", tmp_path / "new")
            assert server.requests == []
        assert "must not be named by its index" in outcome.out + outcome.err

    def test_an_index_and_a_release(
        self, tmp_path: Path, run: Run, fixtures: Path
    ) -> None:
        stub_wheel(tmp_path, "demo", "1.0")
        release = fixtures / "variants-json" / "torch-2.9.1-variants.json"
        outcome = run(tmp_path, release)
        assert outcome.code == 2
        assert f"{release}: is not an index, and the other one is; comp" in outcome.err

    @pytest.mark.parametrize("words", [("--assume", "amd"), ("--index-url", "x")])
    def test_options_of_releases(
        self, tmp_path: Path, run: Run, words: tuple[str, ...]
    ) -> None:
        stub_wheel(tmp_path, "demo", "1.0")
        outcome = run(tmp_path, tmp_path, *words)
        assert outcome.code == 2
        assert f"{words[0]} is for releases" in outcome.err


def pick(version: str | None, how: str, *, variant: bool = False) -> Pick:
    from packaging.version import Version

    cell = Cell(
        cuda=CudaVersion(12, 9),
        capability=ComputeCapability(9, 0),
        label=version,
        how=how,
    )
    parsed = None if version is None else Version(version)
    return Pick(cell=cell, version=parsed, is_variant=variant)


@pytest.mark.parametrize(
    ("was", "now", "change"),
    [
        (pick("1", NATIVE), pick("1", NATIVE), SAME),
        (pick("1", NATIVE), pick("2", NATIVE), CHANGED),
        (pick("2", NATIVE), pick("1", NATIVE), LOST),
        (pick("1", NATIVE), pick("2", CPU), LOST),
        (pick("2", CPU), pick("1", CPU), LOST),
        (pick("1", CPU), pick(None, NO_BUILD), LOST),
        (pick(None, NO_BUILD), pick("1", NATIVE), GAINED),
        (pick(None, NO_BUILD), pick("1", UNKNOWN), CHANGED),
        (pick(None, NO_BUILD), pick(None, NO_BUILD), SAME),
        (pick("1", NATIVE), pick("2", UNKNOWN), CHANGED),
        (pick("1", NATIVE, variant=True), pick("1", UNKNOWN), LOST),
        (pick("1", NATIVE, variant=True), pick("1", UNKNOWN, variant=True), CHANGED),
        (pick("1", UNKNOWN), pick("1", CPU), LOST),
        (pick("1", CPU), pick("1", UNKNOWN), CHANGED),
    ],
)
def test_change_of_a_pick(was: Pick, now: Pick, change: str) -> None:
    assert find_index_change(was, now) == change


@pytest.mark.usefixtures("few_machines")
def test_many_releases_give_the_pick_of_all(tmp_path: Path) -> None:
    # Machines that run none of the newest releases need the older ones.
    for number in range(10):
        label = "cu126" if number < 2 else "cu130"
        name = f"torch-3.{number}+{label}"
        stub_wheel(tmp_path / "old", "torch", name.partition("-")[2], tag=LINUX)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    (tmp_path / "new" / f"torch-3.1+cu126-{LINUX}.whl").unlink()
    (tmp_path / "new" / f"torch-3.9+cu130-{LINUX}.whl").unlink()
    report = api.diff_of_indexes(tmp_path / "old", tmp_path / "new")
    data: dict[str, Any] = report.to_dict()
    found = {pair["cuda"]: (pair["old"], pair["new"]) for pair in data["pairs"]}
    assert found["12.8"] == ("3.1+cu126", "3.0+cu126")
    assert found["13.2"] == ("3.9+cu130", "3.8+cu130")
