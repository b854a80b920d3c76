"""The client sends the credentials that pip sends, and to the same servers."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from support.index_server import start_server
from support.loopback import start
from support.range_server import Answer, serve_answers

from nvp.index.http.blocking import BlockingClient
from nvp.index.http.client import Client
from nvp.index.http.urls import Settings, UpstreamError
from nvp.index.server.places import make_upstream


class Recorder(BaseHTTPRequestHandler):
    """Records the user, the password and the cookie of each request."""

    requests: ClassVar[list[tuple[str, str, str]]]
    targets: ClassVar[dict[str, str]]
    closed: ClassVar[dict[str, str]]

    def log_message(self, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        encoded = self.headers.get("Authorization", "").partition(" ")[2]
        pair = base64.b64decode(encoded).decode()
        self.requests.append((self.path, pair, self.headers.get("Cookie", "")))
        is_closed = self.closed.get(self.path, pair) != pair
        self.send_response(
            401 if is_closed else 302 if self.path in self.targets else 200
        )
        self.send_header("Set-Cookie", "name=value; Path=/")
        if self.path in self.targets:
            self.send_header("Location", self.targets[self.path])
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def record(
    targets: dict[str, str], closed: dict[str, str] | None = None
) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Serve empty responses and redirects; yield the URL and the recorded requests.

    :param targets: the targets of redirects.
    :param closed: the only user and password of each path that requires them.
    """
    seen: list[tuple[str, str, str]] = []
    names = {"requests": seen, "targets": targets, "closed": closed or {}}
    with start_server(type("Handler", (Recorder,), names)) as url:
        yield url.rstrip("/"), seen


def test_no_cookies_are_kept() -> None:
    """A server could send thousands, and a later request with all of them would be too
    long for other servers of its domain."""
    with (
        record({"/a": "/b"}) as (url, seen),
        BlockingClient(lambda: Client(Settings(plain_http=True))) as reader,
    ):
        reader.read(f"{url}/a")
    assert seen == [("/a", "", ""), ("/b", "", "")]


@pytest.mark.parametrize("read", [BlockingClient.read, BlockingClient.open])
def test_a_password_that_ends_the_server_of_a_url(read: Any) -> None:
    """httpx quotes the start of the password as an invalid port."""
    client = BlockingClient(lambda: Client(Settings(trusts_pages=True)))
    with client, pytest.raises(UpstreamError, match="its URL is invalid") as caught:
        read(client, "https://usr:S3cret/word@index.example/")
    assert "S3cret" not in str(caught.value)


@pytest.fixture
def netrc(tmp_path: Path) -> str:
    path = tmp_path / "netrc"
    path.write_text("machine 127.0.0.1 login me password word\n")
    return str(path)


@pytest.mark.parametrize(
    ("pair", "sent"),
    [(None, "me:word"), (("me", ""), "me:word"), (("a", "b"), "a:b")],
)
def test_the_password_of_a_netrc_file_is_in_the_first_request(
    pair: tuple[str, str] | None, sent: str, netrc: str
) -> None:
    """Some servers respond with 404 to other users, and never with 401."""
    client = Client(Settings(plain_http=True, netrc=(netrc,)))
    with record({}) as (url, seen), BlockingClient(lambda: client) as reader:
        if pair is not None:
            reader.add_credentials(f"{url}/simple/", pair)
        reader.read(f"{url}/a")
        assert client.logins.has(url)
        reader.read(url.replace("127.0.0.1", "localhost"))
        reader.read(f"{url.replace('//', '//x:y@')}/a", page=f"{url}/b")
    assert [pair for _, pair, _ in seen] == [sent, "", sent]


