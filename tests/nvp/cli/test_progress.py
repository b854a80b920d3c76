"""The progress bar on stderr."""

from __future__ import annotations

import io
import re
import sys

import pytest

from nvp.cli.render import progress_bar, shortened

WHEEL = "dist/torch-2.8.0-2000000002cu128-cp312-cp312-manylinux_2_28_x86_64-cu128.whl"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_there_is_no_bar_where_stderr_is_not_a_terminal() -> None:
    with progress_bar("x") as progress:
        assert progress is None


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_bar_has_the_name_and_the_bytes_on_one_line(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich", reason="it draws the bar")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(WHEEL) as progress:
        assert progress is not None
        progress(3 << 20, 900 << 20)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    frames = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    assert all(len(line) <= columns for line in frames)
    assert frames[-1].startswith(shortened(WHEEL, columns - 44))
    assert "3.0/900.0 MiB" in frames[-1]


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (200, WHEEL),
        (75, WHEEL.removeprefix("dist/")),
        (36, "torch-2.8.0..._2_28_x86_64-cu128.whl"),
        (12, "tor...28.whl"),
    ],
)
def test_a_long_name_keeps_its_project_and_its_label(width: int, text: str) -> None:
    assert shortened(WHEEL, width) == text


def test_names_are_not_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="it draws the bar")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("[bold]\x1b.so") as progress:
        assert progress is not None
        progress(1, 2)
    assert r"[bold]\x1b.so" in terminal.getvalue()
