"""The projects and wheels of an index, on a server or in a directory."""

from __future__ import annotations

import hashlib
import json
import threading
import time as clock
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from support.index_server import serve, start_server
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel, write_page

from nvidia_variant_provider.errors import InputError, UsageError
from nvp.census.listing import Project, list_projects, select_wheels
from nvp.census.model import Options
from nvp.index.http.blocking import BlockingClient
from nvp.index.http.urls import IndexFile

JSON = "application/vnd.pypi.simple.v1+json"


def listed(index: object, *names: str) -> list[Project]:
    return list(list_projects(str(index), Options(projects=names), BlockingClient))


def file_names(projects: Sequence[Project]) -> dict[str, list[str]]:
    return {
        project.name: [wheel.filename for wheel in project.wheels]
        for project in projects
    }


WHEELS = {
    "demo-kernels": ["demo_kernels-2.0-py3-none-any.whl"],
    "other": ["other-1.0-py3-none-any.whl"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make an index in a directory, without pages."""
    root = tmp_path / "index"
    stub_wheel(root / "Demo_Kernels", "demo-kernels", "2.0")
    stub_wheel(root / "other", "other", "1.0")
    return root


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    """Serve the same index, with the pages of PEP 503."""
    (folder / "Demo_Kernels").rename(folder / "demo-kernels")
    for project in folder.iterdir():
        write_page(project)
    write_page(folder)
    with serve(folder) as address:
        yield address


def test_a_folder_of_project_folders(folder: Path) -> None:
    assert file_names(listed(folder)) == WHEELS
    assert file_names(listed(folder.as_uri())) == WHEELS
    (project,) = listed(folder, "Demo.Kernels")
    assert (project.position, project.total) == (1, 1)
    (wheel,) = project.wheels
    assert Path(wheel.url).stat().st_size == wheel.size
    assert wheel.sha256 is None


def test_a_folder_of_wheels(tmp_path: Path) -> None:
    for name, version in (("demo-kernels", "2.0"), ("other", "1.0")):
        stub_wheel(tmp_path, name, version)
    assert file_names(listed(tmp_path)) == WHEELS
    assert file_names(listed(tmp_path, "other")) == {"other": WHEELS["other"]}


def test_a_server(url: str) -> None:
    projects = listed(url)
    assert file_names(projects) == WHEELS
    assert [project.total for project in projects] == [2, 2]
    assert all(wheel.sha256 for project in projects for wheel in project.wheels)
    assert file_names(listed(url, "other")) == {"other": WHEELS["other"]}


def test_a_folder_with_pages(url: str, folder: Path) -> None:
    """The pages of a mirror in a directory, which give the hashes of local files."""
    del url
    projects = listed(folder)
    assert file_names(projects) == WHEELS
    (wheel, _) = (wheel for project in projects for wheel in project.wheels)
    assert wheel.sha256 is not None
    assert Path(wheel.url).is_file()


def test_a_json_index_gives_size_and_time() -> None:
    file = {
        "filename": "demo-1.0-py3-none-any.whl",
        "url": "/files/demo-1.0-py3-none-any.whl",
        "hashes": {"sha256": "ab" * 32},
        "size": 7,
        "upload-time": "2026-11-01T10:00:00Z",
    }
    page = {"meta": {"api-version": "1.1"}, "name": "demo", "files": [file]}
    root = {"meta": {"api-version": "1.1"}, "projects": [{"name": "demo"}]}
    answers = {
        "/simple/": Answer(body=json.dumps(root).encode(), kind=JSON),
        "/simple/demo/": Answer(body=json.dumps(page).encode(), kind=JSON),
    }
    with serve_answers(answers) as server:
        (project,) = listed(f"{server.url}/simple")
    (wheel,) = project.wheels
    assert (wheel.sha256, wheel.size) == ("ab" * 32, 7)
    assert wheel.upload_time == "2026-11-01T10:00:00+00:00"


def test_a_page_of_links() -> None:
    """A page of a project, or a page for pip's --find-links."""
    links = "".join(
        f'<a href="{name}">x</a>' for names in WHEELS.values() for name in names
    )
    with serve_answers(
        {"/all/": Answer(body=links.encode(), kind="text/html")}
    ) as server:
        assert file_names(listed(f"{server.url}/all")) == WHEELS


def test_each_wheel_names_its_index(url: str, folder: Path) -> None:
    start, _, host = url.rstrip("/").partition("//")
    with_user = f"{start}//user:secret@{host}"
    for index in (url, with_user):
        assert indexes_of(listed(index)) == {f"{start}//{host}/"}
        assert indexes_of(listed(index, "other")) == {f"{start}//{host}/"}
    for index in (str(folder), folder.as_uri()):
        assert indexes_of(listed(index)) == {str(folder)}


def indexes_of(projects: Sequence[Project]) -> set[str]:
    return {wheel.index for project in projects for wheel in project.wheels}


def test_a_page_does_not_name_files_of_this_machine(folder: Path) -> None:
    wheel = next(folder.rglob("*.whl"))
    body = f'<a href="{wheel.as_uri()}">{wheel.name}</a>'.encode()
    answers = {"/demo-kernels/": Answer(body=body, kind="text/html")}
    with serve_answers(answers) as server:
        (project,) = listed(server.url, "demo-kernels")
    assert not project.wheels


def test_a_page_in_a_directory_names_files_below_its_parent(tmp_path: Path) -> None:
    """A stranger's copy of a mirror may link to private files, as for `serve`."""
    root = tmp_path / "mirror" / ".simple"
    own = stub_wheel(root / "demo", "demo", "1.4")
    fine = stub_wheel(tmp_path / "mirror" / "files", "demo", "1.0")
    hidden = stub_wheel(tmp_path / "mirror" / ".private", "demo", "1.1")
    outside = stub_wheel(tmp_path, "demo", "1.2")
    pipe = f"file:///proc/self/fd/../../..{tmp_path}/demo-1.3-py3-none-any.whl"
    links = [own.name, fine.as_uri(), hidden.as_uri(), outside.as_uri(), pipe]
    page = "".join(f'<a href="{link}">x</a>' for link in links)
    (root / "demo" / "index.html").write_text(page)
    (project,) = listed(root)
    assert [wheel.url for wheel in project.wheels] == [str(own), str(fine)]
    assert "its page names files outside of the index" in str(project.error)


def test_a_page_in_a_directory_names_no_user_of_a_server(tmp_path: Path) -> None:
    wheel = stub_wheel(tmp_path / "files", "demo", "1.0")
    answers = {f"/{wheel.name}": Answer(body=wheel.read_bytes())}
    with (
        serve_answers(answers, credentials="user:secret") as server,
        closing(BlockingClient()) as client,
    ):
        client.add_credentials(server.url, ("user", "secret"))
        url = f"{server.url}/{wheel.name}".replace("://", "://x:y@")
        (tmp_path / "simple" / "demo").mkdir(parents=True)
        page = tmp_path / "simple" / "demo" / "index.html"
        page.write_text(f'<a href="{url}">x</a>')
        ((found,),) = (project.wheels for project in listed(tmp_path / "simple"))
        near = replace(found.file, near=0)  # the server is on this machine
        with client.provide(near, whole=True, most=1 << 20) as (_, digest):
            assert digest == hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_a_project_that_cannot_be_read_is_one_of_several(url: str) -> None:
    first, second = listed(url, "missing", "other")
    assert first.error is not None
    assert "404" in first.error.message
    assert first.error.hint == f"check the name, and that {url} is the index"
    assert file_names([second]) == {"other": WHEELS["other"]}


def test_a_project_that_a_folder_lacks(folder: Path) -> None:
    (project,) = listed(folder, "missing")
    assert project.error is not None
    assert "no directory of the project missing" in str(project.error)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(status=404), "HTTP 404"),
        (Answer(status=500), "HTTP 500"),
        (Answer(body=b"<h1>hello</h1>", kind="text/html"), "it links no project"),
        (Answer(body=b"%PDF", kind="application/pdf"), "not a project page"),
    ],
)
def test_an_index_that_is_none(answer: Answer, message: str) -> None:
    with (
        serve_answers({"/simple/": answer}) as server,
        pytest.raises(InputError, match=message),
    ):
        listed(f"{server.url}/simple")


