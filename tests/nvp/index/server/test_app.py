"""The local index over HTTP: its pages, and how it sends files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import pytest
from support.authority import Authority
from support.index_server import serve
from support.loopback import JSON, Running, answers_of, ask, links, page_of, start
from support.range_server import Answer, RangeServer, serve_answers

from nvidia_variant_provider.errors import InputError
from nvp.index.http.client import Client
from nvp.index.http.urls import Settings
from nvp.index.selection import pieces
from nvp.index.selection.pieces import is_of_index

CU128 = "torch-2.8.0-3cu128-py3-none-any.whl"

CU128_FILE = "torch-2.8.0-py3-none-any-cu128.whl"

PLAIN = "torch-2.8.0-py3-none-any.whl"

pytestmark = pytest.mark.usefixtures("no_noise")


class TestPages:
    def test_a_page_shows_the_best_build_with_the_highest_rank(
        self, running: Running
    ) -> None:
        page = running.page()
        assert page.status == 200
        assert sorted(page.files) == [
            "torch-2.8.0-1null-py3-none-any.whl",
            "torch-2.8.0-2cu126-py3-none-any.whl",
            CU128,
            PLAIN,
            "torch-2.8.0-variants.json",
        ]

    @pytest.mark.parametrize("accept", [JSON, "text/html", "*/*", ""])
    def test_pages_are_not_cached(self, accept: str, running: Running) -> None:
        for path in ("torch/", "", "torch", "Torch/", "nothing/"):
            reply = ask(running.urls[0] + path, Accept=accept)
            assert reply.headers["cache-control"] == "no-store"
            assert "etag" not in reply.headers
            assert "last-modified" not in reply.headers

    @pytest.mark.parametrize(
        ("accept", "kind"),
        [
            (JSON, JSON),
            (f"text/html;q=0.1, {JSON}", "text/html; charset=utf-8"),
            ("text/html, */*;q=0.1", "text/html; charset=utf-8"),
            ("", "text/html; charset=utf-8"),
            ("image/png", None),
            ("text/html;q=high", None),
            (";;;,,,", None),
            ("\xff", None),
        ],
    )
    def test_formats(self, accept: str, kind: str | None, running: Running) -> None:
        for path in ("", "torch/"):
            if path == "" and kind is not None:
                continue  # This upstream has no list of projects.
            reply = ask(running.urls[0] + path, Accept=accept)
            if kind is None:
                assert reply.status == 406
            else:
                assert (reply.status, reply.headers["content-type"]) == (200, kind)

    def test_other_spellings_of_a_name_are_redirected(self, running: Running) -> None:
        for path in ("Torch/", "torch", "TORCH"):
            reply = ask(running.urls[0] + path)
            assert reply.status == 301
            assert "//" not in reply.headers["location"].replace("http://", "")
        assert ask(running.urls[0] + "To.Rch/").headers["location"] == "../to-rch/"
        assert ask(running.urls[0] + "Torch").headers["location"] == "torch/"

    def test_a_list_of_projects(self, folder: Path, local: Running) -> None:
        (folder / "<img src=x>").mkdir()
        reply = ask(local.urls[0], Accept=JSON)
        assert json.loads(reply.body)["projects"] == [{"name": "torch"}]
        assert links(ask(local.urls[0]).text) == [{"href": "torch/"}]

    def test_head_requests(self, running: Running) -> None:
        reply = ask(running.urls[0] + "torch/", "HEAD")
        assert (reply.status, reply.body) == (200, b"")
        for method in ("POST", "PUT", "DELETE", "CONNECT", "OPTIONS"):
            assert ask(running.urls[0] + "torch/", method).status in (400, 405)


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("url", ["http://[::1", "file://[::1/x", "file:///a%00b"])
def test_malformed_urls_are_left_to_pip(url: str, *, links: bool) -> None:
    with start(url, links=links) as running:
        assert running.urls == [url]


class TestFiles:
    def test_files_that_need_no_credentials_are_redirected(
        self, upstream: RangeServer, running: Running
    ) -> None:
        url = running.page().files[CU128]
        reply = ask(url)
        assert reply.status == 302
        assert reply.headers["cache-control"] == "no-store"
        location = f"{upstream.url}/simple/torch/{CU128_FILE}"
        assert reply.headers["location"] == location
        assert running.picks[-1] == ("torch", "cu128")
        # The non-variant wheel needs no changes, so lock files record its own URL.
        plain = running.page().files[PLAIN]
        assert plain == f"{upstream.url}/simple/torch/{PLAIN}"

    @pytest.mark.parametrize("secret", ["user:pass", "\u00fcser:p%40\u00e4:ss"])
    def test_files_that_require_credentials_are_streamed(
        self, secret: str, folder: Path
    ) -> None:
        with serve_answers(answers_of(folder), credentials=secret) as server:
            user, _, word = secret.partition(":")

            def prepare(client: Client) -> None:
                client.logins.add(server.url, (user, word))

            with start(f"{server.url}/simple/", prepare=prepare) as running:
                page = running.page()
                files = [f"{server.url}/" not in url for url in page.files.values()]
                assert all(files)
                for name in (CU128, PLAIN, "torch-2.8.0-variants.json"):
                    assert ask(page.files[name]).status == 200
                file = folder / "torch" / CU128_FILE
                whole = file.read_bytes()
                assert ask(page.files[CU128]).body == whole
                part = ask(page.files[CU128], Range="bytes=10-19")
                assert (part.status, part.body) == (206, whole[10:20])
                expected = f"bytes 10-19/{len(whole)}"
                assert part.headers["content-range"] == expected
                head = ask(page.files[CU128], "HEAD")
                assert (head.status, head.body) == (200, b"")
                assert head.headers["content-length"] == str(len(whole))

    def test_a_coding_of_a_file_is_passed_on(self, folder: Path) -> None:
        """Servers may send one although it was not requested, and uv decodes it."""
        answers = answers_of(folder)
        place = f"/simple/torch/{PLAIN}"
        coding = {"Content-Encoding": "gzip"}
        answers[place] = replace(answers[place], headers=coding)
        with serve_answers(answers, credentials="a:b") as server:
            url = server.url.replace("//", "//a:b@")
            with start(f"{url}/simple/") as running:
                reply = ask(running.page().files[PLAIN])
                assert reply.headers["content-encoding"] == "gzip"
                assert reply.body == answers[place].body

    @pytest.mark.parametrize(
        "wanted", ["\xff\xfe", "bytes=\xb2-", "bytes=9-2", "lines=1-2", "bytes=0-1,3-4"]
    )
    @pytest.mark.parametrize("streamed", [True, False])
    def test_a_range_that_means_nothing_is_ignored(
        self, streamed: bool, wanted: str, folder: Path, local: Running
    ) -> None:
        """RFC 9110, section 14.2, allows ignoring invalid ranges and several ranges."""
        whole = (folder / "torch" / CU128_FILE).read_bytes()
        with serve_answers(answers_of(folder), credentials="a:b") as server:
            url = server.url.replace("//", "//a:b@")
            with start(f"{url}/simple/") as running:
                page = (running if streamed else local).page()
                reply = ask(page.files[CU128], Range=wanted)
                assert (reply.status, reply.body) == (200, whole)
                assert running.warnings == []

    def test_a_file_is_never_a_page(self, folder: Path, local: Running) -> None:
        """An upstream may call a file HTML; a browser must not run it."""
        answers = {
            path: replace(answer, kind="text/html")
            for path, answer in answers_of(folder).items()
        }
        with serve_answers(answers, credentials="a:b") as server:
            url = server.url.replace("//", "//a:b@")
            with start(f"{url}/simple/") as running:
                for page in (running.page(), local.page()):
                    for method in ("GET", "HEAD"):
                        headers = ask(page.files[CU128], method).headers
                        assert headers["content-type"] == "application/octet-stream"
                        assert headers["x-content-type-options"] == "nosniff"

    @pytest.mark.parametrize("local", [False, True])
    def test_no_request_brings_credentials(self, local: bool, folder: Path) -> None:
        """They may belong to anyone. With another 401, pip would continue with the next
        index."""
        with (
            serve_answers(answers_of(folder), credentials="a:b") as server,
            start(f"{server.url}/simple/", local=local) as running,
        ):
            reply = running.page()
            assert reply.status == 401
            assert "HTTP 401" in reply.text
            assert "www-authenticate" not in reply.headers
            for text in ("Basic YTpi", "Basic", "Basic \xff", "Bearer x"):
                reply = running.page(Authorization=text)
                assert reply.text.startswith("error: ")
            assert running.page().status == 401

    def test_a_page_comes_from_the_own_pip_only(self, folder: Path) -> None:
        """A client of `serve` could otherwise give a page to the others."""
        for local, status in ((False, 405), (True, 403)):
            with start(str(folder), local=local, secret=local) as running:
                reply = ask(f"{running.urls[0]}torch/", "POST", **{"User-Agent": "x"})
                assert reply.status == status

    def test_a_certificate_that_the_server_does_not_trust(
        self, folder: Path, tmp_path: Path
    ) -> None:
        """An installer that trusts it must not use the next index."""
        with (
            serve(folder, tls=Authority(tmp_path).context) as url,
            start(url, settings=Settings(trust_env=False)) as running,
        ):
            assert running.page().text.startswith("error: ")
            # Poetry before 2.2 reads the text as a page without files.
            with pytest.raises(IncompleteRead):
                running.page(Accept="text/html")

    @pytest.mark.parametrize("place", ["x.example/a/", "X.example:443/a"])
    def test_two_users_of_one_url_are_refused(self, place: str) -> None:
        """The client has one user for each URL."""
        with (
            start("https://a:b@x.example/a/") as running,
            pytest.raises(InputError, match="different credentials"),
        ):
            running.local_index.add_index(f"https://c:d@{place}")

    @pytest.mark.parametrize("path", ["a?sig=1", "a/#x", "a/?", "a b", "a/%2e%2e/b"])
    def test_an_index_to_which_installers_add_projects_differently(
        self, path: str
    ) -> None:
        """uv keeps the query. After the 404 of another URL, it uses its next index."""
        url = f"https://x.example/{path}"
        with (
            start("https://y.example/") as running,
            pytest.raises(InputError, match="add a project differently"),
        ):
            running.local_index.add_index(url)
        with start("https://y.example/", local=True) as running:
            assert running.local_index.add_index(url) != url  # as pip reads it

    def test_a_mirror_cannot_name_files_outside_of_it(self, tmp_path: Path) -> None:
        """Such a file would be sent to every client."""
        secret = tmp_path / "id_rsa"
        secret.write_text("secret")
        outside = tmp_path / "x-1.0.zip"
        outside.write_text("secret")
        mirror = tmp_path / "mirror" / "simple"
        neighbour = tmp_path / "mirror" / "files" / "x-1.1.zip"
        # The mirror may be in the user's home.
        names = ("tokens.json", "backup.zip", ".hidden/x-1.2.zip")
        others = [tmp_path / "mirror" / name for name in names]
        for path in (mirror / "x" / "index.html", neighbour, others[-1]):
            path.parent.mkdir(parents=True)
        for path in (neighbour, *others):
            path.write_text("fine")
        link = mirror / "x" / "x-1.3.zip"
        link.symlink_to(others[0])
        others.append(link)
        pages = "".join(
            f'<a href="{p.as_uri()}">x</a>'
            for p in (secret, outside, neighbour, *others)
        )
        (mirror / "x" / "index.html").write_text(pages)
        with start(str(mirror)) as running:
            files = ask(f"{running.urls[0]}x/", Accept=JSON).files
            assert ask(files["id_rsa"]).status == 403
            assert ask(files["x-1.0.zip"]).status == 403
            assert {ask(files[path.name]).status for path in others} == {403}
            assert ask(files["x-1.1.zip"]).body == b"fine"

    @pytest.mark.skipif(sys.platform != "linux", reason="Linux tells what was opened")
    def test_a_link_that_is_made_after_the_check_is_not_followed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret, file = tmp_path / "id_rsa", tmp_path / "index" / "x" / "x-1.0.zip"
        file.parent.mkdir(parents=True)
        secret.write_text("secret")
        file.write_text("fine")

        def exchange(path: Path, index: Path, names: re.Pattern[str]) -> bool:
            is_ours = is_of_index(path, index, names)
            file.unlink()
            file.symlink_to(secret)
            return is_ours

        monkeypatch.setattr(pieces, "is_of_index", exchange)
        with start(str(file.parents[1])) as running:
            files = ask(f"{running.urls[0]}x/", Accept=JSON).files
            assert ask(files[file.name]).body == b"fine"
            assert ask(files[file.name]).status == 404

    def test_a_page_of_links_is_read_once_for_all_projects(self) -> None:
        names = [f"{name}-1.0-py3-none-any.whl" for name in ("a", "b", "a_b")]
        page = "".join(f'<a href="{name}">x</a>' for name in names)
        answers = {"/links/": Answer(body=page.encode(), kind="text/html")}
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/links/", links=True) as running,
        ):
            for name, own in (("a", {names[0], names[2]}), ("b", {names[1]})):
                reply = ask(f"{running.urls[0]}{name}/", Accept=JSON)
                assert reply.files.keys() == own
            assert ask(f"{running.urls[0]}links/", Accept=JSON).files == {}
            assert [r for r in server.requests if "/links/ " in r] == ["/links/ whole"]

    def test_credentials_that_nobody_asked_for_are_ignored(self, folder: Path) -> None:
        """A netrc file with a default entry has a password for every server."""
        with serve_answers(answers_of(folder), credentials="a:b") as server:
            url = server.url.replace("//", "//a:b@")
            with start(f"{url}/simple/", local=True) as running:
                for _ in range(2):
                    assert running.page(Authorization="Basic eDp5").status == 200

    @pytest.mark.parametrize("name", [PLAIN, CU128_FILE])
    def test_a_file_that_the_page_has_replaced_is_not_found(
        self, name: str, folder: Path
    ) -> None:
        """A URL of an earlier page leads to the file of that page, or to none."""
        answers = answers_of(folder)
        index = "/simple/torch/"
        shown = CU128 if name == CU128_FILE else name
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/", direct=False) as running,
        ):
            url = running.page().files[shown]
            assert ask(url).status == 200
            page, place = answers[index], f"{index}{name}"
            text = page.body.decode()
            moved = re.sub(f'href="{name}#[^"]*', f'href="other/{name}', text)
            answers[index] = replace(page, body=moved.encode())
            answers[f"{index}other/{name}"] = answers.pop(place)
            new = running.page().files[shown]
            assert (ask(url).status, ask(new).status) == (404, 200)

    def test_a_file_with_another_signature_is_the_same(self) -> None:
        file = {"filename": PLAIN, "url": f"x/{PLAIN}?signature=1", "hashes": {}}
        answers = page_of(file)
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/", direct=False) as running,
        ):
            (url,) = running.page().files.values()
            answers.update(page_of({**file, "url": f"x/{PLAIN}?signature=2"}))
            assert running.page().files == {PLAIN: url}
            ask(url)
            assert f"{PLAIN}?signature=2" in server.requests[-1]

    def test_files_of_a_folder_are_sent(self, folder: Path, local: Running) -> None:
        page = local.page()
        name = folder / "torch" / CU128_FILE
        reply = ask(page.files[CU128])
        assert (reply.status, reply.body) == (200, name.read_bytes())
        assert ask(page.files[CU128], Range="bytes=0-3").body == b"PK\x03\x04"
        assert ask(page.files[CU128], Range="bytes=9999999-").status == 416
        assert ask(page.files[CU128], "HEAD").body == b""

    def test_a_missing_file_is_not_found(self, tmp_path: Path) -> None:
        (tmp_path / "torch").mkdir()
        page = '<a href="torch-1.zip">x</a><a href="../torch/">y</a><a href="../torch">'
        (tmp_path / "torch" / "index.html").write_text(page)
        with start(str(tmp_path)) as running:
            for url in running.page().files.values():
                assert ask(url).status == 404


_STREAM = """
import resource, sys, urllib.request
from support.loopback import start
def prepare(client):
    client.logins.add(sys.argv[1], ("a", "b"))
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with start(sys.argv[1] + "simple/", prepare=prepare) as running:
    files = running.page().files
    def fetch(name):
        total = 0
        with urllib.request.urlopen(files[name]) as answer:
            while chunk := answer.read(65536):
                total += len(chunk)
        return total
    fetch("torch-1.zip")
    before = peak()
    print(fetch("torch-2.zip"), peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB there")
def test_memory_does_not_grow_with_a_file() -> None:
    from http.server import BaseHTTPRequestHandler

    from support.index_server import start_server

    sizes = {
        "/simple/torch/torch-1.zip": 8 << 20,
        "/simple/torch/torch-2.zip": 256 << 20,
    }
    files = [{"filename": p[14:], "url": p, "hashes": {}} for p in sizes]
    page = page_of(*files)["/simple/torch/"]
    zeros = bytes(1 << 20)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            self.send_response(200)
            size = sizes.get(self.path, len(page.body))
            kind = "application/zip" if self.path in sizes else page.kind
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if self.path not in sizes:
                self.wfile.write(page.body)
                return
            for _ in range(size >> 20):
                self.wfile.write(zeros)

    with start_server(Handler) as url:
        done = subprocess.run(
            [sys.executable, "-c", _STREAM, url],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            stdout=subprocess.PIPE,
            check=True,
            timeout=120,
        )
    total, grown = map(int, done.stdout.split())
    assert total == 256 << 20
    assert grown < 24 << 10
