"""``upgrade --index --pages``: the pages of a directory, and who can read them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.command import FORCED, Run
from support.documents import document, nvidia
from support.index_server import run_http_server, serve
from support.pages import HTML, JSON
from support.processes import clean_environ, installed_labels
from support.uv_installer import install_with_uv
from support.variantlib_peer import by_priority, isolate
from support.wheels import stub_sdist, stub_wheel

from nvp import api
from nvp.index.http.pages import parse_page, parse_projects
from nvp.index.server import static_files

WRITE = ("upgrade", "--index", "--pages")
LABELS = {
    "cu126": nvidia("12.6", sm=["70_real", "75_real"]),
    "cu129": nvidia("12.9", sm=["75_real", "90_real"]),
}
METADATA = document(LABELS)


def fill(folder: Path, name: str = "my-kernels", version: str = "1.0") -> Path:
    """Write a release with two variants, a regular wheel and a source distribution."""
    for label, properties in LABELS.items():
        one = document({label: properties})
        stub_wheel(folder, name, version, label, variant_json=one)
    stub_wheel(folder, name, version, requires_python=">=3.9,<4")
    stub_sdist(folder, name, version)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def index(tmp_path: Path) -> Path:
    fill(tmp_path / "index" / "my-kernels")
    stub_wheel(tmp_path / "index" / "plain", "plain", "2.0+local.1")
    return tmp_path / "index"


@pytest.fixture(params=["flat", "projects"])
def layout(request: pytest.FixtureRequest, index: Path) -> Path:
    if request.param == "flat":
        for path in [*index.glob("*/*")]:
            path.rename(index / path.name)
            if not [*path.parent.iterdir()]:
                path.parent.rmdir()
    return index


@pytest.fixture
def server(layout: Path, run: Run) -> Iterator[str]:
    """The URL of ``python -m http.server`` for an index with pages."""
    assert run(*WRITE, layout).code == 0
    with run_http_server(layout) as url:
        yield url


ONE_LAYOUT = pytest.mark.parametrize(
    "layout", ["flat", pytest.param("projects", marks=pytest.mark.slow)], indirect=True
)


class TestClients:
    def test_uv_takes_the_variant_and_the_regular_wheel(
        self, server: str, tmp_path: Path
    ) -> None:
        environ = clean_environ(tmp_path / "home")
        forced = {
            "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": "12.9",
            "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": "9.0",
        }
        preview = ("--preview-features", "wheel-variants")
        for name, words in (("variants", preview), ("regular", ())):
            done = install_with_uv(
                server, tmp_path / name, environ | forced, "my-kernels", "plain", *words
            )
            assert done.returncode == 0, done.stderr
            label = "cu129" if words else "None"
            found = installed_labels(tmp_path / name)
            assert found == {"my-kernels": f"1.0 {label}", "plain": "2.0+local.1 None"}

    @ONE_LAYOUT
    def test_pip_takes_the_regular_wheel_and_through_nvp_the_variant(
        self, server: str, tmp_path: Path
    ) -> None:
        environ = clean_environ(tmp_path / "home")
        programs = {"None": ["pip"], "cu129": ["nvp", "pip"]}
        for label, program in programs.items():
            command = [sys.executable, "-m", *program, "install", "--quiet"]
            command += [*(FORCED if "nvp" in program else ()), "--index-url", server]
            target = str(tmp_path / label)
            done = subprocess.run(
                [*command, "--target", target, "my-kernels", "plain"],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            found = installed_labels(tmp_path / label)
            assert found == {"my-kernels": f"1.0 {label}", "plain": "2.0+local.1 None"}

    def test_uv_reads_pages_in_json_of_a_bucket(
        self, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        api.write_index(index)
        for page in index.rglob("index.html"):
            page.unlink()
        translate = SimpleHTTPRequestHandler.translate_path

        def find(handler: SimpleHTTPRequestHandler, path: str) -> str:
            return translate(handler, path + "index.json" * path.endswith("/"))

        monkeypatch.setattr(SimpleHTTPRequestHandler, "translate_path", find)
        types = {**SimpleHTTPRequestHandler.extensions_map, ".json": JSON}
        monkeypatch.setattr(SimpleHTTPRequestHandler, "extensions_map", types)
        with serve(index) as url:
            environ = clean_environ(tmp_path / "home")
            done = install_with_uv(url, tmp_path / "it", environ, "plain", "my-kernels")
        assert done.returncode == 0, done.stderr
        labels = {"my-kernels": "1.0 None", "plain": "2.0+local.1 None"}
        assert installed_labels(tmp_path / "it") == labels

    @ONE_LAYOUT
    def test_validate_and_releases_read_the_pages(self, server: str, run: Run) -> None:
        outcome = run("validate", server, "--ignore", "NV3")
        assert (outcome.code, outcome.err) == (0, "")
        assert "no findings" in outcome.out, outcome.out
        outcome = run(
            "releases", "my-kernels", "--index-url", server, *FORCED, "--json"
        )
        builds = outcome.data["releases"][0]["builds"]
        assert {build["label"] for build in builds} >= set(LABELS)

    def test_variantlib_reads_the_metadata_that_a_page_links(
        self,
        layout: Path,
        run: Run,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        isolate(monkeypatch, tmp_path)
        assert run(*WRITE, layout).code == 0
        (path,) = layout.rglob("*-variants.json")
        assert set(by_priority(json.loads(path.read_bytes()))) <= {*LABELS, "null"}


class TestPages:
    def test_second_run_writes_no_file(self, layout: Path, run: Run) -> None:
        first = run(*WRITE, layout, "--json")
        assert {page["change"] for page in first.data["pages"]} == {"written"}
        before = contents(layout)
        times = {path: path.stat().st_mtime_ns for path in layout.rglob("*")}
        second = run(*WRITE, layout, "--json")
        assert {page["change"] for page in second.data["pages"]} == {"unchanged"}
        assert contents(layout) == before
        assert {path: path.stat().st_mtime_ns for path in layout.rglob("*")} == times

    def test_another_directory_gets_the_same_bytes(
        self, layout: Path, tmp_path: Path
    ) -> None:
        copy = tmp_path / "copy"
        copy.mkdir()
        for path in sorted(layout.rglob("*"), reverse=True):
            if path.is_file():
                target = copy / path.relative_to(layout)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, target)
        api.write_index(layout)
        api.write_index(copy)
        assert contents(copy) == contents(layout)

    def test_page_has_all_that_installers_look_for(self, index: Path) -> None:
        (index / "plain" / "plain-2.0+local.1-py3-none-any.whl.asc").write_text("x")
        api.write_index(index)
        page = (index / "plain" / "index.html").read_text()
        wheel = index / "plain" / "plain-2.0+local.1-py3-none-any.whl"
        assert f"%2Blocal.1-py3-none-any.whl#sha256={digest(wheel)}" in page
        metadata = Path(f"{wheel}.metadata")
        for key in ("data-core-metadata", "data-dist-info-metadata"):
            assert f'{key}="sha256={digest(metadata)}"' in page
        assert 'data-gpg-sig="true"' in page
        document = json.loads((index / "my-kernels" / "index.json").read_bytes())
        assert document["versions"] == ["1.0"]
        files = {file["filename"]: file for file in document["files"]}
        assert "my_kernels-1.0-variants.json" in files
        assert "my_kernels-1.0.tar.gz" in files
        regular = files["my_kernels-1.0-py3-none-any.whl"]
        assert regular["requires-python"] == ">=3.9,<4"
        assert regular["size"] == os.path.getsize(index / "my-kernels" / regular["url"])
        page = (index / "my-kernels" / "index.html").read_text()
        assert 'data-requires-python="&gt;=3.9,&lt;4"' in page

    def test_yanked_files_and_the_status_of_the_project_stay(self, index: Path) -> None:
        api.write_index(index)
        page = index / "plain" / "index.html"
        text = page.read_text().replace("<a ", '<a data-yanked="wrong &amp; slow" ')
        status = '<meta name="pypi:project-status" content="archived">'
        page.write_text(text.replace("<title>", f"{status}<title>"))
        for _ in range(2):
            api.write_index(index)
            assert 'data-yanked="wrong &amp; slow"' in page.read_text()
            assert status in page.read_text()
            document = json.loads((index / "plain" / "index.json").read_bytes())
            assert document["files"][0]["yanked"] == "wrong & slow"
            assert document["project-status"] == {"status": "archived"}

    def test_files_of_removed_wheels_vanish(self, layout: Path, run: Run) -> None:
        api.write_index(layout)
        for path in layout.rglob("plain-*.whl"):
            path.unlink()
        foreign = layout / "other-1.0-py3-none-any.whl.metadata"
        foreign.write_text("Name: other\n")
        outcome = run(*WRITE, layout)
        assert outcome.code == 0
        assert f"{layout / 'plain' / 'index.html'}: removed, 0 files" in outcome.out
        assert f"{foreign}: there is no such wheel" in outcome.err
        assert foreign.exists()
        assert not [*layout.rglob("plain*")]
        assert "plain" not in (layout / "index.html").read_text()

    def test_replaced_wheel_replaces_its_metadata(self, index: Path) -> None:
        api.write_index(index)
        stub_wheel(index / "plain", "plain", "2.0+local.1", requires_python=">=3.10")
        (page,) = [x for x in api.write_index(index).pages if x.project == "plain"]
        assert page.change == "written"
        (metadata,) = (index / "plain").glob("*.metadata")
        assert "Requires-Python: >=3.10" in metadata.read_text()
        assert digest(metadata) in (index / "plain" / "index.html").read_text()

    def test_settled_wheels_are_not_read_again(
        self, index: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        api.write_index(index)
        # The clock of the file system cannot be set back, but the page can be newer.
        later = time.time() + 60
        for page in index.rglob("index.json"):
            os.utime(page, (later, later))
        before = contents(index)
        real, read = static_files.read_file, []

        def spy(root, file, known, entry):  # type: ignore[no-untyped-def]
            read.append(known is not None)
            return real(root, file, known, entry)

        monkeypatch.setattr("nvp.index.server.static_pages.read_file", spy)
        api.write_index(index)
        assert contents(index) == before
        assert read
        assert all(read) or os.name == "nt"


class TestRefusals:
    def refuse(self, run: Run, index: Path, *words: str) -> str:
        """Check that the command writes no files, and that each word is in a line."""
        before = contents(index)
        outcome = run(*WRITE, index)
        assert (outcome.code, outcome.out) == (1, "")
        assert contents(index) == before
        for word in words:
            assert any(word in line for line in outcome.err.splitlines()), outcome.err
        return outcome.err

    def test_broken_wheels_are_named_once_each(self, index: Path, run: Run) -> None:
        variant = index / "my-kernels" / "my_kernels-1.0-py3-none-any-cu126.whl"
        variant.write_bytes(variant.read_bytes()[:200])
        regular = index / "plain" / "plain-3.0-py3-none-any.whl"
        with zipfile.ZipFile(regular, "w") as archive:
            archive.writestr("plain.py", "")
        text = self.refuse(run, index, f"{regular}: has no *.dist-info")
        assert text.count(variant.name) == 1
        assert text.count(regular.name) == 1
        assert text.splitlines()[-1] == f"warning: {index}: nothing was written"

    def test_broken_source_distribution(self, index: Path, run: Run) -> None:
        path = index / "plain" / "plain-1.0.tar.gz"
        path.write_bytes(b"not an archive")
        self.refuse(run, index, f"{path.name}: not a readable archive")

    @pytest.mark.parametrize("name", ["index.html", "index.json"])
    @pytest.mark.parametrize("folder", ["", "plain"])
    def test_pages_of_others_are_not_replaced(
        self, index: Path, run: Run, name: str, folder: str
    ) -> None:
        (index / folder / name).write_text('{"files": []}')
        self.refuse(run, index, f"{name}: is not a page that nvp has written")

    def test_page_of_another_program_can_be_adopted(
        self, index: Path, run: Run
    ) -> None:
        page = index / "plain" / "index.html"
        name = "plain-2.0+local.1-py3-none-any.whl"
        page.write_text(
            '<meta name="generator" content="nvp">'
            f'<a data-yanked href="{name}">{name}</a>'
        )
        assert run(*WRITE, index).code == 0
        assert 'data-yanked=""' in page.read_text()

    def test_metadata_of_others_is_not_replaced(self, index: Path, run: Run) -> None:
        wheel = index / "plain" / "plain-2.0+local.1-py3-none-any.whl"
        Path(f"{wheel}.metadata").write_text("Name: other\n")
        self.refuse(run, index, f"differs from METADATA of {wheel.name}")

    def test_two_names_of_one_wheel(self, index: Path, run: Run) -> None:
        path = index / "plain" / "plain-2.0+local.1-py3-none-any.whl"
        other = index / "plain" / "Plain-2.0.0+local.1-py3-none-any.whl"
        shutil.copyfile(path, other)
        self.refuse(run, index, "is the same file for installers as")

    def test_control_characters_in_a_name(self, index: Path, run: Run) -> None:
        shutil.copyfile(
            index / "plain" / "plain-2.0+local.1-py3-none-any.whl",
            index / "plain" / "plain-2.0-py3-none-\x1b[31many.whl",
        )
        self.refuse(run, index, "has control characters; rename the file")

    def test_metadata_files_of_other_names(self, index: Path, run: Run) -> None:
        wheels = (index / "my-kernels").glob("*-cu*.whl")
        for path in [*wheels]:
            path.unlink()
        name = "My_Kernels-1.0-variants.json"
        (index / "my-kernels" / name).write_text(json.dumps(METADATA))
        self.refuse(run, index, f"{name}: not of the form")

    def test_directory_that_cannot_be_one_of_a_project(
        self, tmp_path: Path, run: Run
    ) -> None:
        stub_wheel(tmp_path, "plain", "1.0")
        (tmp_path / "plain").write_text("")
        self.refuse(run, tmp_path, "Not a directory")

    def test_empty_directory(self, tmp_path: Path, run: Run) -> None:
        outcome = run(*WRITE, tmp_path)
        assert outcome.code == 3
        assert "has no wheel" in outcome.err
        assert not [*tmp_path.iterdir()]

    def test_pages_need_an_index(self, index: Path, run: Run) -> None:
        assert run("upgrade", "--pages", index).code == 2

    def test_archives_of_other_names_are_left_out(self, index: Path, run: Run) -> None:
        path = index / "plain" / "notes.tar.gz"
        with tarfile.open(path, "w:gz"):
            pass
        outcome = run(*WRITE, index)
        assert outcome.code == 0
        assert f"{path}: is left out" in outcome.err
        assert "notes" not in (index / "plain" / "index.html").read_text()


def test_values_of_wheels_cannot_break_the_page(tmp_path: Path) -> None:
    hostile = '"><script>\x00\x1b[31m'
    stub_wheel(tmp_path, "demo", "1.0", requires_python=hostile)
    (tmp_path / "._demo-1.0-py3-none-any.whl").write_bytes(b"of macOS")
    api.write_index(tmp_path)
    page = (tmp_path / "demo" / "index.html").read_bytes()
    assert b"<script" not in page
    assert b"\x00" not in page
    (file,) = parse_page(page, HTML, "https://index.example/demo/", "demo").files
    assert (file.requires_python or "").startswith('"><script>')


def test_links_to_directories_list_no_file_twice(index: Path, run: Run) -> None:
    (index / "again").symlink_to(index, target_is_directory=True)
    (index / "kernels").symlink_to(index / "my-kernels", target_is_directory=True)
    outcome = run(*WRITE, index)
    assert outcome.code == 0, outcome.err


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


FILES = st.tuples(
    st.sampled_from(["", "demo", "other place", "100%+é", "a.b_c"]),
    st.sampled_from(["demo", "A.B_c", "x"]),
    st.sampled_from(["1.0", "2!1.0rc1+cu126.a", "10.0.post1", "9.0"]),
    st.sampled_from(["py3-none-any", "cp312-cp312-manylinux_2_28_x86_64"]),
    st.sampled_from([None, ">=3.9", "<4, >=3.8"]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.lists(FILES, min_size=1, unique_by=lambda file: file[1:4]))
def test_pages_read_back_as_the_files(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[str, str, str, str, str | None]],
) -> None:
    root = tmp_path_factory.mktemp("index")
    wheels = {
        stub_wheel(root / folder, name, version, tag=tag, requires_python=python): (
            name.lower().replace(".", "-").replace("_", "-"),
            python,
        )
        for folder, name, version, tag, python in files
    }
    index = api.write_index(root)
    assert not [file for file in index.files if file.problems]
    assert sum(page.files for page in index.pages) == len(wheels)
    found = {}
    base = f"{root.as_uri()}/"
    for name, kind in (("index.html", HTML), ("index.json", JSON)):
        projects = parse_projects((root / name).read_bytes(), kind, base).projects
        for project in (item.name for item in projects):
            page = root / project / name
            read = parse_page(page.read_bytes(), kind, page.as_uri(), project)
            for file in read.files:
                path = next(x for x in wheels if x.as_uri() == file.url)
                assert file.filename == path.name
                assert file.hashes == {"sha256": digest(path)}
                metadata = Path(f"{path}.metadata")
                assert file.dist_info_metadata == {"sha256": digest(metadata)}
                found[name, path] = (project, file.requires_python)
    assert found == {
        (name, path): expected
        for name in ("index.html", "index.json")
        for path, expected in wheels.items()
    }
