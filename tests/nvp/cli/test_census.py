"""The command `census`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.paths import ROOT
from support.range_server import Answer, serve_answers

INDEX = ROOT / "fixtures" / "census"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "census.sqlite"


def test_an_index_in_a_folder(run: Run, store: Path) -> None:
    outcome = run("census", INDEX, "-o", store, "--jobs", 1)
    assert (outcome.code, outcome.err) == (0, "")
    first, second, last = outcome.out.splitlines()
    assert last == f"Next: nvp census --report -o {store}"
    assert first == (
        "3 wheels: 2 inspected, 1 skipped, 0 failed, 0 known before; "
        f"the store is {store}"
    )
    assert second.split()[1:4] == ["KiB", "read", "in"]
    again = run("census", INDEX, "-o", store, "--jobs", 1)
    assert again.out.startswith("3 wheels: 0 inspected, 0 skipped, 0 failed, 3 known")
    assert "0 bytes read" in again.out


def test_the_report(run: Run, store: Path, report_schema: Any) -> None:
    outcome = run("census", INDEX, "-o", store, "--jobs", 1, "--json")
    report = json.loads(outcome.out)
    report_schema.validate(report)
    data = report["data"]
    counts = [data[key] for key in ("wheels", "known", "inspected", "skipped")]
    assert counts == [3, 0, 2, 1]
    assert data["store"] == str(store)
    assert data["bytes_read"] > 0


def test_what_is_chosen(run: Run, store: Path) -> None:
    def wheels(*options: object) -> int:
        outcome = run("census", INDEX, "-o", store, "--jobs", 1, "--json", *options)
        assert outcome.code == 0, outcome.err
        count: int = outcome.data["wheels"]
        return count

    kernels = ("--project", "demo-kernels")
    assert wheels(*kernels) == 2
    assert wheels(*kernels, "--per-release", "all") == 3
    assert wheels(*kernels, "--releases", 1) == 1
    assert wheels(*kernels, "--releases", "all") == 2
    assert wheels("--platform", "*x86_64") == 2
    assert wheels("--platform", "win*", "--platform", "any") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--releases", 0), "--releases must be at least 1"),
        (("--releases", "many"), "'many' is not a whole number"),
        (("--jobs", 0), "--jobs must be at least 1"),
        (("--per-host", 0), "--per-host must be at least 1"),
        (("--max-bytes", "much"), "'much' is not a size"),
        (("--max-bytes", "0G"), "--max-bytes must be at least 1"),
        (("--deadline", 0), "--deadline must be at least 1"),
        (("--project", "torch==2"), "'torch==2' is not the name of a project"),
    ],
)
def test_wrong_options(
    run: Run, store: Path, options: tuple[object, ...], message: str
) -> None:
    outcome = run("census", INDEX, "-o", store, *options)
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not store.exists()


@pytest.mark.parametrize("most", [100, 0])
def test_failures_are_told_and_the_others_are_read(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("nvp.cli.census._MOST_ERRORS", most)
    store.parent.joinpath("index", "demo").mkdir(parents=True)
    (store.parent / "index/demo/demo-1.0-py3-none-any.whl").write_bytes(b"hello")
    outcome = run("census", store.parent / "index", "-o", store, "--jobs", 1, "--json")
    assert outcome.code == 1
    assert outcome.data["failed"] == 1
    (line,) = outcome.err.splitlines()
    assert line.startswith("warning: demo-1.0-py3-none-any.whl: not a readable archive")
    (error,) = json.loads(outcome.out)["errors"]
    if most:
        assert error["path"] == "demo-1.0-py3-none-any.whl"
    else:
        assert error["message"] == "errors that are left out here: 1"


def test_a_project_that_is_missing(run: Run, store: Path) -> None:
    names = ("--project", "nothing", "--project", "demo-tools")
    outcome = run("census", INDEX, "-o", store, "--jobs", 1, *names)
    assert outcome.code == 1
    assert "there is no directory of the project nothing" in outcome.err
    assert outcome.out.startswith("1 wheel: 0 inspected, 1 skipped")


@pytest.mark.parametrize(
    "content", [b"this is no store" * 100, b""], ids=["text", "folder"]
)
def test_a_file_that_is_no_store(run: Run, store: Path, content: bytes) -> None:
    store.write_bytes(content) if content else store.mkdir()
    outcome = run("census", INDEX, "-o", store)
    assert outcome.code == 3
    assert len(outcome.err.splitlines()) == 1
    assert str(store) in outcome.err


def test_an_index_that_does_not_respond(run: Run, store: Path) -> None:
    pytest.importorskip("httpx", reason="it reads the index")
    with serve_answers({"/simple/": Answer(status=500)}) as server:
        url = server.url.replace("://", "://user:secret@")
        outcome = run("census", f"{url}/missing", "-o", store)
    assert outcome.code == 3
    assert "HTTP 404" in outcome.err
    assert "secret" not in outcome.err


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_an_index_that_is_no_url(scheme: str, run: Run, store: Path) -> None:
    outcome = run("census", f"{scheme}://user:secret@[::1/", "-o", store)
    assert outcome.code == 2
    assert (
        f"{scheme}://****@[::1/: is not a URL: its server is malformed" in outcome.err
    )
    assert "secret" not in outcome.err


@pytest.mark.parametrize("end", ["", ":x", ":8786"])
def test_an_address_of_dask_with_a_password(end: str, run: Run, store: Path) -> None:
    """Dask quoted the address as that of a server, or a part of it as a port."""
    pytest.importorskip("distributed", reason="it is the scheduler's client")
    address = f"tcp://user:secret@127.0.0.1{end}"
    outcome = run("census", INDEX, "-o", store, "--dask", address)
    assert outcome.code == 3
    assert "it has a user" in outcome.err
    assert "secret" not in outcome.err


def test_enough_is_read(run: Run, store: Path) -> None:
    outcome = run("census", INDEX, "-o", store, "--jobs", 1, "--max-bytes", "1K")
    assert outcome.code == 0
    assert "--max-bytes is reached; run the same command again to go on" in outcome.err


INTERRUPTED = """
import os, signal, sys, threading
from nvp.cli import main
from nvp.cli.census import _Observer

