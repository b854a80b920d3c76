"""`serve` and `validate` with a hostile index that tries to block them."""

from __future__ import annotations

import gzip
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.grids import some_of
from support.processes import clean_environ, provider
from support.range_server import Answer, RangeServer, serve_answers
from support.serving import Serving, fetch, serving

PAGES = {
    "quotes": Answer(body=b"<a x='" * 300_000, kind="text/html"),
    "comments": Answer(body=b"<!--" * 500_000, kind="text/html"),
    "ends": Answer(body=b"</" * 1_000_000, kind="text/html"),
    "bomb": Answer(
        body=gzip.compress(b"<a>" * 7_000_000),
        kind="text/html",
        headers={"Content-Encoding": "gzip"},
    ),
    "lists": Answer(
        body=b'{"files":[' + b"[]," * 5_000_000 + b"[]]}",
        kind="application/vnd.pypi.simple.v1+json",
    ),
}
ENDING = [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
CLIENTS_GONE = 7


@pytest.fixture(scope="module")
def upstream() -> Iterator[RangeServer]:
    """Return an index with hostile pages, and with a wheel that never ends."""
    answers = {f"/simple/{name}/": page for name, page in PAGES.items()}
    answers["/simple/fine/"] = Answer(body=b"<a href=fine-1.zip>", kind="text/html")
    wheel = "drip-1.0-py3-none-any-cu126.whl"
    link = f"<a href=/files/{wheel}>".encode()
    answers["/simple/drip/"] = Answer(body=link, kind="text/html")
    answers[f"/files/{wheel}"] = Answer(body=b"x" * 100_000, fault="drip")
    with serve_answers(answers) as server:
        yield server


@pytest.fixture
def server(upstream: RangeServer, tmp_path: Path) -> Iterator[Serving]:
    """Return a process that serves the index."""
    machine = ("--cuda-driver", "12.9", "--sm-arch", "9.0")
    environ = clean_environ(tmp_path / "home")
    with serving("-i", f"{upstream.url}/simple/", *machine, environ=environ) as process:
        yield process


def leave_early(server: Serving, project: str) -> None:
    """Request the page of a project several times, without waiting for a reply."""
    parts = urlsplit(server.urls[0])
    for _ in range(CLIENTS_GONE):
        with socket.create_connection(("127.0.0.1", parts.port or 0)) as client:
            request = f"GET {parts.path}{project}/ HTTP/1.1\r\nHost: localhost\r\n\r\n"
            client.sendall(request.encode())


@pytest.mark.parametrize("project", some_of(((name,) for name in PAGES), 3))
def test_others_are_served_after_a_hostile_page(server: Serving, project: str) -> None:
    leave_early(server, project)
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    status, _, body = fetch(f"{server.urls[0]}{project}/", headers=accept)
    assert status in (200, 502)
    assert status == 200 or b"is refused: it has" in body
    assert fetch(f"{server.urls[0]}fine/")[0] == 200
    code, said = server.stop(signal.SIGTERM)
    assert code == 0
    assert "Traceback" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
@pytest.mark.parametrize("number", ENDING)
def test_a_signal_ends_it_while_threads_wait_for_a_server(
    server: Serving, upstream: RangeServer, number: signal.Signals
) -> None:
    upstream.requests.clear()
    leave_early(server, "drip")
    upstream.requests.wait_for("/files/drip")
    code, said = server.stop(number)
    assert code == 0
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "project",
    [
        "quotes",
        "bomb",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("comments", "ends", "lists")
        ),
    ],
)
def test_validate_reads_or_refuses_hostile_pages(
    project: str, upstream: RangeServer, tmp_path: Path
) -> None:
    environ = clean_environ(tmp_path)
    done = provider("validate", f"{upstream.url}/simple/{project}/", environ=environ)
    assert done.code in (1, 3)
    assert "Traceback" not in done.text
