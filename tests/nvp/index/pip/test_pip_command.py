"""The command line as a pip parses it."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import uv
from support.processes import PIPS, Environment, Pip, make_environment, provider
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import InputError
from nvp.cli import main
from nvp.files import read_resource
from nvp.index.pip.command import PipCommand, find_python
from nvp.index.pip.process import Pip as Command
from nvp.index.pip.settings import make_settings

PROGRAM = Path(sys.executable).with_name("nvidia-variant-provider")

posix = pytest.mark.skipif(os.name == "nt", reason="scripts of POSIX")


def understand(python: str = sys.executable, **environ: str) -> PipCommand:
    command = Command(python, {**os.environ, **environ})
    return command.understand(["install", "--index-url", "https://a.example/", "x"])


def test_arguments_are_understood() -> None:
    found = understand()
    assert (found.command, found.positional) == ("install", ["x"])
    assert found.indexes[0] == "https://a.example/"


@pytest.mark.parametrize(("timeout", "deadline"), [(15, 120), (300, 600)])
def test_a_user_may_be_patient(timeout: int, deadline: int) -> None:
    """pip waits for a slow page or wheel as long as its user wants."""
    command = understand(PIP_TIMEOUT=str(timeout))
    settings = make_settings(command, {})
    assert (settings.timeout, settings.deadline) == (timeout, deadline)


@pytest.mark.parametrize("has_pip", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_modules_in_the_working_folder_are_not_imported(
    has_pip: bool, pip: Pip, index: str, tmp_path: Path
) -> None:
    """``python -m pip`` removes the current directory from the path as well."""
    hostile = tmp_path / "cloned"
    hostile.mkdir()
    for name in ("json", "linecache", "pip", "typing", "warnings"):
        (hostile / f"{name}.py").write_text(
            "import pathlib\npathlib.Path(__file__).with_name('run').touch()\n"
            "raise ImportError\n"
        )
    # Run the program: ``-m`` itself would import modules of the current directory.
    # An environment without a pip gets that of nvp, in a process of its own.
    python = pip.python if has_pip else make_environment(tmp_path / "bare").python
    words = ("pip", "--python", python, "--cuda-driver=12.9", "--sm-arch=8.0")
    done = subprocess.run(
        [PROGRAM, *words, "install", "-i", index, "--dry-run", "--no-deps", "torch"],
        env=pip.environ,
        cwd=hostile,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Would install variant cu126 of torch 2.8.0" in done.stdout
    assert not (hostile / "run").exists()


def test_other_output_is_not_the_reply(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello from site')\n")
    found = understand(PYTHONPATH=str(tmp_path))
    assert found.indexes[0] == "https://a.example/"


@posix
@pytest.mark.parametrize(
    "output",
    [
        "",
        "hello",
        "pip_probe\n",
        "pip_probe\n{",
        "pip_probe\n[1]",
        "pip_probe\n{}",
        'pip_probe\n{"command": "install", "what": 1}',
    ],
)
def test_programs_that_are_not_an_interpreter(output: str, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(InputError, match="is not a Python with a pip"):
        understand(str(program))


@posix
def test_an_interpreter_that_ends_as_if_it_had_no_pip(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho pip_probe\nexit 66\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(InputError, match="is not a Python with a pip"):
        understand(str(program))


class TestTools:
    """pipx and ``uv tool`` give this program an environment of its own."""

    @pytest.fixture(params=["pipx_metadata.json", "uv-receipt.toml"])
    def prefix(
        self,
        request: pytest.FixtureRequest,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Path:
        """Set the prefix of the running interpreter to that of a tool."""
        (tmp_path / request.param).touch()
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        return tmp_path

    @pytest.fixture
    def active(self, tmp_path: Path) -> Path:
        program = tmp_path / "active" / "bin" / "python"
        program.parent.mkdir(parents=True)
        program.touch()
        return program

    @pytest.mark.usefixtures("prefix")
    def test_the_activated_environment_comes_first(self, active: Path) -> None:
        environ = {"VIRTUAL_ENV": str(active.parents[1])}
        assert find_python(None, environ) == str(active)
        assert find_python(sys.executable, environ) == sys.executable
        assert find_python(None, {}) == sys.executable

    @pytest.mark.parametrize(
        ("name", "counts"), [("mine", True), ("base", False), (None, True)]
    )
    @pytest.mark.usefixtures("prefix")
    def test_an_environment_of_conda(
        self, name: str | None, counts: bool, active: Path
    ) -> None:
        environ = {"CONDA_PREFIX": str(active.parents[1])}
        environ |= {"CONDA_DEFAULT_ENV": name} if name else {}
        expected = str(active) if counts else sys.executable
        assert find_python(None, environ) == expected

    @pytest.mark.usefixtures("prefix")
    def test_nothing_is_installed_into_the_environment_of_the_tool(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("VIRTUAL_ENV", raising=False)
        assert main(["pip", "install", "--dry-run", "torch"]) == 2
        assert "activate the environment to install into" in capsys.readouterr().err


class TestActivated:
    """This program is in an environment of its own, and another one is activated."""

    def test_packages_go_there(
        self, index: str, fresh: Callable[[str], Environment], pip: Pip
    ) -> None:
        active = fresh(PIPS[-1])
        pip.environ["VIRTUAL_ENV"] = str(active.folder)
        words = ("--cuda-driver", "12.9", "--sm-arch", "8.0", "torch")
        done = provider("pip", "install", "-i", index, *words, environ=pip.environ)
        assert done.code == 0, done.text
        assert done.err == (
            f"installing into the activated environment {active.folder}\n"
        )
        assert active.labels()["torch"] == "2.8.0 cu126"

    def test_another_one_that_is_named_comes_first(
        self, index: str, pip: Pip, tmp_path: Path
    ) -> None:
        pip.environ["VIRTUAL_ENV"] = str(tmp_path / "missing")
        done = pip("install", "-i", index, "--dry-run", "torch")
        assert (done.code, done.err) == (0, "")

    def test_what_is_no_environment(self, tmp_path: Path, pip: Pip) -> None:
        pip.environ["VIRTUAL_ENV"] = str(tmp_path / "missing")
        done = provider("pip", "list", environ=pip.environ)
        assert done.code == 2
        assert "which is activated, is neither an interpreter nor" in done.err
        assert done.err.endswith("; activate another environment, or give --python\n")

    def test_its_own_and_those_of_conda_change_nothing(self, tmp_path: Path) -> None:
        assert find_python(None, {"VIRTUAL_ENV": sys.prefix}) == sys.executable
        # A link to the directory is another name of it.
        link = tmp_path / "link"
        link.symlink_to(sys.prefix, target_is_directory=True)
        assert find_python(None, {"VIRTUAL_ENV": str(link)}) == sys.executable
        assert find_python(None, {"CONDA_PREFIX": str(tmp_path)}) == sys.executable


class TestProbe:
    @posix
    def test_its_source_is_no_word_of_a_command(
        self, index: str, pip: Pip, tmp_path: Path
    ) -> None:
        log, program = tmp_path / "log", tmp_path / "python"
        program.write_text(
            f'#!/bin/sh\nprintf \'%s\\n\' "$*" >>{log}\nexec {pip.python} "$@"\n'
        )
        program.chmod(0o755)
        pip.python = program
        assert pip("install", "-i", index, "--dry-run", "torch").code == 0
        (line,) = (x for x in log.read_text().splitlines() if "probe" in x)
        assert re.fullmatch(r"\S+probe\.py \d+ \d+", line)

    def test_old_interpreters_can_read_it(self) -> None:
        source = read_resource("index", "pip", "probe.py")
        ast.parse(source, feature_version=(3, 7))
        assert "strict=" not in source

    @pytest.mark.slow
    @pytest.mark.parametrize("version", ["3.8", "3.9"])
    def test_in_an_old_environment(
        self, version: str, index: str, pip: Pip, tmp_path: Path
    ) -> None:
        words = ["python", "find", "--no-python-downloads", version]
        found = subprocess.run(
            [uv.find_uv_bin(), *words], capture_output=True, text=True, check=False
        )
        if found.returncode:
            pytest.skip(f"there is no Python {version} on this machine")
        python = found.stdout.strip()
        made = [python, "-m", "venv", str(tmp_path / "old")]
        subprocess.run(made, check=True, timeout=120)
        pip.python = tmp_path / "old" / "bin" / "python"
        done = pip("install", "-i", index, "--dry-run", "--no-deps", "torch")
        assert done.code == 0, done.text
        assert "Would install variant cu126 of torch 2.8.0" in done.out


@posix
def test_a_parent_ignores_the_ends_of_children() -> None:
    """Some daemons do, and pass that on: ``nvp pip`` exited with 0 after each error."""
    words = [sys.executable, "-m", "nvp", "pip", "no-such-command"]
    code = "import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    code += f"; os.execv({sys.executable!r}, {words!r})"
    run = partial(subprocess.run, capture_output=True, timeout=120, check=False)
    assert run([sys.executable, "-c", code]).returncode == run(words).returncode == 1


@pytest.mark.slow
def test_the_pip_that_comes_with_python(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case is that of ``uv tool``, where neither environment has a pip."""
    bare = make_environment(tmp_path / "bare")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "pip" else find_spec(name),
    )
    pip = Command(str(bare.python), environ)
    command = pip.understand(["install", "torch"])
    assert command.command == "install"
    assert str(bare.packages) in command.paths
    wheel = stub_wheel(tmp_path, "demo", "1.0")
    words = ["install", "--no-index", "-q", str(wheel)]
    assert pip.run(words, environ, quiet=True) == 0
    assert bare.labels() == {"demo": "1.0 None"}