@pytest.mark.parametrize("text", ["nonsense\n", "machine other login a password b\n"])
def test_a_netrc_file_without_a_password_for_the_server(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "netrc"
    path.write_text(text)
    settings = Settings(plain_http=True, netrc=(str(path),))
    with (
        record({}) as (url, seen),
        BlockingClient(lambda: Client(settings)) as reader,
    ):
        reader.read(f"{url}/a")
    assert seen == [("/a", "", "")]


def test_the_keyring_may_have_a_better_password_than_the_netrc_file(netrc: str) -> None:
    asked = []

    def ask(url: str) -> tuple[str, str]:
        asked.append(url)
        return "user", "secret"

    client = Client(Settings(plain_http=True, netrc=(netrc,)), ask_credentials=ask)
    with (
        record({}, {"/a": "user:secret"}) as (url, seen),
        BlockingClient(lambda: client) as reader,
    ):
        for _ in range(2):
            reader.read(f"{url}/a")
    assert asked == [f"{url}/a"]
    assert [pair for _, pair, _ in seen] == ["me:word", "user:secret"] * 2


def test_credentials_after_a_redirect(netrc: str) -> None:
    """A server gets the credentials of its own index only if it asks for them."""
    moved: dict[str, str] = {}
    with (
        record({}, {"/closed": "c:d"}) as (other, there),
        record(moved, {"/b/closed": "e:f"}) as (url, seen),
    ):
        moved |= {"/a/1": "/b/2", "/b/2": "/b/closed", "/b/closed": f"{other}/open"}
        moved |= {"/a/closed": f"{other}/closed"}
        client = Client(Settings(plain_http=True))
        with BlockingClient(lambda: client) as reader:
            for place, pair in {"/a/": ("a", "b"), "/b/": ("e", "f")}.items():
                reader.add_credentials(f"{url}{place}", pair)
            reader.add_credentials(f"{other}/", ("c", "d"))
            reader.read(f"{url}/a/1")
            reader.read(f"{url}/a/closed")
        expected = [("/a/1", "a:b"), ("/b/2", "a:b"), ("/b/closed", "a:b")]
        expected += [("/b/closed", "e:f"), ("/a/closed", "a:b")]
        assert [request[:2] for request in seen] == expected
        assert [pair for _, pair, _ in there] == ["", "", "c:d"]

        # requests prefers the netrc file after every redirect.
        client = Client(Settings(plain_http=True, netrc=(netrc,)))
        with BlockingClient(lambda: client) as reader:
            reader.add_credentials(url, ("a", "b"))
            reader.add_credentials(other, ("c", "d"))
            moved["/b/2"] = f"{other}/open"
            reader.read(f"{url}/a/1")
        assert [pair for _, pair, _ in seen[-2:]] == ["a:b", "me:word"]
        assert there[-1][1] == "me:word"

        # With --proxy, newer versions of pip turn this off (trust_env).
        client = Client(Settings(plain_http=True, netrc=(netrc,), trust_env=False))
        with BlockingClient(lambda: client) as reader:
            reader.read(f"{url}/a/1")
        assert [pair for _, pair, _ in (*seen[-2:], there[-1])] == [
            *("me:word", "me:word", "")
        ]


def test_a_page_does_not_replace_the_credentials_of_the_user() -> None:
    given = ("user", "secret")
    client = Client(Settings(plain_http=True))
    with (
        serve_answers({"/simple/": Answer(body=b"x")}) as server,
        BlockingClient(lambda: client) as reader,
    ):
        reader.add_credentials(f"{server.url}/simple/", given)
        url = server.url.replace("://", "://other:pair@")
        assert reader.read(f"{url}/simple/", page=f"{server.url}/x/") == b"x"
        assert list(client.logins._all.values()) == [given]


def test_the_credentials_of_a_page_are_for_its_file_only() -> None:
    """The user's own for that server may be in the keyring."""
    asked = []

    def ask(url: str) -> tuple[str, str]:
        asked.append(url)
        return "user", "secret"

    client = Client(Settings(plain_http=True), ask_credentials=ask)
    with (
        serve_answers({"/a": Answer(body=b"x")}, credentials="user:secret") as server,
        BlockingClient(lambda: client) as reader,
    ):
        url = server.url.replace("://", "://other:pair@")
        with pytest.raises(UpstreamError):
            reader.read(f"{url}/a", page=f"{server.url}/x/")
        assert asked == []
        assert reader.read(f"{server.url}/a") == b"x"


@pytest.mark.parametrize("status", [200, 404, 503])
def test_a_redirect_away_and_back_stops_an_installer(status: int) -> None:
    """uv sends the login again, and so may get another page than this program."""
    page, away, back = "/simple/torch/", "/away/", "/back/"
    answers = {back: Answer(status=status, body=b"<!DOCTYPE html>", kind="text/html")}
    others: dict[str, Answer] = {}
    with serve_answers(answers) as index, serve_answers(others) as other:
        answers[page] = Answer(status=302, headers={"Location": other.url + away})
        others[away] = Answer(status=302, headers={"Location": index.url + back})
        url = f"{index.url}/simple/"
        with start(url.replace("//", "//user:secret@", 1)) as running:
            assert running.page().text.startswith("error: ")
        # Without a login, the installer gets what this program gets.
        with start(url) as running:
            assert running.page().status == (200 if status == 200 else 302)


@pytest.mark.parametrize(
    ("index", "place", "is_own"),
    [
        ("https://h.example:443/a/", "https://h.example/a/x/", True),
        ("http://h.example/a/", "http://H.example:80/b/", True),
        ("https://b\xfccher.example/a/", "https://xn--bcher-kva.example/a/", True),
        ("http://h.example/a/", "https://h.example/a/", True),
        ("http://h.example:80/a/", "https://h.example:443/a/", True),
        ("http://h.example:81/a/", "https://h.example/a/", False),
        ("http://h.example:81/a/", "https://h.example:81/a/", False),
        ("https://h.example/a/", "http://h.example/a/", False),
        ("http://[::1]/a/", "https://[::1]/a/", True),
        ("https://h.example/a/", "https://h.example.org/a/", False),
    ],
)
def test_one_server_under_several_names(index: str, place: str, is_own: bool) -> None:
    """An installer elsewhere must not read, without a login, what needs the login."""
    client = Client(Settings(trust_env=False)).only(index)
    client.logins.add(index, ("user", "secret"))
    assert client.logins.identify(place) is is_own
    assert client.logins.has(place) is is_own


def test_a_redirect_that_loses_the_login_stops_an_installer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uv sends the login again: from http to https, and back to http."""
    index = "http://h.example/simple/"
    places = [f"{index}torch/", "https://h.example/a/", "http://h.example/b/"]
    seen: list[tuple[str, bool]] = []

    async def send(
        _: object, url: str, _headers: dict[str, str], authorization: str | None
    ) -> httpx.Response:
        seen.append((url, authorization is not None))
        following = httpx.Request("GET", places[places.index(url) + 1])
        sent = {"Authorization": authorization} if authorization else {}
        request = httpx.Request("GET", url, headers=sent)
        location = {"Location": str(following.url)}
        response = httpx.Response(302, headers=location, request=request)
        response.next_request = following
        return response

    monkeypatch.setattr("nvp.index.http.client.send", send)
    settings = Settings(plain_http=True, trusts_pages=True, trust_env=False)
    client = Client(settings).only(index)
    client.logins.add(index, ("user", "secret"))
    with pytest.raises(UpstreamError, match="only you can log in") as caught:
        asyncio.run(client.get(places[0]))
    assert caught.value.reply is None
    assert seen == [(places[0], True), (places[1], True)]


@pytest.mark.parametrize("port", ["", ":80"])
def test_a_redirect_to_a_server_with_a_login_for_its_other_scheme(port: str) -> None:
    """pip knows a login by the host and the port, whatever the scheme."""
    target = "https://private.example/simple/torch/"
    answers = {"/simple/torch/": Answer(status=302, headers={"Location": target})}
    private = f"http://user:secret@private.example{port}/simple/"
    settings = Settings(plain_http=True, trusts_pages=True, trust_env=False)
    with (
        serve_answers(answers) as public,
        start(f"{public.url}/simple/", private, settings=settings) as running,
    ):
        assert running.page().text.startswith("error: ")


def test_the_keyring_is_asked_for_the_password_of_a_user_first() -> None:
    """An index may send 404 to strangers, after which uv used the next index."""
    asked: list[str] = []

    def ask(url: str) -> tuple[str, str]:
        asked.append(url)
        return "user", "secret"

    page = "/simple/torch/"
    others = {"/simple/": "user:secret"}
    answers = {page: Answer(body=b"<!DOCTYPE html>", kind="text/html")}
    with serve_answers(answers, others=others) as index:
        url = f"{index.url}/simple/".replace("//", "//user@", 1)
        with start(url, ask_credentials=ask, asks_first=True) as running:
            assert running.page().status == 200
            assert running.page().status == 200
    assert len(asked) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_keyring_gets_no_user_name_of_a_page(host: str) -> None:
    """A page could name each user and server, and others would read the files."""
    asked: list[str] = []

    def ask(url: str) -> tuple[str, str]:
        asked.append(url)
        return "user", "secret"

    settings = Settings(plain_http=True)
    client = Client(settings, ask_credentials=ask, asks_first=True)
    with record({}, {"/a": "user:secret"}) as (url, seen):
        file = f"{url}/a".replace("127.0.0.1", f"user@{host}")
        with (
            BlockingClient(lambda: client.only(f"{url}/")) as reader,
            suppress(UpstreamError),
        ):
            reader.read(file, page=f"{url}/b")
    assert [pair for _, pair, _ in seen] == ["user:"]
    assert asked == []


def test_the_keyring_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of clouds expire while `serve` runs, and a keyring may be locked."""
    asked: list[str] = []
    closed = {"/a": "user:1"}
    answers = [None, ("user", "1"), None, ("user", "2"), ("user", "2")]
    now = [0.0]
    monkeypatch.setattr("nvp.index.http.logins.monotonic", lambda: now[0])

    def ask(url: str) -> tuple[str, str] | None:
        asked.append(url)
        return answers[len(asked) - 1]

    async def read(password: str, times: int) -> None:
        closed["/a"] = f"user:{password}"
        await asyncio.gather(*(client.get(f"{url}/a") for _ in range(times)))

    async def fail(password: str) -> None:
        for seconds in (0, 5):
            now[0] += seconds
            with pytest.raises(UpstreamError, match="401"):
                await read(password, 1)
        now[0] += 5

    async def read_all() -> None:
        await fail("1")
        await read("1", 5)
        await fail("2")
        await read("2", 5)
        await fail("3")
        await client.close()

    client = Client(Settings(plain_http=True), ask_credentials=ask)
    with record({}, closed) as (url, _):
        client.logins.add(url, ("user", ""))
        asyncio.run(read_all())
    assert asked == [f"{url.replace('//', '//user@')}/a"] * 5


def test_an_index_that_hides_its_files_from_an_expired_token() -> None:
    """After 404, installers use their next index; they ask the keyring in each run."""
    others = {"/simple/": "user:1"}
    asked: list[str] = []

    def ask(url: str) -> tuple[str, str]:
        asked.append(url)
        return "user", others["/simple/"][-1]

    client = Client(Settings(plain_http=True), ask_credentials=ask, asks_first=True)
    with (
        serve_answers({"/simple/a": Answer(body=b"x")}, others=others) as index,
        BlockingClient(lambda: client) as reader,
    ):
        reader.add_credentials(f"{index.url}/simple/", ("user", ""))
        for password in "122":
            others["/simple/"] = f"user:{password}"
            assert reader.read(f"{index.url}/simple/a") == b"x"
        for _ in range(2):
            with pytest.raises(UpstreamError, match="404"):
                reader.read(f"{index.url}/simple/b")
    assert len(asked) == 3


def test_a_renewed_netrc_file_is_before_the_login_of_the_keyring(netrc: str) -> None:
    """The keyring may have the login of another user, for uploads."""
    client = Client(
        Settings(plain_http=True, netrc=(netrc,)),
        ask_credentials=lambda _: ("bob", "b"),
    )
    with (
        record({}, {"/a": "me:new"}) as (url, seen),
        BlockingClient(lambda: client) as reader,
    ):
        with pytest.raises(UpstreamError, match="401"):
            reader.read(f"{url}/a")
        Path(netrc).write_text("machine 127.0.0.1 login me password new\n")
        reader.read(f"{url}/a")
    assert [pair for _, pair, _ in seen] == ["me:word", "bob:b", "me:new"]


@pytest.mark.parametrize(
    ("user", "sent"),
    [
        ("", ["me:word", "me:new"]),
        ("me@", ["me:word", "me:new", "me:word"]),
        ("a:b@", ["a:b"] * 2),
    ],
)
def test_the_netrc_file_is_read_again(user: str, sent: list[str], netrc: str) -> None:
    client = Client(Settings(plain_http=True, netrc=(netrc,)))
    with record({}) as (url, seen), BlockingClient(lambda: client) as reader:
        index = f"{url.replace('//', f'//{user}')}/"
        assert make_upstream(index, ("me", "word"), client) is not None  # as by pip
        reader.read(f"{url}/a")
        Path(netrc).write_text("machine 127.0.0.1 login me password new\n")
        reader.read(f"{url}/a")
        if user == "me@":
            Path(netrc).unlink()
            reader.read(f"{url}/a")
    assert [pair for _, pair, _ in seen] == sent
