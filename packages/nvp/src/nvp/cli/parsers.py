"""The commands, their parsers and the help texts.

Arguments before the command belong to the program, arguments after it to the command.
Only the module of the requested command is imported: it has the name of the command,
and the functions ``configure_parser`` and ``execute``. To add a command, add its line
to `GROUPS` and its module; the tests in ``tests/nvp/cli/test_contracts.py`` name
everything else that a command needs.

shtab makes the completion scripts for shells from the parsers. The scripts are static,
so completion adds no cost to normal calls; argcomplete would run the program at each
Tab.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from nvidia_variant_provider.errors import UsageError, redacted, shown

from .. import __version__
from .render import wrap_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

PROGRAM, SECOND_NAME = "nvp", "nvidia-variant-provider"
"""The two names of the program. Hints use the first one."""

GROUPS = {
    "Install": {
        "pip": "run your own pip with only the builds that fit this machine",
        "serve": "serve the same builds to uv, Poetry and other installers",
    },
    "Plan": {
        "releases": "show which releases of a project this machine can run",
        "check": "check whether pinned releases run on this or other machines",
        "resolve": "show which build of a release a machine gets, and why",
        "matrix": "show which build of a release each driver and each GPU gets",
        "fleet": "show each machine's build, and the fewest builds for all",
        "diff": "show which machines get a different build from a new release",
    },
    "Look after a machine": {
        "detect": "show the driver and the GPUs of this machine",
        "doctor": "check whether the installed stack can use the GPUs",
        "properties": "list the variant properties that this machine supports",
    },
    "Publish": {
        "inspect": "list the GPU code in wheels and libraries, and where it runs",
        "validate": "check metadata, wheels and index directories before publishing",
        "upgrade": "rewrite variant metadata in the current schema",
        "census": "record the GPU code of a whole index in one file",
    },
}
"""``{title of a group in the help text: {command: summary}}``."""

COMMANDS = {
    command: text for commands in GROUPS.values() for command, text in commands.items()
}
"""The summary of each command."""

_MEANT = {
    # pip's commands, except those that are also commands of nvp.
    **{
        word: ("pip", word)
        for word in (
            *("install", "uninstall", "download", "wheel", "lock", "list", "freeze"),
            *("show", "index", "config", "cache", "hash", "debug"),
        )
    },
    "add": ("pip", "install"),
    "remove": ("pip", "uninstall"),
    "update": ("pip", "install", "--upgrade"),
    "search": ("releases",),
}
"""The commands of nvp for words that users of other programs may type."""

_TWO_COLUMNS = r"  \S+ {2,}(?=\S)"
"""A pattern for a line of help with a command and its summary."""

_COMPLETION = "--print-completion"

_NARROW = 50
"""The terminal width below which a usage line does not list the options."""

_SENTENCES = {
    r"^the following arguments are required: (.+)$": r"\1 is missing",
    r"^(.+): expected one argument$": r"\1 needs a value",
    r"^(.+): ignored explicit argument (.+)$": r"\1 takes no value, but has \2",
    r"^(.+): not allowed with argument (.+)$": r"\1 and \2 contradict each other",
}
"""``{pattern of an error of argparse: better wording}``."""

_FOOTNOTE = (
    f"'{PROGRAM} help COMMAND' shows the options of a command, with examples. Every "
    f"command takes --json and -v. For completion with the Tab key in bash, write "
    f"the output of '{PROGRAM} {_COMPLETION} bash' to a file that your shell reads, "
    f"such as ~/.local/share/bash-completion/completions/{PROGRAM}."
)


_PIPS_OWN = ("-h", "--help", "--json", "-v")
"""Options that ``nvp pip`` and pip share; the position decides which one gets them."""


class CommandLine(NamedTuple):
    """The arguments of the command line, separated by recipient.

    :param program: the arguments before the command.
    :param command: the command as typed, or ``None``.
    :param words: the arguments for the command's own parser.
    :param passed_on: the arguments for the program that the command runs.
    """

    program: Sequence[str]
    command: str | None
    words: Sequence[str]
    passed_on: Sequence[str]


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so ``--json`` can report them.

    :param command: the command whose arguments are parsed, or ``None`` for the whole
        program.
    """

    def __init__(self, command: str | None = None, **settings: Any) -> None:
        called = os.path.splitext(os.path.basename(next(iter(sys.argv), "")))[0].lower()
        program = SECOND_NAME if called == SECOND_NAME else PROGRAM
        settings.setdefault("prog", f"{program} {command}" if command else program)
        super().__init__(
            formatter_class=_narrow_formatter,
            # A new option in a later version could make an abbreviation ambiguous.
            allow_abbrev=False,
            **settings,
        )
        self.command = command
        # Python 3.14 colors help texts, but `render` prints no escape sequences.
        self.color = False

    def format_help(self) -> str:
        """Return the help text, wrapped to the width of the terminal."""
        import shutil

        self.formatter_class = _HelpFormatter
        if self.usage is None and shutil.get_terminal_size().columns < _NARROW:
            words = [action.metavar for action in self._get_positional_actions()]
            self.usage = " ".join(["%(prog)s", "[options]", *map(str, words)])
        return super().format_help()

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse all words.

        :raises UsageError: a word is unknown, missing or malformed.
        """
        options, unknown = self.parse_known_args(words)
        # argparse does not consume arguments after an option, as in: OLD --diff NEW
        many = [x.dest for x in self._get_positional_actions() if x.nargs in ("*", "+")]
        if many and not any(len(word) > 1 and word[0] == "-" for word in unknown):
            setattr(options, many[0], [*getattr(options, many[0]), *unknown])
        elif unknown:
            self._refuse(unknown[0])
        return options

    def _refuse(self, word: str) -> NoReturn:
        if not word.startswith("-"):
            self.error(f"there is one word too many: {shown(word)}")
        name = word.partition("=")[0]
        # argparse has no public list of the options.
        near = nearest_option(name, self._option_string_actions)
        message, others = f"there is no option {shown(name)[1:-1]}", list[str]()
        if near is None:
            parsers = {other: make_command_parser(other) for other in COMMANDS}
            others = [x for x, p in parsers.items() if name in p._option_string_actions]
        if others:
            message = f"{name} is an option of {', '.join(others)}"
        self.error(message, near)

    def error(self, message: str, suggestion: str | None = None) -> NoReturn:
        """Raise a `UsageError`, whose hint is the command that prints the help."""
        message = message.removeprefix("argument ")
        for theirs, ours in _SENTENCES.items():
            message = re.sub(theirs, ours, message)
        command = f"{PROGRAM} {self.command}" if self.command else PROGRAM
        hint = f"see {command} --help"
        raise UsageError(
            message, hint=f"did you mean {suggestion}? {hint}" if suggestion else hint
        )


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps the sentences of a description or an epilog, but not the examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for line in text.splitlines():
            columns = re.match(_TWO_COLUMNS, line)
            if columns:
                lines += wrap_line(line, width, hang=" " * (columns.end() - 2))
            elif line.startswith(" "):  # do not wrap an example, which users copy
                lines.append(line)
            else:
                lines += wrap_line(line, width, hang="")
        return "\n".join(f"{indent}{line}" for line in lines)


def _narrow_formatter(prog: str) -> _HelpFormatter:
    """Return a formatter for the checks that argparse makes for each new option.

    Without a given width, a formatter imports `shutil` to query the terminal.
    """
    return _HelpFormatter(prog, width=80)


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """Find the command, and separate the arguments around it."""
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        position += 2 if arguments[position] == _COMPLETION else 1
    if position >= len(arguments):
        return CommandLine(arguments, None, (), ())
    before, command = arguments[:position], arguments[position]
    words, passed_on = arguments[position + 1 :], list[str]()
    if command == "pip":
        words, passed_on = _separate(words)
    return CommandLine(before, command, words, passed_on)


def _separate(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the arguments of ``nvp pip`` from the arguments for pip.

    ``--json`` is for this program, except after ``index``, a command of pip that has
    the same option.
    """
    known = make_command_parser(
        "pip"
    )._option_string_actions  # argparse has no public list
    ours: list[str] = []
    theirs: list[str] = []
    pending = iter(words)
    for word in pending:
        name, equals, _ = word.partition("=")
        if word == "--":
            theirs += [word, *pending]
        elif name in known and name not in _PIPS_OWN:
            takes_value = known[name].nargs is None and not equals
            ours += [word, *itertools.islice(pending, int(takes_value))]
        elif (word in ("-h", "--help") and not theirs) or (
            word == "--json" and "index" not in theirs
        ):
            ours.append(word)
        else:
            theirs.append(word)
    return ours, theirs


