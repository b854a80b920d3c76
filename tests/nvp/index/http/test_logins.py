"""Logins: pip and uv behind `serve` get each page that they get from the index."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import uv
from support.index_server import start_server
from support.keyring_program import write_keyring
from support.serving import fetch, serving
from support.wheels import stub_wheel

from nvp.index.http.blocking import BlockingClient
from nvp.index.http.client import Client
from nvp.index.http.logins import find_netrc, find_others_in_netrc
from nvp.index.http.urls import Settings, UpstreamError
from nvp.index.server.places import make_upstream


@contextmanager
def serve_logins(
    reply: Callable[[str, str], int | str],
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the URL of a server, and the path and login of each request.

    :param reply: returns the status, or the target of a redirect, for a path and login.
    """
    seen: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            encoded = self.headers.get("Authorization", "").partition(" ")[2]
            text = base64.b64decode(encoded).decode("utf-8", "replace")
            seen.append((self.path, text.replace("\ufffd", "?")))
            found = reply(*seen[-1])
            self.send_response(302 if isinstance(found, str) else found)
            self.send_header("Location", str(found))
            self.send_header("Content-Length", "0")
            self.end_headers()

    with start_server(Handler) as url:
        yield url, seen


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of a user with a netrc file."""
    path = tmp_path / "netrc"
    path.write_text("machine 127.0.0.1 login me password word\n")
    return Settings(plain_http=True, retries=0, netrc=(str(path),))


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize(
    ("user", "accepted", "sent"),
    [
        # uv sends no login of another user than that of the URL; pip does.
        ("token", "token:", ["token:"]),
        ("token", "me:word", ["token:", "me:word"]),
        # uv sends a login of the netrc file only after a refusal; pip sends it first.
        ("", "me:word", ["me:word"]),
        ("", "", ["me:word", ""]),
        ("token", "none:none", ["token:", "me:word", ""]),
    ],
)
def test_other_logins_of_the_user(
    status: int, user: str, accepted: str, sent: list[str], settings: Settings
) -> None:
    """An installer must not use its next index where another login gets the page."""
    with (
        serve_logins(lambda _, pair: 200 if pair == accepted else status) as (
            url,
            seen,
        ),
        BlockingClient(lambda: Client(settings).only(url)) as reader,
    ):
        if user:
            reader.add_credentials(url, (user, ""))
        if accepted == "none:none":
            with pytest.raises(UpstreamError, match=str(status)):
                reader.read(f"{url}a")
        else:
            reader.read(f"{url}a")
    assert [pair for _, pair in seen] == sent


@pytest.mark.parametrize(
    ("pages", "own", "known", "expected"),
    [
        # The index sends strangers to its page for logins, as uv alone reads it.
        (
            {"/a": {"me:word": 404, "": "/login"}, "/login": {"": 200}},
            "",
            None,
            [("/a", "me:word"), ("/a", ""), ("/login", "me:word"), ("/login", ""), 200],
        ),
        (
            {"/a": {"me:word": 403, "": "/login"}, "/login": {}},
            "",
            None,
            [("/a", "me:word"), ("/a", ""), ("/login", "me:word"), ("/login", ""), 403],
        ),
        (
            {"/a": {"me:word": 404, "": "/b"}, "/b": {"": 410}},
            "",
            None,
            [("/a", "me:word"), ("/a", ""), ("/b", "me:word"), ("/b", ""), 410],
        ),
        # uv alone stops there.
        (
            {"/a": {"me:word": 404, "": 410}},
            "",
            None,
            [("/a", "me:word"), ("/a", ""), 410],
        ),
        # pip and uv differ in the encoding.
        ({"/a": {"u:é": 200}}, "u:%C3%A9@", None, [("/a", "u:?"), ("/a", "u:é"), 200]),
        # uv uses the netrc file for a user with an empty password; pip does not.
        ({"/a": {"me:word": 200}}, "me:@", None, [("/a", "me:word"), 200]),
        # After a redirect, uv sends the earlier login, and pip that of the netrc file.
        (
            {"/a": {"u:p": "/b"}, "/b": {"u:p": 200}},
            "u:p@",
            None,
            [("/a", "u:p"), ("/b", "u:p"), 200],
        ),
        (
            {"/a": {"u:p": "/b"}, "/b": {"me:word": 200}},
            "u:p@",
            None,
            [("/a", "u:p"), ("/b", "u:p"), ("/b", "me:word"), 200],
        ),
        # What a redirect for a login leads to counts.
        (
            {"/a": {"me:word": "/b"}, "/b": dict.fromkeys(["me:word", "", "u:p"], 403)},
            "",
            ("u", "p"),
            [
                *(("/a", "u:p"), ("/a", "me:word"), ("/b", "me:word"), ("/b", "u:p")),
                *(("/b", ""), ("/b", "u:"), 403),
            ],
        ),
        # pip knows the login of another index of the server.
        (
            {"/a": {"": 200}},
            "",
            ("u", "p"),
            [("/a", "u:p"), ("/a", "me:word"), ("/a", ""), 200],
        ),
    ],
)
def test_logins_of_one_server(
    pages: dict[str, dict[str, int | str]],
    own: str,
    known: tuple[str, str] | None,
    expected: list[object],
    settings: Settings,
) -> None:
    with serve_logins(lambda path, pair: pages[path].get(pair, 404)) as (url, seen):
        client = Client(settings).only(url)
        assert make_upstream(url.replace("//", f"//{own}"), known, client) is not None
        status = 200
        with BlockingClient(lambda: client) as reader:
            try:
                reader.read(f"{url}a")
            except UpstreamError as error:
                status = error.status
    assert [*seen, status] == expected


@pytest.mark.parametrize(("certificate", "status"), [(None, 404), ("own.pem", 403)])
def test_a_server_that_may_know_the_certificate(
    certificate: str | None, status: int, settings: Settings
) -> None:
    """Only the installer sends its certificate to a server behind a redirect."""
    settings = replace(settings, client_cert=certificate)
    with serve_logins(lambda *_: 403) as (other, _):
        away = f"{other.replace('127.0.0.1', 'localhost')}b"
        pages: dict[str, int | str] = {"me:word": 404, "": away}
        with (
            serve_logins(lambda _, pair: pages[pair]) as (url, _),
            BlockingClient(lambda: Client(settings).only(url)) as reader,
            pytest.raises(UpstreamError) as caught,
        ):
            reader.read(f"{url}a")
    assert caught.value.status == status


def test_two_indexes_of_one_server(settings: Settings) -> None:
    """The login of one of them must not keep the other one from its own."""
    asked: list[str] = []

    def ask(url: str) -> tuple[str, str]:
        asked.append(url)
        return "own", "key"

    logins = {"/a/x": {"u:p": 200}, "/b/x": {"own:key": 200}, "/b/y": {"me:word": 200}}
    client = Client(settings, ask_credentials=ask)
    with serve_logins(lambda path, pair: logins[path].get(pair, 401)) as (url, seen):
        for path, own in {"a/": "u:p@", "b/": ""}.items():
            index = f"{url.replace('//', f'//{own}')}{path}"
            assert make_upstream(index, None, client.only(f"{url}{path}")) is not None
        with BlockingClient(lambda: client.only(f"{url}b/")) as reader:
            reader.read(f"{url}b/x")
            reader.read(f"{url}b/y")
    assert asked == [f"{url}b/x"]
    assert seen == [("/b/x", "u:p"), ("/b/x", "own:key"), ("/b/y", "me:word")]


def test_the_keyring_gets_no_user_of_the_netrc_file(tmp_path: Path) -> None:
    """The user may be a token, and other users see the command line of a keyring."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login token\n")
    asked: list[str] = []

    def ask(url: str) -> None:
        asked.append(url)

    settings = Settings(plain_http=True, netrc=(str(netrc),))
    client = Client(settings, ask_credentials=ask, asks_first=True)
    with (
        serve_logins(lambda *_: 401) as (url, seen),
        BlockingClient(lambda: client.only(url)) as reader,
        pytest.raises(UpstreamError, match="401"),
    ):
        reader.read(f"{url}a")
    assert [pair for _, pair in seen] == ["token:", ""]
    assert asked == [f"{url}a"]


