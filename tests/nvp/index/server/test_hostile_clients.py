"""The local index, when other users or its own upstreams are hostile."""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from support.documents import TORCH
from support.loopback import (
    JSON,
    Reply,
    Running,
    answers_of,
    ask,
    links,
    page_of,
    start,
)
from support.range_server import Answer, RangeServer, serve_answers
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import printable
from nvp.index.http.client import Client
from nvp.index.http.urls import Settings
from nvp.index.server.kept_pages import KeptPages

CU128 = "torch-2.8.0-3cu128-py3-none-any.whl"

PAGE = "/simple/torch/"

PLAIN = "torch-2.8.0-py3-none-any.whl"

pytestmark = pytest.mark.usefixtures("no_noise")


class TestOtherUsers:
    """Other users of this machine get no files, and only pages name files."""

    def test_requests_without_the_secret_are_not_found(self, folder: Path) -> None:
        with start(str(folder), secret=True) as running:
            assert running.ask(running.urls[0] + "torch/").status == 200
            base = urlsplit(running.urls[0])
            secret = base.path.split("/")[1]
            assert len(secret) >= 20
            origin = f"http://{base.netloc}"
            rest = base.path.removeprefix(f"/{secret}")
            for path in (
                "/",
                rest,
                f"/{secret[:-1]}{rest}",
                f"/{secret.upper()}x{rest}",
            ):
                reply = running.ask(origin + path + "torch/")
                assert reply.status == 404
                assert secret not in reply.text

    def test_requests_without_the_token_are_refused(self, folder: Path) -> None:
        with start(str(folder), secret=True) as running:
            token = running.local_index.token or ""
            assert len(token) >= 20
            for wrong in ("", "\xe9", token[:-1], f"{token}x", f"x{token}"):
                reply = ask(running.urls[0] + "torch/", Nvp_Proof=wrong)
                assert reply.status == 403
                assert b"torch" not in reply.body
            assert ask(running.urls[0] + "torch/").status == 403

    def test_each_run_has_another_secret(self, folder: Path) -> None:
        with (
            start(str(folder), secret=True) as one,
            start(str(folder), secret=True) as two,
        ):
            assert urlsplit(one.urls[0]).path != urlsplit(two.urls[0]).path
            assert one.local_index.token != two.local_index.token

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example", "["]
    )
    def test_other_host_names_are_refused(self, host: str, running: Running) -> None:
        reply = ask(running.urls[0] + "torch/", Host=host)
        assert reply.status == 400
        assert b"torch" not in reply.body

    def test_its_own_host_names_are_accepted(self, running: Running) -> None:
        port = urlsplit(running.urls[0]).port
        for host in (
            *("localhost", "LOCALHOST", "127.0.0.1", "host.docker.internal"),
            *("127.0.0.2", "[::1]"),  # serve --host 127.0.0.2
        ):
            assert ask(running.urls[0] + "torch/", Host=f"{host}:{port}").status == 200

    def test_on_ipv6(self, folder: Path) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 here")
        with start(str(folder), host="::1") as running:
            assert running.page().status == 200

    @pytest.mark.parametrize(
        "name",
        [
            "http://files.example/x.whl",
            "http:%2F%2Ffiles.example%2Fx.whl",
            "torch-2.8.0-py3-none-any-cu126.whl%3Fx",
            "torch-2.8.0-py3-none-any-cu126.whl/../x",
            "other-1.0-py3-none-any.whl",
            "index.html",
            "",
        ],
    )
    def test_it_is_not_an_open_proxy(
        self, name: str, upstream: RangeServer, running: Running
    ) -> None:
        root = running.urls[0].removesuffix("simple/")
        running.page()
        upstream.requests.clear()
        assert ask(f"{root}f/torch/-/00000000/{name}").status == 404
        assert upstream.requests in ([], ["/simple/torch/ whole"])

    @pytest.mark.parametrize(
        "path",
        [
            "../secret.txt",
            "..%2Fsecret.txt",
            "%2e%2e/secret.txt",
            "%2e%2e%2fsecret.txt",
            "%252e%252e%252fsecret.txt",
            "..%5Csecret.txt",
            "torch/../../secret.txt",
            "torch%2F..%2F..%2Fsecret.txt",
            "%2Fetc%2Fpasswd",
            "//etc/passwd",
            "secret.txt",
            "torch%00",
            "x" * 5000,
            "%ff",
            "file:%2F%2F%2Fetc%2Fpasswd",
        ],
    )
    def test_path_traversal(self, path: str, local: Running) -> None:
        root = urlsplit(local.urls[0]).path
        files = root.removesuffix("simple/") + "f/"
        for before in (root, files, f"{files}torch/-/00000000/", f"{files}../"):
            for after in ("", "/", "/-/00000000/torch-2.8.0-py3-none-any.whl"):
                reply = ask(local.urls[0], path=before + path + after)
                assert reply.status in (301, 400, 404), (before, after)
                assert b"hidden words" not in reply.body
                assert b"root:" not in reply.body

    @pytest.mark.parametrize(
        "project", ["torch%3Fa=b", "torch%23", "%252e%252e", "a%40b", "a%20b", "%C3%A9"]
    )
    def test_invalid_names_do_not_reach_an_upstream(
        self, project: str, upstream: RangeServer, running: Running
    ) -> None:
        root = running.urls[0].removesuffix("simple/")
        upstream.requests.clear()
        for url in (
            f"{root}simple/{project}/",
            f"{root}f/{project}/-/00000000/x-1.0-1-py3-none-any.whl",
        ):
            assert ask(url).status == 404
        assert upstream.requests == []

    @pytest.mark.parametrize(
        "bad", ["%0d%0aX-Evil:%201", "%0aX-Evil:1", "%0d%0a%0d%0aevil"]
    )
    def test_header_injection(self, bad: str, running: Running) -> None:
        root = running.urls[0].removesuffix("simple/")
        running.page()
        segments = ["f", "torch", "-", "00000000", CU128]
        urls = [f"{root}simple/Torch{bad}", f"{root}simple/Torch{bad}/", root + bad]
        for place in range(len(segments)):
            broken = [*segments]
            broken[place] += bad
            urls.append(root + "/".join(broken))
        for url in urls:
            reply = ask(url)
            assert "x-evil" not in reply.headers
            assert reply.status in (301, 302, 404)
            location = reply.headers.get("location", "")
            assert location.isprintable()

    def test_raw_line_breaks(self, running: Running) -> None:
        parts = urlsplit(running.urls[0])
        for text in (
            f"GET {parts.path}torch/\r\nX: y\r\n\r\n",
            f"GET {parts.path}torch/ HTTP/1.1\r\nHost: 127.0.0.1\nX-A: b\r\n\r\n",
            "\r\n\r\n\x00\xff",
            "GET " + "a" * 100_000 + " HTTP/1.1\r\n\r\n",
        ):
            address = ("127.0.0.1", parts.port or 0)
            with (
                socket.create_connection(address, 60) as client,
                suppress(ConnectionError),  # a line may be too long
            ):
                client.sendall(text.encode("latin-1"))
                client.shutdown(socket.SHUT_WR)
                with client.makefile("rb") as answer:
                    answer.read(65536)
        assert running.page().status == 200


