"""``serve``: requests for missing files, and indexes that name other files."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urljoin

import pytest
from support.builds import gpu_build, metadata
from support.index_server import serve
from support.processes import (
    clean_environ,
)
from support.range_server import Answer, serve_answers
from support.serving import Serving, fetch, serving
from support.wheels import publish, stub_wheel, write_page

MACHINE = ("--cuda-driver", "12.9", "--sm-arch", "8.0")


@pytest.fixture(scope="module")
def server(index: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    environ = clean_environ(tmp_path_factory.mktemp("server"))
    with serving("-i", index, *MACHINE, environ=environ) as value:
        yield value


def test_other_host_names_are_refused(index: str, environ: dict[str, str]) -> None:
    """Otherwise a page in a browser could read the index by DNS rebinding."""
    # Without --host, no other machine can connect.
    words = ("-i", index, *MACHINE, "--allow-remote")
    with serving(*words, environ=environ) as server:
        url = server.urls[0] + "torch/"
        assert fetch(url, headers={"Host": "localhost"})[0] == 200
        for name in ("evil.example", "127.0.0.1.evil.example", ""):
            assert fetch(url, headers={"Host": name})[0] == 400


def test_web_pages_do_not_learn_which_projects_there_are(server: Serving) -> None:
    """A browser tells them whether an object that they name exists."""
    for project in ("torch", "missing"):
        url = server.urls[0] + f"{project}/"
        alone = fetch(url)[0]
        assert alone == (200 if project == "torch" else 404)
        for site in ("cross-site", "same-site"):
            assert fetch(url, headers={"Sec-Fetch-Site": site})[0] == 403
        for site in ("none", "same-origin"):
            assert fetch(url, headers={"Sec-Fetch-Site": site})[0] == alone


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/simple/../../../etc/passwd",
        "/simple/%2e%2e/%2e%2e/etc/passwd/",
        "/simple/..%2f..%2fetc%2fpasswd/",
        "/simple/%00/",
        "/simple/torch%0d%0aX-Evil:%20yes/",
        "/simple/torch%0d%0aX-Evil:%20yes",
        "/simple/%0d%0aLocation:%20http:%2f%2fevil.example",
        "/f/torch/cu126/00000000/..%2f..%2fsecret.txt",
        "/f/torch/-/00000000/secret.txt",
        "/f/torch/-/00000000/index.html",
        "/f/..%2f/-/00000000/secret.txt",
        "/f/torch/-/00000000/http:%2f%2fevil.example%2ftorch.whl",
        "/f/torch/cu126/00000000/torch-2.8.0-3cu126%0d%0aX-Evil:y-py3-none-any.whl",
        "http://evil.example/simple/torch/",
        "//evil.example/",
    ],
)
def test_only_files_of_a_page_are_sent(path: str, server: Serving) -> None:
    status, headers, body = fetch(server.urls[0], path)
    assert status in (301, 400, 403, 404), body
    assert "x-evil" not in headers
    location = urljoin(server.urls[0], headers.get("location", ""))
    assert location.startswith(server.urls[0].removesuffix("simple/"))
    assert b"root:" not in body
    assert b"secret" not in body.replace(b"secret.txt", b"")


def test_names_of_an_upstream_are_escaped(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """A file name of an index cannot become HTML or a header."""
    folder = tmp_path / "index"
    publish(folder, metadata({"gpu": gpu_build("12.0")}), "torch", "1.0")
    (folder / "torch" / 'torch-1.0"><script>alert(1)<.tar.gz').write_bytes(b"x")
    (folder / "torch" / "torch-1.0\r\nX-Evil: yes.tar.gz").write_bytes(b"x")
    (folder / "torch" / "torch-1.0-py3-none-any-a\r\nb.whl").write_bytes(b"x")
    (folder / "torch" / "torch-1.0-py3-none-any-%2e%2e.whl").write_bytes(b"x")
    stub_wheel(folder / "plain", "plain", "1.0")
    write_page(folder / "torch")
    page = folder / "torch/index.html"
    text = page.read_text(encoding="utf-8")
    quoted = re.sub('(?<=href=")[^"#]*', lambda x: quote(html.unescape(x[0])), text)
    page.write_text(quoted, encoding="utf-8")
    with (
        serve(folder) as upstream,
        serving("-i", upstream, *MACHINE, environ=environ) as server,
    ):
        url = server.urls[0] + "torch/"
        for accept in ("text/html", "application/vnd.pypi.simple.v1+json"):
            status, headers, body = fetch(url, headers={"Accept": accept})
            assert status == 200
            assert headers["cache-control"] == "no-store"
            assert "etag" not in headers
            assert b"1gpu-py3-none-any.whl" in body
            assert accept != "text/html" or b"<script>" not in body
            for link in re.findall(r'(?:href="|"url": ")([^"#]+)', body.decode()):
                status, headers, _ = fetch(urljoin(url, link))
                assert status in (200, 302, 403, 404)
                assert "x-evil" not in headers


def test_pages_do_not_lead_to_local_files_or_servers(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """Neither a link nor a redirect leads to a file of this machine."""
    secret = tmp_path / "secret-1.0.tar.gz"
    secret.write_text("secret")
    moved = {"Location": secret.as_uri()}
    page = f"""<!DOCTYPE html>
<a href="{secret.as_uri()}">secret-1.0.tar.gz</a>
<a href="moved/secret-1.1.tar.gz">secret-1.1.tar.gz</a>
<a href="http://192.0.2.1/secret-1.3.tar.gz">secret-1.3.tar.gz</a>"""
    answers = {
        "/secret/": Answer(body=page.encode(), kind="text/html"),
        "/secret/moved/secret-1.1.tar.gz": Answer(status=302, headers=moved),
    }
    with serve_answers(answers, credentials="somebody:S3cret") as upstream:
        index = upstream.url.replace("://", "://somebody:S3cret@")
        with serving("-i", index, *MACHINE, environ=environ) as server:
            url = server.urls[0] + "secret/"
            status, _, body = fetch(url)
            assert status == 200
            found = re.findall(r'href="([^"#]+)[^>]*>([^<]+)', body.decode())
            links = {name: urljoin(url, link) for link, name in found}
            # The installer applies its own policy for plain HTTP.
            plain = links.pop("secret-1.3.tar.gz")
            assert plain == "http://192.0.2.1/secret-1.3.tar.gz"
            assert {"secret-1.0.tar.gz", "secret-1.1.tar.gz"} <= links.keys()
            for link in links.values():
                status, headers, body = fetch(link)
                assert status in (403, 502)
                assert "location" not in headers
                assert b"secret" not in body.replace(b"secret-1", b"")
                assert b"S3cret" not in body


@pytest.mark.parametrize("words", [(), ("--fresh",)])
def test_a_page_is_requested_each_time_with_fresh(
    words: tuple[str, ...], environ: dict[str, str]
) -> None:
    page = Answer(body=b"<!DOCTYPE html>", kind="text/html")
    with serve_answers({"/simple/p/": page}) as upstream:
        with serving("-i", f"{upstream.url}/simple/", *words, environ=environ) as it:
            for _ in range(3):
                assert fetch(f"{it.urls[0]}p/")[0] == 200
        assert len(upstream.requests) == (3 if words else 1)
