"""pip reads the pages of the user's indexes itself, in whichever process it runs."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.authority import HOST
from support.index_server import serve, start_server
from support.processes import PIPS, Environment, Pip, installed_labels, make_environment
from support.proxy import serve_proxy
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel

from nvp.index.http.client import Client
from nvp.index.http.urls import CompleteResponse
from nvp.index.pip import hooks
from nvp.index.selection.component import VariantRepository
from nvp.index.server import upstream
from nvp.index.server.places import LinksUpstream
from nvp.index.server.upstream import UnjudgedError

EDGES = [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an index whose page only a client with cookies can read.

    nvp itself keeps no cookies.
    """
    wheel = stub_wheel(tmp_path, "kern", "1.0")

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            is_known = self.headers["Cookie"] == "name=value"
            page = f'<a href="/{wheel.name}">kern</a>'.encode()
            body = page if self.path == "/kern/" else wheel.read_bytes()
            self.send_response(200 if is_known else 302)
            self.send_header("Content-Type", "text/html")
            self.send_header("Set-Cookie", "name=value; Path=/")
            self.send_header("Location", self.path)
            self.end_headers()
            self.wfile.write(body if is_known else b"")

    with start_server(Handler) as url:
        yield url


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project that builds itself, and needs ``kern`` of the index for that."""
    folder = tmp_path / "project"
    (folder / "backend").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["kern"]\n'
        'build-backend = "backend"\nbackend-path = ["backend"]\n'
    )
    (folder / "backend" / "backend.py").write_text(
        "import kern, shutil, pathlib\n"
        "def build_wheel(folder, *_, **__):\n"
        "    built = next(pathlib.Path('dist').glob('*.whl'))\n"
        "    shutil.copy(built, folder)\n"
        "    return built.name\n"
    )
    (folder / "dist").mkdir()
    stub_wheel(folder / "dist", "built", "1.0")
    return folder


@pytest.mark.parametrize("version", EDGES)
def test_the_pip_of_a_build(
    version: str,
    index: str,
    project: Path,
    pip_of: Callable[[str], Pip],
    tmp_path: Path,
) -> None:
    target = tmp_path / "it"
    done = pip_of(version)("install", "-i", index, "--target", target, project)
    assert done.code == 0, done.text
    assert installed_labels(target) == {"built": "1.0 None"}


def test_a_proxy_of_an_option_is_for_pip_only(
    project: Path, pip: Pip, tmp_path: Path
) -> None:
    """git and builds do not use it, as without nvp."""
    backend = project / "backend" / "backend.py"
    names = "{name for name in os.environ if name.lower().endswith('_proxy')}"
    check = f"assert {names} <= {{'no_proxy', 'NO_PROXY'}}\n"
    backend.write_text(f"import os\n{check}{backend.read_text()}")
    stub_wheel(tmp_path / "index" / "kern", "kern", "1.0")
    with serve(tmp_path / "index") as index, serve_proxy(index) as proxy:
        words = ("-i", f"http://{HOST}/", "--trusted-host", HOST, "--proxy", proxy.url)
        done = pip("install", *words, "--target", tmp_path / "it", project)
    assert done.code == 0, done.text
    assert proxy.asked


def test_a_pip_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its index is that of another user, too, and it cannot read the file for pip."""
    monkeypatch.setenv(hooks.PLACES, str(tmp_path / "missing"))
    with pytest.raises(SystemExit, match=r"missing'; run this pip as the user of nvp"):
        hooks.install()


@pytest.mark.parametrize("version", EDGES)
def test_the_variables_of_a_build_have_no_password(
    version: str, project: Path, pip_of: Callable[[str], Pip], tmp_path: Path
) -> None:
    """A build that fails in CI may print its variables to a public log."""
    backend = project / "backend" / "backend.py"
    text = "import os\nprint(sorted(os.environ.items()))\nraise SystemExit(1)\n"
    backend.write_text(f"import kern\n{text}")
    stub_wheel(tmp_path / "index" / "kern", "kern", "1.0")
    with serve(tmp_path / "index", credentials="me:S3cret") as url:
        index = url.replace("://", "://me:S3cret@")
        done = pip_of(version)("install", "-i", index, project)
    assert done.code == 1
    assert "NVP_PIP_HOOKS" in done.text
    assert "S3cret" not in done.text


