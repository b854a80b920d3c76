"""The functions ``api.upgrade`` and ``api.upgrade_index``."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.documents import TORCH, of_one
from support.wheels import stub_sdist, stub_wheel

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata.versions import KNOWN, WRITTEN
from nvp import api
from nvp.index.server import rendering, static_pages
from nvp.upgrading import releases

OLD = {**TORCH, "$schema": KNOWN[2].url}


def test_path_text_and_bytes_give_the_same_document(tmp_path: Path) -> None:
    text = json.dumps(OLD)
    path = tmp_path / "torch-2.9-variants.json"
    path.write_text(text)
    for source in (path, str(path), text, text.encode()):
        file = api.upgrade(source)
        assert file.document == {**TORCH, "$schema": WRITTEN.url}
        assert (file.old_version, file.new_version) == (str(KNOWN[2]), str(WRITTEN))
        assert file.changed
    assert path.read_text() == text


def test_path_or_name_stands_in_results_and_errors(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert api.upgrade(json.dumps(OLD)).path == "metadata"
    assert api.upgrade(json.dumps(OLD), name="mine").path == "mine"
    for source, name, expected in ((path, None, str(path)), ("{}", "mine", "mine")):
        with pytest.raises(InputError) as caught:
            api.upgrade(source, name=name)
        assert caught.value.path == expected


def test_problems_leave_no_document() -> None:
    source = {**TORCH, "providers": {"nvidia": {"static-properties": {}}}}
    file = api.upgrade(json.dumps(source))
    assert (file.text, file.document, file.new_version) == (None, None, None)
    assert [problem.place for problem in file.problems] == ["providers.nvidia"]


def test_folder_is_written_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "torch-2.9-variants.json"
    path.write_text(json.dumps(OLD))
    wheel = stub_wheel(tmp_path, "other", "1.0", "cu126", variant_json=of_one("cu126"))
    before = {path: path.read_bytes(), wheel: wheel.read_bytes()}
    files = api.upgrade_index(tmp_path, write=False)
    made, upgraded = files
    assert [os.path.basename(file.path) for file in files] == [
        "other-1.0-variants.json",
        "torch-2.9-variants.json",
    ]
    assert (made.old_version, upgraded.old_version) == (None, str(KNOWN[2]))
    assert {item: item.read_bytes() for item in tmp_path.iterdir()} == before
    assert api.upgrade_index(tmp_path) == files
    assert path.read_text() == upgraded.text
    assert (tmp_path / "other-1.0-variants.json").read_text() == made.text


def test_no_page_is_written_through_a_link(tmp_path: Path) -> None:
    others, index = tmp_path / "others", tmp_path / "index"
    others.mkdir()
    stub_wheel(index, "demo", "1.0")
    (index / "demo").symlink_to(others, target_is_directory=True)
    assert "outside of the index" in str(api.write_index(index).files)
    assert not list(others.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="only few users can make links there")
@pytest.mark.parametrize("is_new", [True, False])
def test_no_page_is_written_or_removed_through_a_link_made_meanwhile(
    is_new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user can exchange an own directory of a shared index at any time."""
    others, index, render = tmp_path / "others", tmp_path / "index", rendering.render
    others.mkdir()
    wheel = stub_wheel(index / "demo", "demo", "1.0")
    stub_wheel(index / "other", "other", "1.0")
    if not is_new:
        api.write_index(index)
        wheel.unlink()  # the pages of the project become obsolete
    for name in ("index.html", "index.json", f"{wheel.name}.metadata"):
        (others / name).write_text("of root")

    def exchange(*arguments: object) -> bytes:
        if not (index / "demo").is_symlink():
            (index / "demo").rename(index / ".demo")
            (index / "demo").symlink_to(others, target_is_directory=True)
        return render(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(static_pages, "render", exchange)
    if is_new:
        with pytest.raises(
            InputError, match="cannot be written: it is a link to a dir"
        ):
            api.write_index(index)
    else:
        api.write_index(index)
    texts = {path.read_text() for path in others.iterdir()}
    assert (len(list(others.iterdir())), texts) == (3, {"of root"})


@pytest.mark.parametrize("meanwhile", [True, False])
@pytest.mark.parametrize("pages", [True, False])
@pytest.mark.parametrize(
    "name", ["demo-1.0-py3-none-any.whl", "demo-1.0-variants.json"]
)
def test_no_file_outside_of_the_index_is_published(
    name: str,
    pages: bool,
    meanwhile: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    private, project = tmp_path / "private", tmp_path / "index" / "demo"
    stub_wheel(private, "demo", "1.0")
    (private / "demo-1.0-variants.json").write_text(json.dumps(OLD))
    stub_wheel(project, "demo", "2.0", "cu126", variant_json=of_one("cu126"))
    link, upgrade_files = project / name, releases.upgrade_files
    link.symlink_to(private / name)

    def exchange(*arguments: Any) -> list[releases.UpgradedFile]:
        link.unlink()
        link.symlink_to(private / name)
        return upgrade_files(*arguments)

    if meanwhile:
        link.unlink()
        link.write_bytes((private / name).read_bytes())
        for module in (static_pages, releases):
            monkeypatch.setattr(module, "upgrade_files", exchange)
    before = sorted(os.listdir(project))
    files = upgrade(project, pages=pages)
    # Without pages, a wheel without a label is not read.
    is_read = pages or name.endswith(".json")
    assert ("a file outside of the index" in str(files)) is is_read
    written = {os.path.basename(file.path) for file in files if file.text}
    assert sorted(os.listdir(project)) == sorted({*before, *written})
    assert link.is_symlink()


def upgrade(project: Path, *, pages: bool) -> Sequence[releases.UpgradedFile]:
    if pages:
        return api.write_index(project.parent).files
    return api.upgrade_index(project)


@pytest.mark.skipif(os.name == "nt", reason="only few users can make links there")
@pytest.mark.parametrize(
    ("pages", "name"),
    [
        (False, "demo-1.0-py3-none-any-cu126.whl"),
        (False, "demo-1.0-variants.json"),
        (True, "demo-1.0-py3-none-any-cu126.whl"),
        (True, "demo-1.0-py3-none-any-cu126.whl.metadata"),
        (True, "demo-1.0-variants.json"),
        (True, "demo-1.0-py3-none-any.whl"),
        (True, "demo-1.0.tar.gz"),
        (True, "index.json"),
    ],
)
def test_no_file_of_a_directory_that_is_exchanged_for_a_moment_is_published(
    name: str, pages: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, project = tmp_path / "private", tmp_path / "index" / "demo"
    stub_wheel(project, "demo", "1.0", "cu126", variant_json=of_one("cu126"))
    stub_wheel(project, "demo", "1.0")
    stub_sdist(project, "demo", "1.0")
    api.write_index(project.parent)
    shutil.copytree(project, private)
    # Forget the hashes on the page, so all files are read again.
    (project / "index.json").unlink()
    if name != "demo-1.0-variants.json":
        (project / "demo-1.0-variants.json").unlink()
    real = os.open

    def exchange(path: str, flags: int, **options: Any) -> int:
        if os.path.basename(path) != name:
            return real(path, flags, **options)
        project.rename(tmp_path / "hidden")
        project.symlink_to(private, target_is_directory=True)
        try:
            return real(path, flags, **options)
        finally:
            project.unlink()
            (tmp_path / "hidden").rename(project)

    for path in private.iterdir():
        path.write_bytes(path.read_bytes() + b"SECRET")
    if name == "index.json":
        (project / name).write_text('{"_generator": "nvp", "files": []}')
    monkeypatch.setattr(os, "open", exchange)
    assert upgrade(project, pages=pages)
    monkeypatch.undo()
    read = {path.name: path.read_bytes() for path in project.iterdir()}
    secret = hashlib.sha256((private / name).read_bytes()).hexdigest()
    assert not [x for x in read.values() if b"SECRET" in x or secret.encode() in x]


@pytest.mark.skipif(os.name == "nt", reason="only few users can make links there")
@pytest.mark.parametrize("place", ["index", "."])
@pytest.mark.parametrize("pages", [True, False])
def test_nothing_is_written_after_the_index_is_exchanged_for_a_link(
    pages: bool, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write to the parent of the index can exchange it at any time."""
    shared, others = tmp_path / "shared", tmp_path / "others"
    (others / "index" / "demo").mkdir(parents=True)
    project = shared / "index" / "demo"
    for version in ("1.0", "2.0"):
        of = of_one("cu126")
        stub_wheel(project, "demo", version, "cu126", variant_json=of)
    real, exchanged = os.replace, os.path.normpath(shared / place)

    def exchange(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        if not os.path.islink(exchanged):
            os.rename(exchanged, tmp_path / "hidden")
            os.symlink(os.path.normpath(others / place), exchanged)

    monkeypatch.setattr(os, "replace", exchange)
    monkeypatch.setattr(static_pages, "_THREADS", 1)
    with pytest.raises(InputError, match="outside of the index"):
        upgrade(project, pages=pages)
    assert [path for path in others.rglob("*") if path.is_file()] == []


def test_links_inside_of_the_index_are_followed(tmp_path: Path) -> None:
    wheel = stub_wheel(tmp_path / "pool", "demo", "1.0")
    project = tmp_path / "demo"
    project.mkdir()
    (project / "demo-1.0-1-py3-none-any.whl").symlink_to(wheel)
    (project / "read.me").symlink_to(tmp_path.parent / "another")
    (tmp_path / "again").symlink_to(tmp_path / "pool", target_is_directory=True)
    index = api.write_index(tmp_path)
    assert [(page.project, page.files) for page in index.pages] == [("demo", 2)]
    assert (tmp_path / "pool" / f"{wheel.name}.metadata").is_file()
