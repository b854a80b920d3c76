"""The progress bar on stderr."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
import tracemalloc
from collections.abc import Callable

import pytest

from nvp.cli import log
from nvp.cli.narration import Narration
from nvp.cli.render import complain, progress_bar, shortened, waiting_line

WHEEL = "dist/torch-2.8.0-2000000002cu128-cp312-cp312-manylinux_2_28_x86_64-cu128.whl"


class Terminal(io.StringIO):
    """A stream whose `isatty` returns ``True``."""

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
    with progress_bar("::[bold]\x1b.so") as progress:
        assert progress is not None
        progress(1, 2)
    assert r"\u003a:[bold]\x1b.so" in terminal.getvalue()


class Screen(Terminal):
    """A terminal that signals when a request is shown, and has the text of its last
    line."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        size = super().write(text)
        if "GET" in text:
            self.written.set()
        return size

    @property
    def line(self) -> str:
        cells: list[str] = []
        for part in self.getvalue().rpartition("\n")[2].split("\r"):
            cells[: len(part)] = part
        return "".join(cells).rstrip()


@pytest.fixture
def make_screen(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Screen]:
    """Return a function that makes stderr a screen; pytest sets stderr for each
    test."""

    def make() -> Screen:
        screen = Screen()
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    return make


class TestWaits:
    def test_the_latest_message_is_shown_after_a_while(
        self, make_screen: Callable[[], Screen], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        screen = make_screen()
        monkeypatch.setattr(log, "_SILENCE", 0.0)
        monkeypatch.setattr(log, "_PAUSE", 0.05)
        logger = logging.getLogger("nvp.test")
        with log.showing_waits("releases"):
            logger.info("GET https://me:pw@files.example/%s/", "x" * 80)
            assert screen.written.wait(60)
            shown = screen.line
        assert shown.startswith("releases, 0 s: GET https://****@files.example/xx")
        assert len(shown) < 60
        assert screen.line == ""
        assert not logger.isEnabledFor(logging.INFO)

    def test_a_quick_command_shows_nothing(
        self, make_screen: Callable[[], Screen]
    ) -> None:
        screen = make_screen()
        with log.showing_waits("check"):
            pass
        assert screen.getvalue() == ""

    def test_messages_and_bars_take_the_place_of_the_line(
        self, make_screen: Callable[[], Screen]
    ) -> None:
        screen = make_screen()
        waiting_line.show("releases, 3 s: working")
        assert screen.line == "releases, 3 s: working"
        complain("warning: x")
        assert screen.getvalue().endswith("\rwarning: x\n")
        waiting_line.show("y")
        with progress_bar("demo.whl"):
            waiting_line.show("hidden")
        waiting_line.show("shown")
        assert screen.getvalue().endswith("\rshown")
        assert "hidden" not in screen.getvalue()
        waiting_line.clear()

    def test_pip_says_what_it_waits_for(
        self, make_screen: Callable[[], Screen], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        screen = make_screen()
        Narration(aside=False, quiet=False).wait("torch")
        assert screen.getvalue() == "reading the pages and METADATA of torch\n"
        Narration(aside=False, quiet=True).wait("torch")
        other = io.StringIO()
        monkeypatch.setattr(sys, "stderr", other)
        Narration(aside=False, quiet=False).wait("torch")
        assert screen.getvalue().count("\n") == 1
        assert other.getvalue() == ""


def test_a_server_remembers_few_of_the_warnings_that_its_clients_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An index answers with 414 to each long name that a client makes up."""
    narration = Narration(aside=True, quiet=True, brief=True)
    with open(os.devnull, "w") as nowhere:
        monkeypatch.setattr(sys, "stderr", nowhere)
        tracemalloc.start()
        try:
            for number in range(4000):
                narration.warn(f"{number}: {'x' * 10_000}")
            left, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert left < 30_000_000