_WHEEL = "demo-1.0-py3-none-any.whl"


@contextmanager
def _serve_index(
    wheel: bytes, accepted: str, status: int, moves: bool
) -> Iterator[str]:
    """Serve an index with one wheel, and yield the URL of the index.

    :param wheel: the bytes of the wheel.
    :param accepted: the login to which the index is open.
    :param status: the status for other logins.
    :param moves: whether the index redirects a request to another path of its server.
    """

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            encoded = self.headers.get("Authorization", "").partition(" ")[2]
            is_open = base64.b64decode(encoded) == accepted.encode()
            is_moved = is_open and moves and self.path == "/simple/demo/"
            kind, body = "text/html", f"<a href='../../{_WHEEL}'>{_WHEEL}</a>".encode()
            if self.path == f"/{_WHEEL}":
                kind, body = "application/octet-stream", wheel
            self.send_response(302 if is_moved else 200 if is_open else status)
            self.send_header("Location", "/moved/demo/")
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with start_server(Handler) as url:
        yield f"{url}simple/"


def _has_page(installer: str, url: str, environ: dict[str, str], folder: Path) -> bool:
    """Return whether an installer finds the wheel of the index."""
    if installer == "pip":
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache"]
        command += ["--quiet", "--dest", str(folder / "got"), "--index-url", url]
    else:
        command = [uv.find_uv_bin(), "pip", "install", "--no-config", "--no-cache"]
        command += ["--target", str(folder / "got"), "--dry-run", "--index-url", url]
    done = subprocess.run(
        [*command, "demo"],
        check=False,
        env=environ,
        cwd=folder,
        capture_output=True,
        timeout=120,
    )
    return done.returncode == 0


