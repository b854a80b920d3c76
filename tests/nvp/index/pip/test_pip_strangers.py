"""Other users of the machine, who see the command lines of pip and its builds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from support.index_server import start_server
from support.processes import PIPS, Pip
from support.strangers import needs_root, visible_urls
from support.wheels import stub_wheel, write_page

from nvp.index.server.responses import PROOF

BACKEND = """
import zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "built-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{directory}/{name}", "w") as archive:
        info = "built-1.0.dist-info"
        text = "Metadata-Version: 2.1\\nName: built\\nVersion: 1.0\\n"
        archive.writestr(f"{info}/METADATA", text)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        archive.writestr(f"{info}/RECORD", "")
    return name
"""

LOCAL = r"http://127\.0\.0\.1:\d+/[\w-]{22}/0/simple/"
INDEX = r"http://127\.0\.0\.1:\d+/"


@pytest.fixture
def pip(pip_of: Callable[[str], Pip], request: pytest.FixtureRequest) -> Pip:
    """Return a version of pip."""
    return pip_of(request.param)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project that needs ``private`` to be built."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "backend.py").write_text(BACKEND)
    (folder / "pyproject.toml").write_text(
        "[build-system]\n"
        'requires = ["private"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    return folder


@contextmanager
def watched(folder: Path, on_request: Callable[[], None]) -> Iterator[str]:
    """Serve an index, and call ``on_request`` while pip waits for a page."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            if self.path == "/private/":
                on_request()
            super().do_GET()

    with start_server(Handler) as url:
        yield url


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """Return the directory of an index that only this user may read."""
    folder = tmp_path / "index"
    stub_wheel(folder / "private", "private", "1.0")
    write_page(folder / "private")
    write_page(folder)
    return folder


@needs_root
@pytest.mark.parametrize(
    "isolated",
    [
        pytest.param(True, id="isolated"),
        pytest.param(False, id="plain", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "pip",
    [
        *(pytest.param(version, marks=pytest.mark.slow) for version in PIPS[:-1]),
        PIPS[-1],
    ],
    indirect=True,
)
def test_no_command_line_names_the_local_index(
    pip: Pip, isolated: bool, private: Path, project: Path
) -> None:
    """Every user of the machine can read the command line of a build."""
    # A build has a directory below this one, which its command line names.
    temporary = project / "temporary"
    temporary.mkdir()
    pip.environ["TMPDIR"] = str(temporary)
    seen: list[list[str]] = []

    def attack() -> None:
        own = visible_urls(LOCAL, str(temporary))
        seen.append([*own, *visible_urls(INDEX, str(temporary))])

    words = ["--isolated"] if isolated else []
    with watched(private, attack) as index:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "nvp", "pip"),
                *("--python", str(pip.python), *words),
                *("install", "-i", index, "--target", str(project / "it")),
                str(project),
            ],
            env=pip.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "it" / "built-1.0.dist-info").is_dir()
    assert seen == [[index]], "only the URL that pip alone shows, too"


@pytest.mark.parametrize("pip", PIPS, indirect=True)
def test_no_other_server_gets_a_secret_of_the_local_index(
    pip: Pip, tmp_path: Path
) -> None:
    """With the secret, and pip's log, its owner could read and change pages."""
    wheel = stub_wheel(tmp_path, "kern", "1.0")
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            seen.append(dict(self.headers))
            is_page = self.path == "/kern/"
            page = f'<a href="/{wheel.name}">kern</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page if is_page else wheel.read_bytes())

    with start_server(Handler) as url:
        done = pip("download", "--dest", tmp_path / "it", "-i", url, "kern")
    assert done.code == 0, done.text
    assert len(seen) > 1
    for headers in seen:
        assert PROOF not in headers
        about = headers["User-Agent"].partition(" ")[2]
        assert not about or "user_data" not in json.loads(about)