def has_json_option(line: CommandLine) -> bool:
    """Return whether the JSON report is requested with ``--json``.

    The parsers cannot decide this, because the report also has their errors.
    """
    return "--json" in (*line.program, *_options(line))


def has_json_format(line: CommandLine) -> bool:
    """Return whether the JSON report is requested with ``--format json``."""
    words = _options(line)
    pairs = itertools.pairwise(words)
    return "--format=json" in words or ("--format", "json") in pairs


def _options(line: CommandLine) -> Sequence[str]:
    """Return the words before ``--``; later words are not options."""
    words = list(line.words)
    return words[: words.index("--")] if "--" in words else words


def check_command(name: str, words: Sequence[str] = ()) -> None:
    """Reject an unknown command, and suggest the intended one.

    :param words: the arguments after the command.
    :raises UsageError: there is no such command.
    """
    if name in COMMANDS:
        return
    near = _nearest(name, [*COMMANDS, "help", *_MEANT])
    if near in _MEANT:
        import shlex

        near = shlex.join([PROGRAM, *_MEANT[near], *map(redacted, words)])
    Parser().error(f"there is no command {shown(name)}", near)


def find_command(name: str) -> ModuleType:
    """Import the module of a command, with ``configure_parser`` and ``execute``.

    :raises UsageError: there is no such command.
    """
    check_command(name)
    return importlib.import_module(f".{name}", __package__)