HOSTILE = '"><script>alert(1)</script>&\r\nSet-Cookie: a=b'


class TestHostileUpstreams:
    def test_text_of_an_upstream_is_escaped(self) -> None:
        name = "torch-1.0.zip"
        answers = page_of(
            {
                "filename": name,
                "url": "https://files.example/torch-1.0.zip",
                "hashes": {f"sha256{HOSTILE}": HOSTILE},
                "requires-python": HOSTILE,
                "core-metadata": {HOSTILE: HOSTILE},
                "yanked": HOSTILE,
            }
        )
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/") as running,
        ):
            text = ask(running.urls[0] + "torch/", Accept="text/html")
            (link,) = links(text.text)
            # Terminals show a reason, on one line.
            assert link["data-yanked"] == printable(HOSTILE)
            assert "<script" not in text.text
            again = json.loads(running.page().body)["files"][0]
            assert again["yanked"] == printable(HOSTILE)
            assert again["filename"] == name

    @pytest.mark.parametrize("credentials", [None, ("a", "b")])
    def test_urls_of_an_upstream_cannot_add_headers(
        self, credentials: tuple[str, str] | None
    ) -> None:
        answers = answers_for_json(
            {
                "filename": PLAIN,
                "url": "x/\r\nX-Evil: 1\r\n\r\nbody/\u00e9 {}|^\x00.whl",
                "hashes": {"sha256": "0" * 64},
            }
        )
        with serve_answers(answers) as server:

            def prepare(client: Client) -> None:
                if credentials is not None:
                    client.logins.add(server.url, credentials)

            with start(f"{server.url}/simple/", prepare=prepare) as running:
                root = running.urls[0].removesuffix("simple/")
                reply = ask(f"{root}f/torch/-/00000000/{PLAIN}")
                assert "x-evil" not in reply.headers
                assert reply.status in (404, 502)

    def test_an_upstream_cannot_name_files_of_this_machine(self, folder: Path) -> None:
        target = folder.as_uri()
        names = ("torch-1.0.zip", "torch-2.8.0-py3-none-any-cu128.whl")
        for local in (False, True):
            files = [
                {"filename": n, "url": f"{target}/{n}", "hashes": {}} for n in names
            ]
            text = f'<base href="{target}/"><a href="secret.txt">x</a>'
            page = Answer(body=text.encode(), kind="text/html")
            answers = {**page_of(*files), "/links": page, "/simple/x/": page}
            with serve_answers(answers) as server:
                with start(f"{server.url}/simple/", local=local) as running:
                    urls = [*running.page().files.values()]
                    urls += running.page("x").files.values()
                    assert len(urls) == 2
                    assert [ask(url).status for url in urls] == [403, 403]
                with start(f"{server.url}/links", local=local, links=True) as running:
                    page_url = f"{running.urls[0]}secret/"
                    (attributes,) = links(ask(page_url).text)
                    assert ask(urljoin(page_url, attributes["href"])).status == 403

    def test_a_stream_that_breaks_off(self, folder: Path) -> None:
        answers = answers_of(folder)
        path = "/simple/torch/torch-2.8.0-py3-none-any-cu128.whl"
        answers[path] = Answer(body=b"x" * 3_000_000, fault="cut")
        answers[f"{path}.metadata"] = Answer(body=b"Name: torch\nVersion: 2.8.0\n")
        page = answers["/simple/torch/"]
        text = page.body.decode().replace("<a ", "<a data-core-metadata=true ")
        answers["/simple/torch/"] = replace(page, body=text.encode())
        with serve_answers(answers) as server:

            def prepare(client: Client) -> None:
                client.logins.add(server.url, ("a", "b"))

            with start(f"{server.url}/simple/", prepare=prepare) as running:
                url = running.page().files[CU128]
                with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                    ask(url)
                # The server continues.
                assert running.page().status == 200

    def test_any_status_of_an_upstream(self) -> None:
        statuses = (204, 301, 304, 400, 404, 418, 500, 503, 999)
        files = [
            {"filename": f"torch-{n}.zip", "url": f"torch-{n}.zip", "hashes": {}}
            for n in statuses
        ]
        answers = page_of(*files)
        sign = "€".encode().decode("latin-1")
        headers = {"Retry-After": sign, "Last-Modified": sign}
        for status in statuses:
            answer = Answer(status=status, headers=headers)
            answers[f"/simple/torch/torch-{status}.zip"] = answer
            answers[f"/simple/p{status}/"] = answer
        with serve_answers(answers) as server:

            def prepare(client: Client) -> None:
                client.logins.add(server.url, ("a", "b"))

            with start(f"{server.url}/simple/", prepare=prepare) as running:
                found = running.page().files
                for status in statuses:
                    is_known = status < 600
                    reply = ask(found[f"torch-{status}.zip"])
                    # A redirect that is not followed here is not for installers.
                    is_sent = is_known and not 300 <= status < 400
                    assert reply.status == (status if is_sent else 502)
                    reply = running.page(f"p{status}")
                    assert reply.status == (status if is_known else 200)
                    # pip passes over this page, as without the server, and uv stops.
                    kind = reply.headers["content-type"]
                    assert is_known or kind == "application/octet-stream"


