"""The commands that mend a whole stack, from the hints of its findings.

Each finding names its own command. Run one after the other, a later command may undo an
earlier one: pip replaces torch for one extension, and the next extension no longer
fits. So what is installed is installed by one command, after what is in its way has
been removed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from ..findings import NOTE
from .model import Finding

_COMMAND = re.compile(r"(?:nvp pip|conda install) .+?(?=$|; |, (?:or|which|and) )")
_BROUGHT = ("nvidia-", "cuda-", "triton")
_WITH_VALUE = frozenset(
    {
        *("--python", "--only-binary", "--index-url", "--extra-index-url"),
        *("--find-links", "--cuda-driver", "--sm-arch", "--environment", "--node"),
    }
)


def commands_of(findings: Iterable[Finding]) -> list[str]:
    """Return the commands that mend all findings, in the order to run them.

    Of several commands in one hint, the last one is taken, which needs no index but
    the user's own. What a note says is left to the user.
    """
    removed: dict[str, None] = {}
    installed: dict[str, None] = {}
    options: dict[tuple[str, ...], None] = {}
    others: dict[str, None] = {}
    start: list[str] = []
    for finding in findings:
        steps = _COMMAND.findall(finding.hint)
        if finding.severity == NOTE or not steps:
            continue
        for step in steps[-1].split(" && "):
            words = shlex.split(step)
            if words[:2] != ["nvp", "pip"]:
                others.setdefault(step)
                continue
            verb = next(i for i, w in enumerate(words) if w in ("install", "uninstall"))
            start = words[:verb]
            its_options, names = _split(words[verb + 1 :])
            target = removed if words[verb] == "uninstall" else installed
            taken = {_project(name) for name in target}
            target.update(dict.fromkeys(n for n in names if _project(n) not in taken))
            if words[verb] == "install":
                options.update(dict.fromkeys(its_options))
    if ("--force-reinstall",) in options:
        # What is installed again brings the libraries that it requires.
        brought = [n for n in installed if _project(n).startswith(_BROUGHT)]
        for name in brought[: len(installed) - 1]:
            del installed[name]
    commands = []
    if removed:
        commands.append(shlex.join([*start, "uninstall", "--yes", *removed]))
    if installed:
        words = [word for option in options for word in option]
        commands.append(shlex.join([*start, "install", *words, *installed]))
    return [*commands, *others]


def _split(words: list[str]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the options of a command, each with its value, and what it is about."""
    options: list[tuple[str, ...]] = []
    names: list[str] = []
    following = iter(words)
    for word in following:
        if not word.startswith("-"):
            names.append(word)
        elif word in _WITH_VALUE:
            options.append((word, next(following, "")))
        else:
            options.append((word,))
    return options, names


def _project(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower()
