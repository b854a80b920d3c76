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

from nvidia_variant_provider.errors import InputError
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


def make_written(folder: Path, place: str) -> Written:
    """Return the writer for a report, which pip writes to ``report.json``."""
    index = LocalIndex(Client(), Selection(), Access(), warn=print)
    with index.serve():
        pass  # closes the socket
    path = str(folder / "report.json")
    return Written(
        index, sys.stdout, sys.executable, {}, path=path, place=place, is_lock=False
    )


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


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x" * 300, "File name too long"),
        ("folder", "Is a directory"),
        ("missing/report.json", "No such file or directory"),
        ("\0", "embedded null byte"),
    ],
)
def test_what_cannot_be_written_is_told_first(
    name: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    place = str(tmp_path / name)
    with pytest.raises(InputError, match=f"cannot be written: {why}"):
        make_written(tmp_path, place)
    assert [*tmp_path.iterdir()] == [tmp_path / "folder"]


def test_a_full_disk(tmp_path: Path) -> None:
    import resource

    written = make_written(tmp_path, str(tmp_path / "users.json"))
    (tmp_path / "report.json").write_text("text" * 100)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(InputError, match="cannot be written: File too"):
            written.restore(succeeded=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_after_a_signal_the_reader_of_a_pipe_is_not_waited_for(
    pipe: Path, tmp_path: Path
) -> None:
    written = make_written(tmp_path, str(pipe))
    (tmp_path / "report.json").write_text("{}")
    thread = threading.Thread(target=written.restore_urls, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


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
    codes = []
    nvp = (sys.executable, "-m", "nvp", "pip", "--python", str(pip.python))
    with serve(folder) as index:
        for program in (nvp, (str(pip.python), "-m", "pip")):
            reading, writing = os.pipe()
            os.close(reading)
            with open(writing, "wb") as out:
                done = subprocess.run(
                    [*program, "lock", "-i", index, "--output", "-", "no-such-project"],
                    env=pip.environ,
                    stdout=out,
                    stderr=subprocess.PIPE,
                    text=True,
                    timeout=120,
                    check=False,
                )
            codes.append(done.returncode)
            assert "Traceback" not in done.stderr
    assert codes[0] == codes[1] != 0
