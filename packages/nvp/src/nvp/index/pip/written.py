"""What pip has written for the user: reports and lock files, in files or printed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from nvidia_variant_provider.errors import InputError

from ..server.local_index import LocalIndex
from .interpreter import find_interpreter
from .restoring import Restored, restore
from .written_locks import complete

__all__ = ["Written"]

_START = "lock-version"
"""What a lock file of pip starts with; pip prints other lines before it."""


class Written:
    """Corrects what pip writes, which has URLs of an index that ends.

    pip writes to files and to its stdout alone. What the user wants in a pipe or a
    device goes there when it is correct, since it cannot be read from there again.

    :param stream: where pip prints.
    :param python: the interpreter that pip installs for.
    :param report: where the user wants a report; ``-`` for ``stream``.
    :param lock: where the user wants a lock file; ``-`` for ``stream``.
    """

    def __init__(
        self,
        local_index: LocalIndex,
        stream: TextIO,
        python: str,
        environ: Mapping[str, str],
        *,
        report: str | None = None,
        lock: str | None = None,
    ) -> None:
        self._local_index = local_index
        self._stream = stream
        self._find_interpreter = lambda: find_interpreter(python, environ)
        self._wanted = report
        self._lock = lock
        self._printed: list[str] = []
        self._variants: set[tuple[str, str]] = set()
        self.report = report
        """The path of the report that pip writes, if it does."""
        self.remarks: list[str] = []

    @property
    def variants(self) -> tuple[str, ...]:
        """The variant wheels that were written, such as ``torch (cu128)``."""
        return tuple(
            f"{project} ({label})" for project, label in sorted(self._variants)
        )

    @property
    def is_lock_printed(self) -> bool:
        """Whether pip prints a lock file."""
        return self._lock is not None and not _is_file(self._lock)

    def arguments(self, folder: Path) -> list[str]:
        """Return the arguments after which pip writes what can be read again.

        :param folder: where pip may write.
        """
        arguments = []
        if self._wanted is not None and not _is_file(self._wanted):
            self.report = str(folder / "report.json")
            arguments += ["--report", self.report]
        if self.is_lock_printed:
            arguments += ["--output", "-"]
        return arguments

    def take(self, line: str) -> None:
        """Take a line of the stdout of pip; keep those of a lock file."""
        if self._printed or line.startswith(_START):
            self._printed.append(line)
        else:
            self._print(line)

    def restore(self) -> None:
        """Correct what pip has written; call it while the local index serves.

        :raises InputError: a pipe or a device cannot be written.
        """
        if self.report is not None:
            path = Path(self.report)
            self._change(path, lambda text: restore(text, self._local_index))
            if self._wanted is not None and self._wanted != self.report:
                self._write(self._wanted, path.read_text(encoding="utf-8"))

        def completed(text: str) -> Restored:
            return complete(text, self._local_index, self._find_interpreter)

        if self._lock is None:
            return
        if self.is_lock_printed:
            text = self._note("the lock file", completed, "".join(self._printed))
            self._printed.clear()
            self._write(self._lock, text)
        else:
            self._change(Path(self._lock), completed)

    def flush(self) -> None:
        """Print what has been taken and not written."""
        self._print("".join(self._printed))
        self._printed.clear()

    def _write(self, path: str, text: str) -> None:
        """Write to the stream, a pipe or a device.

        :raises InputError: that is not possible.
        """
        if path == "-":
            self._print(text)
            return
        try:
            with open(path, "wb") as file:
                file.write(text.encode("utf-8", "surrogateescape"))
        except OSError as error:
            message = f"cannot be written: {error.strerror}"
            raise InputError(message, path=path, hint="name a file") from None

    def _change(self, path: Path, change: Callable[[str], Restored]) -> None:
        try:
            text = path.read_text(encoding="utf-8")
            changed = self._note(str(path), change, text)
            if changed != text:
                path.write_text(changed, encoding="utf-8")
        except (OSError, ValueError) as error:
            self.remarks.append(f"{path}: the URLs could not be restored: {error}")

    def _note(self, name: str, change: Callable[[str], Restored], text: str) -> str:
        result = change(text)
        self._variants |= result.variants
        self.remarks += [f"{name}: {remark}" for remark in result.remarks]
        return result.text

    def _print(self, text: str) -> None:
        # pip may have written bytes that are no text in this encoding.
        buffer = self._stream.buffer
        self._stream.flush()
        buffer.write(text.encode("utf-8", "surrogateescape"))
        buffer.flush()


def _is_file(path: str) -> bool:
    """Return whether a path names a file, or nothing yet."""
    if path == "-":
        return False
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return True  # pip makes it, or says why it cannot.
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