def answers_for_json(*files: dict[str, Any]) -> dict[str, Answer]:
    """Return a page with ``files`` and a metadata file."""
    listed = [
        *files,
        {
            "filename": "torch-2.8.0-variants.json",
            "url": "torch-2.8.0-variants.json",
            "hashes": {},
        },
    ]
    return {
        **page_of(*listed),
        "/simple/torch/torch-2.8.0-variants.json": Answer(
            body=json.dumps(TORCH).encode()
        ),
    }


SECRET = b"the user's own keys"


@pytest.fixture
def private() -> Iterator[RangeServer]:
    """Return a server that needs the user's password."""
    with serve_answers(
        {"/keys": Answer(body=SECRET, kind="application/json")}, credentials="a:b"
    ) as server:
        yield server


def reads_of(
    page: Answer, *others: str, accept: str = "text/html", **options: Any
) -> list[Reply]:
    """Return what others get from an index with this page, and from its links."""
    with serve_answers({PAGE: page}) as hostile:
        indexes = f"{hostile.url}/simple/", *others
        with start(*indexes, kept=KeptPages(print), **options) as running:
            found = ask(f"{running.urls[0]}torch/", Accept=accept)
            base = found.headers.get("location", f"{running.urls[0]}torch/")
            targets = [urljoin(base, x["href"]) for x in links(found.text)]
            own = running.urls[0].partition("/simple")[0]
            return [found, *(ask(x) for x in targets if x.startswith(own))]


