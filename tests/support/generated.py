"""The tables of the documentation that are made from the code.

A page shows a table between ``<!-- begin generated: NAME -->`` and ``<!-- end generated
-->``; `refresh` replaces the text between the two comments.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from support.sessions import ROOT

from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import is_failure
from nvp.cli.parsers import COMMANDS, GROUPS, PROGRAM, make_command_parser

__all__ = ["MAIN_JOB", "TABLES", "reason_codes", "refresh"]

MAIN_JOB = "resolve fixtures/variants-json/torch-2.8.0-variants.json"
"""The command and the operand of the first command of the README."""

_MARKED = re.compile(
    r"(<!-- begin generated: (?P<name>[\w-]+) -->\n).*?(<!-- end generated -->)",
    re.DOTALL,
)


def refresh(text: str) -> str:
    """Return the text of a page after generating its tables again."""

    def replace(match: re.Match[str]) -> str:
        table = "\n".join(TABLES[match["name"]]()).rstrip()
        return f"{match[1]}\n{table}\n\n{match[3]}"

    return _MARKED.sub(replace, text)


def reason_codes() -> set[str]:
    """Return all reason codes of detection."""
    return set(_reason_codes())


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = tuple(heads)
    yield _row(*heads)
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield _row(*row)


def _command_table() -> Iterator[str]:
    return _table(
        ("to", "command", "what it does"),
        (
            (title.lower(), f"`{_call(command)}`", summary)
            for title, commands in GROUPS.items()
            for command, summary in commands.items()
        ),
    )


def _call(command: str) -> str:
    """Return the command with its operands, such as ``diff OLD NEW``."""
    if command == "pip":  # nvp passes the operands on without parsing them
        return "pip ARGS..."
    operands = [
        f"{action.metavar or action.dest}{'...' if action.nargs in ('+', '*') else ''}"
        for action in make_command_parser(command)._actions
        if not action.option_strings
    ]
    return " ".join([command, *operands])


_MACHINE = "options for another machine"
"""A group of options that many commands have."""

_SHARED = "options of several commands"
"""The options with the same meaning in several commands. The page explains them
once."""

_EVERY_COMMAND = ("help", "json", "verbose")
"""Options that the page explains above the commands."""


def _command_sections() -> Iterator[str]:
    parsers = {command: make_command_parser(command) for command in COMMANDS}
    arguments = {
        command: {
            action: group.title
            for group in parser._action_groups
            for action in group._group_actions
            if action.dest not in _EVERY_COMMAND
        }
        for command, parser in parsers.items()
    }
    uses = Counter(_meaning(action) for own in arguments.values() for action in own)
    lists: dict[str, dict[str, str]] = {_SHARED: {}, _MACHINE: {}}
    for command, summary in COMMANDS.items():
        own: dict[str, str] = {}
        also: dict[str, None] = {}
        for action, group in arguments[command].items():
            names, meaning = _spelled(action), _meaning(action)
            if uses[meaning] == 1:
                own[names] = meaning
                continue
            title = _MACHINE if group == _MACHINE else _SHARED
            lists[title][re.sub(r" \{.*\}", "", names)] = meaning
            link = f"the [{title}](#{title.replace(' ', '-')})"
            also[link if title == _MACHINE else names.split(", ")[-1]] = None
        yield from (f"## {command}", "", f"`{PROGRAM} {_call(command)}`: {summary}.")
        yield from _list(own)
        if also:
            yield from ("", f"Also {', '.join(also)}.")
        # The page leaves out the examples, which the help and the how-to pages show.
        notes = (parsers[command].epilog or "").partition("example")[0].strip()
        yield from ("", notes, "") if notes else ("",)
    for title, options in lists.items():
        yield from (f"## {title.capitalize()}", *_list(options), "")


def _list(arguments: Mapping[str, str]) -> Iterator[str]:
    """Yield a list of arguments with their meanings, below an empty line."""
    if arguments:
        yield ""
        for names, meaning in arguments.items():
            yield f"- {names}: {meaning}".replace("*", r"\*")


def _spelled(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = action.metavar or ""
    if action.choices:
        value = f"{{{','.join(map(str, action.choices))}}}"
    if action.nargs == 0:
        value = ""
    elif not value:
        value = action.dest.upper()
    return ", ".join(
        f"`{flag} {value}".rstrip() + "`" for flag in action.option_strings
    )


def _meaning(action: argparse.Action) -> str:
    default = action.default
    if action.dest == "jobs":  # the default differs from machine to machine
        default = "the number of processors, at most 4"
    # `_spelled` lists the choices.
    text = (action.help or "").replace(": %(choices)s", "")
    return text % {**vars(action), "default": default, "prog": PROGRAM}


def _reason_table() -> Iterator[str]:
    return _table(
        ("reason", "what it means", "what to do", "exit code"),
        (
            (f"`{code}`", *reasons.explain(code), _exit_code(code))
            for code in _reason_codes()
        ),
    )


def _exit_code(reason: str) -> str:
    return "4" if is_failure(reason) else "0"


def _reason_codes() -> list[str]:
    return [
        value
        for name, value in vars(reasons).items()
        if name.isupper() and isinstance(value, str)
    ]


def _main_job() -> Iterator[str]:
    """Return the output of the first command of the README as a block."""
    forced = {
        "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": "12.9",
        "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": "7.5",
    }
    done = subprocess.run(
        [sys.executable, "-m", "nvp", *MAIN_JOB.split()],
        cwd=ROOT,
        env={**os.environ, **forced},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return iter(["```text", *done.stdout.splitlines(), "```"])


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "main-job": _main_job,
    "reason-table": _reason_table,
    "command-sections": _command_sections,
    "command-table": _command_table,
}
"""The tables, keyed by the name in the comments of the pages."""
