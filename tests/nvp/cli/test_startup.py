"""The imports of commands in fresh interpreters: the start is most of their time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from nvp.cli.parsers import COMMANDS

METADATA = ROOT / "fixtures" / "variants-json" / "torch-2.8.0-variants.json"

# The names are those of `sys.modules`, and include the modules below them.
SLOW = (
    *("asyncio", "concurrent", "dataclasses", "email", "importlib.metadata"),
    *("inspect", "logging", "packaging", "rich", "socket", "ssl", "subprocess"),
    *("unittest", "urllib.request", "zipfile"),
)
"""Modules that take long to import, and that most commands start without."""

INDEX = ("httpx", "simple_repository", "starlette", "uvicorn")
FOLDERS = ("builds", "gpu_code", "lint", "matrix", "upgrading", "index.http")

START = """
import sys
from nvp.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("\\n", *sorted(sys.modules), file=sys.stderr)
"""


def imported(*words: str, folder: Path, **variables: str) -> set[str]:
    """Run a command, and return the modules that it has imported."""
    done = subprocess.run(
        [sys.executable, "-c", START, *words],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    # Editable installations import modules at every start.
    return set(done.stderr.splitlines()[-1].split()) - set(bare.stdout.split())


def those_of(modules: set[str], *names: str) -> set[str]:
    return {
        module
        for module in modules
        if any(module == name or module.startswith(f"{name}.") for name in names)
    }


def own(*folders: str) -> list[str]:
    return [f"nvp.{folder}" for folder in folders]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_the_module_of_the_command_and_little_else(
    command: str, tmp_path: Path
) -> None:
    modules = imported(command, "--help", folder=tmp_path)
    assert f"nvp.cli.{command}" in modules
    assert those_of(modules, *SLOW, *INDEX, "pathlib", "tempfile") == set()
    assert those_of(modules, *own(*FOLDERS)) == set()
    others = {f"nvp.cli.{other}" for other in COMMANDS} - {f"nvp.cli.{command}"}
    assert modules & others == set()


@pytest.mark.parametrize("more", [(), ("--json",), ("--explain",)])
def test_resolve_imports_only_what_it_needs(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    document = json.loads(METADATA.read_text())
    for provider in document["providers"].values():
        # `packaging` evaluates the marker.
        provider.pop("enable-if", None)
    file = tmp_path / METADATA.name
    file.write_text(json.dumps(document))
    # Without this file, nvp would import platformdirs to find the user's own file.
    (tmp_path / "variants.toml").write_text("")
    given = ("--cuda-driver", "12.9", "--sm-arch", "9.0")
    modules = imported("resolve", str(file), *given, *more, folder=tmp_path)
    files = {"pathlib", "platformdirs", "shutil", "tempfile", "urllib"}
    assert those_of(modules, *SLOW, *INDEX, *files) == set()
    assert those_of(modules, *own(*FOLDERS, "knowledge", "wheels")) == set()


def test_platformdirs_alone_brings_what_handles_files(tmp_path: Path) -> None:
    given = ("--cuda-driver", "12.9", "--sm-arch", "9.0")
    file = tmp_path / "demo-1.0-variants.json"
    file.write_text(
        json.dumps(
            {
                "$schema": "https://variants-schema.wheelnext.dev/v0.2.0.json",
                "default-priorities": {"namespace": []},
                "providers": {},
                "variants": {"null": {}},
            }
        )
    )
    modules = imported("resolve", str(file), *given, folder=tmp_path)
    assert "platformdirs" in modules
    assert those_of(modules, *SLOW, *INDEX) == set()


def test_reading_an_index_does_without_the_command_line_of_httpx(
    tmp_path: Path,
) -> None:
    words = ("releases", "six", "--index-url", "http://127.0.0.1:9/simple/")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "nvp", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    lines = done.stderr.splitlines()
    modules = {line.rpartition("|")[2].strip() for line in lines}
    assert (done.returncode, lines[-1].partition(":")[0]) == (3, "error")
    assert "httpx" in modules
    assert those_of(modules, "pygments", "rich", "click") == set()


def test_an_interrupted_import_of_the_client_ends_without_a_traceback() -> None:
    # The module is loaded, but its functions are not defined yet.
    program = """
