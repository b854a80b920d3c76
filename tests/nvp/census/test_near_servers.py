"""An index elsewhere whose pages name wheels on servers of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from support.authority import HOST
from support.command import Run
from support.containers import library
from support.gpu_wheels import Wheel
from support.proxy import serve_proxy
from support.range_server import Answer, RangeServer, serve_answers

from nvp.census.store import Store

PAGE = f"http://{HOST}/simple/demo/"


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[RangeServer]:
    """Run a server that only this machine can reach."""
    with serve_answers({f"/{wheel(tmp_path).name}": Answer(body=b"secret")}) as server:
        yield server


def wheel(folder: Path) -> Path:
    libraries = {"demo/lib.so": library("80_real")}
    return Wheel(libraries=libraries, sm=["80_real"]).write(folder / "wheels")


@pytest.fixture
def page(
    inner: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RangeServer]:
    """Serve a page through a proxy, without resolving its host name on this machine."""
    path = wheel(tmp_path)
    files = [path.name, "demo-1.0-variants.json"]
    digest = sha256(b"secret").hexdigest()
    links = (f'<a href="{inner.url}/{name}#sha256={digest}">x</a>' for name in files)
    body = f"<!DOCTYPE html>{''.join(links)}".encode()
    answers = {"/simple/demo/": Answer(body=body, kind="text/html")}
    with serve_answers(answers) as server, serve_proxy(server.url) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
        monkeypatch.setenv("PIP_TRUSTED_HOST", HOST)
        yield server


MESSAGE = "only this machine or its network can reach the server"


def test_a_census_sends_no_request_there(
    page: RangeServer, inner: RangeServer, tmp_path: Path, run: Run
) -> None:
    store = tmp_path / "census.sqlite"
    url = PAGE.removesuffix("demo/")
    outcome = run("census", url, "--project", "demo", "-o", store, "--jobs", 1)
    assert page.requests
    assert inner.requests == []
    assert outcome.code == 1
    assert MESSAGE in outcome.err
    with Store(str(store)) as opened:
        (row,) = opened.wheels()
    assert row["status"] == "failed"
    assert MESSAGE in row["reason"]


def test_a_census_of_a_copied_page_sends_no_request_there(
    inner: RangeServer, tmp_path: Path, run: Run
) -> None:
    """A directory of pages may be a copy of a stranger's index."""
    folder = tmp_path / "copy" / "demo"
    folder.mkdir(parents=True)
    link = f'<a href="{inner.url}/{wheel(tmp_path).name}">x</a>'
    (folder / "index.html").write_text(link)
    store = tmp_path / "census.sqlite"
    outcome = run("census", folder.parent, "-o", store, "--jobs", 1)
    assert inner.requests == []
    assert outcome.code == 1
    assert MESSAGE in outcome.err


@pytest.mark.parametrize("options", [(), ("--no-hash",)])
def test_validate_sends_no_request_there(
    page: RangeServer, inner: RangeServer, options: tuple[str, ...], run: Run
) -> None:
    data = run("validate", PAGE, *options, "--json").data
    assert page.requests
    assert inner.requests == []
    refused = [item["code"] for item in data["findings"] if MESSAGE in item["message"]]
    assert sorted(refused) == ["NV100", "NV411"]
