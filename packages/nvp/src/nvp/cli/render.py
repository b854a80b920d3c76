"""The result of a command, and how to print it: as text or as a JSON report.

On a terminal, sentences are wrapped at words, and rich draws the tables. Piped output
has one line for each sentence and each row, so ``grep`` and scripts find them whole,
regardless of the width of the window.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO

from nvidia_variant_provider.errors import ProviderError, printable
from nvidia_variant_provider.light import Frozen

from ..files import harmless

_SCHEMA_VERSIONS = {"diff": 2, "inspect": 2}
"""``{command: version}`` for the JSON reports whose version is not 1.

Raise the version if a key or a value (``schemas/report.schema.json``) is renamed or
removed.
"""

_DEFAULT_WIDTH = 80
"""The width of a terminal whose width is unknown, in columns."""

_NARROWEST = 20
"""The width below which wrapping is left to the terminal, in columns."""

_COMMAND = re.compile(
    r" *(?:#   )?nvp [a-z]| +\w+: +(?:pip|uv|poetry|pdm|docker) [a-z]"
)
"""Matches a line that is a command, maybe after ``#`` or the name of what it is for."""

_GAP = 2
"""Columns between two cells of a table."""

_WIDEST = 200
"""The maximum width of a column. A longer cell moves the rest of its row, because all
other rows would be padded to the text of a stranger."""

_LONG = 24
"""The length from which a word, such as a path, may be cut in a table that is too wide:
a part of a version looks like another version."""


