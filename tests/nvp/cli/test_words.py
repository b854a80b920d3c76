"""Words of other programs that people type."""

from __future__ import annotations

import shlex

import pytest
from support.command import Run
from support.documents import document

from nvidia_variant_provider.metadata.document import metadata_from_dict
from nvp.cli import pip
from nvp.cli.parsers import COMMANDS
from nvp.index.pip.installed import InstalledVariant, StaleVariant
from nvp.index.selection.options import Pins


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("install torch", "pip install torch"),
        ("install --cuda-driver 12.4 'torch>=2'", None),
        ("uninstall -y torch", None),
        ("list", None),
        ("freeze", None),
        ("show torch", None),
        ("download torch", None),
        ("wheel torch", None),
        ("add torch", "pip install torch"),
        ("remove torch", "pip uninstall torch"),
        ("update torch", "pip install --upgrade torch"),
        ("search torch", "releases torch"),
        ("instal torch", "pip install torch"),
        (
            "install -i https://me:pw@a.example b",
            "pip install -i 'https://****@a.example' b",
        ),
    ],
)
def test_the_command_that_was_meant(words: str, meant: str | None, run: Run) -> None:
    name, *rest = shlex.split(words)
    outcome = run(name, *rest)
    meant = meant or f"pip {words}"
    assert (outcome.code, outcome.out, outcome.err) == (
        2,
        "",
        f"error: there is no command '{name}'; "
        f"did you mean nvp {meant}? see nvp --help\n",
    )


def test_the_commands_of_pip(run: Run) -> None:
    """nvp knows the commands of the installed pip, except a few for pip itself."""
    from pip._internal.commands import commands_dict

    for name in (
        commands_dict.keys() - COMMANDS.keys() - {"help", "completion", "search"}
    ):
        assert f"did you mean nvp pip {name} torch?" in run(name, "torch").err


@pytest.mark.parametrize(
    "text", ["torch", "flash-attn", "torch[cuda]>=2", "torch~=2.8", "torch ==2.8.*"]
)
def test_a_project_where_a_file_is_meant(text: str, run: Run) -> None:
    outcome = run("resolve", text)
    name = text.partition("[")[0].partition("~")[0].partition(" ")[0]
    assert (outcome.code, outcome.err) == (
        3,
        f"error: {text}: there is no such file or directory; "
        f"for the project on an index: nvp releases {name}\n",
    )


def test_upgrading_a_project(run: Run) -> None:
    outcome = run("upgrade", "torch")
    assert outcome.code == 3
    assert outcome.err.endswith(": nvp pip install --upgrade torch\n")


@pytest.mark.parametrize("text", ["a.json", "dist/torch", "./torch", "..", "C:\\torch"])
def test_other_words_are_files(text: str, run: Run) -> None:
    outcome = run("resolve", text)
    assert outcome.code in (2, 3)
    assert "nvp releases" not in outcome.err


@pytest.mark.parametrize(
    "words",
    [
        ["--proxy", "user:S3CR/=ET@proxy.example:3128"],
        ["--proxy=user:S3CR/=ET@proxy.example:3128"],
        ["--prox", "http://user:S3CRET@proxy.example:3128"],
    ],
)
def test_a_suggested_command_has_no_password_of_a_proxy(words: list[str]) -> None:
    """pip accepts the URL of a proxy without its scheme."""
    metadata = metadata_from_dict(document({"null": {}}))
    installed = InstalledVariant(
        project="torch", version="2.8.0", label="cu126", metadata=metadata
    )
    stale = StaleVariant(installed=installed, best="null")
    advice = pip._advice(stale, Pins(), words)
    assert "S3CR" not in advice
    assert "****@proxy.example:3128" in advice
