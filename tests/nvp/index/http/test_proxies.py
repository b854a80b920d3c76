"""Errors about a proxy name the proxy without its credentials; others the files."""

from __future__ import annotations

import asyncio
import base64
import gc
import socket
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from pip._vendor.requests.utils import get_environ_proxies
from support.authority import Authority
from support.index_server import serve
from support.proxy import serve_proxy

from nvp.index.http import connecting
from nvp.index.http.blocking import BlockingClient
from nvp.index.http.client import Client
from nvp.index.http.connecting import find_proxy
from nvp.index.http.urls import Settings, UpstreamError

DEAD = "http://me:secret@127.0.0.1:9"
HINT = "check the proxy: https_proxy, http_proxy, ALL_PROXY or pip's --proxy"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def error_of(url: str, proxy: str | None = None) -> str:
    async def read() -> None:
        client = Client(Settings(timeout=5, plain_http=True, proxy=proxy))
        try:
            await client.get(url)
        finally:
            await client.close()

    with pytest.raises(UpstreamError) as caught:
        asyncio.run(read())
    return str(caught.value)


@pytest.mark.parametrize(
    ("variable", "scheme"),
    [
        ("https_proxy", "https"),
        ("http_proxy", "http"),
        ("ALL_PROXY", "https"),
        ("all_proxy", "http"),
    ],
)
@pytest.mark.parametrize(
    ("proxy", "why"),
    [
        (DEAD, "the proxy http://****@127.0.0.1:9 does not work: All connection "),
        ("127.0.0.1:9", "the proxy http://127.0.0.1:9 does not work: "),
        ("garbage.invalid", "the proxy http://garbage.invalid does not work: "),
        ("http://", "http:// is not the URL of a proxy"),
        ("ftp://me:secret@a", "ftp://****@a is not the URL of a proxy"),
        ("me:secret@a", "me://****@a is not the URL of a proxy"),
        ("m:s/secret@b@a", "m://****@a is not the URL of a proxy"),
        ("http://m.invalid:#secret@a", "http://****@a does not work: "),
        ("http://a:99999", "http://a:99999 is not the URL of a proxy"),
    ],
)
def test_variables(
    variable: str, scheme: str, proxy: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, proxy)
    line = error_of(f"{scheme}://wheels.invalid/simple/")
    assert line.startswith(f"{scheme}://wheels.invalid/simple/: ")
    assert why in line
    assert line.endswith(f"; {HINT}")
    assert "secret" not in line


def test_socks_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setattr(connecting, "find_spec", lambda _: None)
    assert "socks5://127.0.0.1:9 speaks SOCKS" in error_of("https://wheels.invalid/")


# httpcore 1.0 leaves the connection to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("login", "replies"),
    [
        ("", [b""]),
        ("", [b"HTTP/1.1 400 Bad Request\r\n\r\n"]),
        ("", [b"\5\0", b""]),
        ("", [b"\5\0", b"\5\0\0\1"]),
        ("", [b"\5\xff"]),
        ("me:secret@", [b"\5\2", b"\1\1"]),
        (f"me:secret{'x' * 300}@", [b"\5\2"]),
    ],
)
def test_a_proxy_that_does_not_speak_socks(login: str, replies: list[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                for reply in replies:
                    connection.recv(4096)
                    connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        line = error_of("https://wheels.invalid/", f"socks5h://{login}{address}")
        thread.join()
    gc.collect()
    shown = f"socks5h://{'****@' if login else ''}{address}"
    assert f"the proxy {shown} does not work: " in line
    assert line.endswith(f"; {HINT}")
    assert "secret" not in line


@pytest.mark.parametrize("host", ["idx.example", "a.idx.example", "[::1]", "127.0.0.1"])
@pytest.mark.parametrize(
    "names", ["idx.example", ".example", "idx.example:80", "::1", "127.0.0.1", "x", "."]
)
@pytest.mark.parametrize("port", ["", ":80"])
def test_an_empty_no_proxy_does_not_hide_the_other(
    host: str, names: str, port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a proxy gets the credentials of a server that pip reads directly."""
    monkeypatch.setenv("http_proxy", DEAD)
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", names)
    url = f"http://{host}{port}/"
    found = find_proxy(Settings(no_proxy=names), url)
    assert found == get_environ_proxies(url).get("http")


def test_a_server_that_is_no_proxy(tmp_path: Path) -> None:
    with serve(tmp_path) as url:
        line = error_of("https://wheels.invalid/", url)
    assert f"the proxy {url} does not work: 501" in line


def test_what_is_wrong_behind_a_proxy_is_not_its_fault(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with serve(tmp_path, tls=authority.context) as url, serve_proxy(url) as proxy:
        line = error_of("https://wheels.invalid/", proxy.url)
    assert "certificate verify failed" in line.lower()
    assert line.endswith("check the URL")


def test_without_a_proxy_the_url_is_to_be_checked() -> None:
    assert error_of("http://127.0.0.1:9/").endswith("failed; check the URL")


def test_a_proxy_for_other_requests_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "ftp://nonsense")
    assert "proxy" not in error_of("https://127.0.0.1:9/")
    monkeypatch.setenv("https_proxy", DEAD)
    monkeypatch.setenv("no_proxy", "127.0.0.1,wheels.example")
    assert "proxy" not in error_of("https://127.0.0.1:9/")
    assert find_proxy(Settings(), "https://a.wheels.example:443/") is None
    assert find_proxy(Settings(trust_env=False), "https://other.example/") is None
    assert find_proxy(Settings(), "https://other.example/") == DEAD


@pytest.mark.parametrize(
    "settings", [Settings(cert="none.pem"), Settings(client_cert="none.pem")]
)
def test_certificates_that_cannot_be_loaded_are_named(settings: Settings) -> None:
    with (
        BlockingClient(lambda: Client(settings)) as client,
        pytest.raises(UpstreamError) as caught,
    ):
        client.read("https://127.0.0.1:9/")
    message = str(caught.value)
    assert (
        "cannot be loaded: none.pem: No such file or directory; check pip's" in message
    )


@pytest.mark.parametrize(
    ("password", "sent"), [("ü", b"a:\xfc"), ("é€", "a:é€".encode())]
)
def test_a_password_is_encoded_as_by_pip(password: str, sent: bytes) -> None:
    heads: list[bytes] = []

    async def answer(given: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        heads.append(await given.readuntil(b"\r\n\r\n"))
        to.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx")
        to.close()

    async def read() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        client = Client(Settings(cert="/missing"))  # not read for plain HTTP
        client.logins.add(url, ("a", password))
        assert (await client.get(url)).body == b"x"
        await client.close()
        proxy = url.replace("//", f"//a:{quote(password)}@")
        for target in ("http://x.example/", "https://x.example/"):
            client = Client(Settings(proxy=proxy, plain_http=True))
            with suppress(UpstreamError):
                await client.get(target)
            await client.close()
        server.close()

    asyncio.run(read())
    assert len(heads) == 3
    assert all(b"uthorization: Basic " + base64.b64encode(sent) in x for x in heads)
