"""``pip``: reports and lock files in pipes and devices, which are not replaced by
files."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.index_server import serve
from support.processes import Pip, installed_labels
from support.wheels import stub_wheel

from nvp.index.http.client import Client
from nvp.index.pip.locks import parse_toml
from nvp.index.pip.written import Written
from nvp.index.selection.options import Selection
from nvp.index.server.local_index import LocalIndex
from nvp.index.server.responses import Access

LOCK = ("lock", "--output")
REPORT = ("install", "--dry-run", "--report")

pytestmark = pytest.mark.skipif(
    not hasattr(os, "mkfifo"), reason="this system has no named pipes"
)


class Reader:
    """Reads a named pipe to its end, in a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._texts: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._texts.append(self.path.read_text(encoding="utf-8"))

    def text(self) -> str:
        """Return everything that was written to the pipe."""
        self._thread.join(60)
        (text,) = self._texts
        return text


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """Make a device that accepts no data, such as ``/dev/full``."""
    path = tmp_path / "full"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        path.open("wb").close()
    except OSError as error:
        pytest.skip(f"this user cannot make devices: {error}")
    return path


def read_lock(text: str) -> list[str]:
    (package,) = parse_toml(text, "the pipe")["packages"]
    return [wheel["url"] for wheel in package["wheels"]]


def read_report(text: str) -> list[str]:
    return [item["download_info"]["url"] for item in json.loads(text)["install"]]


@pytest.mark.parametrize(
    ("command", "urls_of"),
    [(LOCK, read_lock), pytest.param(REPORT, read_report, marks=pytest.mark.slow)],
)
def test_a_pipe_gets_what_pip_writes_with_the_real_urls(
    command: tuple[str, ...],
    urls_of: Callable[[str], list[str]],
    pip: Pip,
    folder: Path,
    pipe: Path,
) -> None:
    reader = Reader(pipe)
    with serve(folder) as index:
        done = pip(*command, pipe, "-i", index, "torch")
    assert done.code == 0, done.text
    urls = urls_of(reader.text())
    assert urls
    assert all(url.startswith(f"{index}torch/") for url in urls)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert "lock-version" not in done.out
    assert "could not be" not in done.err


@pytest.mark.parametrize(
    "command", [LOCK, pytest.param(REPORT, marks=pytest.mark.slow)]
)
def test_a_device_that_takes_nothing_is_told_and_stays(
    command: tuple[str, ...], pip: Pip, folder: Path, full: Path
) -> None:
    with serve(folder) as index:
        done = pip(*command, full, "-i", index, "torch")
    assert done.code == 3
    line = done.err.splitlines()[-1]
    assert "cannot be written: No space left on device" in line
    assert str(full) in line
    assert "Traceback" not in done.err
    assert stat.S_ISCHR(full.stat().st_mode)


def test_a_report_with_a_name_that_is_too_long_is_left_to_pip() -> None:
    index = LocalIndex(Client(), Selection(), Access(), warn=print)
    written = Written(index, sys.stdout, sys.executable, {}, report="x" * 300)
    with index.serve():
        written.restore(succeeded=False)
    assert written.remarks == []


def test_a_full_disk_leaves_what_pip_has_written(tmp_path: Path) -> None:
    import resource

    before = 'lock-version = "1.0"\n'
    path = tmp_path / "pylock.toml"
    path.write_text(before)
    index = LocalIndex(Client(), Selection(), Access(), warn=print)
    written = Written(index, sys.stdout, sys.executable, {}, lock=str(path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), limits[1]))
    try:
        written._change(path, lambda text, _: text * 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        with index.serve():
            pass  # closes the socket
    assert path.read_text() == before
    assert [*tmp_path.iterdir()] == [path]
    (remark,) = written.remarks
    assert "the URLs could not be restored: cannot be written: File too" in remark


def test_a_file_that_has_become_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """The owner of a directory can replace what pip has written there."""
    path = tmp_path / "pylock.toml"
    index = LocalIndex(Client(), Selection(), Access(), warn=print)
    written = Written(index, sys.stdout, sys.executable, {}, lock=str(path))
    os.mkfifo(path)
    thread = threading.Thread(
        target=written.restore, kwargs={"succeeded": True}, daemon=True
    )
    with index.serve():
        thread.start()
        thread.join(20)
    assert not thread.is_alive()
    assert "the URLs could not be restored" in written.remarks[0]


def test_a_variable_that_is_replaced_for_pip_has_its_value_in_files(
    pip: Pip, tmp_path: Path
) -> None:
    wheel = stub_wheel(tmp_path / "index" / "kern", "kern", "1.0")
    line = f"kern @ ${{PIP_INDEX_URL}}kern/{wheel.name}\n"
    (tmp_path / "inner.txt").write_text(line)
    (tmp_path / "outer.txt").write_text("-r inner.txt\n")
    with serve(tmp_path / "index") as pip.environ["PIP_INDEX_URL"]:
        done = pip("install", "--target", "it", "-r", "outer.txt", cwd=tmp_path)
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == {"kern": "1.0 None"}


def test_a_reader_that_has_gone_does_not_hide_that_pip_failed(
    pip: Pip, folder: Path
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with serve(folder) as index, open(writing, "wb") as out:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "nvp", "pip", "--python", str(pip.python)),
                *("lock", "-i", index, "--output", "-", "no-such-project"),
            ],
            env=pip.environ,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1, done.stderr
    assert "No matching distribution found for no-such-project" in done.stderr