def test_the_pip_of_another_environment(
    index: str, environ: Mapping[str, str], tmp_path: Path
) -> None:
    bare = make_environment(tmp_path / "bare")
    done = Pip(bare.python, environ)("install", "-i", index, "kern")
    assert done.code == 0, done.text
    assert installed_labels(bare.packages) == {"kern": "1.0 None"}


@pytest.mark.parametrize("version", EDGES)
def test_a_password_that_the_user_types(
    version: str,
    published: Path,
    environ: Mapping[str, str],
    pips: Mapping[str, Environment],
    tmp_path: Path,
) -> None:
    """nvp gets it too, for the files that only nvp reads."""
    target = tmp_path / "it"
    machine = ("--cuda-driver", "12.9", "--sm-arch", "8.0")
    with serve(published, credentials="me:secret") as url:
        install = ("install", "-i", url, "--target", target, "torch")
        words = ("--python", pips[version].python, *machine, *install)
        done = subprocess.run(
            [sys.executable, "-m", "nvp", "pip", *map(str, words)],
            env=dict(environ),
            input="me\nsecret\n",
            capture_output=True,
            encoding="utf-8",
            start_new_session=True,  # without a terminal, from which pip would read
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert installed_labels(target)["torch"] == "2.8.0 cu126"


def test_a_page_that_only_pip_can_read(pip: Pip, tmp_path: Path) -> None:
    """pip uses it as without nvp, and a warning says that nvp cannot read it."""
    wheel = stub_wheel(tmp_path, "kern", "1.0")
    (tmp_path / "kern").mkdir()
    links = (f'<a href="/{wheel.name}{end}">kern</a>' for end in ("", "?twice"))
    (tmp_path / "kern" / "index.html").write_text("".join(links))
    with serve(tmp_path) as url:
        done = pip("install", "-i", url, "--target", tmp_path / "it", "kern")
    assert done.code == 0, done.text
    assert f"warning: {url}kern/: " in done.err
    assert installed_labels(tmp_path / "it") == {"kern": "1.0 None"}


def test_a_page_that_cannot_be_judged(
    pip: Pip, published: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pip ends with the reason, and uses no other index."""

    async def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(VariantRepository, "show", fail)
    with serve(published) as url:
        done = pip("install", "-i", url, "--target", tmp_path / "it", "torch")
    assert done.code == 1
    assert "ERROR: internal error: RuntimeError: 'a defect'" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("module", [hooks.__name__, "nvp.index.pip.probe"])
def test_the_oldest_interpreter_reads_the_programs(module: str) -> None:
    found = find_spec(module)
    assert found is not None
    assert found.origin is not None
    ast.parse(Path(found.origin).read_text(), feature_version=(3, 7))


def test_a_pip_of_the_future(environ: Mapping[str, str], tmp_path: Path) -> None:
    """Without the hooks, it would install builds that nvp has not judged."""
    made = make_environment(tmp_path / "environment", f"pip=={PIPS[-1]}")
    path = made.packages / "pip" / "_internal" / "index" / "collector.py"
    text = path.read_text(encoding="utf-8").replace("_get_index_content", "_read")
    path.write_text(text, encoding="utf-8")
    stub_wheel(tmp_path / "index" / "kern", "kern", "1.0")
    with serve(tmp_path / "index") as url:
        done = Pip(made.python, environ)("install", "-i", url, "kern")
    assert done.code == 1
    assert f"ERROR: nvp does not know pip {PIPS[-1]}, so nvp selects no" in done.err
    assert installed_labels(made.packages).get("kern") is None


def test_a_reason_of_the_server_is_not_printed(pip: Pip, tmp_path: Path) -> None:
    """It may have control characters, and a redirect may lead to a signed URL."""
    moved = Answer(status=302, headers={"Location": "/gone?sig=S3cret"})
    answers = {"/kern/": moved, "/gone?sig=S3cret": Answer(status=418)}
    with serve_answers(answers) as server:
        words = ("--retries", "0", "--dest", tmp_path / "it", "-i", server.url)
        done = pip("download", *words, "kern")
    assert done.code == 1
    assert f"WARNING: pip skips {server.url}/kern/: HTTP 418" in done.err
    assert "S3cret" not in done.text


@pytest.mark.parametrize("option", ["--extra-index-url", "--find-links"])
def test_no_other_client_reads_an_index(
    option: str, pip: Pip, published: Path, tmp_path: Path
) -> None:
    """An index could show pip nothing, and nvp builds that hide those of another."""
    agents = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            agents.append(self.headers["User-Agent"].partition("/")[0])
            self.send_error(404)

    with serve(published) as first, start_server(Handler) as second:
        words = ("-i", first, option, second)
        done = pip("install", *words, "--target", tmp_path / "it", "torch")
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it")["torch"] == "2.8.0 cu126"
    assert agents == ["pip", "pip"]


@pytest.mark.parametrize("is_page", [True, False])
def test_no_index_learns_which_other_projects_are_in_links(
    is_page: bool, pip: Pip, published: Path, tmp_path: Path
) -> None:
    """Some names are secret, and an index could have a project of the same name."""
    stub_wheel(tmp_path / "links", "secret", "1.0+cu118", tag="cp311-abi3-linux_x86_64")
    stub_wheel(tmp_path / "links", "torch", "1.0+cu118", tag="cp311-abi3-linux_x86_64")
    with serve_answers({}) as server, serve(tmp_path / "links") as page:
        places = ("--find-links", page if is_page else tmp_path / "links")
        words = ("-i", published, "--extra-index-url", server.url, *places)
        done = pip("install", *words, "--target", tmp_path / "it", "torch")
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it")["torch"] == "2.8.0 cu126"
    assert {x.split()[0] for x in server.requests} == {"/torch/", "/runtime/"}


def test_a_page_of_links_is_parsed_again_only_if_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pip reads the page for each project, and parses it once."""
    links, parsed, parse = (
        LinksUpstream("https://h.example/", Client()),
        [],
        upstream._parse,
    )

    def count(*arguments: Any) -> Any:
        parsed.append(arguments)
        return parse(*arguments)

    monkeypatch.setattr(upstream, "_parse", count)
    numbers = ("0", "0", "1", "0", " ", " ", "0")
    for number, times in zip(numbers, (1, 1, 2, 3, 4, 4, 5), strict=True):
        links.miss("a")  # another pip, for example for a build
        body = f'<a href="a-{number}.zip">x</a>'.encode()
        reply = CompleteResponse(
            status=200,
            url=links.location,
            headers={"content-type": "text/html"},
            body=body,
        )
        if number == " ":  # not all installers find the same file
            with pytest.raises(UnjudgedError):
                asyncio.run(links.take(reply, "a"))
            # Other pages must not count it as a page without files.
            with pytest.raises(UnjudgedError):
                asyncio.run(links.get_project_page("a"))
        else:
            asyncio.run(links.take(reply, "a"))
            (file,) = asyncio.run(links.get_project_page("a")).files
            assert file.filename == f"a-{number}.zip"
        assert len(parsed) == times


@pytest.mark.parametrize("version", EDGES)
def test_a_skipped_page_of_links_with_secrets(
    version: str, pip_of: Callable[[str], Pip], published: Path
) -> None:
    """pip alone does not print that it skips a page, and the query may be a secret."""
    answers = {"/links.html?sig=QUERY": Answer(status=418)}
    with serve(published) as url, serve_answers(answers) as server:
        host = server.url.removeprefix("http://")
        place = f"http://USER:PASSWORD@{host}/links.html?sig=QUERY"
        done = pip_of(version)("index", "versions", "torch", "-i", url, "-f", place)
    assert "pip skips" in done.text, done.text
    for secret in ("USER", "PASSWORD", "QUERY"):
        assert secret not in done.text