finished = _Observer.finished
def interrupt(self, outcome, tally):
    finished(self, outcome, tally)
    if tally.read == 1:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)

_Observer.finished = interrupt
times = int(sys.argv.pop(1))
sys.exit(main())
"""


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is another thing there")
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c(store: Path, times: int) -> None:
    """The first Ctrl-C finishes the wheels that are being read. The second one ends all
    processes."""
    script = store.parent / "interrupted.py"
    script.write_text(INTERRUPTED)
    words = ["census", INDEX, "-o", store, "--jobs", "1"]
    done = subprocess.run(
        [sys.executable, script, str(times), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 130, done.stderr
    assert "press Ctrl-C again to stop now" in done.stderr
    assert "Traceback" not in done.stderr
    if times == 1:
        assert "interrupted; run the same command again to go on" in done.stderr
        assert "inspected" in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_killed_census_goes_on(run: Run, store: Path) -> None:
    """All stored rows stay, and the processes end with their parent."""
    script = store.parent / "killed.py"
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    script.write_text(INTERRUPTED.replace("signal.raise_signal(signal.SIGINT)", kill))
    done = subprocess.run(
        [sys.executable, script, "1", "census", INDEX, "-o", store, "--jobs", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    # The pipe of stderr is open until the last process has ended.
    assert done.returncode == -signal.SIGKILL
    outcome = run("census", INDEX, "-o", store, "--jobs", 1, "--json")
    assert (outcome.data["wheels"], outcome.data["known"]) == (3, 1)
