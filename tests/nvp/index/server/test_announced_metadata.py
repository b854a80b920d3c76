"""METADATA (PEP 658) that the local index announces if an upstream does not."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from support.builds import machine
from support.loopback import JSON, Running, ask, start
from support.processes import PIPS, Pip
from support.range_server import Answer, RangeServer, serve_answers
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import Environment
from nvp.index.selection.reader import check_metadata

pytestmark = pytest.mark.usefixtures("no_noise")

TAG = "py3-none-manylinux_2_17_x86_64"
SIZE = 2_000_000
MACHINE = machine("12.8", "8.0")
WITHOUT_GPU = machine(None)
"""For this machine, no METADATA is read before a page is sent."""

PIP = "pip/26.3 {}"


def upstream(
    *wheels: Path, size: int | None = SIZE, **changes: Any
) -> dict[str, Answer]:
    """Return an index whose pages have no METADATA, but a size for each wheel."""
    answers = {}
    projects: dict[str, list[dict[str, Any]]] = {}
    for wheel in wheels:
        body = wheel.read_bytes()
        url = f"/files/{wheel.name}"
        answers[url] = Answer(body=body, **changes)
        item: dict[str, Any] = {
            "filename": wheel.name,
            "url": url,
            "hashes": {"sha256": hashlib.sha256(body).hexdigest()},
        }
        item |= {} if size is None else {"size": max(size, len(body))}
        projects.setdefault(wheel.name.partition("-")[0], []).append(item)
    for name, files in projects.items():
        document = {"meta": {"api-version": "1.0"}, "name": name, "files": files}
        body = json.dumps(document).encode()
        answers[f"/simple/{name}/"] = Answer(body=body, kind=JSON)
    return answers


@contextmanager
def serve(
    answers: Mapping[str, Answer], environment: Environment = MACHINE
) -> Iterator[tuple[RangeServer, Running]]:
    with (
        serve_answers(answers) as server,
        start(f"{server.url}/simple/", machine=environment) as running,
    ):
        yield server, running


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Return a wheel of a project that is not in the table of builds."""
    return stub_wheel(tmp_path, "demo", "1.0", tag=TAG, requires=["six"])


def page(running: Running, agent: str = PIP) -> dict[str, dict[str, Any]]:
    reply = running.page("demo", User_Agent=agent)
    files = json.loads(reply.body)["files"]
    return {file["filename"]: {**file, "to": reply.files} for file in files}


def of_files(server: RangeServer) -> list[str]:
    return [text for text in server.requests if text.startswith("/files/")]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"fault": "cut"}, 503),
        ({"headers": {"Content-Encoding": "gzip"}}, 502),
        ({"status": 302, "headers": {"Location": "http://files.example/"}}, 403),
    ],
)
def test_an_error_is_not_metadata(
    change: dict[str, Any], status: int, wheel: Path
) -> None:
    """The text of an error, or another file, would decide about dependencies."""
    answers = upstream(wheel)
    with serve(answers, WITHOUT_GPU) as (_, running):
        url = page(running)[wheel.name]["to"][wheel.name]
        place = f"/files/{wheel.name}"
        answers[place] = replace(answers[place], **change)
        assert ask(f"{url}.metadata").status == status


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "lacks a name or a version"),
        (b"\x00\xff\n\n", "lacks a name or a version"),
        ("Name: demo\nVersion: 1.0\n".encode("utf-16"), "lacks a name or a version"),
        (b"Name: demo\n\nVersion: 1.0\n", "lacks a name or a version"),
        # To search 4 MiB for the name takes a second.
        (b"A: b\n" * 20_000 + b"Name: demo\nVersion: 1.0\n", "at its start"),
        # pip tries an older release, as it does alone.
        (b"Name: other\nVersion: 1.0\nRequires-Dist: cupy-cuda13x\n", None),
        (b"Name: demo\nVersion: 2.0\n", None),
        (b"Name: demo\nVersion: newest\n", None),
        (b"Name: DEMO\nVersion: 1\n", None),
        (b"Name: demo\nVersion: 1.0+cu128\n", None),
    ],
)
@pytest.mark.parametrize("environment", [MACHINE, WITHOUT_GPU], ids=["gpu", "none"])
def test_metadata_that_is_not_that_of_the_wheel(
    environment: Environment, content: bytes, reason: str | None, tmp_path: Path
) -> None:
    """Without a name or a version, pip would end with a traceback."""
    path = tmp_path / f"demo-1.0-{TAG}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo-1.0.dist-info/METADATA", content)
    with serve(upstream(path), environment) as (_, running):
        file = page(running)[path.name]
        reply = ask(f"{file['to'][path.name]}.metadata")
        if reason is None:
            assert (reply.status, reply.body) == (200, content)
            return
        # METADATA that was read before is not announced.
        assert isinstance(file.get("core-metadata", True), bool)
        assert reply.status == 403
        assert any(reason in text for text in running.warnings), running.warnings


