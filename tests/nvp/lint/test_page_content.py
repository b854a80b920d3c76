"""Wheels on pages: their hashes, their GPU code, and notes about skipped checks."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.command import Run
from support.containers import library
from support.content_cases import CASES
from support.documents import TORCH
from support.gpu_wheels import Wheel
from support.index_server import start_server
from support.range_server import Answer, RangeServer, serve_answers
from support.wheels import publish, stub_wheel

from nvp.index.http import ranges
from nvp.lint import files as lint_files
from nvp.lint.files import Unchecked, UncheckedFiles
from nvp.lint.findings import Finding
from nvp.lint.runner import check_paths

COMMAND = "validate"


@contextmanager
def page(
    files: Mapping[str, bytes],
    *,
    hashes: Mapping[str, str | None] | None = None,
    ranges: bool = True,
) -> Iterator[RangeServer]:
    """Serve files and a page that links them.

    :param hashes: the hashes on the page that differ from those of the files.
    """
    links = []
    for name, data in files.items():
        given = {name: sha256(data).hexdigest(), **(hashes or {})}[name]
        links.append(f'<a href="/{name}#sha256={given}">{name}</a>')
        if given is None:
            links[-1] = f'<a href="/{name}">{name}</a>'
    body = "<!DOCTYPE html>" + "".join(links)
    answers = {f"/{name}": Answer(body=x, ranges=ranges) for name, x in files.items()}
    answers["/demo/"] = Answer(body=body.encode(), kind="text/html")
    with serve_answers(answers) as server:
        yield server


class Checked(NamedTuple):
    """The report of a run, and its requests to the server."""

    findings: list[Finding]
    unchecked: list[Unchecked]
    asked: list[str]

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings}


def check(server: RangeServer, **options: Any) -> Checked:
    unchecked = UncheckedFiles()
    url = f"{server.url}/demo/"
    findings = check_paths([url], unchecked=unchecked, **options)
    asked = [line for line in server.requests if "/demo/" not in line]
    return Checked(findings, unchecked.all, asked)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """The files of a release without defects."""
    publish(tmp_path, TORCH, "demo", "1.0")
    (tmp_path / "demo" / "index.html").unlink()
    return {path.name: path.read_bytes() for path in (tmp_path / "demo").iterdir()}


WHEEL, METADATA = "demo-1.0-py3-none-any-cu126.whl", "demo-1.0-variants.json"


class TestHashes:
    @pytest.mark.parametrize("name", [WHEEL, METADATA])
    def test_a_wrong_hash_is_a_finding(
        self, files: dict[str, bytes], name: str
    ) -> None:
        with page(files, hashes={name: "0" * 64}) as server:
            checked = check(server)
        (finding,) = (f for f in checked.findings if f.code == "NV417")
        assert finding.path == f"{server.url}/{name}"
        assert sha256(files[name]).hexdigest() in finding.message
        assert checked.unchecked == []

    def test_capital_letters_are_the_same_hash(self, files: dict[str, bytes]) -> None:
        given = sha256(files[WHEEL]).hexdigest().upper()
        with page(files, hashes={WHEEL: given}) as server:
            assert "NV417" not in check(server).codes

    @pytest.mark.parametrize(
        "options", [{"hashes": False}, {"ignore": ["NV417"]}, {"select": ["NV3"]}]
    )
    def test_wheels_are_downloaded_only_to_compare_hashes(
        self, files: dict[str, bytes], options: dict[str, Any]
    ) -> None:
        with page(files, hashes={WHEEL: "0" * 64}) as server:
            checked = check(server, **options)
        assert "NV417" not in checked.codes
        assert not [x for x in checked.asked if ".whl" in x and x.endswith("whole")]
        assert ("the sha256", 5) in {(x.what, x.files) for x in checked.unchecked}

    def test_missing_hashes_are_one_finding(self, files: dict[str, bytes]) -> None:
        names = dict.fromkeys([WHEEL, METADATA])
        with page(files, hashes=names) as server:
            checked = check(server)
        (finding,) = (f for f in checked.findings if f.code == "NV418")
        assert finding.path == f"{server.url}/demo/"
        assert "2 files" in finding.message

    def test_ordinary_releases_need_no_hash(self, tmp_path: Path) -> None:
        wheel = stub_wheel(tmp_path, "demo", "2.0")
        files = {wheel.name: wheel.read_bytes()}
        with page(files, hashes={wheel.name: None}) as server:
            checked = check(server)
        assert checked.findings == []
        assert checked.asked == []
        (item,) = checked.unchecked
        assert (item.what, item.files) == ("everything", 1)
        assert "neither labels nor metadata" in item.reason


class TestGpuCode:
    @pytest.mark.parametrize("hashes", [True, False])
    def test_a_false_claim_is_found(self, tmp_path: Path, hashes: bool) -> None:
        path = CASES["NV501"].trigger.write(tmp_path)
        with page({path.name: path.read_bytes()}) as server:
            checked = check(server, hashes=hashes)
        assert "NV501" in checked.codes
        (finding,) = (f for f in checked.findings if f.code == "NV501")
        assert finding.path == f"{server.url}/{path.name}"
        assert [x.endswith("whole") for x in checked.asked] in ([True], [False] * 1)

    def test_without_hashes_only_the_parts_with_libraries_are_read(
        self, tmp_path: Path
    ) -> None:
        path = Wheel(
            libraries={"demo/data.txt": bytes(9_000_000), **one_library()},
            sm=["90_real"],
        ).write(tmp_path)
        with page({path.name: path.read_bytes()}) as server:
            checked = check(server, hashes=False)
        assert "NV501" in checked.codes
        assert 0 < len(checked.asked) <= 2
        assert sum(map(length, checked.asked)) < 600_000

    def test_nothing_but_metadata_is_read_with_both_options(
        self, tmp_path: Path
    ) -> None:
        path = Wheel(
            libraries={"demo/lib.so": library("80_real") + bytes(9_000_000)},
            sm=["90_real"],
        ).write(tmp_path)
        with page({path.name: path.read_bytes()}) as server:
            checked = check(server, hashes=False, ignore=["NV5"])
        assert len(checked.asked) == 1
        assert [x.what for x in checked.unchecked] == ["the sha256", "libraries"]


def one_library() -> dict[str, bytes]:
    return {"demo/lib.so": library("80_real")}


def length(request: str) -> int:
    start, end = request.rpartition("bytes=")[2].split("-")
    return int(end) - int(start or 0) + 1


class TestServersWithoutRanges:
    @pytest.fixture
    def large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return a wheel that is too large for the memory of the client."""
        monkeypatch.setattr(ranges, "_WHOLE_FILE", 100_000)
        wheel = Wheel(libraries={"demo/lib.so": library("80_real") + bytes(200_000)})
        return wheel.write(tmp_path)

    def test_the_wheel_is_read_whole(self, large: Path) -> None:
        with page({large.name: large.read_bytes()}, ranges=False) as server:
            checked = check(server, hashes=False)
        assert "NV411" not in checked.codes
        assert "NV306" in checked.codes  # the values of variant.json in the wheel
        assert "everything" not in [x.what for x in checked.unchecked]

    @pytest.mark.parametrize("hashes", [True, False])
    def test_a_wheel_beyond_the_limit_is_not_a_finding(
        self, large: Path, hashes: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lint_files, "MAX_WHOLE", 150_000)
        with page({large.name: large.read_bytes()}, ranges=False) as server:
            checked = check(server, hashes=hashes)
        assert checked.codes == {"NV409"}
        items = {item.what: item for item in checked.unchecked}
        assert items["everything"].example == f"{server.url}/{large.name}"
        assert "does not send parts" in items["everything"].reason

    def test_a_full_disk_is_not_a_finding(
        self, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = shutil.disk_usage("/")._replace(free=1000)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        with page(files) as server:
            checked = check(server)
        assert checked.codes & {"NV411", "NV417"} == set()
        assert [(x.what, x.files) for x in checked.unchecked] == [("the sha256", 5)]


def test_a_page_of_thousands_of_files_costs_few_requests(tmp_path: Path) -> None:
    """Only the wheels of releases with variants are requested, each of them once."""
    publish(tmp_path, TORCH, "demo", "1.0")
    (tmp_path / "demo" / "index.html").unlink()
    files = {path.name: path.read_bytes() for path in (tmp_path / "demo").iterdir()}
    names = [f"demo-2.{n}-py3-none-any.whl" for n in range(5000)]
    with page({**files, **dict.fromkeys(names, b"")}) as server:
        checked = check(server, hashes=False)
    assert len(checked.asked) == len(files)
    (everything,) = (x for x in checked.unchecked if x.what == "everything")
    assert everything.files == len(names)


def test_the_command_says_what_was_not_checked(
    run: Run, files: dict[str, bytes]
) -> None:
    with page(files) as server:
        url = f"{server.url}/demo/"
        text = run(url, "--no-hash", "--ignore", "NV5").out
        report = json.loads(run(url, "--no-hash", "--json").out)
    assert (
        "not checked: the sha256 of 5 files: --no-hash is given, or NV417 is left out\n"
        in text
    )
    assert "not checked: libraries of 5 files: the rules NV5 are left out\n" in text
    assert report["data"]["unchecked"] == [
        {
            "what": "the sha256",
            "reason": "--no-hash is given, or NV417 is left out",
            "files": 5,
            "example": f"{server.url}/demo-1.0-py3-none-any-cu126.whl",
        }
    ]


def test_a_server_that_fails_is_no_damage_of_the_wheel(
    tmp_path: Path, run: Run
) -> None:
    """The server sends the end of a wheel with METADATA, but not the library."""
    wheel = Wheel(libraries=one_library(), sm=["80_real"]).write(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        members = {"demo/pad.bin": bytes(1_000_000), **members}
        for name in sorted(members, key=lambda name: ".dist-info/" in name):
            archive.writestr(name, members[name])
    body = wheel.read_bytes()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            headers, data, status = {"Content-Type": "text/html"}, b"", 200
            wanted = self.headers.get("Range", "")
            if not self.path.endswith(".whl"):
                data = f'<a href="/{wheel.name}">x</a>'.encode()
            elif wanted.startswith("bytes=-"):
                data, status = body[-int(wanted[7:]) :], 206
                first, last = len(body) - len(data), len(body) - 1
                headers = {"Content-Range": f"bytes {first}-{last}/{len(body)}"}
            else:
                status = 403
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with start_server(Handler) as url:
        report = run(f"{url}demo/", "--no-hash", "--json")
        again = run(f"{url}demo/", "--no-hash", "--json")
    found = {item["code"]: item["message"] for item in report.data["findings"]}
    assert "NV512" not in found
    assert found["NV411"].startswith("HTTP 403")
    assert again.data == report.data
