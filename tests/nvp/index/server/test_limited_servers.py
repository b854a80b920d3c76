"""Failures that pass: a server limits requests, or fails once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from pip._internal.exceptions import InstallationError
from support.index_server import start_server
from support.loopback import JSON, start
from support.processes import PIPS, Pip
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel

from nvp.index.pip import hooks
from nvp.index.server import kept_pages
from nvp.index.server.kept_pages import KeptPages

EDGES = [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]
LINUX = "cp311-cp311-manylinux_2_17_x86_64"
PAGE = "/simple/p/"
RELEASES = range(20)
TORCH = f"torch-9.0-{LINUX}.whl"
SECRET = "secret-1.0-py3-none-any.whl"


class Limited:
    """An index that refuses pages with 429 after requests for METADATA.

    :param refusals: how often it refuses them.
    :param status: the status of a refusal.
    """

    def __init__(self, refusals: int, status: int = 429) -> None:
        self.refusals, self.refusal = refusals, status
        self.asked: list[str] = []

    @property
    def metadata(self) -> int:
        """The number of requests for METADATA."""
        return sum(path.endswith(".metadata") for path in self.asked)

    def status(self, path: str) -> int:
        """Return the status of a reply."""
        self.asked.append(path)
        if self.metadata and path.endswith("/secret/") and self.refusals > 0:
            self.refusals -= 1
            return self.refusal
        is_metadata = path.endswith(".metadata")
        if is_metadata and self.metadata > len(RELEASES) // 2:
            return 429
        return 404 if path == "/simple/kern/" else 200


def page(name: str, *wheels: str) -> bytes:
    files: list[dict[str, Any]]
    files = [{"filename": x, "url": x, "hashes": {}} for x in wheels]
    for file in files if name != "secret" else ():
        file |= {"size": 20_000_000, "core-metadata": True}
    document = {"meta": {"api-version": "1.0"}, "name": name, "files": files}
    return json.dumps(document).encode()


def metadata_of(name: str, version: str, requirement: str) -> bytes:
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    return f"{text}Requires-Dist: {requirement}\n".encode()


@contextmanager
def serve_limited(limits: Limited, wheel: bytes = b"") -> Iterator[str]:
    """Serve an index with torch, of which no release runs, and one other project.

    :param wheel: the wheel of the other project.
    """
    torch = [f"torch-9.{number}-{LINUX}.whl" for number in RELEASES]
    pages = {
        "/simple/torch/": page("torch", *torch),
        "/simple/secret/": page("secret", SECRET),
        f"/simple/secret/{SECRET}": wheel,
    }

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            status = limits.status(self.path)
            version = self.path.split("-")[1] if "-" in self.path else ""
            text = metadata_of("torch", version, "nvidia-cuda-runtime-cu13")
            body = pages.get(self.path, text) if status == 200 else b"slow"
            self.send_response(status)
            self.send_header("Content-Type", JSON)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with start_server(Handler) as url:
        yield f"{url}simple/"


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("refusals", [2, 100])
def test_a_page_after_too_many_requests(
    refusals: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvp sent 40 requests, and pip took the next index when its own was refused."""
    monkeypatch.setattr(kept_pages, "_PAUSES", (0.0, 0.0, 0.0))
    limits = Limited(refusals, status)
    with serve_limited(limits) as url, start(url) as running:
        assert running.page().status == 200
        # Requests that are on their way continue.
        assert len(RELEASES) // 2 < limits.metadata < len(RELEASES)
        reply = running.page("secret")
        if refusals == 100:
            assert b"perhaps because of the requests of nvp" in reply.body
            assert not reply.body.startswith(b"{")  # which stops every installer
        else:
            assert reply.files.keys() == {SECRET}


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "0"}])
def test_an_index_that_refuses_each_page_from_the_start(
    headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier command had used up the requests, and pip took the next index."""
    monkeypatch.setattr(kept_pages, "_PAUSES", (0.0,))
    with (
        serve_answers({PAGE: Answer(status=429, headers=headers)}) as server,
        start(f"{server.url}/simple/") as running,
    ):
        assert b"perhaps because of the requests of nvp" in running.page("p").body


def test_an_index_that_is_down() -> None:
    """An installer decides what follows, as alone, also if nvp itself asks others."""
    torch = {"/simple/torch/": Answer(body=page("torch", TORCH), kind=JSON)}
    with (
        serve_answers({PAGE: Answer(status=503)}) as server,
        serve_answers(torch) as other,
        start(f"{other.url}/simple/", f"{server.url}/simple/") as running,
    ):
        assert running.page().status == 200
        assert other.requests.count(f"/simple/torch/{TORCH}.metadata whole") == 1
        assert running.page("p", number=1).status == 503


@pytest.mark.parametrize("status", [429, 503])
def test_requests_to_another_server_of_the_index(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit may be that of the pages and of the server of the files together."""
    monkeypatch.setattr(kept_pages, "_PAUSES", (0.0,))
    with serve_answers({}) as files:
        entry: dict[str, Any] = {"filename": TORCH, "hashes": {}}
        entry |= {"size": 20_000_000, "core-metadata": True}
        entry["url"] = f"{files.url}/{TORCH}"
        document = {"meta": {"api-version": "1.0"}, "name": "torch", "files": [entry]}
        answers = {
            "/simple/torch/": Answer(body=json.dumps(document).encode(), kind=JSON),
            PAGE: Answer(status=status),
        }
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/") as running,
        ):
            assert running.page().status == 200
            assert b"perhaps because of the requests of nvp" in running.page("p").body


