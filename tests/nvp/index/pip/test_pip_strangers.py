"""Other users of the machine, who see the command lines of pip and its builds."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from support.index_server import start_server
from support.processes import PIPS, Pip
from support.strangers import ROOT, STRANGER, needs_root, read_as, visible_urls
from support.wheels import stub_wheel, write_page

from nvp.index.server import callers

BACKEND = """
import zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "built-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as archive:
        info = "built-1.0.dist-info"
        text = "Metadata-Version: 2.1\\nName: built\\nVersion: 1.0\\n"
        archive.writestr(f"{info}/METADATA", text)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        archive.writestr(f"{info}/RECORD", "")
    return name
"""

WITHOUT_USERS = """
import sys
from nvp.index.server import local_index
local_index.system_tells = lambda: False
from nvp.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""Runs the program as on a system that does not tell the user of a connection."""

LOCAL = r"http://127\.0\.0\.1:\d+/[\w-]{22}/0/simple/"


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
    """Return the folder of an index that only this user may read."""
    folder = tmp_path / "index"
    stub_wheel(folder / "private", "private", "1.0")
    write_page(folder / "private")
    write_page(folder)
    return folder


@needs_root
@pytest.mark.parametrize(
    ("isolated", "tells"),
    [
        pytest.param(False, True, id="user"),
        pytest.param(True, False, id="isolated-token"),
        pytest.param(True, True, id="isolated-user", marks=pytest.mark.slow),
        pytest.param(False, False, id="token", marks=pytest.mark.slow),
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
def test_another_user_reads_no_index(
    pip: Pip, isolated: bool, tells: bool, private: Path, project: Path
) -> None:
    """The URL is on the command line of a build, and is not enough."""
    # A build has a folder below this one, which its command line names.
    temporary = project / "temporary"
    temporary.mkdir()
    pip.environ["TMPDIR"] = str(temporary)
    seen: list[str] = []
    read: list[str | None] = []
    by_root: list[str | None] = []

    def attack() -> None:
        if seen:  # The requests of the attack itself get here as well.
            return
        seen.extend(visible_urls(LOCAL, str(temporary)))
        read.extend(read_as(STRANGER, [f"{url}private/" for url in seen]))
        by_root.extend(read_as(ROOT, [f"{url}private/" for url in seen]))

    words = ["--isolated"] if isolated else []
    start = ["-m", "nvp"] if tells else ["-c", WITHOUT_USERS]
    with watched(private, attack) as index:
        done = subprocess.run(
            [
                *(sys.executable, *start, "pip", "--python", str(pip.python), *words),
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
    assert len(seen) == 1
    assert read == [None]
    if tells:
        assert "private-1.0" in (by_root[0] or "")
        assert f"the user with number {STRANGER} tried to read" in done.stderr


@needs_root
@pytest.mark.parametrize("family", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_the_user_of_a_connection(family: str) -> None:
    """An IPv6 socket that calls over IPv4 is in another table."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection((family, listening.getsockname()[1])) as client,
    ):
        accepted, address = listening.accept()
        with accepted:
            assert callers.find_user(address, accepted.getsockname()) == ROOT
            client.shutdown(socket.SHUT_WR)
            assert callers.find_user(address, accepted.getsockname()) == ROOT
            client.close()
            # Linux says that its user is 0 from here on, who is always let in.
            assert callers.find_user(address, accepted.getsockname()) is None
