"""The replies to an installer if a page of an index cannot be read."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.authority import Authority
from support.index_server import serve
from support.loopback import JSON, ask, start, start_with_limits
from support.pages import URL, links_of_pip
from support.range_server import Answer, serve_answers

from nvp.index.http.pages import with_absolute_links
from nvp.index.http.urls import CompleteResponse, Settings
from nvp.index.selection.component import VariantRepository
from nvp.index.server.responses import ANY_HOST

PAGE = "/simple/torch/"


@pytest.fixture(autouse=True)
def no_noise(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Check that a fault of an upstream is not reported as a fault of the server."""
    yield
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("answer", "status", "word"),
    [
        (Answer(status=404), 404, "not found"),
        (Answer(status=410), 410, "not found"),
        (Answer(status=401), 401, "HTTP 401"),
        (Answer(status=403), 403, "HTTP 403"),
        (Answer(status=407), 407, "HTTP 407"),
        (Answer(status=500), 500, "HTTP 500"),
        (Answer(fault="hang"), 503, "no response within 0.2 s"),
        (Answer(status=302, headers={"Location": PAGE}), 302, "10 redirects"),
        (
            Answer(status=302, headers={"Location": "http://files.example/"}),
            302,
            "neither https nor a trusted host",
        ),
        (Answer(status=302, headers={"Location": "http://[a/"}), 302, "differently"),
    ],
)
def test_an_installer_gets_the_status_of_a_page(
    answer: Answer, status: int, word: str
) -> None:
    with (
        serve_answers({PAGE: answer}) as server,
        start_with_limits(server, answer) as running,
    ):
        reply = running.page()
        assert reply.status == status, reply.text
        assert word in reply.text
        assert reply.headers["cache-control"] == "no-store"
        # The server continues, and refuses this page without a request to the upstream.
        assert ask(f"{running.urls[0]}%00/").status == 404


@pytest.mark.parametrize("status", [300, 304])
@pytest.mark.parametrize("headers", [{}, {"Location": "/other"}])
def test_a_redirect_that_leads_nowhere_keeps_its_type(
    status: int, headers: dict[str, str]
) -> None:
    """pip and Poetry read such a page, and stop if it is no JSON."""
    answer = Answer(status=status, headers=headers, kind=JSON)
    with serve_answers({PAGE: answer}) as server, start(f"{server.url}/simple/") as run:
        reply = run.page()
        assert (reply.status, reply.body) == (status, b"")
        assert reply.headers["content-type"] == JSON


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (Answer(kind="image/png", body=b"x"), "image/png"),
        (Answer(kind="", body=b"<a href=x>"), "not a project page"),
        (Answer(body=b"{", kind=JSON), "Expecting property name"),
        (Answer(body=b"\xff", kind="text/html"), "not UTF-8"),
        (
            Answer(headers={"Content-Encoding": "gzip"}, body=b"no", kind=JSON),
            "cannot be decompressed",
        ),
        (
            Answer(
                headers={"Content-Encoding": "gzip, gzip"},
                body=b"no",
                kind="text/html",
            ),
            "cannot be decompressed",
        ),
        # In this charset, every body is text, and this one would be an empty page.
        (
            Answer(
                headers={"Content-Encoding": "zstd"},
                body=b"\x28\xb5\x2f\xfd no link",
                kind="text/html; charset=iso-8859-1",
            ),
            "cannot be decompressed",
        ),
        # One page, and half of a page.
        (
            Answer(
                headers={"Content-Encoding": "gzip"},
                body=gzip.compress(b"<a href=torch-1.0.zip>") * 2,
                kind="text/html",
            ),
            "cannot be decompressed",
        ),
        (
            Answer(
                headers={"Content-Encoding": "gzip"},
                body=gzip.compress(b"<a href=torch-1.0.zip>")[:-8],
                kind="text/html",
            ),
            "cannot be decompressed",
        ),
        # A backslash is a slash to uv, and makes Poetry stop. To uv, "a" is the server.
        *(
            (Answer(kind="text/html", body=link % (b"torch-1.0.zip",)), word)
            for link, word in (
                (rb'<a href="a\%s">x</a>', "not the same for all installers"),
                (b'<a href="http:///a/%s">x</a>', "not the same for all installers"),
                (b'<a href="///a/%s">x</a>', "not the same for all installers"),
                (b'<base href="http://a/b c/"><a href="%s">x</a>', "<base>"),
            )
        ),
        (
            Answer(
                kind=JSON,
                body=rb'{"files": [{"filename": "t-1.zip", "url": "a\\t-1.zip"}]}',
            ),
            "is not valid",
        ),
    ],
)
def test_a_page_that_cannot_be_read_is_passed_on(answer: Answer, word: str) -> None:
    """The installer reacts to the reply as without nvp."""
    with (
        serve_answers({PAGE: answer}) as server,
        start(f"{server.url}/simple/") as running,
    ):
        reply = running.page()
        # The links of the page are relative to its own URL.
        expected = (302, f"{server.url}{PAGE}")
        assert (reply.status, reply.headers["location"]) == expected
        assert word in running.warnings[0]
    with (
        serve_answers({PAGE: answer}) as server,
        start(f"{server.url}/simple/", direct=False) as running,
    ):
        reply = running.page()
        body, kind = reply.body, reply.headers.get("content-type", "")
        if word in ("Expecting property name", "not UTF-8", "cannot be decompressed"):
            # It may have relative links, and pip would use the next index after an
            # empty page.
            assert (reply.status, body, kind) == (200, b"", JSON)
        else:
            body = re.sub(rb'\A<base href="[^"]+">', b"", body)
            kind = kind.removesuffix("; charset=utf-8")
            body = body.replace(f'"url": "{server.url}{PAGE}'.encode(), b'"url": "')
            assert (reply.status, body, kind) == (200, answer.body, answer.kind)
        assert "content-encoding" not in reply.headers
        # No browser runs it as a page of this server.
        assert reply.headers["content-security-policy"] == "sandbox"
        assert word in running.warnings[0]


