"""Sentences and tables on a terminal."""

from __future__ import annotations

import io
import os
import re
import sys
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvp.cli.render import Result, Table, render, terminal_width, wrap_line

SENTENCE = (
    "  cu129 does not fit: it needs a driver for CUDA 12.9 or newer, and this driver "
    "is for CUDA 12.8"
)
TABLE = Table(
    header=("GPU", "Name", "Compute capability", "Problem"),
    rows=[
        ("0", "NVIDIA RTX 6000 Ada Generation", "8.9", ""),
        ("1", "NVIDIA GeForce GTX 1080 Ti", "6.1", "the driver 570.86.15 is too old"),
    ],
)
WORDS = st.lists(
    st.sampled_from(["a", "the", "driver", "12.9", "570.86.15", "compute", "100"]),
    min_size=1,
).map(" ".join)


class Terminal(io.StringIO):
    """A stream whose `isatty` returns ``True``."""

    def isatty(self) -> bool:
        return True


def printed(result: Result, monkeypatch: pytest.MonkeyPatch, *, columns: int) -> str:
    """Return the text on a terminal, without its escapes."""
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TERM", "xterm")
        render(result, command="detect", as_json=False)
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())


class TestWidth:
    @pytest.mark.parametrize(
        ("variable", "width"),
        [("60", 60), ("", 80), ("many", 80), ("0", 80), ("10", None)],
    )
    def test_width(
        self, variable: str, width: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", variable)
        assert terminal_width(Terminal()) == width

    def test_a_pipe_and_a_closed_stream_have_no_width(self) -> None:
        assert terminal_width(io.StringIO()) is None
        closed = io.StringIO()
        closed.close()
        assert terminal_width(closed) is None

    def test_stderr_is_asked_although_stdout_is_a_pipe(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if sys.platform == "win32":
            pytest.skip("needs a pseudo-terminal")
        import fcntl
        import pty
        import struct
        import termios

        monkeypatch.delenv("COLUMNS", raising=False)
        first, second = pty.openpty()
        fcntl.ioctl(second, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 61, 0, 0))
        with os.fdopen(first, "rb"), os.fdopen(second, "w") as stream:
            assert terminal_width(stream) == 61


class TestSentences:
    def test_they_are_wrapped_at_words_on_a_terminal(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert printed(Result(text=[SENTENCE]), monkeypatch, columns=60) == (
            "  cu129 does not fit: it needs a driver for CUDA 12.9 or\n"
            "    newer, and this driver is for CUDA 12.8\n"
        )

    def test_they_stay_whole_in_a_pipe(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        result = Result(text=[SENTENCE], notes=[SENTENCE])
        render(result, command="detect", as_json=False)
        assert capsys.readouterr() == (f"{SENTENCE}\n", f"warning: {SENTENCE}\n")

    def test_documents_stay_as_they_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        result = Result(text=[SENTENCE], verbatim=True)
        assert printed(result, monkeypatch, columns=60) == f"{SENTENCE}\n"

    def test_a_command_can_be_copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        command = "nvp check uv.lock --cuda-driver 12.8 --sm-arch 8.0"
        result = Result(
            text=[f"  {command} --all", f"  #   {command}"],
            following=f"to find releases: {command}",
        )
        out = printed(result, monkeypatch, columns=40)
        lines = [f"  {command} --all", f"  #   {command}"]
        lines += ["Next: to find releases:", f"  {command}"]
        assert out.splitlines() == lines

    def test_a_command_after_its_name_can_be_copied(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines = [
            "  uv:         uv pip install --index http://127.0.0.1:1234/simple/ torch",
            "  containers: docker run --network host -e PIP_INDEX_URL=http://a IMAGE",
        ]
        out = printed(Result(text=lines), monkeypatch, columns=40)
        assert out.splitlines() == lines

    def test_a_path_is_not_broken(self) -> None:
        path = "/a/very-long-folder/" * 5
        assert wrap_line(f"error: {path}: not JSON", 40) == [
            "error:",
            f"  {path}:",
            "  not JSON",
        ]

    @given(WORDS, st.integers(20, 100))
    def test_no_word_and_no_number_is_lost_or_cut(self, text: str, width: int) -> None:
        lines = wrap_line(text, width)
        assert [word for line in lines for word in line.split()] == text.split()
        assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_the_frame_of_a_build_fits(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = [" torch==2.8.0; variant_hash=cu129 ".center(80, "#"), "#" * 80]
    text = printed(Result(text=frame), monkeypatch, columns=columns)
    head, foot = text.splitlines()
    assert len(head) == len(foot) == min(columns, 80)
    assert head.strip("#") == " torch==2.8.0; variant_hash=cu129 "


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(
    "made", [str, lambda text: Table(header=("a",), rows=[[text]])]
)
def test_no_line_becomes_a_command_of_a_ci_service(
    made: Callable[[str], str | Table], long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for before in range(50):
        gap = "" if long else " "
        block = made("x" * before + gap + "::error title=a:::b" + gap + "::c" * 20)
        text = printed(Result(text=[block]), monkeypatch, columns=40)
        lines = [line.strip() for line in text.splitlines()]
        assert not [line for line in lines if line.startswith("::")]
        assert "errortitle=a" in "".join(text.split())


class TestTables:
    @pytest.mark.parametrize("columns", [40, 60, 80, 120])
    def test_numbers_stay_whole_and_lines_fit(
        self, columns: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = printed(Result(text=[TABLE]), monkeypatch, columns=columns)
        assert all(len(line) <= columns for line in text.splitlines())
        for number in ("6000", "1080", "8.9", "6.1", "570.86.15"):
            assert re.search(rf"(?<!\S){re.escape(number)}(?!\S)", text)

    def test_at_60_columns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        text = printed(Result(text=[TABLE]), monkeypatch, columns=60)
        lines = [line.rstrip() for line in text.splitlines()]
        assert set(lines.pop(2)) == {"─"}
        assert lines == [
            "                        Compute",
            "GPU  Name               capability         Problem",
            "0    NVIDIA RTX 6000    8.9",
            "     Ada Generation",
            "1    NVIDIA GeForce     6.1                the driver",
            "     GTX 1080 Ti                           570.86.15 is too",
            "                                           old",
        ]

    def test_where_not_even_the_words_fit_each_cell_has_a_line(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = printed(Result(text=[TABLE]), monkeypatch, columns=30)
        assert text.splitlines()[:3] == [
            "GPU: 0",
            "Name: NVIDIA RTX 6000 Ada",
            "  Generation",
        ]

    def test_a_long_path_is_cut_and_a_short_cell_is_not(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = "torch/lib/libtorch_cuda_linalg.so"
        table = Table(header=("library", "tag"), rows=[(path, "manylinux_2_28_x86_64")])
        text = printed(Result(text=[table]), monkeypatch, columns=60)
        assert "manylinux_2_28_x86_64" in text
        rows = text.splitlines()[2:]
        assert "".join(row.split("  ")[0].strip() for row in rows) == path

    @given(st.lists(st.tuples(WORDS, WORDS), min_size=1), st.integers(20, 100))
    def test_no_word_of_a_cell_is_lost(
        self, rows: list[tuple[str, str]], columns: int
    ) -> None:
        table = Table(header=("one", "two"), rows=rows)
        with pytest.MonkeyPatch.context() as patch:
            text = printed(Result(text=[table]), patch, columns=columns)
        assert all(len(line) <= columns for line in text.splitlines())
        shown = Counter(text.split())
        for row in rows:
            for cell in row:
                shown.subtract(cell.split())
        assert all(count >= 0 for count in shown.values())

    def test_rows_are_not_padded_to_a_long_cell(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        long = "x" * 100_000
        rows = [(long, "end"), *[("a", "b")] * 100]
        render(
            Result(text=[Table(header=("one", "two"), rows=rows)]),
            command="census",
            as_json=False,
        )
        lines = capsys.readouterr().out.splitlines()
        assert lines[1] == f"{long}  end"
        assert {len(line) for line in lines[2:]} == {203}

    def test_a_blank_line_is_between_stacked_rows_only(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = [(letter * 12, letter * 12) for letter in "ab"]
        table = Table(header=("one", "two"), rows=rows)
        result = Result(data={}, text=[table, "", "end"])
        stacked = printed(result, monkeypatch, columns=20)
        assert stacked.count("\n\n") == 2
        assert stacked.endswith("bbb\n\nend\n")