def test_a_renewed_netrc_file_has_pages_of_its_own(settings: Settings) -> None:
    """An installer must not get the answer that the old login got."""
    logins = Client(settings).logins
    before = logins.identity
    assert logins.identity == before
    Path(settings.netrc[0]).write_text("machine 127.0.0.1 login me password other\n")
    assert logins.identity != before


@pytest.mark.slow
@pytest.mark.parametrize("is_in_keyring", [False, True])
@pytest.mark.parametrize("netrc", ["", "user:word", "other:word"])
@pytest.mark.parametrize("own", ["", "user", "user:", "user:own", "user:é"])
def test_installers_get_the_same_pages(
    own: str, netrc: str, is_in_keyring: bool, tmp_path: Path
) -> None:
    """Otherwise an installer behind `serve` uses its next index.

    :param own: the user and the password in the URL of the index.
    """
    environ = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    environ |= {"NETRC": str(tmp_path / "netrc"), "PIP_NO_INPUT": "1"}
    environ |= {"PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    user, _, password = netrc.partition(":")
    (tmp_path / "netrc").write_text(
        f"machine 127.0.0.1 login {user} password {password}\n" if netrc else ""
    )
    logins = {"", f"{own}:" if own and ":" not in own else own, netrc}
    if is_in_keyring:
        logins.add("user:key")
        programs = write_keyring(tmp_path / "bin", None, "user", "key")
        environ["PATH"] = f"{programs}{os.pathsep}{environ['PATH']}"
        environ |= dict.fromkeys(
            ("PIP_KEYRING_PROVIDER", "UV_KEYRING_PROVIDER"), "subprocess"
        )
    wheel = stub_wheel(tmp_path, "demo", "1.0").read_bytes()
    with ExitStack() as stack:
        cases = list(product(sorted(logins), (401, 403, 404), (False, True)))
        urls = [
            stack.enter_context(_serve_index(wheel, *case)).replace(
                "//", f"//{own}@" if own else "//"
            )
            for case in cases
        ]
        more = [word for url in urls[1:] for word in ("--extra-index-url", url)]
        words = ["--no-gpu", "--fresh", "--index-url", urls[0], *more]
        served = stack.enter_context(serving(*words, environ=environ)).urls
        answers = [fetch(f"{here}demo/")[0] for here in served]
        lost = [
            (installer, *case)
            for case, url, answer in zip(cases, urls, answers, strict=True)
            for installer in ("pip", "uv")
            if answer != 200 and _has_page(installer, url, environ, tmp_path)
        ]
    assert lost == []
    assert 200 in answers


@pytest.mark.parametrize(
    ("text", "found", "others"),
    [
        (b"machine h login a password 1", ("a", "1"), [("a", "1")]),
        # uv replaces bytes that are no UTF-8; other programs ignore such a file.
        (b"machine h login a password \xe9", ("a", "\ufffd"), [("a", "\ufffd")]),
        (
            b"machine x login \xff\nmachine h login a password 1",
            ("a", "1"),
            [("a", "1")],
        ),
        # requests sends the account, and uv an empty user.
        (b"machine h account z password 1", ("z", "1"), [("", "1")]),
        (
            b"default login d password 3\nmachine h login a password 1",
            ("a", "1"),
            [("a", "1")],
        ),
        (b"default account d password 3", ("d", "3"), [("", "3")]),
        (b"machine x login a password 1", None, []),
        (b"machine", None, []),
    ],
)
def test_what_installers_find_in_a_netrc_file(
    text: bytes,
    found: tuple[str, str] | None,
    others: list[tuple[str, str]],
    tmp_path: Path,
) -> None:
    path = tmp_path / "netrc"
    path.write_bytes(text)
    assert find_netrc([str(path)], "http://h/simple/") == found
    url = "http://h/simple/"
    assert find_others_in_netrc([str(path)], url, has_user=False) == others


def test_pip_23_finds_the_default_entry_of_netrc_for_a_user(tmp_path: Path) -> None:
    """No installer sends this login, perhaps of another server, without a user."""
    path = tmp_path / "netrc"
    path.write_text("default login d password 3\nmachine h login a password 1\n")
    url = "http://h/simple/"
    found = find_others_in_netrc([str(path)], url, has_user=True)
    assert found == [("a", "1"), ("d", "3")]


def test_a_netrc_file_is_read_without_space_for_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte that is no UTF-8 was replaced in a temporary file."""
    path = tmp_path / "netrc"
    path.write_bytes(b"machine x password \xe9\n" * 10_000 + b"machine h login a\n")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert find_netrc([str(path)], "http://h/simple/") == ("a", "")
