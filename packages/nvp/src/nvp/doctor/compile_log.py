"""Parse torch's and Triton's output on graph breaks, recompilations and autotuning.

The parser supports the messages of torch 2.1 to 2.15
(``torch/_dynamo/symbolic_convert.py``, ``convert_frame.py`` and ``guards.py``;
``torch/_logging/_internal.py`` adds the prefix of a line), of Triton 3
(``runtime/autotuner.py``) and of Inductor (``torch/_inductor/select_algorithm.py``). A
line is recognized by its text, because ``TORCH_LOGS_FORMAT`` changes the prefix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nvidia_variant_provider.errors import redacted

MOST = 100
"""The maximum number of entries of each kind in the result; totals are not limited."""

_LONGEST_TEXT = 500
_LONGEST_READ = 4096
"""The maximum length of a text in which passwords of URLs are looked for."""

_LONGEST_RECORD = 400
"""The maximum number of lines of a record, such as a message with a traceback."""

_MOST_OPEN = 1000
"""The maximum number of processes of a stream that have an incomplete record."""

# A line has up to 64 KB: no pattern may try one unlimited repetition for each length of
# another one.
_PREFIX = re.compile(
    r"(?:\[rank\d+\]:)?[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d+ (?P<process>\d{1,10}) "
    r"[^\]]*?:\d+\](?: \[[!\d][^\]]*\])?(?: \[__\w+\])?(?: |$)"
)
_OLD_PREFIX = re.compile(
    r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\] )?(?:\[[!\d][^\]]*\] )?"
    r"torch\.[\w.]+: \[[A-Z]+\] "
)
_BREAK = re.compile(r"Graph break(?: \([^)]*\))? in user code at (.+):(\d{1,9})$")
_OLD_BREAK = re.compile(r"Graph break: (.+?) from user code at:$")
_REASON = re.compile(r"(?:Graph Break )?Reason: (.*)")
_GENERIC_REASON = re.compile(r"Encountered graph break|Failed to handle graph break")
_TEXT = re.compile(r"\s*(\S.*)")
_FILE = re.compile(r'\s*File "(.+)", line (\d{1,9})')
_SKIPPED = re.compile(
    r"torch\.compile (?=.*skip)[^(]*? the frame (\S+) \((.+) line (\d{1,9})\) and fall "
    r"back to eager"
)
_RECOMPILING = re.compile(r"Recompiling function (\S+) in (.+):(\d{1,9})$")
_GUARD = re.compile(r"\s*- (.+)")
_LIMIT = re.compile(r"torch\._dynamo hit config\.(\w*limit) ?\((\d{1,9})\)")
_FUNCTION = re.compile(r"\s*function: '([^']+)' \((.+):(\d{1,9})\)")
_NOT_CONVERTED = re.compile(r"WON'T CONVERT (\S+) (.+) line (\d{1,9})")
_EXCEPTION = re.compile(r"((?:\w+\.)*\w*(?:Error|Exception|Failed|Unsupported): .+)")
_TRITON = re.compile(r"Triton autotuning for function ([^\s,]+)")
_KEY = re.compile(r"with key as (.+?),?$")
_FINISHED = re.compile(r".*finished after (\d{1,9}(?:\.\d{1,20})?)s")
_BEST = re.compile(r".*best config selected: (.+?);?$")
_INDUCTOR = re.compile(r"AUTOTUNE (\w+)\((.*)\)$")
_CHOICE = re.compile(r"  (\S+) [\d.]+ ms 100\.0%")
_INDUCTOR_END = re.compile(
    r"\w+ AUTOTUNE benchmarking takes (\d{1,9}(?:\.\d{1,20})?) seconds"
)

_HINTS = (
    "Graph break",
    "fall back to eager",
    "Recompiling function",
    "torch._dynamo hit",
    "WON'T CONVERT",
    "Triton autotuning",
    "AUTOTUNE",
)
"""The first line of a record contains one of these texts."""

_MARKS = tuple(map(str.encode, _HINTS))

Entry: TypeAlias = dict[str, Any]

_Continue: TypeAlias = Callable[[str], bool]
"""A function that reads the next line, and returns whether the record continues."""


@dataclass(kw_only=True, slots=True)
class _Table:
    """Entries of one kind, each with the number of its occurrences."""

    entries: dict[object, Entry] = field(default_factory=dict)
    total: int = 0

    def add(self, key: tuple[object, ...], /, **entry: Any) -> Entry:
        self.total += 1
        known = self.entries.get(key)
        if known is None:
            known = {**entry, "count": 0}
            if len(self.entries) < MOST:
                self.entries[key] = known
        known["count"] += 1
        return known


@dataclass(kw_only=True, slots=True)
class CompileLog:
    """Collects entries from the lines of a workload's output streams."""

    _breaks: _Table = field(default_factory=_Table)
    _recompilations: _Table = field(default_factory=_Table)
    _fallbacks: _Table = field(default_factory=_Table)
    _autotuning: _Table = field(default_factory=_Table)
    # The incomplete records by stream, because each stream has its own thread, and then
    # by process.
    _open: dict[str, dict[str, tuple[int, _Continue]]] = field(default_factory=dict)

    def is_relevant(self, stream: str, data: bytes) -> bool:
        """Return whether a chunk of complete lines may begin or continue a record.

        The chunk is not split, because there may be gigabytes of irrelevant output.
        """
        return bool(self._open.get(stream)) or any(mark in data for mark in _MARKS)

    def read_line(self, stream: str, line: str) -> None:
        """Read one line, without its line ending.

        :param stream: the name of the output stream; all lines of a record are from one
            stream and one process.
        """
        process, text = split_prefix(line)
        records = self._open.setdefault(stream, {})
        begun = self._begin(text)
        if begun is not None:
            if len(records) >= _MOST_OPEN:
                records.pop(next(iter(records)))
            records[process] = (0, begun)
            return
        waiting = records.get(process)
        if waiting is None:
            return
        lines, read = waiting
        if lines < _LONGEST_RECORD and read(text):
            records[process] = (lines + 1, read)
        else:
            del records[process]

    def to_dict(self) -> dict[str, object]:
        """Return the entries of each kind, and the total for each kind."""
        tables: Mapping[str, _Table] = {
            "graph_breaks": self._breaks,
            "recompilations": self._recompilations,
            "fallbacks": self._fallbacks,
            "autotuning": self._autotuning,
        }
        lists = {name: list(table.entries.values()) for name, table in tables.items()}
        return {**lists, "totals": {name: t.total for name, t in tables.items()}}

    def _begin(self, text: str) -> _Continue | None:
        if not any(hint in text for hint in _HINTS):
            return None
        if found := _groups(_BREAK, text):
            return self._break(found[0], int(found[1]))
        if found := _groups(_OLD_BREAK, text):
            return self._old_break(found[0])
        if found := _groups(_SKIPPED, text):
            self._fall_back("skipped-frame", found[0], found[1], int(found[2]))
            return None
        if found := _groups(_RECOMPILING, text):
            return self._recompilation(found[0], found[1], int(found[2]))
        if found := _groups(_LIMIT, text):
            return self._limit(f"config.{found[0]} ({found[1]}) was reached")
        if found := _groups(_NOT_CONVERTED, text):
            return self._not_converted(found[0], found[1], int(found[2]))
        if found := _groups(_TRITON, text):
            return self._triton(found[0], text)
        if found := _groups(_INDUCTOR, text):
            return self._inductor(*found)
        return None

    def _break(self, path: str, line: int) -> _Continue:
        entry = self._breaks.add((path, line), path=path, line=line, reason=None)
        generic = False

        def read(text: str) -> bool:
            nonlocal generic
            if found := _groups(_REASON, text):
                if "back to eager" in text:
                    self._fall_back("graph-break", None, path, line)
                if not _GENERIC_REASON.match(found[0]):
                    _explain(entry, found[0])
                    return False
                # Use the next line with text, which names the code that was not traced.
                generic = True
            elif generic and (found := _groups(_TEXT, text)):
                _explain(entry, found[0])
                return False
            return True

        return read

    def _old_break(self, reason: str) -> _Continue:
        def add(path: str, number: str) -> None:
            line = int(number)
            entry = self._breaks.add((path, line), path=path, line=line, reason=None)
            _explain(entry, reason)

        return _until(_FILE, add)

    def _fall_back(
        self, kind: str, function: str | None, path: str | None, line: int | None
    ) -> Entry:
        return self._fallbacks.add(
            (kind, path, line),
            kind=kind,
            function=function,
            path=path,
            line=line,
            reason=None,
        )

    def _recompilation(self, function: str, path: str, line: int) -> _Continue:
        entry = self._recompilations.add(
            (path, line, function),
            function=function,
            path=path,
            line=line,
            reason=None,
        )

        return _until(_GUARD, lambda guard: _explain(entry, guard))

    def _limit(self, reason: str) -> _Continue:
        def add(function: str, path: str, line: str) -> None:
            entry = self._fall_back("recompile-limit", function, path, int(line))
            _explain(entry, reason)

        return _until(_FUNCTION, add)

    def _not_converted(self, function: str, path: str, line: int) -> _Continue:
        entry = self._fall_back("error", function, path, line)
        unfinished = ""

        def read(text: str) -> bool:
            nonlocal unfinished
            if unfinished:
                cause = _groups(_TEXT, text) or ("",)
                _explain(entry, f"{unfinished} {cause[0]}")
                return False
            if found := _groups(_EXCEPTION, text):
                if found[0].endswith(":"):
                    # The cause follows "backend='...' raised:" on the next line.
                    unfinished = found[0]
                    return True
                _explain(entry, found[0])
                return False
            return True

        return read

    def _triton(self, kernel: str, first: str) -> _Continue:
        record: Entry = {"key": None, "config": None, "seconds": None}

        def read(text: str) -> bool:
            if found := _groups(_KEY, text):
                record["key"] = found[0]
            if found := _groups(_FINISHED, text):
                record["seconds"] = float(found[0])
            found = _groups(_BEST, text)
            if found is None:
                return True
            record["config"] = found[0]
            self._autotuning.add(
                (kernel, record["key"], record["config"]),
                **{"by": "triton", "kernel": kernel, **record},
            )
            return False

        # Read the first line too: Triton 2 prints the whole record on that line.
        return read if read(first) else lambda _: False

    def _inductor(self, kernel: str, sizes: str) -> _Continue:
        record: Entry = {"key": sizes, "config": None, "seconds": None}

        def read(text: str) -> bool:
            if (found := _groups(_CHOICE, text)) and record["config"] is None:
                record["config"] = found[0]
            found = _groups(_INDUCTOR_END, text)
            if found is None:
                return True
            record["seconds"] = float(found[0])
            self._autotuning.add(
                (kernel, record["key"], record["config"]),
                **{"by": "inductor", "kernel": kernel, **record},
            )
            return False

        return read


def split_prefix(line: str) -> tuple[str, str]:
    """Split torch's prefix off a line: its process ID (may be empty), and the rest."""
    if match := _PREFIX.match(line):
        return match["process"], line[match.end() :]
    # The prefix of torch 2.1 and 2.2 does not contain the process.
    if match := _OLD_PREFIX.match(line):
        return "", line[match.end() :]
    return "", line


def _until(pattern: re.Pattern[str], act: Callable[..., None]) -> _Continue:
    """Return a function that reads lines until a match, whose groups ``act`` gets."""

    def read(text: str) -> bool:
        found = _groups(pattern, text)
        if found is not None:
            act(*found)
        return found is None

    return read


def _explain(entry: Entry, reason: str) -> None:
    """Set a missing reason of an entry: the first occurrence has the most details."""
    if entry["reason"] is None:
        entry["reason"] = reason.strip()


def _groups(pattern: re.Pattern[str], text: str) -> list[str] | None:
    """Return the groups of a match, each without secrets of URLs, and cut."""
    match = pattern.match(text)
    return None if match is None else [_cut(group) for group in match.groups()]


def _cut(text: str) -> str:
    text = redacted(text[:_LONGEST_READ])
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."