@pytest.mark.parametrize(
    ("start_", "is_passed_on"),
    [
        (b'<a b b><base href="https://a.example/">', False),
        (b'<xmp><base href="https://a.example/"></xmp>', False),
        (b'<iframe><base href="https://a.example/"></iframe>', False),
        (b'<!---><base href="https://a.example/">-->', False),
        (b'<base href="https://a.example/"><base href="https://b.example/">', False),
        (b'<base href="https://a.example/">', True),
        (b'<!DOCTYPE html><head><BASE HREF="https://a.example/">', True),
    ],
)
def test_the_base_of_a_page_is_that_of_all_installers(
    start_: bytes, is_passed_on: bool
) -> None:
    """Their parsers disagree about the elements in which a tag is text."""
    body = start_ + b'<a href="torch-1.0.zip" a a>x</a>'
    head = {"content-type": "text/html"}
    page = with_absolute_links(
        CompleteResponse(status=200, url=URL, headers=head, body=body, raw=body)
    )
    links = links_of_pip(page.raw, "text/html") if page.raw else []
    expected = ["https://a.example/torch-1.0.zip"] if is_passed_on else []
    assert [link.url for link in links] == expected


@pytest.mark.parametrize("odd", [b"", b" a a"])
def test_a_page_that_breaks_off_breaks_off(odd: bytes) -> None:
    body = b"<a href='torch-1.0-py3-none-any.whl'%s>x</a>" % odd + b" " * 99
    answer = Answer(body=body, kind="text/html", fault="cut")
    with (
        serve_answers({PAGE: answer}) as server,
        start(f"{server.url}/simple/") as running,
    ):
        with pytest.raises(http.client.IncompleteRead) as caught:
            running.page()
        found = caught.value.partial
        assert b"torch-1.0" in found
        assert (f'<base href="{server.url}{PAGE}">'.encode() in found) is bool(odd)
        assert "peer closed connection" in running.warnings[0]


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (Answer(body=b"x" * 99, fault="drip"), "not complete after 0.4 s"),
        (
            Answer(status=302, headers={"Location": "file:///etc/passwd"}),
            "only http and https are read",
        ),
        (Answer(status=302, headers={"Location": "ftp://h.example/"}), "only http"),
        (
            Answer(status=302, headers={"Location": "http://127.0.0.1:x/"}),
            "location header",
        ),
        # uv refuses the first one, and reads the others as /simple/nothing/.
        *(
            (Answer(status=302, headers={"Location": url}), "read differently")
            for url in (
                "/simple/k\xe9/",
                "\\simple\\nothing\\",
                "/simple/x/%2E%2e/nothing/",
                "%2e./nothing",
                # pip reads each as a URL of the local index.
                "http:///simple/nothing/",
                "HTTP:/simple/nothing/",
                "http://",
                "http://@/simple/nothing/",
                # uv follows the first one, and pip reads one URL.
                "http://x.example/\r\nLocation: http://y.example/",
            )
        ),
        (
            Answer(
                headers={"Content-Encoding": "gzip"},
                body=gzip.compress(bytes(65 << 20)),
                kind="text/html",
            ),
            "larger than 8 MiB",
        ),
        (Answer(body=b"<a>" * 200_000, kind="text/html"), "tags"),
    ],
)
def test_no_installer_goes_on_where_this_program_alone_reads_no_page(
    answer: Answer, word: str
) -> None:
    with (
        serve_answers({PAGE: answer}) as server,
        start_with_limits(server, answer) as running,
    ):
        reply = running.page()
        assert (reply.status, reply.headers["content-type"]) == (200, JSON)
        assert word in reply.text
        with pytest.raises(ValueError, match="Expecting value"):
            json.loads(reply.body)