@pytest.mark.parametrize(
    "folders", [["other-1.0"], ["demo-1.0", "other-1.0"], ["x/demo-1.0"]]
)
def test_metadata_of_a_wheel_that_ends_pip(folders: list[str], tmp_path: Path) -> None:
    """pip would try an older release after METADATA of another project."""
    path = tmp_path / f"demo-1.0-{TAG}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{folders[0]}.dist-info/METADATA", "Name: other\nVersion: 1\n"
        )
        for folder in folders[1:]:
            archive.writestr(f"{folder}.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    with serve(upstream(path), WITHOUT_GPU) as (_, running):
        reply = ask(f"{page(running)[path.name]['to'][path.name]}.metadata")
        assert reply.status == 502
        assert any("-VERSION.dist-info" in text for text in running.warnings)


@pytest.mark.parametrize(
    ("version", "own"),
    [
        ("1.0+foo", "1.0"),  # some publishers only rename the file of a wheel
        ("1.0.new", "1.0.new"),  # pip 23 installs a wheel with such a version
        ("1_0", "1_0"),
    ],
)
def test_versions_of_names_that_metadata_may_have(version: str, own: str) -> None:
    content = f"Name: demo\nVersion: {own}\n".encode()
    check_metadata(content, f"demo-{version}-py3-none-any.whl")
    with pytest.raises(InputError, match="its METADATA is of 'demo 1"):
        check_metadata(content, f"demo-2{version}-py3-none-any.whl")


def test_a_long_version_is_not_parsed() -> None:
    """It took 200 MB."""
    content = f"Name: demo\nVersion: 1{'.0' * 2_000_000}\n".encode()
    with pytest.raises(InputError, match=r"its METADATA is of 'demo 1\.0"):
        check_metadata(content, "demo-1-py3-none-any.whl")


@pytest.mark.parametrize("place", ["127.0.0.1", "localhost"])
def test_one_name_twice_on_a_page(place: str, wheel: Path, tmp_path: Path) -> None:
    """Requests name only the project and the file, so each wheel keeps its URL."""
    answers = upstream(wheel)
    other = stub_wheel(tmp_path / "b", "demo", "1.0", tag=TAG).read_bytes()
    answers[f"/other/{wheel.name}"] = Answer(body=other)
    with serve(answers, WITHOUT_GPU) as (server, running):
        here = server.url.replace("127.0.0.1", place)
        document = json.loads(answers["/simple/demo/"].body)
        first = document["files"][0]
        digest = hashlib.sha256(other).hexdigest()
        second = first | {"url": f"{here}/other/{wheel.name}"}
        document["files"].append(second | {"hashes": {"sha256": digest}})
        answers["/simple/demo/"] = Answer(body=json.dumps(document).encode(), kind=JSON)
        found = json.loads(running.page("demo", User_Agent=PIP).body)["files"]
    assert [file["hashes"]["sha256"] for file in found] == [
        first["hashes"]["sha256"],
        digest,
    ]
    assert [file["url"] for file in found] == [
        f"{server.url}{first['url']}",
        second["url"],
    ]
    assert not any(file.get("core-metadata") for file in found)


def test_it_is_read_by_ranges_when_it_is_asked_for(tmp_path: Path) -> None:
    """Releases older than the first one are not read for the page."""
    wheels = [
        stub_wheel(tmp_path, "demo", version, tag=TAG, requires=["six"])
        for version in ("1.0", "2.0")
    ]
    with serve(upstream(*wheels)) as (server, running):
        files = page(running)
        old, new = (files[wheel.name] for wheel in wheels)
        assert old["core-metadata"] is True
        # METADATA of the newest release was read for the page.
        reply = ask(f"{new['to'][wheels[1].name]}.metadata")
        digest = hashlib.sha256(reply.body).hexdigest()
        assert new["core-metadata"] == {"sha256": digest}
        before = len(server.requests)
        for _ in range(2):
            reply = ask(f"{old['to'][wheels[0].name]}.metadata")
            assert (reply.status, "Requires-Dist: six" in reply.text) == (200, True)
        assert server.requests[before:] == [f"/files/{wheels[0].name} bytes=-65536"]
        # pip downloads the file itself.
        reply = ask(old["to"][wheels[0].name])
        assert reply.headers["location"] == f"{server.url}/files/{wheels[0].name}"
        assert running.warnings == []


def test_no_pip_that_compares_names_letter_by_letter_gets_it(wheel: Path) -> None:
    """pip 22.3 to 23.1 would pass over the wheel ``my_demo`` for ``my-demo``, and take
    an older release of another index; they read only ``data-dist-info-metadata``."""
    own = stub_wheel(wheel.parent, "demo", "2.0", tag=TAG, requires=["six"])
    answers = upstream(wheel)
    told = 'data-dist-info-metadata="true"'
    links = "".join(
        f'<a href="/files/{name}" {keys}>x</a>'
        for name, keys in ((wheel.name, ""), (own.name, told))
    )
    answers["/simple/demo/"] = Answer(body=links.encode(), kind="text/html")
    with serve(answers) as (_, running):
        text = running.page("demo", Accept="text/html", User_Agent=PIP).text
    ours, theirs = (line for line in text.splitlines() if line.startswith("<a "))
    assert 'data-core-metadata="' in ours
    assert "data-dist-info-metadata" not in ours
    assert told in theirs


def test_one_request_for_each_server_finds_out_about_ranges(
    tmp_path: Path, wheel: Path
) -> None:
    others = [stub_wheel(tmp_path, "demo", f"0.{n}", tag=TAG) for n in range(5)]
    with serve(upstream(wheel, *others)) as (server, running):
        for _ in range(3):
            page(running)
        small = [text for text in of_files(server) if text.endswith("bytes=-1")]
        assert len(small) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"ranges": False},
        {"fault": "lie"},
        {"status": 500},
        {"status": 206, "ranges": False},
        {"status": 206, "ranges": False, "headers": {"Content-Range": "bytes 0-0/9"}},
    ],
)
def test_a_server_without_ranges(wheel: Path, changes: dict[str, Any]) -> None:
    with serve(upstream(wheel, **changes), WITHOUT_GPU) as (server, running):
        file = page(running)[wheel.name]
        assert "core-metadata" not in file
        assert file["url"] == f"{server.url}/files/{wheel.name}"
        assert of_files(server) == [f"/files/{wheel.name} bytes=-1"]
        assert running.warnings == []


