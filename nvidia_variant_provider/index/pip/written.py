"""What pip has written for the user: reports and lock files, in files or printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from ..server.local_index import LocalIndex
from .interpreter import find_interpreter
from .restoring import Restored, restore
from .written_locks import complete

__all__ = ["Written"]

_START = "lock-version"
"""What a lock file of pip starts with; pip prints other lines before it."""


class Written:
    """Corrects what pip writes, which has URLs of an index that ends.

    :param stream: where pip prints.
    :param python: the interpreter that pip installs for.
    """

    def __init__(
        self,
        local_index: LocalIndex,
        stream: TextIO,
        python: str,
        environ: Mapping[str, str],
    ) -> None:
        self._local_index = local_index
        self._stream = stream
        self._find_interpreter = lambda: find_interpreter(python, environ)
        self._printed: list[str] = []
        self._variants: set[tuple[str, str]] = set()
        self.remarks: list[str] = []

    @property
    def variants(self) -> tuple[str, ...]:
        """The variant wheels that were written, such as ``torch (cu128)``."""
        return tuple(
            f"{project} ({label})" for project, label in sorted(self._variants)
        )

    def take(self, line: str) -> None:
        """Take a line of the stdout of pip; keep those of a lock file."""
        if self._printed or line.startswith(_START):
            self._printed.append(line)
        else:
            self._print(line)

    def restore(self, report: str | None, wanted: str | None, lock: str | None) -> None:
        """Correct what pip has written; call it while the local index serves.

        :param report: the path of the report, if the user asked for one.
        :param wanted: where the user wants it; ``-`` for stdout.
        :param lock: the path of the lock file; ``-`` for one that is printed.
        """
        if report is not None:
            path = Path(report)
            self._change(path, lambda text: restore(text, self._local_index))
            if wanted == "-":
                # pip would have printed it.
                self._print(path.read_text(encoding="utf-8"))

        def completed(text: str) -> Restored:
            return complete(text, self._local_index, self._find_interpreter)

        if lock == "-":
            text = "".join(self._printed)
            self._printed = [self._note("the lock file", completed, text)]
        elif lock is not None:
            self._change(Path(lock), completed)

    def flush(self) -> None:
        """Print what has been taken and not printed."""
        self._print("".join(self._printed))
        self._printed.clear()

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
