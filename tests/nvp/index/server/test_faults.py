"""Upstreams that are down, slow or broken."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import socket
import time
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from support.documents import TORCH, of_one
from support.index_server import start_server
from support.loopback import (
    JSON,
    PLAIN,
    answers_of,
    ask,
    page_of,
    passed_over,
    start,
    start_with_limits,
    wheels,
)
from support.range_server import Answer, serve_answers
from support.wheels import publish, stub_wheel

from nvp.index.http import client
from nvp.index.http.threads import Space

BEST = "torch-2.8.0-3cu128-py3-none-any.whl"
WHEEL = "/simple/torch/torch-2.8.0-py3-none-any-cu128.whl"
METADATA = "/simple/torch/torch-2.8.0-variants.json"
PAGE = "/simple/torch/"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index in a directory."""
    found = tmp_path_factory.mktemp("index")
    publish(found, TORCH, "torch", "2.8.0")
    return found


@pytest.fixture(autouse=True)
def no_noise(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Check that a fault of an upstream is not reported as a fault of the server."""
    yield
    assert "Traceback" not in capfd.readouterr().err


class TestPages:
    def test_an_upstream_that_is_down(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            with start(f"http://127.0.0.1:{port}/simple/") as running:
                for _ in range(2):
                    assert running.page().status == 503
                # pdm, for example, would use the next index after 503.
                other = running.page(User_Agent="pdm/2.26")
                assert (other.status, other.text[:7]) == (200, "error: ")

    def test_a_compressed_page(self, folder: Path) -> None:
        answers = answers_of(folder)
        answers[PAGE] = Answer(
            body=gzip.compress(answers[PAGE].body),
            kind="text/html",
            headers={"Content-Encoding": "gzip"},
        )
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/") as running,
        ):
            assert BEST in wheels(running)

    def test_urls_are_relative_to_the_page_after_redirects(self, folder: Path) -> None:
        answers = answers_of(folder)
        answers = {
            path.replace("/simple/", "/mirror/a/"): answer
            for path, answer in answers.items()
        }
        answers[PAGE] = Answer(status=301, headers={"Location": "/mirror/a/torch/"})
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/") as running,
        ):
            reply = ask(running.page().files[BEST])
            assert reply.headers["location"].startswith(f"{server.url}/mirror/a/torch/")

    def test_credentials_stay_with_their_server(self) -> None:
        seen: list[str] = []
        with _recording(seen) as other:
            away = Answer(status=302, headers={"Location": f"{other}x/"})
            with serve_answers({PAGE: away}, credentials="user:pass") as server:
                url = server.url.replace("//", "//user:pass@")
                with start(f"{url}/simple/") as running:
                    reply = running.page()
                    assert (reply.status, "pass" in reply.text) == (302, False)
                    assert reply.headers["location"] == f"{other}x/"
        assert len(seen) == 1
        assert "authorization" not in seen[0]

    def test_ten_thousand_files(self) -> None:
        files: list[dict[str, Any]] = [
            {
                "filename": f"torch-{n}.0-py3-none-any.whl",
                "url": f"torch-{n}.0-py3-none-any.whl",
                "hashes": {},
            }
            for n in range(9_900)
        ]
        for label in ("cu126", "cu128"):
            name = f"torch-1.0-py3-none-any-{label}.whl"
            item = {"filename": name, "url": name, "hashes": {}, "core-metadata": True}
            files.append(item)
        name = "torch-1.0-variants.json"
        files.append({"filename": name, "url": name, "hashes": {}})
        answers = page_of(*files)
        answers[f"{PAGE}{name}"] = Answer(body=json.dumps(TORCH).encode())
        for label in ("cu126", "cu128"):
            name = f"torch-1.0-py3-none-any-{label}.whl.metadata"
            answers[f"{PAGE}{name}"] = Answer(body=b"Name: torch\nVersion: 1.0\n")
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/") as running,
        ):
            found = running.page().files
            assert len(found) == len(files)
            assert "torch-1.0-2cu128-py3-none-any.whl" in found
            # The page and the metadata file are read once, and so is METADATA of one
            # wheel of each label.
            assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (Answer(status=404), "HTTP 404"),
        (Answer(status=403), "HTTP 403"),
        (Answer(status=500), "HTTP 500"),
        (Answer(body=b"{"), "JSON"),
        (Answer(body=b"\xff\xfe"), ""),
        (Answer(body=json.dumps({**TORCH, "variants": {}}).encode()), ""),
        (Answer(body=b"x" * 99, fault="cut"), "cannot be read"),
        (Answer(fault="hang"), "no response within"),
        (Answer(body=b"x" * 99, fault="drip"), "not complete after"),
        (Answer(body=bytes(5 << 20)), "larger than 4 MiB"),
        (Answer(status=302, headers={"Location": METADATA}), "10 redirects"),
        (Answer(status=302, headers={"Location": "file:///etc/passwd"}), "only http"),
    ],
)
def test_a_broken_metadata_file(answer: Answer, word: str, folder: Path) -> None:
    answers = answers_of(folder)
    answers[PAGE] = _unhashed(answers[PAGE])
    answers[METADATA] = answer
    with (
        serve_answers(answers) as server,
        start_with_limits(server, answer) as running,
    ):
        if answer.body == json.dumps({**TORCH, "variants": {}}).encode():
            assert wheels(running) == [PLAIN]
            assert "wheels are ignored" in running.warnings[0]
            return
        assert word in passed_over(running)


def test_a_metadata_file_with_another_hash(folder: Path) -> None:
    answers = answers_of(folder)
    document = json.dumps(TORCH)  # The same content has other bytes.
    answers[METADATA] = Answer(body=document.encode())
    with serve_answers(answers) as server, start(f"{server.url}/simple/") as running:
        assert "sha256 is not the one" in passed_over(running)


def test_a_hash_in_capital_letters(folder: Path) -> None:
    answers = answers_of(folder)
    digest = hashlib.sha256(answers[METADATA].body).hexdigest()
    page = answers[PAGE].body.replace(digest.encode(), digest.upper().encode())
    answers[PAGE] = Answer(body=page, kind="text/html")
    with serve_answers(answers) as server, start(f"{server.url}/simple/") as running:
        assert BEST in wheels(running)
        # The metadata file is read only once.
        running.page()
        assert len([r for r in server.requests if METADATA in r]) == 1


def _unhashed(page: Answer) -> Answer:
    return Answer(body=re.sub(rb"#sha256=\w+", b"", page.body), kind="text/html")


class TestMarkers:
    @pytest.mark.parametrize("separate", [True, False])
    def test_a_wheel_is_rewritten(self, separate: bool, tmp_path: Path) -> None:
        publish(tmp_path, TORCH, "torch", "2.8.0")
        marker = "a; 'cu128' in variant_label"
        path = stub_wheel(
            tmp_path / "torch",
            "torch",
            "2.8.0",
            "cu128",
            variant_json=of_one("cu128"),
            requires=[marker],
        )
        answers = answers_of(tmp_path)
        page = _unhashed(answers[PAGE])
        if separate:
            text = f"Name: torch\nVersion: 2.8.0\nRequires-Dist: {marker}\n"
            answers[f"{WHEEL}.metadata"] = Answer(body=text.encode())
            page = Answer(
                body=page.body.replace(
                    f'"{path.name}"'.encode(),
                    f'"{path.name}" data-core-metadata="true"'.encode(),
                ),
                kind="text/html",
            )
        answers[PAGE] = page
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/") as running,
        ):
            url = running.page().files[BEST]
            reply = ask(f"{url}.metadata")
            assert "Requires-Dist: a\n" in reply.text
            wheel = zipfile.ZipFile(io.BytesIO(ask(url).body))
            assert wheel.testzip() is None
            (name,) = (n for n in wheel.namelist() if n.endswith("/METADATA"))
            assert b"Requires-Dist: a\n" in wheel.read(name)
            assert running.warnings == []
            other = running.page().files[BEST.replace("3cu128", "2cu126")]
            assert ask(other).status == 302

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"status": 500}, "HTTP 500"),
            ({"status": 404}, "HTTP 404"),
            ({"body": b"no wheel"}, "not a readable archive"),
        ],
    )
    def test_a_wheel_whose_metadata_cannot_be_read_is_passed_over(
        self, folder: Path, changes: dict[str, Any], reason: str
    ) -> None:
        """The wheel may have variant markers, and pip would install the wheel
        unchanged."""
        answers = answers_of(folder)
        answers[WHEEL] = replace(answers[WHEEL], ranges=False, **changes)
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/") as running,
        ):
            assert sorted(set(wheels(running))) == [
                "torch-2.8.0-1null-py3-none-any.whl",
                "torch-2.8.0-2cu126-py3-none-any.whl",
                PLAIN,
            ]
            (warning,) = running.warnings
            assert warning.startswith(
                "torch 2.8.0: variant cu128 is passed over, because its METADATA "
                "cannot be read or used: "
            )
            assert reason in warning
            running.page()
            assert len(running.warnings) == 1


def test_indexes_with_the_same_release_are_apart(tmp_path: Path) -> None:
    # The second index has a build named cu128 for another GPU.
    variants = {**TORCH["variants"], "cu128": {"nvidia": {"sm_arch": ["70_real"]}}}
    publish(tmp_path / "a", TORCH, "torch", "2.8.0")
    publish(tmp_path / "b", {**TORCH, "variants": variants}, "torch", "2.8.0")
    urls = str(tmp_path / "a"), str(tmp_path / "b")
    with start(*urls) as running:
        first, second = (list(running.page(number=n).files) for n in (0, 1))
        assert "torch-2.8.0-7cu128-py3-none-any.whl" in first
        assert "torch-2.8.0-2cu126-py3-none-any.whl" in second
        assert not any("cu128" in name for name in second)
        # A name that one index shows does not exist on the other index.
        for number, name in ((0, "2cu126"), (1, "7cu128")):
            root = running.urls[number].removesuffix("simple/")
            url = f"{root}f/torch/-/0/torch-2.8.0-{name}-py3-none-any.whl"
            assert ask(url).status == 404
        assert (
            running.local_index.find_shown_releases("torch")["2.8.0"].labels[0]
            == "cu128"
        )


def _recording(seen: list[str]) -> AbstractContextManager[str]:
    """Run a server that records the names of the headers that it receives."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            seen.append(" ".join(key.lower() for key in self.headers))
            self.send_error(404)

    return start_server(Handler)


def test_a_redirect_does_not_choose_credentials(folder: Path) -> None:
    """Otherwise a hostile index could log in to other servers of the user."""
    with serve_answers(answers_of(folder), credentials="inj:ected") as target:
        there = target.url.replace("//", "//inj:ected@") + PAGE
        answers = {PAGE: Answer(status=302, headers={"Location": there})}
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/") as running,
        ):
            reply = running.page()
            assert (reply.status, reply.headers["location"]) == (302, there)
        assert target.requests == []


