"""The process in which pip parses a command, and which then runs the command."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import PIPS, Environment, make_environment, provider

from nvidia_variant_provider.errors import InputError
from nvp.index.pip import process
from nvp.index.pip.process import Pip

pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="descriptors cannot be passed to a process there"
)


@pytest.mark.parametrize(
    "version",
    [
        *(pytest.param(version, marks=pytest.mark.slow) for version in PIPS[1:-1]),
        PIPS[0],
        PIPS[-1],
    ],
)
def test_one_process_replies_and_runs_pip(
    version: str,
    pips: dict[str, Environment],
    environ: dict[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    pip = Pip(str(pips[version].python), environ)
    pip.start(quiet=False)
    command = pip.understand(["download", "--index-url", "https://a.example/", "x"])
    assert (command.command, command.indexes) == ("download", ["https://a.example/"])
    # The variables are those of the run, not of the question.
    variables = {**environ, "PIP_INDEX_URL": "https://b.example/"}
    assert pip.run(["config", "debug"], variables, quiet=False) == 0
    pip.close()
    captured = capfd.readouterr()
    assert "PIP_INDEX_URL='https://b.example/'" in captured.out
    assert captured.err == ""


def test_pip_reports_a_wrong_command_line_once(
    environ: dict[str, str], pips: dict[str, Environment]
) -> None:
    python = pips[PIPS[-1]].python
    words = ("install", "--no-such-option")
    done = provider("pip", "--python", python, *words, environ=environ)
    assert done.code == 2
    assert done.text.count("no such option: --no-such-option") == 1


def test_output_of_a_sitecustomize_is_not_taken_for_a_reply(
    fresh_of_newest: Environment,
    environ: dict[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    (fresh_of_newest.packages / "sitecustomize.py").write_text("print('pip_probe')")
    pip = Pip(str(fresh_of_newest.python), environ)
    pip.start(quiet=True)
    assert pip.understand(["install", "x"]).command == "install"
    assert pip.run(["--version"], environ, quiet=True) == 0
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("pip_probe") == 1


@pytest.fixture
def fresh_of_newest(tmp_path: Path) -> Environment:
    return make_environment(tmp_path / "environment", f"pip=={PIPS[-1]}")


@pytest.mark.parametrize(
    "words",
    [
        ("--cuda-driver", "new"),
        pytest.param(("--label", "a=b=cu126"), marks=pytest.mark.slow),
        ("--label", "x", "--no-variants"),
    ],
)
def test_a_wrong_option_is_told_in_one_line(
    words: tuple[str, ...], environ: dict[str, str]
) -> None:
    """The process that has already loaded pip ends without output."""
    done = provider("pip", *words, "install", "torch", environ=environ)
    assert done.code in (2, 4)
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1


def test_an_interrupt_before_pip_runs_is_silent(
    environ: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """A terminal also sends Ctrl-C to the process that has loaded pip."""
    pip = Pip(sys.executable, environ)
    pip.start(quiet=False)
    assert pip._warm is not None
    process = pip._warm.process
    try:
        # The signal is blocked while Python starts.
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
    finally:
        pip.close()
    assert capfd.readouterr() == ("", "")


def test_process_that_is_not_used_ends(environ: dict[str, str]) -> None:
    pip = Pip(sys.executable, environ)
    pip.start(quiet=False)
    assert pip._warm is not None
    process = pip._warm.process
    pip.close()
    assert process.poll() is not None


def test_a_second_interrupt_kills_a_process_that_hangs(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    warm = process._WarmPip(["/bin/sh", "-c", "exec sleep 300"], environ, quiet=False)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(warm.process, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            warm.end()
    assert warm.process.wait(60) == -signal.SIGKILL


def test_program_that_is_not_a_python(environ: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    pip = Pip(str(program), environ)
    pip.start(quiet=False)
    with pytest.raises(InputError, match="is not a Python with a pip"):
        pip.understand(["install", "x"])


def test_the_pip_that_comes_with_python(
    environ: dict[str, str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If no interpreter has a pip, that of ``ensurepip`` runs from its wheel."""
    monkeypatch.setattr(importlib.util, "find_spec", hide_pip(importlib.util.find_spec))
    if process._find_bundled_pip() is None:
        pytest.skip("this Python has no ensurepip")
    bare = make_environment(tmp_path / "environment")
    pip = Pip(str(bare.python), environ)
    pip.start(quiet=False)
    assert pip.understand(["install", "x"]).command == "install"
    assert pip.run(["--version"], environ, quiet=False) == 0
    assert ".whl" in capfd.readouterr().out


def hide_pip(find: Callable[[str], object]) -> Callable[[str], object]:
    return lambda name: None if name == "pip" else find(name)
