"""The help texts, and the two names of the command."""

from __future__ import annotations

import sys

import pytest
from support.command import Run
from support.paths import ROOT

from nvp.cli import COMMANDS, main
from nvp.cli.parsers import GROUPS


class TestHelp:
    def test_the_help_of_the_program(self, run: Run) -> None:
        outcome = run("help")
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.startswith("usage: nvp ")

    def test_commands_are_grouped_by_what_people_want(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        out = run("help").out
        positions = [out.index(f"\n{title}:\n") for title in GROUPS]
        assert positions == sorted(positions)
        for command, summary in COMMANDS.items():
            assert f"  {command:10}  {summary}\n" in out

    def test_help_fits_60_columns(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        lines = run("help").out.splitlines()
        assert [line for line in lines if len(line) > 60] == []
        start = next(n for n, line in enumerate(lines) if line.startswith("  inspect"))
        assert lines[start : start + 2] == [
            "  inspect     list the GPU code in wheels and libraries,",
            "              and where it runs",
        ]

    @pytest.mark.parametrize("command", COMMANDS)
    def test_help_of_a_command_fits_40_columns(
        self, command: str, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        text, _, examples = run("help", command).out.partition("\nexample")
        assert examples
        words = [line for line in text.splitlines() if len(line) > 40]
        assert [line for line in words if " " in line.strip()] == []

    @pytest.mark.parametrize("command", COMMANDS)
    def test_help_of_a_command(
        self,
        command: str,
        run: Run,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        outcome = run("help", command)
        assert outcome.code == 0
        assert outcome.out.startswith(f"usage: nvp {command} ")
        assert "\nexample" in outcome.out
        assert f"\n  nvp {command}" in outcome.out
        assert all(len(line) <= 80 for line in outcome.out.splitlines())
        with pytest.raises(SystemExit) as caught:
            main([command, "--help"])
        assert caught.value.code == 0
        assert capsys.readouterr().out == outcome.out

    @pytest.mark.parametrize(
        "name",
        [
            "nvidia-variant-provider",
            "/usr/bin/nvidia-variant-provider",
            "nvidia-variant-provider.exe",
        ],
    )
    def test_usage_lines_follow_the_name_by_which_the_command_was_called(
        self, name: str, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "argv", [name])
        out = run("help", "resolve").out
        assert out.startswith("usage: nvidia-variant-provider resolve ")
        assert "\n  nvidia-variant-provider resolve " in out
        assert "see nvp resolve --help" in run("resolve").err

    def test_both_names_are_installed(self) -> None:
        text = (ROOT / "packages" / "nvp" / "pyproject.toml").read_text()
        for name in ("nvidia-variant-provider", "nvp"):
            assert f'\n{name} = "nvp.__main__:run"\n' in text