def test_a_folder_that_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither wheels nor directories"):
        listed(tmp_path)
    with pytest.raises(UsageError, match="no such directory"):
        listed(tmp_path / "missing")
    with pytest.raises(UsageError, match="no index is read by ftp"):
        listed("ftp://example.com/simple")


@pytest.mark.parametrize("name", ["torch==2.0", "", "a b", "../x"])
def test_a_name_that_is_none(name: str, folder: Path) -> None:
    with pytest.raises(UsageError, match="not the name of a project"):
        listed(folder, name)


def test_pages_are_read_one_by_one() -> None:
    """Only requested projects are read, here of 100,000 projects."""
    root = {
        "meta": {"api-version": "1.1"},
        "projects": [{"name": f"p{number}"} for number in range(100_000)],
    }
    answers = {"/": Answer(body=json.dumps(root).encode(), kind=JSON)}
    with serve_answers(answers) as server:
        projects = list_projects(server.url, Options(per_host=1), BlockingClient)
        first, second = next(projects), next(projects)
        assert (first.total, first.position, second.position) == (100_000, 1, 2)
        assert len(server.requests) == 3


@pytest.mark.parametrize(("per_host", "pages"), [(8, 4), (1, 1)])
def test_several_pages_at_a_time(per_host: int, pages: int) -> None:
    """Four requests wait for each other, and a fifth is never sent."""
    names = [f"p{number}" for number in range(12)]
    together = threading.Barrier(pages)
    active, most = 0, 0
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            nonlocal active, most
            name = self.path.strip("/").rpartition("/")[2]
            body = "".join(f'<a href="{name}/">x</a>' for name in names)
            if name in names:
                with lock:
                    active += 1
                    most = max(most, active)
                together.wait(60)
                with lock:
                    active -= 1
                body = f'<a href="{name}-1.0-py3-none-any.whl">x</a>'
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

    with start_server(Handler) as url:
        index = f"{url}simple/"
        projects = list_projects(index, Options(per_host=per_host), BlockingClient)
        listed = file_names(list(projects))
    assert listed == {name: [f"{name}-1.0-py3-none-any.whl"] for name in names}
    assert most == pages