class Table(Frozen):
    """Rows of text under a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class Result(Frozen):
    """The outcome of a command.

    :param data: the ``data`` of the JSON report; ``None`` if the command failed.
    :param text: lines and tables, in order.
    :param verbatim: whether the text is a document, such as HTML or a script. Its lines
        are not wrapped on a terminal, because users copy them.
    :param annotations: whether the text is that of `as_github`. All lines of other
        texts that begin with ``::`` are escaped, because GitHub would run them.
    :param notes: sentences for stderr, also printed with a JSON report.
    :param asides: lines for stderr that accompany a document on stdout. They are not
        wrapped, and not printed with a JSON report, whose data has them.
    :param following: the last line of the text, with the next step; not in a JSON
        report.
    :param as_json: whether the command's own option for the JSON report was given.
    :param said: whether the command has already printed its output, because it runs
        until the user stops it.
    :param passed_on: whether the exit code is that of a program that the command ran.
    :param errors: the failures. If there is ``data``, the text and the notes describe
        the failures, and only the JSON report lists them.
    """

    exit_code: int = 0
    data: Mapping[str, object] | None = None
    text: Sequence[str | Table] = ()
    verbatim: bool = False
    annotations: bool = False
    notes: Sequence[str] = ()
    asides: Sequence[str] = ()
    following: str | None = None
    errors: Sequence[ProviderError] = ()
    as_json: bool = False
    said: bool = False
    passed_on: bool = False

    @property
    def status(self) -> str:
        """The ``status`` of the report: ``ok``, ``findings`` or ``error``."""
        words = {0: "ok"} if self.passed_on else {0: "ok", 1: "findings"}
        return words.get(self.exit_code, "error")


def render(result: Result, *, command: str | None, as_json: bool) -> None:
    """Print ``result`` to stdout; its notes, and its errors as text, to stderr."""
    for note in result.notes:
        complain(f"warning: {note}")
    if as_json or result.as_json:
        report = {
            "schema_version": _SCHEMA_VERSIONS.get(command or "", 1),
            "command": command,
            "status": result.status,
            "data": result.data,
            "errors": [error.to_dict() for error in result.errors],
        }
        print(harmless(json.dumps(report, indent=2)), flush=True)
        return
    width = terminal_width(sys.stdout)
    for block in result.text:
        if isinstance(block, Table):
            _print_table(block, width)
        else:
            wrapped = None if result.verbatim else width
            made = [harmless(printable(block))] if result.annotations else None
            print("\n".join(made or _lines(block, wrapped)))
    if result.following is not None:
        print("\n".join(_lines(f"Next: {result.following}", width)))
    sys.stdout.flush()
    for line in result.asides:
        complain(line, wraps=False)
    if result.data is None:
        for error in result.errors:
            complain(f"error: {error}")


def say(lines: Iterable[str], *, aside: bool = False) -> None:
    """Print lines while a command is running.

    All lines are written in one piece, so they do not mix with the output of another
    program.

    :param aside: print to stderr, because stdout is for a document.
    """
    stream = sys.stderr if aside else sys.stdout
    width = terminal_width(stream)
    printed = [part for line in lines for part in _lines(line, width)]
    text = "".join(f"{line}\n" for line in printed)
    waiting_line.clear()
    with contextlib.suppress(OSError):
        stream.write(text)
        stream.flush()


def complain(sentence: str, *, wraps: bool = True) -> None:
    """Print a sentence to stderr.

    Failures to write are ignored, because the exit code reports the error.

    :param wraps: whether the sentence is wrapped on a terminal.
    """
    width = terminal_width(sys.stderr) if wraps else None
    # RuntimeError: Python cannot print in a signal handler that interrupted printing.
    with contextlib.suppress(OSError, RuntimeError):
        waiting_line.clear()
        print("\n".join(_lines(sentence, width)), file=sys.stderr, flush=True)


def _safe(line: str) -> str:
    """Return a line with control characters and commands of CI services escaped."""
    line = harmless(printable(line))
    is_of_github = line.lstrip().startswith("::")
    return line.replace(":", "\\u003a", 1) if is_of_github else line


def _lines(text: str, width: int | None) -> list[str]:
    """Return the safe lines of a sentence, any of which may begin with a command."""
    lines = [text] if width is None else wrap_line(printable(text), width)
    return [*map(_safe, lines)]


def terminal_width(stream: IO[str]) -> int | None:
    """Return the columns of a terminal; ``None`` if ``stream`` is not one."""
    try:
        if not stream.isatty():
            return None
    except ValueError:  # the stream is closed
        return None
    try:
        # shutil.get_terminal_size would query stdout, which may be a pipe.
        columns = int(os.environ.get("COLUMNS") or 0) or _columns_of(stream)
    except ValueError:
        columns = _columns_of(stream)
    return columns if columns >= _NARROWEST else None


def _columns_of(stream: IO[str]) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return _DEFAULT_WIDTH


def wrap_line(line: str, width: int, *, hang: str = "  ") -> list[str]:
    """Break a line at its spaces.

    A word longer than the line, such as a path, stays whole, and so does a command at
    the end, because a shell would run the first line of a broken command. The frame of
    ``#`` around the properties of a build becomes as narrow as the terminal. All lines
    of a comment begin with ``#``, because users paste comments into their files.

    :param hang: the prefix of all lines but the first, after the line's own indent; not
        for a comment.
    """
    if len(line) <= width:
        return [line]
    if line.startswith("####"):
        return [line.strip("#").center(width, "#")]
    import textwrap

    indent = line[: len(line) - len(line.lstrip())]
    if _COMMAND.match(line):
        return [line]
    if line.startswith("# ", len(indent)):
        hang = "#   "
    sentence, mark, command = line.partition(": nvp ")
    if mark:
        start = wrap_line(f"{sentence}:", width, hang=hang)
        return [*start, f"{indent}{hang}nvp {command}"]
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=f"{indent}{hang}",
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    ) or [line]


def _print_table(table: Table, width: int | None) -> None:
    """Print a table, or its cells below each other if it does not fit."""
    rows = [[_safe(cell) for cell in row] for row in (table.header, *table.rows)]
    columns = list(zip(*rows, strict=True))
    widths = [min(_WIDEST, max(map(len, cells))) for cells in columns]
    if width is None:
        for row in rows:
            cells = (cell.ljust(size) for cell, size in zip(row, widths, strict=True))
            print((" " * _GAP).join(cells).rstrip())
        return
    least = [max(map(_longest_word, cells)) for cells in columns]
    room = width - _GAP * (len(columns) - 1)
    if sum(least) > room:
        _print_stacked(rows, width)
        return
    while sum(widths) > room:  # shrink the widest column first
        wide = [i for i, size in enumerate(widths) if size > least[i]]
        widths[max(wide, key=widths.__getitem__)] -= 1
    _draw(rows, widths)


def _longest_word(text: str) -> int:
    return min(_LONG, max(map(len, text.split()), default=0))


def _draw(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    def text_of(cell: str, width: int) -> Text:
        # Pass no strings: rich would interpret markup in them, such as [bold]. A cell
        # that is too wide is cut anywhere, also before what GitHub reads as a command.
        return Text(cell if cell_len(cell) <= width else cell.replace("::", r":\u003a"))

    # The gap is one column of padding, and one that the box draws.
    drawn = RichTable(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0)
    )
    for title, width in zip(rows[0], widths, strict=True):
        drawn.add_column(text_of(title, width), width=width, overflow="fold")
    for row in rows[1:]:
        drawn.add_row(*map(text_of, row, widths))
    # rich itself honors NO_COLOR.
    Console().print(drawn)


def _print_stacked(rows: Sequence[Sequence[str]], width: int) -> None:
    """Print each cell on its own line, after the title of its column."""
    header, *others = rows
    for number, row in enumerate(others):
        if number:
            print()
        for title, cell in zip(header, row, strict=True):
            if cell:
                line = f"{title}: {cell}" if title else f"  {cell}"
                print("\n".join(_lines(line, width)))


_BYTES_AND_BAR = 44
"""Columns for the bar and the bytes (``1,023.9/1,023.9 MiB``), and the gaps."""

_SHORTEST_NAME = 12


class _WaitingLine:
    """A status line on stderr, shown on a terminal while a command prints nothing else.

    Everything else that writes to stderr clears the line first, from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._length = 0
        self._bars = 0

    def show(self, sentence: str) -> None:
        """Draw the line, unless a bar is shown; a wide sentence is cut."""
        columns = terminal_width(sys.stderr) or _DEFAULT_WIDTH
        text = _safe(sentence)[: columns - 1]
        with self._lock, contextlib.suppress(OSError):
            if not self._bars:
                sys.stderr.write(f"\r{text.ljust(self._length)}")
                sys.stderr.flush()
                self._length = len(text)

    def clear(self) -> None:
        """Remove the line, if it is shown."""
        with self._lock, contextlib.suppress(OSError):
            if self._length:
                sys.stderr.write(f"\r{' ' * self._length}\r")
                sys.stderr.flush()
                self._length = 0

    @contextlib.contextmanager
    def giving_way(self) -> Iterator[None]:
        """Remove the line, and draw no line while the block shows a bar."""
        with self._lock:
            self.clear()
            self._bars += 1
        try:
            yield
        finally:
            with self._lock:
                self._bars -= 1