def test_wheels_that_are_not_announced(tmp_path: Path) -> None:
    wheels = [
        stub_wheel(tmp_path, "demo", "1.0", tag=tag)
        for tag in ("py3-none-win_amd64", "py3-none-manylinux_2_17_aarch64")
    ]
    with serve(upstream(*wheels)) as (server, running):
        assert all("core-metadata" not in file for file in page(running).values())
        assert of_files(server) == []
    small = stub_wheel(tmp_path, "demo", "2.0", tag=TAG)
    with serve(upstream(small, size=900_000)) as (server, running):
        assert "core-metadata" not in page(running)[small.name]
        assert of_files(server) == []


@pytest.mark.parametrize(("size", "announced"), [(SIZE, True), (None, False)])
def test_wheels_that_run_anywhere(
    tmp_path: Path, size: int | None, announced: bool
) -> None:
    """Most of these wheels are small, so METADATA is announced only if the page has a
    large size."""
    wheel = stub_wheel(tmp_path, "demo", "1.0")
    with serve(upstream(wheel, size=size)) as (_, running):
        assert page(running)[wheel.name].get("core-metadata", False) is announced


@pytest.mark.parametrize("agent", ["uv/0.13.8", "poetry/2.5.1", "", "unearth/0.18"])
def test_installers_that_need_no_help_get_the_url_of_the_file(
    wheel: Path, agent: str
) -> None:
    """uv writes this URL into its lock file."""
    with serve(upstream(wheel)) as (server, running):
        file = page(running, agent)[wheel.name]
        assert file["url"] == f"{server.url}/files/{wheel.name}"
        assert "core-metadata" not in file