@pytest.mark.parametrize("known", ["another index", "netrc", "keyring"])
@pytest.mark.parametrize("way", ["redirect", "link"])
def test_pages_read_no_other_server_with_the_users_password(
    way: str, known: str, private: RangeServer, tmp_path: Path
) -> None:
    """Every user of the machine reads pages, which may name any server."""
    url = f"{private.url}/keys"
    page = Answer(status=302, headers={"Location": url})
    if way == "link":
        file = {"filename": PLAIN, "url": url, "hashes": {}}
        page = page_of(file)[PAGE]
    options: dict[str, Any] = {}
    others = []
    if known == "netrc":
        path = tmp_path / "netrc"
        path.write_text("machine 127.0.0.1 login a password b\n")
        options["settings"] = Settings(netrc=(str(path),), trusts_pages=True)
    elif known == "keyring":
        options["ask_credentials"] = lambda _: ("a", "b")
    else:
        others = [private.url.replace("//", "//a:b@") + "/other/simple/"]
    accept = "text/html" if way == "link" else JSON
    replies = reads_of(page, *others, accept=accept, **options)
    assert not any(SECRET in reply.body for reply in replies)
    assert private.sent["/keys"] == 0
    if way == "redirect" and known == "another index":
        # An installer lacks the password, so it would use another index.
        assert replies[0].text.startswith("error: ")
    elif way == "redirect":  # the installer may have the password
        assert (replies[0].status, replies[0].headers["location"]) == (302, url)


def test_metadata_that_the_user_has_read_with_a_password_is_not_for_others(
    tmp_path: Path,
) -> None:
    """A page may give the URL and the hash of a wheel of a private index."""
    wheel = stub_wheel(
        tmp_path,
        "torch",
        "99+cu126",
        tag="py3-none-manylinux_2_17_x86_64",
        requires=["secret-engine"],
        members={"torch/lib.so": random.Random(0).randbytes(300_000)},
    )
    content = wheel.read_bytes()
    file: dict[str, Any] = {
        "filename": wheel.name,
        "url": f"/files/{wheel.name}",
        "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
    }
    answers = {**page_of(file), f"/files/{wheel.name}": Answer(body=content)}

    def metadata_of(index: str, **options: Any) -> Reply:
        with start(index, cache=str(tmp_path / "cache"), **options) as running:
            page = running.page(User_Agent="pip/26.3")
            return ask(f"{page.files[wheel.name]}.metadata")

    with serve_answers(answers, credentials="a:b") as private:
        theirs = page_of({**file, "url": f"{private.url}/files/{wheel.name}"})
        index = private.url.replace("//", "//a:b@") + "/simple/"
        assert b"secret-engine" in metadata_of(index, local=True).body
        with serve_answers(theirs) as hostile:
            reply = metadata_of(f"{hostile.url}/simple/")
        assert (reply.status, b"secret-engine" in reply.body) == (401, False)
