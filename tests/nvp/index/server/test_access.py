"""What only the server has for an index, such as a certificate of pip's configuration.

uv reads no configuration of pip, so it may lack what reaches an index.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.authority import HOST, Authority
from support.index_server import start_server
from support.loopback import JSON, ask, start
from support.proxy import serve_proxy

from nvp.index.http.urls import Settings

NAME = "torch-1.0-py3-none-any.whl"


class _Index(BaseHTTPRequestHandler):
    """An index with one file."""

    keys: Mapping[str, Any] = MappingProxyType({})

    def log_message(self, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        is_page = self.path.endswith("/")
        file = {"filename": NAME, "url": NAME, "hashes": {}, **self.keys}
        page = {"meta": {"api-version": "1.0"}, "name": "torch", "files": [file]}
        body = json.dumps(page).encode() if is_page else b"the wheel"
        self.send_response(200)
        self.send_header("Content-Type", JSON if is_page else "application/x")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Odd(_Index):
    """An index with a page that nvp cannot read."""

    keys = MappingProxyType({"yanked": []})


@contextmanager
def serve_to(
    handler: type[_Index], has: str, folder: Path
) -> Iterator[tuple[str, Settings]]:
    """Yield the URL of an index, and the settings that reach it.

    :param has: what the settings have and an installer may lack.
    """
    authority = Authority(folder)
    if has == "a proxy":
        with start_server(handler) as url, serve_proxy(url.rstrip("/")) as proxy:
            settings = Settings(trust_env=False, trusted_hosts=[HOST], proxy=proxy.url)
            yield f"http://{HOST}/simple/", settings
        return
    settings = {
        "nothing": Settings(trust_env=False),
        "a certificate": Settings(
            trust_env=False, cert=authority.bundle, client_cert=authority.client
        ),
        "an authority": Settings(trust_env=False, cert=authority.bundle),
        "a trusted host": Settings(trust_env=False, trusted_hosts=["127.0.0.1"]),
    }[has]
    tls = authority.context
    if has == "a certificate":
        tls = authority.ask_clients()
    with start_server(handler, None if has == "nothing" else tls) as url:
        yield f"{url}simple/", settings


@pytest.mark.parametrize(
    ("has", "is_passed_on"),
    [
        ("nothing", False),
        ("a certificate", True),
        ("a proxy", True),
        # Without it, the download fails, and no other index takes the file's place.
        ("an authority", False),
        ("a trusted host", False),
    ],
)
def test_a_file_that_only_the_server_reaches(
    has: str, is_passed_on: bool, tmp_path: Path
) -> None:
    with (
        serve_to(_Index, has, tmp_path) as (url, settings),
        start(url, settings=settings) as running,
    ):
        (file,) = running.page().files.values()
        is_of_server = urlsplit(file).netloc == urlsplit(running.urls[0]).netloc
        assert is_of_server is is_passed_on
        if is_passed_on:
            assert ask(file).body == b"the wheel"


@pytest.mark.parametrize(
    ("has", "status"),
    [
        ("nothing", 302),
        ("a certificate", 200),
        ("a proxy", 200),
        ("an authority", 200),
        ("a trusted host", 200),
    ],
)
def test_an_unreadable_page_that_only_the_server_reaches(
    has: str, status: int, tmp_path: Path
) -> None:
    """pip followed the redirect, was refused, and took the file of its next index."""
    with (
        serve_to(_Odd, has, tmp_path) as (url, settings),
        start(url, settings=settings) as running,
    ):
        reply = running.page()
    assert reply.status == status
    if status == 200:
        (file,) = json.loads(reply.body)["files"]
        assert file == {
            "filename": NAME,
            "url": f"{url}torch/{NAME}",
            "hashes": {},
            "yanked": [],
        }
