"""Completion with the Tab key: bash runs the script."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command import Run

from nvp.cli.parsers import COMMANDS

pytest.importorskip("shtab", reason="it makes the scripts")

Complete = Callable[..., set[str]]

BASH = shutil.which("bash")

DRIVER = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
compopt() { :; }  # it works only while readline completes
_shtab_nvp
printf '%s\n' "${COMPREPLY[@]}"
"""
"""The steps of readline after the Tab key is pressed behind the last word."""


@pytest.fixture
def complete(run: Run, tmp_path: Path) -> Complete:
    """Press Tab after some words, and return the completions."""
    script = tmp_path / "completion.bash"
    script.write_text(run("--print-completion", "bash").out)

    def press_tab(*words: str) -> set[str]:
        done = subprocess.run(
            [str(BASH), "-c", DRIVER, "bash", str(script), *words],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        assert done.stderr == ""
        return {line.strip() for line in done.stdout.splitlines()} - {""}

    return press_tab


@pytest.mark.skipif(BASH is None or sys.platform == "win32", reason="needs bash")
class TestBash:
    def test_commands(self, complete: Complete) -> None:
        assert complete("nvp", "") == set(COMMANDS)
        assert complete("nvp", "res") == {"resolve"}

    def test_options_of_the_program(self, complete: Complete) -> None:
        assert {"--version", "--json", "-v"} <= complete("nvp", "-")

    def test_options_of_a_command(self, complete: Complete) -> None:
        words = complete("nvp", "resolve", "--e")
        assert words == {"--every-gpu", "--explain", "--environment"}
        assert "--verbose" in complete("nvp", "serve", "--")

    def test_choices(self, complete: Complete) -> None:
        words = ("nvp", "validate", "--format", "")
        assert complete(*words) == {"text", "json", "sarif", "github"}

    @pytest.mark.parametrize("words", [("resolve",), ("detect", "--environment")])
    def test_files(
        self, words: tuple[str, ...], complete: Complete, tmp_path: Path
    ) -> None:
        (tmp_path / "x-1-variants.json").touch()
        completions = complete("nvp", *words, "x-")
        assert completions == {"x-1-variants.json"}

    def test_it_is_registered_for_the_name_that_was_called(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["nvidia-variant-provider"])
        end = "-F _shtab_nvidia_variant_provider nvidia-variant-provider\n"
        assert run("--print-completion", "bash").out.endswith(end)


@pytest.mark.parametrize("shell", ["zsh", "tcsh", "fish"])
def test_scripts_of_other_shells(shell: str, run: Run) -> None:
    shtab = pytest.importorskip("shtab")
    if shell not in shtab.SUPPORTED_SHELLS:
        pytest.skip(f"this shtab does not know {shell}")
    outcome = run("--print-completion", shell)
    assert outcome.code == 0
    assert "nvp" in outcome.out
    assert all(command in outcome.out for command in COMMANDS)


def test_a_shell_that_is_not_supported(run: Run) -> None:
    outcome = run("--print-completion", "ed")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(
        "error: there is no completion for the shell 'ed'; give one of: bash, zsh"
    )


def test_normal_calls_do_not_load_what_completion_and_logging_need() -> None:
    code = (
        "import sys; from nvp.cli import main; main(['detect']);"
        "names = ['shtab', 'difflib', 'nvp.cli.log', 'rich'];"
        "print([name for name in names if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"