waiting_line = _WaitingLine()


@contextlib.contextmanager
def progress_bar(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar with the file's name and bytes while the context lasts.

    The context yields a function that takes the bytes done and their total, or ``None``
    if stderr is not a terminal.

    :param name: the file's name, without credentials. It is shortened in the middle,
        because a wheel's name begins with its project and ends with its label.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
    from rich.table import Column

    console = Console(stderr=True)
    room = max(_SHORTEST_NAME, console.width - _BYTES_AND_BAR)
    bar = Progress(
        # Names are not markup: "[bold]" is a valid name of a file.
        TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True)
        ),
        BarColumn(bar_width=20),
        DownloadColumn(binary_units=True, table_column=Column(no_wrap=True)),
        console=console,
        transient=True,
    )
    with waiting_line.giving_way(), bar:
        task = bar.add_task(_safe(shortened(printable(name), room)), total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update


@contextlib.contextmanager
def census_bar() -> Iterator[Callable[[int, int | None, int], None] | None]:
    """Show one bar with wheels, bytes, rate and time left while the context lasts.

    The context yields a function that takes the wheels done, their total, and the bytes
    read, or ``None`` if stderr is not a terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    started = time.monotonic()
    with Progress(
        MofNCompleteColumn(),
        TextColumn("wheels"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None, amount="")

        def update(done: int, expected: int | None, bytes_read: int) -> None:
            seconds = max(time.monotonic() - started, 0.001)
            rate = readable_size(bytes_read / seconds)
            amount = f"{readable_size(bytes_read)}, {rate}/s"
            bar.update(task, completed=done, total=expected, amount=amount)

        yield update


def readable_size(size: float) -> str:
    """Return a number of bytes with a unit, such as ``1,023.9 MiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def shortened(name: str, width: int) -> str:
    """Shorten a path to a width.

    Directories are removed first: ``dist/torch-2.8.0-py3-none-any-cu129.whl`` becomes
    ``torch-2.8.0-py3-none-any-cu129.whl`` and then ``torch-2.8...cu129.whl``.
    """
    if len(name) > width:
        name = name.replace("\\", "/").rstrip("/").rpartition("/")[2] or name
    if len(name) <= width:
        return name
    end = (width - 3) * 2 // 3
    return f"{name[: width - 3 - end]}...{name[-end:]}"