LONG = "1" * 4301
"""A number with more digits than Python converts."""


@pytest.mark.parametrize(
    "name",
    [
        f"torch-{LONG}-py3-none-any.whl",
        f"torch-{LONG}-py3-none-any-cu126.whl",
        f"torch-2.0+cu{LONG}-py3-none-any.whl",
        f"torch-2.0-{LONG}-py3-none-any.whl",
        f"torch-{LONG}.tar.gz",
        f"torch-{LONG}-variants.json",
    ],
)
@pytest.mark.parametrize("kind", [JSON, "text/html"])
def test_a_page_with_a_name_that_is_too_long_is_passed_on(kind: str, name: str) -> None:
    """pip alone ends with an error if it selects the file."""
    names = [name, "torch-1.0.zip"]
    if kind == JSON:
        files = [{"filename": n, "url": n, "hashes": {}} for n in names]
        answers = page_of(*files)
    else:
        body = "".join(f"<a href='{quote(n)}'>x</a>" for n in names).encode()
        answers = {"/simple/torch/": Answer(body=body, kind=kind)}
    with serve_answers(answers) as server, start(f"{server.url}/simple/") as running:
        page = running.page()
        assert page.status == 302
        assert page.headers["location"] == f"{server.url}{PAGE}"


@pytest.mark.parametrize("size", [1, 300_000])
def test_the_files_of_a_large_page_are_counted(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    given: list[int] = []
    monkeypatch.setattr(Space, "give_back", lambda _, files: given.append(files))

    async def take(_: Space, files: int, **__: bool) -> None:
        taken.append(files)

    monkeypatch.setattr(Space, "take", take)
    names = [f"torch-{n}.zip" for n in range(101)]
    files = [{"filename": name, "url": name, "hashes": {}} for name in names]
    answers = page_of({**files[0], "_x": "x" * size}, *files[1:])
    with serve_answers(answers) as server, start(f"{server.url}/simple/") as running:
        assert running.page().status == 200
    assert sum(given) == sum(taken)
    assert taken
    assert set(taken) == {15_000}


def test_a_large_page_that_arrives_slowly_delays_no_other_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page of another index waited for up to two minutes."""
    monkeypatch.setattr(client, "LARGE", 0)
    slow = {PAGE: Answer(body=b" " * 100, kind=JSON, fault="drip")}
    with (
        serve_answers(slow) as first,
        serve_answers(page_of()) as second,
        start(f"{first.url}/simple/", f"{second.url}/simple/") as running,
    ):
        url = urlsplit(running.urls[0])
        with socket.create_connection(("127.0.0.1", url.port or 0), 60) as waiting:
            head = f"GET {url.path}torch/ HTTP/1.0\r\nHost: localhost\r\n\r\n"
            waiting.sendall(head.encode())
            while not first.requests:
                time.sleep(0.01)
            time.sleep(0.5)  # the first byte has arrived
            assert ask(running.urls[1] + "torch/").status == 200
            waiting.setblocking(False)
            with pytest.raises(BlockingIOError):
                waiting.recv(1)
