"""The completion scripts of shells, made by shtab from the parsers.

The scripts are static: pressing the Tab key runs the shell's code alone, so that
completion costs normal calls nothing. That is why it is not argcomplete, which runs
the program at each key press.
"""

from __future__ import annotations

from nvidia_variant_provider.errors import UsageError, shown

from .parsers import VERBS, Parser, configure_verb, make_parser

_FILES = {"FILE", "OLD", "NEW", "OUT", "PATH"}
"""The metavars of options and arguments that name files."""


def completion_script(shell: str) -> str:
    """Return the script that completes the command for a shell.

    It completes the name by which the command was called.

    :raises UsageError: the shell is not supported.
    """
    import shtab

    if shell not in shtab.SUPPORTED_SHELLS:
        raise UsageError(
            f"there is no completion for the shell {shown(shell)}",
            hint=f"give one of: {', '.join(shtab.SUPPORTED_SHELLS)}",
        )
    parser = make_parser()
    verbs = parser.add_subparsers(metavar="VERB", parser_class=Parser)
    for name, summary in VERBS.items():
        verb = verbs.add_parser(name, help=summary, verb=name)
        configure_verb(verb, name)
        for action in verb._actions:  # argparse has no public list
            names = action.metavar if isinstance(action.metavar, str) else ""
            if names in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))
