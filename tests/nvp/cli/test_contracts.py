"""The parts of a command besides its module: schema, help, and documentation.

Each test names the missing part, so a new command cannot be incomplete.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.paths import ROOT

from nvp import api
from nvp.cli.parsers import COMMANDS, GROUPS, find_command, make_command_parser

SCHEMA: dict[str, Any] = json.loads((ROOT / "schemas/report.schema.json").read_text())

TABLE_HEADER = "| to | command | what it does |"
"""The first line of the table in README.md."""


def documented_commands(text: str) -> dict[str, tuple[str, str]]:
    """Return the group and the summary of each command in a table of a Markdown
    page."""
    _, header, rest = text.partition(f"{TABLE_HEADER}\n")
    assert header, f"there is no table with the header {TABLE_HEADER!r}"
    table = rest.partition("\n\n")[0]
    rows = re.findall(
        r"^\| ([^|]+) \| \[?`([a-z-]+)[^|]* \| (.+) \|$", table, re.MULTILINE
    )
    return {command: (group, summary) for group, command, summary in rows}


def definition_of(command: str) -> dict[str, Any]:
    """Return the schema of a command's ``data``."""
    for case in SCHEMA["oneOf"]:
        if case["properties"].get("command") == {"const": command}:
            reference: str = case["properties"]["data"]["$ref"]
            if not reference.startswith("#/$defs/"):
                return {"$ref": reference}  # a schema of its own
            definition: dict[str, Any] = SCHEMA["$defs"].get(
                reference.removeprefix("#/$defs/"), {}
            )
            return definition
    raise AssertionError(
        f"schemas/report.schema.json does not define the data of {command}: add "
        f"a case to oneOf"
    )


def test_the_schema_lists_the_commands() -> None:
    commands = {name for name in SCHEMA["properties"]["command"]["enum"] if name}
    missing, unknown = set(COMMANDS) - commands, commands - set(COMMANDS)
    assert not missing, f"add to properties.command of report.schema.json: {missing}"
    assert not unknown, f"report.schema.json has commands that do not exist: {unknown}"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_schema_defines_the_data_of_a_command(command: str) -> None:
    assert definition_of(command)


def test_the_table_of_commands_is_documented() -> None:
    rows = documented_commands((ROOT / "README.md").read_text())
    missing, unknown = set(COMMANDS) - set(rows), set(rows) - set(COMMANDS)
    assert not missing, f"add to the table of commands in README.md: {missing}"
    assert not unknown, f"README.md documents commands that do not exist: {unknown}"
    for title, commands in GROUPS.items():
        for command, summary in commands.items():
            row = (title.lower(), summary)
            assert rows[command] == row, f"README.md describes {command} differently"


def test_the_table_is_read_as_it_is_written() -> None:
    rows = "| plan | `a FILE` | does a |\n| look after | [`b`](b.md) | b |"
    text = f"x\n{TABLE_HEADER}\n|---|---|---|\n{rows}\n\ny"
    assert documented_commands(text) == {
        "a": ("plan", "does a"),
        "b": ("look after", "b"),
    }


def test_a_command_is_in_one_group() -> None:
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
class TestHelp:
    def test_the_summary_fits_a_line_of_help(self, command: str) -> None:
        summary = COMMANDS[command]
        assert summary[0].islower(), f"{command}: the summary begins with a verb"
        assert not summary.endswith("."), f"{command}: no full stop after the summary"
        assert len(summary) <= 80 - len("  properties  "), f"{command}: shorten it"

    def test_every_option_is_explained_and_there_are_examples(
        self, command: str
    ) -> None:
        parser = make_command_parser(command)
        silent = [action.dest for action in parser._actions if not action.help]
        assert not silent, f"{command}: give help to {silent}"
        assert parser.epilog, f"{command}: call add_examples in configure_parser"
        assert "example" in parser.epilog

    def test_the_module_has_both_functions(self, command: str) -> None:
        module = find_command(command)
        assert module.configure_parser.__doc__, (
            f"{command}: say what the options are for"
        )
        assert module.execute.__doc__, f"{command}: say what the keys of data are"


COMMANDS_WITHOUT_A_FUNCTION = {
    "pip": "it runs another program",
    "serve": "it runs until it is stopped",
    "properties": "the plugin's own functions do this",
}


def test_commands_have_a_function_in_the_python_api() -> None:
    missing = set(COMMANDS) - set(api.__all__) - set(COMMANDS_WITHOUT_A_FUNCTION)
    assert not missing, f"add to packages/nvp/src/nvp/api: {missing}"
    assert not set(api.__all__) & set(COMMANDS_WITHOUT_A_FUNCTION)
    for name in api.__all__:
        assert getattr(api, name).__doc__, f"document api.{name}"
