"""Variant wheels on servers that send neither METADATA files nor parts of files."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uv
from support.builds import gpu_build, metadata
from support.index_server import run_http_server
from support.processes import Pip, clean_environ, installed_labels
from support.range_server import Answer, RangeServer, serve_answers
from support.serving import fetch, serving
from support.wheels import stub_wheel, variants_json_name, write_page

LARGE = hashlib.shake_256(b"").digest(17 << 20)
"""A size above that of files that are read completely before a page is sent."""

BUILDS = {"best": gpu_build("12.8"), "less": gpu_build("12.4")}
BEST = "/marked/marked-1.0-py3-none-any-best.whl"
MARKED = ['wanted; "nvidia" in variant_namespaces']
MACHINE = ("--cuda-driver", "12.9", "--sm-arch", "8.0")


def fill(folder: Path, requires: list[str]) -> None:
    """Fill a directory with two large builds, and their requirements."""
    for label, build in BUILDS.items():
        stub_wheel(
            folder / "marked",
            "marked",
            "1.0",
            label,
            variant_json=metadata({label: build}),
            requires=requires,
            members={"marked.bin": LARGE},
        )
    path = folder / "marked" / variants_json_name("marked", "1.0")
    path.write_text(json.dumps(metadata(BUILDS)))
    stub_wheel(folder / "wanted", "wanted", "1.0")


@contextmanager
def count_requests(folder: Path, **changes: Any) -> Iterator[RangeServer]:
    """Serve a directory with a server that sends no ranges, and counts its requests.

    :param changes: of the answer for the best wheel.
    """
    for project in ("marked", "wanted"):
        if not (folder / project / "index.html").exists():
            write_page(folder / project)
    answers = {
        f"/{path.relative_to(folder).as_posix().removesuffix('index.html')}": Answer(
            body=path.read_bytes(),
            kind="text/html" if path.suffix == ".html" else "application/octet-stream",
            ranges=False,
        )
        for path in folder.glob("*/*")
    }
    answers[BEST] = replace(answers[BEST], **changes)
    with serve_answers(answers) as server:
        yield server


def uv_installs(
    url: str, target: Path, environ: Mapping[str, str], *words: str
) -> dict[str, str]:
    environ = {
        **environ,
        "UV_CACHE_DIR": str(target.parent / "cache"),
        "UV_PYTHON": sys.executable,
    }
    with serving("-i", url, *MACHINE, environ=environ) as server:
        command = (uv.find_uv_bin(), "pip", "install", "--no-config", *words)
        to = ("--default-index", server.urls[0], "--target", target, "marked")
        done = subprocess.run(
            [*command, *map(str, to)],
            env=environ,
            capture_output=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return installed_labels(target)


@pytest.mark.parametrize("requires", [MARKED, pytest.param([], marks=pytest.mark.slow)])
def test_pip_downloads_the_wheel_once(
    requires: list[str], pip: Pip, tmp_path: Path
) -> None:
    fill(tmp_path / "index", requires)
    target = tmp_path / "it"
    with count_requests(tmp_path / "index") as server:
        done = pip("install", "-i", server.url, "--target", target, "marked")
    assert done.code == 0, done.text
    wanted = {"wanted": "1.0 None"} if requires else {}
    assert installed_labels(target) == {"marked": "1.0 best", **wanted}
    assert (target / "marked.bin").read_bytes() == LARGE
    assert done.err == ""
    assert server.requests.count(f"{BEST} whole") == 1
    assert not any("less.whl whole" in text for text in server.requests)


def test_what_was_read_once_is_kept(pip: Pip, tmp_path: Path) -> None:
    """The page then has the hash of a wheel whose METADATA is known."""
    fill(tmp_path / "index", [])
    with count_requests(tmp_path / "index") as server:
        words = ("install", "--dry-run", "-i", server.url, "--no-cache-dir", "marked")
        for _ in range(2):
            assert pip(*words).code == 0
    asked = [text for text in server.requests if text.startswith(BEST)]
    assert asked == [f"{BEST} bytes=-65536", f"{BEST} whole", f"{BEST} whole"]


def test_uv_downloads_the_wheel_once(tmp_path: Path, environ: dict[str, str]) -> None:
    """uv sends two requests: for METADATA, and for the installation."""
    fill(tmp_path / "index", MARKED)
    with count_requests(tmp_path / "index") as server:
        found = uv_installs(server.url, tmp_path / "it", environ)
    assert found == {"marked": "1.0 best", "wanted": "1.0 None"}
    assert server.requests.count(f"{BEST} whole") == 1


@pytest.mark.slow
def test_the_server_of_python(
    pip: Pip, tmp_path: Path, environ: dict[str, str]
) -> None:
    """The pages of this server list a directory, without hashes."""
    fill(tmp_path / "index", MARKED)
    expected = {"marked": "1.0 best", "wanted": "1.0 None"}
    with run_http_server(tmp_path / "index") as url:
        done = pip("install", "-i", url, "--target", tmp_path / "it", "marked")
        assert (done.code, done.err) == (0, ""), done.text
        assert installed_labels(tmp_path / "it") == expected
        assert uv_installs(url, tmp_path / "other", environ) == expected


def test_another_wheel_than_the_page_says(pip: Pip, tmp_path: Path) -> None:
    fill(tmp_path / "index", MARKED)
    write_page(tmp_path / "index" / "marked")
    page = tmp_path / "index" / "marked" / "index.html"
    digest = hashlib.sha256((tmp_path / "index" / BEST[1:]).read_bytes()).hexdigest()
    page.write_text(page.read_text().replace(digest, "0" * 64))
    target = tmp_path / "it"
    with count_requests(tmp_path / "index") as server:
        done = pip("install", "-i", server.url, "--target", target, "marked")
    assert done.code == 1
    assert "its sha256 is not the one that the page gives" in done.err
    assert not target.exists()


def test_required_hashes_do_not_allow_markers(pip: Pip, tmp_path: Path) -> None:
    fill(tmp_path / "index", MARKED)
    digest = hashlib.sha256((tmp_path / "index" / BEST[1:]).read_bytes()).hexdigest()
    file = tmp_path / "requirements.txt"
    file.write_text(f"marked==1.0 --hash=sha256:{digest}\n")
    target = tmp_path / "it"
    with count_requests(tmp_path / "index") as server:
        done = pip("install", "-i", server.url, "--target", target, "-r", file)
    assert done.code == 1
    assert "and the hashes that you require do not allow that" in done.err
    assert not target.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    """The first part of the wheel has arrived, and the rest never does."""
    fill(tmp_path / "index", MARKED)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {**clean_environ(tmp_path / "home"), "TMPDIR": str(temporary)}
    with (
        count_requests(tmp_path / "index", fault="drip") as server,
        serving("-i", server.url, *MACHINE, environ=environ) as running,
    ):
        _, _, page = fetch(f"{running.urls[0]}marked/")
        (link,) = set(re.findall(rb'href="../../(\S+best-\S+whl)"', page))
        parts = urlsplit(running.urls[0])
        connection = http.client.HTTPConnection(parts.netloc, timeout=30)
        path = f"{parts.path.removesuffix('simple/')}{link.decode()}"
        connection.request("GET", path)
        assert connection.getresponse().status == 200
        server.requests.wait_for(f"{BEST} whole")
        running.stop(signal.SIGINT)
        connection.close()
    assert os.listdir(temporary) == []
