"""A server whose range responses have other METADATA than the whole wheel.

The page is honest, and has the hash of the wheel. An installer that downloads the wheel
before it reads dependencies detects such a server.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import re
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builds import machine
from support.documents import TORCH, of_one
from support.loopback import answers_of, ask, start
from support.lying_files import KERN, PAD, TAG, make_answers, page
from support.processes import PIPS, Environment, Pip, clean_environ
from support.range_server import Answer, RangeServer, serve_answers
from support.strangers import STRANGER, needs_root
from support.wheels import publish, stub_wheel, write_page

from nvp.index.http.ranges import ChangedFileError, Comparison, Parts

MACHINE = ("--cuda-driver", "12.8", "--sm-arch", "8.0")


def kept(home: Path) -> list[Path]:
    """Return the files with METADATA of kern in the cache."""
    return [
        path
        for path in home.glob(".cache/nvidia-variant-provider/metadata/*")
        if b"Name: kern" in path.read_bytes()
    ]


@pytest.mark.parametrize(
    "version", [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]
)
@pytest.mark.parametrize("hashes", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_pip_gets_nothing_that_was_not_compared(
    version: str,
    hashes: bool,
    tmp_path: Path,
    fresh: Callable[[str], Environment],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    environment, home = fresh(version), tmp_path / "home"
    pip = Pip(environment.python, clean_environ(home))

    def install(server: RangeServer, *words: str) -> tuple[int, str]:
        index = f"{server.url}/simple/"
        done = pip("install", "-i", index, *words, *MACHINE, "kern", forced=False)
        return done.code, done.text

    answers = make_answers(tmp_path / "wheels", hashes=hashes)
    with serve_answers(answers) as server:
        code, text = install(server)
        assert code == 1, text
        assert "its METADATA was read from another file" in text
        assert environment.labels() == {}
        assert kept(home) == []
        # Without range requests, the result is that of pip without nvp.
        assert install(server, "--no-range-metadata")[0] == 0
        assert [*environment.labels()] == ["kern"]
        assert not any(f"{KERN} bytes=-65536" in x for x in server.requests[-3:])
    answers[KERN] = replace(answers[KERN], parts=None)
    with serve_answers(answers) as server:
        for attempt in range(2):
            assert install(server, "--force-reinstall")[0] == 0
            assert [*environment.labels()] == ["kern"]
            asked = sum(f"{KERN} bytes=-65536" in x for x in server.requests)
            # METADATA of a file with a hash is cached.
            assert asked == (1 if hashes else 1 + attempt)


def test_metadata_ages(
    tmp_path: Path,
    pip_of: Callable[[str], Pip],
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    environ.pop("XDG_CACHE_HOME", None)
    answers = make_answers(tmp_path / "wheels")
    answers[KERN] = replace(answers[KERN], parts=None)
    pip = Pip(pip_of(PIPS[-1]).python, environ)
    with serve_answers(answers) as server:

        def download() -> int:
            before = len(server.requests)
            index, folder = f"{server.url}/simple/", tmp_path / str(before)
            done = pip(
                *("download", "-i", index, "-d", folder, *MACHINE, "kern"), forced=False
            )
            assert done.code == 0, done.text
            return sum("bytes=-65536" in text for text in server.requests[before:])

        assert download() == 1
        (file,) = kept(tmp_path / "home")
        for days, read in ((29, 0), (31, 1), (-1, 1)):
            then = time.time() - days * 24 * 3600
            os.utime(file, (then, then))
            assert download() == read


@pytest.mark.parametrize(("direct", "signed"), [(True, True), (True, 0), (False, 0)])
def test_the_end_is_held_back_from_other_installers(
    direct: bool, signed: bool, tmp_path: Path
) -> None:
    """They are uv, if files pass through the server, and pip behind ``serve``.

    :param signed: whether a page that is read later has another signature in the URL.
    """
    answers = make_answers(tmp_path)
    with (
        serve_answers(answers) as server,
        start(f"{server.url}/simple/", direct=direct) as running,
    ):
        agent = "pip/26.3" if direct else "uv/0.13.8"
        (url,) = running.page("kern", User_Agent=agent).files.values()
        assert "Requires-Dist: evil" in ask(f"{url}.metadata").text
        if signed:
            answers[f"{KERN}?s=2"], old = answers[KERN], answers["/simple/kern/"]
            new = old.body.replace(KERN.encode(), f"{KERN}?s=2".encode())
            answers["/simple/kern/"] = replace(old, body=new)
            source = running.local_index._repositories[0].source
            running.local_index._server.call(source.get_project_page("kern"))
        with pytest.raises(http.client.IncompleteRead) as caught:
            ask(url)
        assert 0 < len(caught.value.partial) < len(answers[KERN].body)
        assert any("read from another file" in text for text in running.warnings)
        # Installers request the rest, which must not complete the wheel.
        rest = {"Range": f"bytes={len(caught.value.partial)}-"}
        assert [ask(url).status, ask(url, **rest).status] == [403, 403]
        # Later installers read the requirements in the wheel itself.
        (file,) = json.loads(running.page("kern", User_Agent=agent).body)["files"]
        assert "core-metadata" not in file
        assert ask(url).status == 403  # for earlier installers


@pytest.mark.parametrize("damage", [False, True])
def test_an_honest_wheel_passes_once_through_the_server(
    damage: bool, tmp_path: Path
) -> None:
    answers = make_answers(tmp_path)
    body = answers[KERN].body
    changed = bytes([body[0] ^ 1]) + body[1:]
    answers[KERN] = replace(answers[KERN], parts=body, body=changed if damage else body)
    with (
        serve_answers(answers) as server,
        start(f"{server.url}/simple/", machine=machine(None)) as running,
    ):
        (url,) = running.page("kern", User_Agent="pip/26.3").files.values()
        # No METADATA was read that could be false.
        assert ask(url).status == 302
        assert "Requires-Dist" not in ask(f"{url}.metadata").text
        if damage:
            with pytest.raises(http.client.IncompleteRead):
                ask(url)
            assert "its sha256 is not the one" in running.warnings[-1]
            return
        # A range would complete a wheel that was not compared.
        reply = ask(url, Range="bytes=100-")
        assert (reply.status, reply.body) == (200, body)
        assert ask(url).status == 302
        assert running.warnings == []


def test_a_small_wheel_is_compared_before_its_metadata_is_sent(tmp_path: Path) -> None:
    honest = stub_wheel(tmp_path, "kern", "1.0", tag=TAG)
    lie = stub_wheel(tmp_path / "lie", "kern", "1.0", tag=TAG, requires=["evil"])
    answers = page("kern", honest)
    answers[KERN] = replace(answers[KERN], parts=lie.read_bytes())
    with serve_answers(answers) as server, start(f"{server.url}/simple/") as running:
        (url,) = running.page("kern", User_Agent="pip/26.3").files.values()
        reply = ask(f"{url}.metadata")
        assert (reply.status, "evil" in reply.text) == (502, False)
        assert "its sha256 is not the one that the page gives" in reply.text


def test_a_whole_file_tells_nothing_of_the_parts_before_it(tmp_path: Path) -> None:
    """A server that no longer supports range requests may have sent another list of
    members."""
    path = stub_wheel(tmp_path, "kern", "1.0", tag=TAG, requires=["needed"])
    text = zipfile.ZipFile(path).read("kern-1.0.dist-info/METADATA")
    shorter = text[: text.index(b"Requires-Dist")]
    bodies = []
    for size, crc in ((len(text), None), (len(shorter), zlib.crc32(shorter))):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("kern-1.0.dist-info/METADATA", text)
            archive.writestr("kern.bin", PAD["kern.bin"])
            entry = archive.getinfo("kern-1.0.dist-info/METADATA")
            entry.file_size = entry.compress_size = size
            entry.CRC = entry.CRC if crc is None else crc
        bodies.append(file.getvalue())
    path.write_bytes(bodies[0])
    answers = page("kern", path)
    answers[KERN] = replace(answers[KERN], parts=bodies[1], fault="whole")
    with serve_answers(answers) as server, start(f"{server.url}/simple/") as running:
        (url,) = running.page("kern", User_Agent="pip/26.3").files.values()
        assert "Requires-Dist" not in ask(f"{url}.metadata").text
        with pytest.raises(http.client.IncompleteRead):
            ask(url)
        assert "its METADATA was read from another file" in running.warnings[-1]


@given(st.data())
def test_parts_are_found_again_in_the_file_alone(data: st.DataObject) -> None:
    body = data.draw(st.binary(min_size=1, max_size=200))
    parts = Parts()
    spans = st.tuples(*[st.integers(0, len(body))] * 2).map(sorted)
    for start_, end in data.draw(st.lists(spans, max_size=4)):
        parts.add(start_, body[start_:end], len(body))
    other = data.draw(st.binary(min_size=len(body), max_size=len(body) + 1))

    def compare(content: bytes) -> bool:
        comparison = Comparison({}, [parts])
        position = 0
        while position < len(content):
            size = data.draw(st.integers(1, len(content)))
            comparison.feed(content[position : position + size])
            position += size
        try:
            comparison.finish()
        except ChangedFileError:
            return False
        return True

    assert compare(body)
    same = all(
        other[a:b] == body[a:b] and len(other) == len(body) for a, b, _ in parts.hashes
    )
    assert compare(other) is same


def test_a_wheel_that_is_rewritten_is_compared_too(tmp_path: Path) -> None:
    """Its METADATA would be from range requests, and its hash from the page."""
    publish(tmp_path, TORCH, "torch", "2.8.0")
    bodies = []
    for folder, name in ((tmp_path, "honest"), (tmp_path / "lie", "evil")):
        path = stub_wheel(
            folder / "torch",
            "torch",
            "2.8.0",
            "cu128",
            variant_json={**TORCH, "variants": {"cu128": TORCH["variants"]["cu128"]}},
            requires=[f"{name}; 'cu128' in variant_label"],
            members=PAD,
        )
        bodies.append(path.read_bytes())
    write_page(tmp_path / "torch")
    answers = answers_of(tmp_path)
    for parts in reversed(bodies):
        answers[f"/simple/torch/{path.name}"] = Answer(body=bodies[0], parts=parts)
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/") as running,
        ):
            url = next(u for n, u in running.page().files.items() if "cu128" in n)
            said = ask(f"{url}.metadata").text
            if parts == bodies[0]:
                assert "Requires-Dist: honest\n" in said
                wheel = zipfile.ZipFile(io.BytesIO(ask(url).body))
                assert wheel.testzip() is None
                continue
            assert "Requires-Dist: evil\n" in said
            with pytest.raises(http.client.IncompleteRead):
                ask(url)
            assert "its METADATA was read from another file" in running.warnings[-1]
            assert ask(url).status == 403


@pytest.mark.parametrize(
    "marked", ["archive", pytest.param("metadata", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "version", [PIPS[0], pytest.param(PIPS[-1], marks=pytest.mark.slow)]
)
def test_pip_installs_no_unverified_variant(
    marked: str, version: str, tmp_path: Path, fresh: Callable[[str], Environment]
) -> None:
    """The page has no hashes of wheels with markers, which are rewritten.

    Only the response to the request for the whole wheel has other bytes: a shorter
    wheel, with more data after its end. pip before 25.1 ignores data that is missing.
    """
    publish(tmp_path, TORCH, "torch", "2.8.0")
    marker = "Requires-Dist: x; 'y' in variant_label"
    requires = [marker.partition(" ")[2]] if marked == "archive" else []
    bodies = []
    for folder, pad in ((tmp_path, PAD["kern.bin"]), (tmp_path / "lie", b"")):
        path = stub_wheel(
            *(folder / "torch", "torch", "2.8.0", "cu128"),
            variant_json=of_one("cu128"),
            requires=requires if pad else (),
            members={"kern.bin": pad or PAD["kern.bin"][:-9000]},
        )
        bodies.append(path.read_bytes())
    write_page(tmp_path / "torch")
    answers, place = answers_of(tmp_path), f"/simple/torch/{path.name}"
    if marked == "metadata":
        text = f"Name: torch\nVersion: 2.8.0\n{marker}\n".encode()
        answers[f"{place}.metadata"] = Answer(body=text)
        page, link = answers["/simple/torch/"], f'href="{path.name}#'.encode()
        body = page.body.replace(link, b'data-core-metadata="true" ' + link)
        answers["/simple/torch/"] = replace(page, body=body)
    whole = bodies[1].ljust(len(bodies[0]), b" ")
    answers[place] = Answer(body=whole, parts=bodies[0])
    environment = fresh(version)
    pip = Pip(environment.python, clean_environ(tmp_path / "home"))
    with serve_answers(answers) as server:
        index = f"{server.url}/simple/"
        done = pip("install", "-i", index, *MACHINE, "torch", forced=False)
        assert environment.labels() == {}, done.text
        assert done.code != 0, done.text
        with start(index) as running:
            url = next(u for n, u in running.page().files.items() if "cu128" in n)
            # pip must not follow a redirect that is not followed here.
            answers[place] = Answer(status=302, headers={"Location": place})
            assert ask(url).status == 502


@pytest.mark.parametrize("algorithm", ["sha512", "md5"])
def test_a_wheel_that_is_rewritten_has_any_hash_of_pip(
    algorithm: str, tmp_path: Path
) -> None:
    """pip would check it. It gets no hash of the new wheel."""
    publish(tmp_path, TORCH, "torch", "2.8.0")
    variants = {**TORCH, "variants": {"cu128": TORCH["variants"]["cu128"]}}
    needs = ["honest; 'cu128' in variant_label"]
    path = stub_wheel(
        *(tmp_path / "torch", "torch", "2.8.0", "cu128"),
        variant_json=variants,
        requires=needs,
    )
    write_page(tmp_path / "torch")
    answers = answers_of(tmp_path)
    right = hashlib.new(algorithm, path.read_bytes()).hexdigest()
    page = answers["/simple/torch/"]
    for digest in (right.upper(), "0" * len(right)):
        text = re.sub(
            rb"(?<=8.whl)#\w+=\w+", f"#{algorithm}={digest}".encode(), page.body
        )
        answers["/simple/torch/"] = replace(page, body=text)
        with (
            serve_answers(answers) as server,
            start(f"{server.url}/simple/") as running,
        ):
            url = next(u for n, u in running.page().files.items() if "cu128" in n)
            if digest != "0" * len(right):
                assert zipfile.ZipFile(io.BytesIO(ask(url).body)).testzip() is None
            else:
                with pytest.raises(http.client.IncompleteRead):
                    ask(url)
                assert f"its {algorithm} is not the one" in running.warnings[-1]
    text = re.sub(rb"json#\w+=\w+", f"json#{algorithm}=00".encode(), page.body)
    answers["/simple/torch/"] = replace(page, body=text)
    with serve_answers(answers) as server, start(f"{server.url}/simple/") as running:
        assert not any("cu128" in name for name in running.page().files)
        assert f"its {algorithm} is not the one" in running.warnings[-1]


@needs_root
@pytest.mark.parametrize(
    "damage",
    ["metadata", *(pytest.param(x, marks=pytest.mark.slow) for x in ("fifo", "link"))],
)
def test_root_with_the_home_of_another_user(
    damage: str,
    tmp_path: Path,
    fresh: Callable[[str], Environment],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With ``sudo -E``, the cache may have any files of the other user."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    environment, home = fresh(PIPS[-1]), tmp_path / "home"
    pip = Pip(environment.python, clean_environ(home))
    answers = make_answers(tmp_path / "wheels")
    with serve_answers(answers) as server:
        index = f"{server.url}/simple/"
        words = ("install", "-i", index, *MACHINE, "kern")
        answers[KERN] = replace(answers[KERN], parts=None)
        assert pip(*words, "--dry-run", forced=False).code == 0
        (planted,) = kept(home)
        if damage == "metadata":
            text = planted.read_bytes().partition(b"\n")[2].partition(b"\n")[2]
            text = b"null\n" + text + b"Requires-Dist: evil\n"
            digest = hashlib.sha256(text).hexdigest().encode()
            planted.write_bytes(digest + b"\n" + text)
        elif damage == "fifo":
            planted.unlink()
            os.mkfifo(planted, 0o600)
        else:
            planted.unlink()
            (tmp_path / "rootonly").mkdir()
            planted.parent.rmdir()
            planted.parent.symlink_to(tmp_path / "rootonly")
        for path in (home / ".cache", *(home / ".cache").rglob("*")):
            os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        done = pip(*words, forced=False)
    assert done.code == 0, done.text
    assert [*environment.labels()] == ["kern"]
    (line,) = [line for line in done.err.splitlines() if "no cache is used" in line]
    assert "nvidia-variant-provider belongs to another user" in line
    assert not list(tmp_path.glob("rootonly/*"))