class TestAfterwards:
    """Announced METADATA cannot be read, although the first request succeeded."""

    def test_the_server_sends_no_parts_of_this_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A mirror may not have the file yet: the whole wheel is read."""
        module = "nvp.index.http.ranges"
        monkeypatch.setattr(f"{module}._WHOLE_FILE", 100_000)
        padding = {"data.bin": os.urandom(200_000)}
        old, new = (
            stub_wheel(
                tmp_path, "demo", name, tag=TAG, requires=["six"], members=padding
            )
            for name in ("1.0", "2.0")
        )
        oldest = stub_wheel(tmp_path, "demo", "0.9", tag=TAG)
        answers = upstream(oldest, old, new)
        url = f"/files/{old.name}"
        answers[url] = replace(answers[url], ranges=False)
        with serve(answers) as (server, running):
            file = page(running)[old.name]
            assert file["core-metadata"] is True
            reply = ask(f"{file['to'][old.name]}.metadata")
            assert (reply.status, "Requires-Dist: six" in reply.text) == (200, True)
            assert f"{url} whole" in server.requests
            # METADATA is cached, and no other file of this server is announced.
            asked = len(of_files(server))
            assert ask(f"{file['to'][old.name]}.metadata").body == reply.body
            other = page(running)["demo-0.9-py3-none-manylinux_2_17_x86_64.whl"]
            assert "core-metadata" not in other
            assert len(of_files(server)) == asked
            assert running.warnings == []

    def test_the_file_has_no_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its server could fill the disk, also after the installer has given up."""
        monkeypatch.setattr("nvp.index.http.ranges._WHOLE_FILE", 100_000)
        monkeypatch.setattr("nvp.index.http.ranges._LARGEST", 200_000, raising=False)
        padding = {"data.bin": os.urandom(300_000)}
        wheel = stub_wheel(tmp_path, "demo", "1.0", tag=TAG, members=padding)
        answers = upstream(stub_wheel(tmp_path, "demo", "0.9", tag=TAG), wheel)
        url = f"/files/{wheel.name}"
        answers[url] = replace(answers[url], ranges=False)
        with serve(answers) as (_, running):
            reply = ask(f"{page(running)[wheel.name]['to'][wheel.name]}.metadata")
            assert reply.status == 502
            assert "it is larger than" in reply.text

    def test_the_file_is_no_wheel(self, tmp_path: Path) -> None:
        new = stub_wheel(tmp_path, "demo", "2.0", tag=TAG)
        old = stub_wheel(tmp_path, "demo", "1.0", tag=TAG)
        answers = upstream(new, old)
        url = f"/files/{old.name}"
        answers[url] = Answer(body=b"not a wheel" * 100_000)
        with serve(answers) as (_, running):
            reply = ask(f"{page(running)[old.name]['to'][old.name]}.metadata")
            assert reply.status == 502
            assert "not a readable archive" in reply.text
            assert "not a readable archive" in running.warnings[0]

    def test_the_server_starts_again(self, wheel: Path) -> None:
        """An installer with a cached page requests only METADATA."""
        answers = upstream(wheel)
        with serve(answers) as (_, running):
            url = page(running)[wheel.name]["to"][wheel.name]
            place = "../f/" + url.partition("/f/")[2]
        with serve(answers) as (_, running):
            there = urljoin(running.urls[0], place)
            assert ask(f"{there}.metadata").status == 200
            other = there.replace("demo-1.0", "demo-3.0")
            assert ask(f"{other}.metadata").status == 404


@pytest.mark.parametrize(
    "version", [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]
)
def test_pip_backtracks_without_a_wheel(
    version: str, tmp_path: Path, pip_of: Callable[[str], Pip]
) -> None:
    padding = {"data.bin": os.urandom(SIZE)}
    wheels = [
        stub_wheel(tmp_path, name, version, tag=TAG, requires=needs, members=padding)
        for name, version, needs in (
            ("demo", "1.0", ["other==1.0"]),
            ("demo", "2.0", ["other==2.0"]),
            ("other", "1.0", []),
        )
    ]
    words = ("--cuda-driver", "12.8", "--sm-arch", "8.0", "--dry-run")
    with serve_answers(upstream(*wheels)) as server:
        done = pip_of(version)(
            *("install", "-i", f"{server.url}/simple/", *words, "demo"), forced=False
        )
        assert done.code == 0, done.text
        assert "Would install demo-1.0 other-1.0" in done.text
        whole = [text for text in of_files(server) if text.endswith("whole")]
        # The oldest pip downloads the files also in a dry run.
        assert len(whole) == (2 if version == PIPS[0] else 0)
        assert not any("demo-2.0" in text for text in whole)


@pytest.mark.parametrize(
    "lie", ["Version: 1.1", "Version: 1.0+cu128", "Version: 1.0\nRequires-Python: >=99"]
)
def test_wrong_metadata_hides_no_wheel(
    lie: str, tmp_path: Path, pip_of: Callable[[str], Pip]
) -> None:
    """pip alone would verify the wheel before it uses an older release."""
    padding = {"demo.bin": os.urandom(SIZE)}
    wheel = stub_wheel(tmp_path, "demo", "1.0", tag=TAG, members=padding)
    older = stub_wheel(tmp_path, "demo", "0.9")
    answers = upstream(wheel, older)
    with zipfile.ZipFile(false := tmp_path / "lie.whl", "w") as archive:
        archive.writestr("demo.bin", padding["demo.bin"])
        text = f"Metadata-Version: 2.1\nName: demo\n{lie}\n"
        archive.writestr("demo-1.0.dist-info/METADATA", text)
    place = f"/files/{wheel.name}"
    answers[place] = replace(answers[place], parts=false.read_bytes())
    words = ("--cuda-driver", "12.8", "--sm-arch", "8.0", "--dry-run", "demo")
    with serve_answers(answers) as server:
        index = f"{server.url}/simple/"
        done = pip_of(PIPS[-1])("install", "-i", index, *words, forced=False)
        assert "Would install demo-1.0" in done.text
        assert any("bytes=" in text for text in of_files(server))
