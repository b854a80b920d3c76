"""Which words on the command line of ``pip`` are for this program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["separate"]

_VALUES = (
    "--cuda-driver",
    "--sm-arch",
    "--environment",
    "--node",
    "--label",
    "--python",
)
_SWITCHES = (
    "--every-gpu",
    "--minor-version-compatibility",
    "--no-variants",
    "--unchecked",
)


def separate(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the words for this program from the words for pip.

    ``--json`` is for this program, except after ``index``, a command of pip that has
    the same option.
    """
    ours: list[str] = []
    theirs: list[str] = []
    pending = iter(words)
    for word in pending:
        name, equals, _ = word.partition("=")
        if word == "--":
            theirs += [word, *pending]
        elif name in _VALUES:
            ours += [word] if equals else [word, *_next(pending)]
        elif (
            name in _SWITCHES
            or (word in ("-h", "--help") and not theirs)
            or (word == "--json" and "index" not in theirs)
        ):
            ours.append(word)
        else:
            theirs.append(word)
    return ours, theirs


def _next(words: Iterator[str]) -> list[str]:
    word = next(words, None)
    return [] if word is None else [word]
