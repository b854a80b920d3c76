"""Progress bars on stderr: for one file at a time, and for a whole index.

The functions that do the work take `progress_bar` itself as their ``watch``
argument: called with the name of a file, it gives the ``progress`` callback of
that file, or ``None`` where nobody looks at stderr.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from nvidia_variant_provider.errors import printable

_BYTES_AND_BAR = 44
"""Columns for the bar and the bytes (``1,023.9/1,023.9 MiB``), and the gaps."""

_SHORTEST_NAME = 12


@contextlib.contextmanager
def progress_bar(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar with the file's name and bytes while the context lasts.

    The value of the context is a function that takes the bytes that are done and
    their total. It is ``None`` where stderr is not a terminal.

    :param name: the file's name, without credentials. It is shortened in the middle,
        since a wheel's name begins with its project and ends with its label.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
    from rich.table import Column

    console = Console(stderr=True)
    room = max(_SHORTEST_NAME, console.width - _BYTES_AND_BAR)
    with Progress(
        # Names are not markup: "[bold]" is a valid name of a file.
        TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True)
        ),
        BarColumn(bar_width=20),
        DownloadColumn(binary_units=True, table_column=Column(no_wrap=True)),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task(shortened(printable(name), room), total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update


class CensusBar(Protocol):
    """A bar for the wheels of an index."""

    def update(self, done: int, expected: int | None, bytes_read: int) -> None:
        """Show how many wheels are done, of how many, and what was read for them."""


@contextlib.contextmanager
def census_bar() -> Iterator[CensusBar | None]:
    """Show one bar with wheels, bytes, rate and time left while the context lasts.

    The value of the context is ``None`` where stderr is not a terminal.
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

        class _Bar:
            def update(self, done: int, expected: int | None, bytes_read: int) -> None:
                seconds = max(time.monotonic() - started, 0.001)
                rate = readable_size(bytes_read / seconds)
                amount = f"{readable_size(bytes_read)}, {rate}/s"
                bar.update(task, completed=done, total=expected, amount=amount)

        yield _Bar()


def readable_size(size: float) -> str:
    """Return a number of bytes with a unit, such as ``1,023.9 MiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def shortened(name: str, width: int) -> str:
    """Return the end of a path, with its middle left out where it is too long.

    Folders go first: ``dist/torch-2.8.0-py3-none-any-cu129.whl`` becomes
    ``torch-2.8.0-py3-none-any-cu129.whl`` and then ``torch-2.8...cu129.whl``.
    """
    if len(name) > width:
        name = name.replace("\\", "/").rstrip("/").rpartition("/")[2] or name
    if len(name) <= width:
        return name
    end = (width - 3) * 2 // 3
    return f"{name[: width - 3 - end]}...{name[-end:]}"
