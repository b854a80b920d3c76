"""The commands that fix findings: one by one in hints, merged in reports.

If the commands of all findings ran one by one, a later command could undo an earlier
one: pip replaces torch for one extension, and the next extension no longer fits.
Therefore conflicting packages are removed first, and few commands install the rest.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_BROUGHT = ("nvidia-", "cuda-", "triton")
_WITH_VALUE = frozenset(
    {"--only-binary", "--index-url", "--extra-index-url", "--find-links"}
)
_OF_INDEXES = frozenset({"--index-url", "--extra-index-url", "--find-links"})


@dataclass(frozen=True, slots=True)
class Command:
    """A command line.

    :param program: the first words, such as ``nvp pip --python /env``.
    :param subcommand: pip's subcommand, such as ``install``; empty for other programs.
    :param options: each option of the subcommand, with its value, if any.
    :param names: the requirements, or the remaining words for other programs.
    :param machine: options that describe the target machine.
    """

    program: tuple[str, ...]
    subcommand: str = ""
    options: tuple[tuple[str, ...], ...] = ()
    names: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()

    @classmethod
    def of_pip(
        cls,
        program: Iterable[str],
        subcommand: str,
        *words: str,
        machine: Sequence[str] = (),
    ) -> Command:
        """Create a command line of pip.

        :param words: requirements and options; the value of an option is the next word.
        """
        options: list[tuple[str, ...]] = []
        names: list[str] = []
        following = iter(words)
        for word in following:
            if not word.startswith("-"):
                names.append(word)
            elif word in _WITH_VALUE:
                options.append((word, next(following)))
            else:
                options.append((word,))
        return cls(
            tuple(program), subcommand, tuple(options), tuple(names), tuple(machine)
        )

    def __str__(self) -> str:
        options = [word for option in self.options for word in option]
        subcommand = [self.subcommand] if self.subcommand else []
        return shlex.join(
            [*self.program, *subcommand, *options, *self.names, *self.machine]
        )

    @property
    def _is_alone(self) -> bool:
        """Whether the command cannot be merged with other commands."""
        return not self.subcommand or ("--no-deps",) in self.options

    @property
    def _indexes(self) -> tuple[tuple[str, ...], ...]:
        """The options for indexes: only commands with the same indexes are merged."""
        return tuple(option for option in self.options if option[0] in _OF_INDEXES)


class Advice(NamedTuple):
    """A hint, and the commands that its text contains.

    :param commands: the commands that fix the finding, in order; the text may also
        mention alternatives.
    """

    text: str
    commands: tuple[Command, ...] = ()

    @classmethod
    def of(cls, hint: str | Command | Advice) -> Advice:
        """Convert a text or a command to advice."""
        if isinstance(hint, Advice):
            return hint
        return cls(str(hint), (hint,) if isinstance(hint, Command) else ())

    @classmethod
    def first_of(cls, *ways: str | Command | Advice) -> Advice:
        """Return advice on alternatives, with the commands of only the first one."""
        advice = [cls.of(way) for way in ways]
        return cls("; or ".join(item.text for item in advice), advice[0].commands)

    def after(self, words: str) -> Advice:
        """Return the advice with ``words`` before its text."""
        return self._replace(text=f"{words}{self.text}")

    def before(self, words: str) -> Advice:
        """Return the advice with ``words`` after its text."""
        return self._replace(text=f"{self.text}{words}")


def merge(commands: Iterable[Command]) -> list[Command]:
    """Merge the commands that fix findings, and return them in the order to run."""
    removed: dict[str, None] = {}
    others: dict[Command, None] = {}
    groups: dict[tuple[tuple[str, ...], ...], list[Command]] = {}
    last: Command | None = None
    for command in commands:
        if command._is_alone:
            others.setdefault(command)
        elif command.subcommand == "uninstall":
            removed.update(dict.fromkeys(command.names))
            last = command
        else:
            groups.setdefault(command._indexes, []).append(command)
    merged = []
    if last is not None:
        merged.append(
            Command(last.program, last.subcommand, last.options, tuple(removed))
        )
    # Install projects from a given index, such as torch, before their companions.
    taken: set[str] = set()
    for group in sorted(groups.values(), key=lambda group: not group[0]._indexes):
        merged += _together(group, taken)
    # Skip a command that restores distributions if other commands install all of them.
    done = {x for x in others if x.names and taken.issuperset(map(project_of, x.names))}
    return [*merged, *(command for command in others if command not in done)]


def _together(group: Sequence[Command], taken: set[str]) -> Iterator[Command]:
    """Yield a group's command, without projects in ``taken``; update ``taken``."""
    wanted: dict[str, str] = {}
    for name in (name for command in group for name in command.names):
        project = project_of(name)
        if project in wanted:
            wanted[project] = _with_extras(wanted[project], name)
        elif project not in taken:
            taken.add(project)
            wanted[project] = name
    names = list(wanted.values())
    options = tuple(dict.fromkeys(o for command in group for o in command.options))
    if ("--force-reinstall",) in options:
        # Leave out NVIDIA's libraries and Triton: pip reinstalls them as dependencies.
        own = [x for p, x in wanted.items() if not p.startswith(_BROUGHT)]
        names = own or names[-1:]
    if names:
        first = group[0]
        yield Command(
            first.program, first.subcommand, options, tuple(names), first.machine
        )


def _with_extras(requirement: str, other: str) -> str:
    """Return a requirement; if it has no extras, add the extras of ``other``."""
    own, added = (re.search(r"\[[^]\[]*\]", text) for text in (requirement, other))
    if own is not None or added is None:
        return requirement
    end = len(project_of(requirement))
    return f"{requirement[:end]}{added[0]}{requirement[end:]}"


def project_of(requirement: str) -> str:
    """Return the project in a requirement, in lower case but not normalized."""
    return re.split(r"[\[<>=!~; @]", requirement, maxsplit=1)[0].lower()