@pytest.mark.parametrize("version", EDGES)
def test_pip_reads_a_page_again(
    version: str, pip_of: Callable[[str], Pip], tmp_path: Path
) -> None:
    """pip reads the pages itself, and it skips an index after 429."""
    kern = stub_wheel(tmp_path, "kern", "1.0", tag=LINUX, requires=["torch>=9"])
    metadata = metadata_of("kern", "1.0", "torch>=9")
    secret = stub_wheel(tmp_path, "secret", "0.5")
    other = {
        "/simple/kern/": Answer(body=page("kern", kern.name), kind=JSON),
        f"/simple/kern/{kern.name}.metadata": Answer(body=metadata),
        f"/simple/kern/{kern.name}": Answer(body=kern.read_bytes()),
        "/simple/secret/": Answer(body=page("secret", secret.name), kind=JSON),
        f"/simple/secret/{secret.name}": Answer(body=secret.read_bytes()),
    }
    own = stub_wheel(tmp_path, "secret", "1.0").read_bytes()
    limits = Limited(refusals=2)
    with serve_limited(limits, own) as url, serve_answers(other) as server:
        words = ("--index-url", url, "--extra-index-url", f"{server.url}/simple/")
        machine = ("--cuda-driver", "12.9", "--sm-arch", "8.0")
        asked = ("--no-deps", "--dest", tmp_path / "it", "kern", "secret")
        done = pip_of(version)(*machine, "download", *words, *asked)
    assert limits.metadata
    assert done.code == 0, done.text
    names = [path.name for path in (tmp_path / "it").iterdir()]
    assert sorted(names) == [kern.name, SECRET]


def test_pip_stops_if_its_index_refuses_a_page_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would use the next index, although nvp has used up the requests."""
    monkeypatch.setattr(hooks, "_PAUSES", (0, 0))
    statuses: list[object] = []

    def ask(_: str, __: str, ___: object, body: bytes) -> tuple[int, None, bytes]:
        statuses.append(json.loads(body)[3])
        return 429, None, b""

    monkeypatch.setattr(hooks, "ask", ask)

    class Link(NamedTuple):
        url: str
        cache_link_parsing: bool = True

    class Collector:
        def _get_index_content(self, link: Link, **_: object) -> None:
            response = SimpleNamespace(status_code=429)
            self._handle_get_simple_fail(link, SimpleNamespace(response=response))

        def _handle_get_simple_fail(self, *_: object) -> None:
            """Log nothing."""

        logger = logging.getLogger(__name__)

    collector: Any = Collector()
    hooks.read_pages(collector, {"http://local/": "https://index.example/"}, {})
    session = SimpleNamespace(is_secure_origin=lambda _: True)
    with pytest.raises(InstallationError, match="is refused, perhaps because of"):
        collector._get_index_content(Link("http://local/kern/"), session=session)
    assert statuses == [429, 429]


@pytest.mark.parametrize("status", [404, 412, 500])
def test_an_index_fails_if_it_is_asked_for_changes(status: int) -> None:
    """Installers without a cache send no conditional requests."""
    first = page("p", "p-1.0-py3-none-any.whl")
    headers = {"ETag": '"1"', "Cache-Control": "max-age=0, must-revalidate"}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            is_failing = "If-None-Match" in self.headers
            self.send_response(status if is_failing else 200)
            for name, value in {"Content-Type": JSON, **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"" if is_failing else first)

    with (
        start_server(Handler) as url,
        start(f"{url}simple/", kept=KeptPages(lambda _: None)) as running,
    ):
        for _ in range(2):
            reply = running.page("p")
            assert reply.status == 200
            assert reply.files.keys() == {"p-1.0-py3-none-any.whl"}