def test_no_page_is_requested_far_ahead(url: str, folder: Path) -> None:
    """A large index is listed while its wheels are read, so the memory stays the
    same."""
    for number in range(20):
        stub_wheel(folder / f"p{number:02d}", f"p{number:02d}", "1.0")
        write_page(folder / f"p{number:02d}")
    write_page(folder)
    asked: list[str] = []

    class Client(BlockingClient):
        def _request_page(self, url: str) -> Any:
            asked.append(url)
            return super()._request_page(url)

    projects = list_projects(url, Options(), Client)
    for number in range(1, 10):
        next(projects)
        assert len(asked) < number + 4


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+00:00"),
        ("2026-11-01T10:00:00Z", "2026-11-01T10:00:00+00:00"),
        ("2026-11-01T10:00:00", None),
        ("0001-01-01T00:00:00+05:00Z", None),
        ("9999-12-31T23:59:59-05:00Z", None),
        ("9999-99-99T00:00:00Z", None),
        ("never", None),
    ],
)
def test_times_of_a_page(
    time: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The result must not depend on the network of this machine.
    monkeypatch.setenv("TZ", "Etc/GMT-5")
    if hasattr(clock, "tzset"):
        clock.tzset()
    file = {
        "filename": "demo-1.0-py3-none-any.whl",
        "url": "/x.whl",
        "hashes": {},
        "upload-time": time,
    }
    page = {"meta": {"api-version": "1.1"}, "name": "demo", "files": [file]}
    answers = {"/simple/demo/": Answer(body=json.dumps(page).encode(), kind=JSON)}
    with serve_answers(answers) as server:
        (project,) = listed(f"{server.url}/simple", "demo")
    monkeypatch.undo()
    if hasattr(clock, "tzset"):
        clock.tzset()
    (wheel,) = project.wheels
    assert wheel.upload_time == expected


@pytest.mark.parametrize("time", [10.0**13, -(10.0**30), 0.0])
def test_a_file_may_have_any_modification_time(time: float) -> None:
    """File systems accept years that Python does not: the census had a traceback."""
    name = "demo-1.0-py3-none-any.whl"
    file = IndexFile(name=name, url=f"/i/{name}", time=time)
    (wheel,) = select_wheels("demo", [file], Options())
    epoch = "1970-01-01T00:00:00+00:00"
    assert wheel.upload_time == (f"{time} s" if time else epoch)
