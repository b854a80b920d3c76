"""Every session in the documentation shows the output of its commands."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.sessions import ROOT, blocks, compared, pages, refresh, run_page

from nvp.cli.parsers import COMMANDS
from tools import pictures, refresh_docs

QUICK = {"README.md", "first-install.md"}
"""Pages whose sessions run by default."""

SESSIONS = [path for path in pages() if blocks(path.read_text(encoding="utf-8"))]

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="the sessions are those of a POSIX shell"
)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            path,
            id=path.relative_to(ROOT).as_posix(),
            marks=[pytest.mark.slow] if path.name not in QUICK else [],
        )
        for path in SESSIONS
    ],
)
def test_sessions_show_what_the_commands_print(page: Path) -> None:
    for block, steps in run_page(page.read_text(encoding="utf-8")):
        for shown, printed in zip(block.steps, steps, strict=True):
            assert compared(shown) == compared(printed), (
                f"{page.name}:{block.line}: {shown.command} prints something else; "
                "run: python -m tools.refresh_docs"
            )


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        ("--help", 0, "usage: python -m tools.refresh_docs"),
        ("no.md", 2, "no.md is not"),
    ],
)
def test_refresh_docs_explains_itself(
    word: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        refresh_docs.main([word])
    assert caught.value.code == code
    assert said in "".join(capsys.readouterr())


def test_every_command_is_shown_in_a_session() -> None:
    commands = [
        step.command
        for page in SESSIONS
        for block in blocks(page.read_text(encoding="utf-8"))
        if block.not_run is None
        for step in block.steps
    ]
    shown = {
        name
        for command in commands
        for name in re.findall(r"^(?:nvidia-variant-provider|nvp) (\w+)", command)
    }
    assert shown >= set(COMMANDS)


@pytest.mark.slow
def test_pictures_are_what_the_program_draws() -> None:
    for name, text in pictures.recordings().items():
        drawn = (pictures.IMAGES / name).read_text(encoding="utf-8")
        assert drawn == text, "run: python -m tools.pictures"


def test_block_that_is_not_run_says_why_above_it() -> None:
    text = "<!-- not run: it needs a GPU -->\n```console\n$ nvidia-smi\n```\n"
    (block,) = blocks(text)
    assert block.not_run == "it needs a GPU"
    assert run_page(text) == []


def test_refresh_replaces_stale_output_and_keeps_the_rest() -> None:
    page = """\
Before.

```console
$ echo one; (exit 3)
{old}
$ echo code $?
```

    ```pycon
    >>> 1 + (
    ...     2
    ... )
    {value}
    ```

After.
"""
    stale = page.format(old="old", value="4")
    fresh = page.format(old="one", value="3")
    assert refresh(stale) == fresh.replace("$?\n", "$?\ncode 3\n")


def test_here_documents_belong_to_their_command() -> None:
    text = "```console\n$ cat <<'END'\n$ not a command\nEND\n$ not a command\n```\n"
    (block,) = blocks(text)
    assert [step.command for step in block.steps] == [
        "cat <<'END'\n$ not a command\nEND",
        "not a command",
    ]


def test_output_above_the_first_command_is_refused() -> None:
    with pytest.raises(ValueError, match="no command stands above this line"):
        blocks("```console\noutput\n```\n")