import sys, types
sys.modules["nvp.index.http.threads"] = types.ModuleType("nvp.index.http.threads")
from nvp.__main__ import run
sys.exit(run())
"""
    words = [sys.executable, "-c", program]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


INTERRUPTED = """
import runpy, signal, sys
program, place, *words = sys.argv[1:]
def interrupt(): signal.raise_signal(signal.SIGINT)
class Finder:
    def find_spec(name, *_):
        if name == place: interrupt()
sys.meta_path.insert(0, Finder)
threads = sys.modules["nvp.index.http.threads"] = type(sys)("threads")
threads.is_running = lambda: place == "last" and interrupt()
sys.argv = ["-m", *words]
runpy._run_module_as_main(program)
"""
"""A program that is interrupted at an import, or after its command."""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.parametrize(
    ("program", "place"),
    [
        ("nvp", "nvidia_variant_provider"),
        ("nvp", "nvp.cli"),
        ("nvp", "nvp.cli.detect"),
        ("nvp", "last"),
        ("nvidia_variant_provider", "nvidia_variant_provider.api"),
    ],
)
def test_an_interrupt_around_a_command(program: str, place: str) -> None:
    word = "detect" if program == "nvp" else "nowhere.json"
    words = [sys.executable, "-c", INTERRUPTED, program, place, word]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")


HANGING = """
import signal, sys, threading
from nvp import __main__
__main__._PATIENCE = 0
threading.Thread(target=threading.Event().wait).start()
threading._limbo[1] = threading.Thread()  # a signal has interrupted its start
name = sys.argv.pop()
class Finder:
    def find_spec(place, *_):
        if place == "nvp.cli.detect": signal.raise_signal(signal.Signals[name])
sys.meta_path.insert(0, Finder)
sys.exit(__main__.run())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_thread_that_hangs_does_not_delay_the_end(name: str) -> None:
    words = [sys.executable, "-c", HANGING, "detect", name]
    ended = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=30
    )
    assert (ended.returncode, ended.stderr) == (128 + signal.Signals[name], "")


@pytest.mark.skipif(sys.platform == "win32", reason="runs a shell")
def test_an_interpreter_that_hangs_does_not_delay_the_end(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho $$ >$0.pid\nkill -TERM $PPID\nexec sleep 600\n")
    python.chmod(0o755)
    words = ["releases", "demo", "--index-url", "http://127.0.0.1:9/simple/"]
    words = [sys.executable, "-m", "nvp", *words, "--python", str(python)]
    ended = subprocess.run(words, capture_output=True, check=False, timeout=30)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGTERM, b"")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "python.pid").read_text()), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the file size")
def test_the_exit_code_is_kept_where_stderr_cannot_be_written(tmp_path: Path) -> None:
    # Python alone would end with 120.
    script = f"ulimit -f 0; {sys.executable} -m nvp inspect nowhere.so 2>errors"
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    words = ["bash", "-c", script]
    ended = subprocess.run(words, cwd=tmp_path, env=environ, check=False)
    assert ended.returncode == 3


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.parametrize("word", ["--help", "--version"])
@pytest.mark.parametrize(("target", "code"), [("| true", 0), (">/dev/full", 3)])
def test_help_that_nobody_reads(word: str, target: str, code: int) -> None:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    script = f"set -o pipefail; {sys.executable} -m nvp {word} {target}"
    words = ["bash", "-c", script]
    ended = subprocess.run(words, env=environ, capture_output=True, check=False)
    assert ended.returncode == code
    assert b"Exception" not in ended.stderr