def test_the_time_to_wait_is_passed_on() -> None:
    """pip tries again if the reply has a time, and otherwise uses another index."""
    answer = Answer(status=503, headers={"Retry-After": "7"})
    with (
        serve_answers({PAGE: answer}) as server,
        start(f"{server.url}/simple/") as running,
    ):
        reply = running.page()
        assert (reply.status, reply.headers["retry-after"]) == (503, "7")


@pytest.mark.parametrize("size", [30_000_000, 90_000_000])
def test_a_file_that_changes_while_it_is_sent(size: int, tmp_path: Path) -> None:
    path = tmp_path / "torch" / "torch-1.0.tar.gz"
    path.parent.mkdir()
    path.write_bytes(bytes(60_000_000))
    with start(str(tmp_path)) as running:
        (url,) = running.page().files.values()
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        connection.request("GET", urlsplit(url).path)
        response = connection.getresponse()
        assert response.read(1) == b"\0"
        os.truncate(path, size)
        with pytest.raises(http.client.IncompleteRead):
            response.read()
        connection.close()
    (warning,) = running.warnings
    assert warning.startswith("a file has changed, or cannot be read: ")


@pytest.mark.parametrize(
    ("error", "start_of_page"),
    [
        (RuntimeError("a defect"), "error: internal error: RuntimeError"),
        (FileNotFoundError("x"), "error: a file has changed, or cannot be read: "),
    ],
)
def test_no_installer_goes_on_after_an_unexpected_error(
    error: Exception, start_of_page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(VariantRepository, "show", fail)
    with (
        serve_answers({}) as server,
        start(f"{server.url}/simple/") as running,
    ):
        reply = running.page()
        assert (reply.status, reply.headers["content-type"]) == (200, JSON)
        assert reply.text.startswith(start_of_page)
        # A file is not a page.
        root = running.urls[0].removesuffix("simple/")
        assert ask(f"{root}f/torch/-/00000000/torch-1.0.zip").status == 500


@pytest.mark.parametrize("where", ["simple/torch/", "f/torch/-/00000000/torch-1.0.zip"])
def test_an_index_that_leads_back_to_this_server(where: str) -> None:
    """The server would send requests to itself until it has no connection left, for two
    minutes."""
    answers: dict[str, Answer] = {}
    with (
        serve_answers(answers) as server,
        start(f"{server.url}/simple/") as running,
    ):
        root = running.urls[0].removesuffix("simple/")
        answers[PAGE] = Answer(status=302, headers={"Location": f"{root}{where}"})
        assert running.page().text.startswith("error:")
        assert "leads back to this server" in running.warnings[0]
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_what_another_server_hides_from_strangers_is_not_missing(status: int) -> None:
    """The installer may have a login, or a certificate, that this program lacks."""
    with serve_answers({PAGE: Answer(status=status)}) as other:
        moved = Answer(status=302, headers={"Location": f"{other.url}{PAGE}"})
        with serve_answers({PAGE: moved}) as server:
            index = f"{server.url}/simple/"
            with start(index) as running:
                reply = running.page()
    assert (reply.status, reply.headers["location"]) == (302, f"{other.url}{PAGE}")


@pytest.mark.parametrize("end", ["back", "elsewhere", "loop", "closed"])
def test_installers_begin_where_redirects_leave_the_index(end: str) -> None:
    """The server there may know the installer, and send all others on."""
    denied, target = "/denied/torch/", "http://127.0.0.1:9/"
    answers = {denied: Answer(status=404)}
    with (
        serve_answers(answers) as server,
        serve_answers({denied: Answer(status=404)}) as third,
        serve_answers(others := {}) as other,
    ):
        if end != "closed":
            places = {"back": server.url, "elsewhere": third.url, "loop": other.url}
            target = places[end] + (PAGE if end == "loop" else denied)
        others[PAGE] = Answer(status=302, headers={"Location": target})
        away = f"{other.url}{PAGE}"
        answers[PAGE] = Answer(status=302, headers={"Location": away})
        with start(f"{server.url}/simple/") as running:
            reply = running.page()
    assert (reply.status, reply.headers["location"]) == (302, away)


@pytest.mark.parametrize("certified", [True, False])
def test_a_page_may_be_another_for_a_client_certificate(
    certified: bool, tmp_path: Path
) -> None:
    """Only the servers of indexes get the certificate, but it is the installer's."""
    authority = Authority(tmp_path)
    folder = tmp_path / "simple" / "torch"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text("<!DOCTYPE html><html><body></body></html>")
    settings = Settings(
        cert=authority.bundle,
        client_cert=authority.client if certified else None,
        trust_env=False,
    )
    with serve(tmp_path, tls=authority.context) as url:
        target = f"{url}simple/torch/"
        moved = Answer(status=302, headers={"Location": target})
        with (
            serve_answers({PAGE: moved}) as server,
            start(f"{server.url}/simple/", settings=settings) as running,
        ):
            reply = running.page()
    assert (reply.status, reply.headers.get("location")) == (
        (302, target) if certified else (200, None)
    )


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "[::ffff:127.0.0.1]"])
def test_an_installer_elsewhere_gets_no_page_of_this_machine(
    host: str, answers: bool
) -> None:
    """It cannot read the page, so it must not take that of its next index."""
    with serve_answers({PAGE: Answer(status=404)}) as other:
        target = f"{other.url if answers else 'http://127.0.0.1:9'}{PAGE}"
        target = target.replace("127.0.0.1", host)
        moved = Answer(status=302, headers={"Location": target})
        with (
            serve_answers({PAGE: moved}) as server,
            start(f"{server.url}/simple/", hosts=ANY_HOST) as running,
        ):
            assert running.page().text.startswith("error: ")


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_redirect_on_one_server_keeps_the_status(status: int) -> None:
    moved = Answer(status=302, headers={"Location": "/there/torch/"})
    answers = {PAGE: moved, "/there/torch/": Answer(status=status)}
    with serve_answers(answers) as server, start(f"{server.url}/simple/") as running:
        assert running.page().status == status


@pytest.mark.parametrize("status", [200, 403, 404, 406])
@pytest.mark.parametrize("is_moved", [True, False])
def test_uv_stops_at_a_head_that_it_cannot_read(status: int, is_moved: bool) -> None:
    """pip reads the head, and uses the next index, also if a page has no files."""
    odd = b"HTTP/1.1 %d X\r\nX: a\x01b\r\nLocation: /a\r\nConnection: close\r\n\r\n"
    answers = {PAGE: Answer(body=odd % (302 if is_moved else status), fault="raw")}
    answers["/a"] = Answer(status=status)
    with serve_answers(answers) as server, start(f"{server.url}/simple/") as running:
        replies = [running.page(User_Agent=x) for x in ("uv/0.9", "pip/26.0")]
    # pip reads a page itself.
    expected = 302 if status == 200 else status
    assert [reply.status for reply in replies] == [200, expected]
    assert replies[0].text.startswith("error: ")