def make_parser() -> Parser:
    """Return the parser of the arguments before the command."""
    parser = Parser(
        usage="%(prog)s [options] COMMAND ...",
        description="Find the build of a GPU package that fits a machine.\n\n"
        + "\n\n".join(map(_group_text, GROUPS)),
        epilog=_FOOTNOTE,
    )
    version = f"{PROGRAM} {__version__}"
    parser.add_argument("--version", action="version", version=version)
    _add_common_options(parser)
    parser.add_argument(
        _COMPLETION,
        metavar="SHELL",
        help="print the completion script for a shell, such as bash, zsh or fish",
    )
    return parser


def make_command_parser(name: str) -> Parser:
    """Return the parser of a command's own arguments.

    :raises UsageError: there is no such command.
    """
    parser = Parser(name)
    configure_command(parser, name)
    return parser


def configure_command(parser: Parser, name: str) -> None:
    """Add the options of a command, and its help texts, to a parser."""
    command = find_command(name)
    summary = COMMANDS[name]
    parser.description = f"{summary[0].upper()}{summary[1:]}."
    command.configure_parser(parser)
    _add_common_options(parser)


def add_examples(
    parser: argparse.ArgumentParser, *examples: str, notes: Iterable[str] = ()
) -> None:
    """Set the end of a command's help: notes and examples.

    :param examples: command lines without the name of the program.
    :param notes: sentences before the examples.
    """
    program = parser.prog.partition(" ")[0]
    lines = [f"  {program} {example}" for example in examples]
    title = "examples:" if len(lines) > 1 else "example:"
    parser.epilog = "\n".join([*(f"{note}\n" for note in notes), title, *lines])


def whole_number(text: str) -> int:
    """Parse the value of an option; for argparse.

    :raises argparse.ArgumentTypeError: the text is not a whole number.
    """
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number")
    return int(text)


def _add_common_options(parser: Parser) -> None:
    if parser.command == "pip":  # a -v among the arguments for pip is pip's own
        text = "for pip; put -v before pip to log what nvp does"
        parser.add_argument("-v", action="store_true", help=text)
    else:
        parser.add_argument(
            "-v",
            "--verbose",
            action="count",
            default=0,
            help="log requests and replies to stderr; -vv adds details",
        )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON report instead of text"
    )


def _group_text(title: str) -> str:
    width = max(map(len, COMMANDS))
    commands = GROUPS[title].items()
    lines = [f"  {command:{width}}  {summary}" for command, summary in commands]
    return "\n".join([f"{title}:", *lines])


def nearest_option(
    name: str, known: Iterable[str], likeness: float = 0.6
) -> str | None:
    """Return the option that a mistyped or abbreviated one resembles, or ``None``.

    :param likeness: the minimum ratio of `difflib` between names without dashes.
    """
    names = [option[2:] for option in known if option[:2] == "--"]
    word = name.lstrip("-")
    begun = [x for x in names if len(word) > 1 and x.startswith(word)]
    near = begun[0] if begun else _nearest(word, names, likeness)
    return f"--{near}" if near else None


def _nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), 1, likeness)), None)


_FILES = {"FILE", "OLD", "NEW", "OUT", "PATH"}
"""The metavars of options and arguments that name files."""


def completion_script(shell: str) -> str:
    """Return a shell's completion script for the name by which nvp was called.

    :raises UsageError: the shell is not supported.
    """
    import shtab

    if shell not in shtab.SUPPORTED_SHELLS:
        raise UsageError(
            f"there is no completion for the shell {shown(shell)}",
            hint=f"give one of: {', '.join(shtab.SUPPORTED_SHELLS)}",
        )
    parser = make_parser()
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, command=name)
        configure_command(command, name)
        for action in command._actions:  # argparse has no public list
            names = action.metavar if isinstance(action.metavar, str) else ""
            if names in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))
