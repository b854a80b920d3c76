"""How long uv keeps files of the local index: as long as it does without that."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx
import pytest
import uv
from starlette.responses import StreamingResponse
from support.loopback import ask, page_of, start
from support.processes import clean_environ
from support.range_server import Answer, RangeServer, serve_answers
from support.wheels import stub_wheel

from nvp.index.server.responses import respond_with_text
from nvp.index.server.sent_files import headers_of

YEAR = 365 * 86400
NOW = 1_800_000_000
PIP = "pip/26.0 {}"
WHEEL = "torch-1.0-py3-none-any.whl"


def publish(folder: Path, required: str, time: int = NOW, more: bytes = b"") -> Path:
    """Write the wheel in place of an earlier one."""
    members = {"required.txt": required.encode(), "more.bin": more}
    wheel = stub_wheel(folder, "torch", "1.0", requires=[required], members=members)
    os.utime(wheel, (time, time))
    return wheel


def answers_of(
    wheel: Path, caching: Mapping[str, str], **page: Any
) -> dict[str, Answer]:
    """Return an index that has the wheel."""
    content = wheel.read_bytes()
    headers = {
        "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
        "Last-Modified": formatdate(wheel.stat().st_mtime, usegmt=True),
        **caching,
    }
    entry = {"filename": WHEEL, "url": f"/files/{WHEEL}", "hashes": {}, **page}
    return {
        **page_of(entry),
        f"/files/{WHEEL}": Answer(body=content, headers=headers),
    }


def private(server: RangeServer) -> str:
    return f"{server.url}/simple/".replace("//", "//user:secret@", 1)


class TestStreamedFiles:
    """An index with a login, whose files installers cannot download themselves."""

    @pytest.mark.parametrize(
        "caching",
        [
            {"Cache-Control": "no-store"},
            {"Cache-Control": "max-age=60", "Age": "50", "Vary": "*"},
            {"Cache-Control": "private", "Expires": "Thu, 01 Jan 1970 00:00:00 GMT"},
            {"Pragma": "no-cache"},
            {},
        ],
    )
    def test_directives_for_caches_are_passed_on(
        self, caching: Mapping[str, str], tmp_path: Path
    ) -> None:
        """uv used METADATA for ten minutes that its index wanted to be asked for."""
        answers = answers_of(publish(tmp_path, "good"), caching)
        with (
            serve_answers(answers, credentials="user:secret") as server,
            start(private(server)) as running,
        ):
            headers = ask(running.page().files[WHEEL]).headers
        directives = {"cache-control", "expires", "pragma", "age", "vary"}
        expected = {name.lower(): text for name, text in caching.items()}
        assert {k: v for k, v in headers.items() if k in directives} == expected
        assert "date" in headers  # of the upstream, on which the others depend

    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    def test_a_file_that_the_client_has_is_not_sent(
        self, method: str, tmp_path: Path
    ) -> None:
        answers = answers_of(publish(tmp_path, "good"), {"Cache-Control": "no-cache"})
        with (
            serve_answers(answers, credentials="user:secret") as server,
            start(private(server)) as running,
        ):
            url = running.page().files[WHEEL]
            whole = ask(url)
            assert whole.status == 200
            for condition, key in (
                ("If-None-Match", "etag"),
                ("If-Modified-Since", "last-modified"),
            ):
                reply = ask(url, method, **{condition: whole.headers[key]})
                assert (reply.status, reply.body) == (304, b"")
                assert reply.headers["etag"] == whole.headers["etag"]
                assert reply.headers["cache-control"] == "no-cache"
            assert ask(url, If_None_Match='"other"').body == whole.body
            assert running.warnings == []

    def test_a_tag_that_is_not_ascii(self, tmp_path: Path) -> None:
        """uv sends the tag back, but httpx cannot send it to the index."""
        answers = answers_of(publish(tmp_path, "good"), {"ETag": '"\xe9"'})
        with (
            serve_answers(answers, credentials="user:secret") as server,
            start(private(server)) as running,
        ):
            reply = ask(running.page().files[WHEEL], If_None_Match='"\xe9"')
            assert reply.status == 200
            assert reply.headers["etag"] == '"\xe9"'

    def test_a_header_that_is_sent_twice(self) -> None:
        sent = [("cache-control", "private"), ("cache-control", "")]
        headers = headers_of(httpx.Response(200, headers=sent))
        assert headers["cache-control"] == "private,"

    def test_a_server_that_sends_304_without_a_condition(self, tmp_path: Path) -> None:
        answers = answers_of(publish(tmp_path, "good"), {})
        answers[f"/files/{WHEEL}"] = Answer(status=304)
        with (
            serve_answers(answers, credentials="user:secret") as server,
            start(private(server)) as running,
        ):
            assert ask(running.page().files[WHEEL]).status == 502


class TestComparedFiles:
    """Wheels that are compared with their METADATA, or changed, while they are sent."""

    @pytest.mark.parametrize(
        ("caching", "expected"),
        [("No-Store", "no-store"), ("max-age=3600", "no-cache"), ("", "no-cache")],
    )
    def test_only_the_server_may_forbid_to_keep_a_wheel(
        self, caching: str, expected: str, tmp_path: Path
    ) -> None:
        wheel = publish(tmp_path, "good", more=random.Random(0).randbytes(3_000_000))
        answers = answers_of(
            wheel, {"Cache-Control": caching}, size=wheel.stat().st_size
        )
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/") as running,
        ):
            url = running.page(User_Agent=PIP).files[WHEEL]
            assert ask(f"{url}.metadata").status == 200
            reply = ask(url)
            assert reply.body == wheel.read_bytes()
            assert reply.headers["accept-ranges"] == "none"
            assert reply.headers["cache-control"] == expected


class TestLocalFiles:
    def test_a_client_asks_before_it_uses_its_copy(self, tmp_path: Path) -> None:
        wheel = publish(tmp_path / "torch", "good")
        with start(str(tmp_path)) as running:
            url = running.page().files[WHEEL]
            whole = ask(url)
            assert whole.headers["cache-control"] == "no-cache"
            tag = whole.headers["etag"]
            for tags in (tag, f'"other", {tag}'):
                reply = ask(url, If_None_Match=tags)
                assert (reply.status, reply.body) == (304, b"")
            assert ask(url, If_None_Match='"other"').body == whole.body

            before = wheel.stat()
            publish(tmp_path / "torch", "evil")
            assert wheel.stat()[6:9:2] == before[6:9:2]  # the same size and time
            reply = ask(running.page().files[WHEEL], If_None_Match=tag)
            assert reply.status == 200
            assert reply.body != whole.body


class TestUv:
    """A wheel is replaced in place, and uv has a cache."""

    def run(self, url: str, folder: Path, *words: str) -> str:
        command = [uv.find_uv_bin(), "pip", *words, "--no-config", "--quiet"]
        done = subprocess.run(
            [*command, "--python", sys.executable, "--default-index", url],
            env=clean_environ(folder),
            input="torch",
            capture_output=True,
            timeout=120,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def requirement(self, url: str, folder: Path) -> str:
        text = self.run(url, folder, "compile", "-", "--no-header", "--no-annotate")
        (found,) = (line for line in text.split() if not line.startswith("torch"))
        return found.partition("==")[0]

    def install(self, url: str, folder: Path) -> str:
        with tempfile.TemporaryDirectory(dir=folder) as target:
            self.run(url, folder, "install", "torch", "--no-deps", "--target", target)
            return Path(target, "required.txt").read_text()

    def test_metadata_of_an_index_with_a_login(self, tmp_path: Path) -> None:
        """A dependency that the owner had removed was installed for a month."""
        answers: dict[str, Answer] = {}
        for name in ("evil", "good"):
            wheel = stub_wheel(tmp_path / name, name, "1.0")
            answers[f"/simple/{name}/{wheel.name}"] = Answer(body=wheel.read_bytes())
            page = f'<a href="{wheel.name}">{wheel.name}</a>'.encode()
            answers[f"/simple/{name}/"] = Answer(body=page, kind="text/html")
        asking = {"Cache-Control": "no-cache"}
        wheel = publish(tmp_path / "torch", "evil", NOW - YEAR)
        answers |= answers_of(wheel, asking)
        with (
            serve_answers(answers, credentials="user:secret") as server,
            start(private(server)) as running,
        ):
            assert self.requirement(running.urls[0], tmp_path) == "evil"
            answers |= answers_of(publish(tmp_path / "torch", "good"), asking)
            assert self.requirement(running.urls[0], tmp_path) == "good"

    def test_metadata_of_a_directory(self, tmp_path: Path) -> None:
        folder = tmp_path / "index"
        for name in ("evil", "good"):
            stub_wheel(folder / name, name, "1.0")
        publish(folder / "torch", "evil", NOW - YEAR)
        with start(str(folder)) as running:
            assert self.requirement(running.urls[0], tmp_path) == "evil"
            publish(folder / "torch", "good")
            assert self.requirement(running.urls[0], tmp_path) == "good"

    def test_a_wheel_that_may_not_be_kept(self, tmp_path: Path) -> None:
        """uv kept it, and installed it with METADATA of the wheel after it."""
        answers: dict[str, Answer] = {}

        def put(required: str) -> None:
            wheel = publish(tmp_path / "torch", required)
            page = {
                "hashes": {"sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()}
            }
            answers.update(answers_of(wheel, {"Cache-Control": "no-store"}, **page))

        put("evil")
        with (
            serve_answers(answers, credentials="user:secret") as server,
            start(private(server)) as running,
        ):
            assert self.install(running.urls[0], tmp_path) == "evil"
            put("good")
            assert self.install(running.urls[0], tmp_path) == "good"


def test_a_large_text_is_sent_in_pieces() -> None:
    """Each client that read nothing of 4 MB took 13 MB, or more for rare characters."""
    text = "é" * 100_000
    small, large = respond_with_text("x"), respond_with_text(text)
    assert small.body == b"x"

    async def read() -> list[bytes]:
        assert isinstance(large, StreamingResponse)
        pieces = [each async for each in large.body_iterator]
        return [each for each in pieces if isinstance(each, bytes)]

    pieces = asyncio.run(read())
    assert b"".join(pieces).decode() == text
    assert max(map(len, pieces)) <= 64 * 1024
    assert large.headers["content-length"] == str(sum(map(len, pieces)))
    assert large.headers["content-type"] == small.headers["content-type"]
