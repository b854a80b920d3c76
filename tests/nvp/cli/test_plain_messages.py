"""Messages about wrong paths, URLs and values: what, where, and what to do next."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvp.cli import main


def stderr(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) in (1, 2, 3)
    captured = capsys.readouterr()
    return captured.err + captured.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("serve", "--port", "x"), "--port: 'x' is not a whole number"),
        (("serve", "--port", "1e3"), "--port: '1e3' is not a whole number"),
        (("inspect", "--jobs", "²", "x"), "--jobs: '\\xb2' is not a whole number"),
        (("inspect", "--jobs", "9" * 5000, "x"), "is not a whole number"),
        (
            ("validate", "--format", "xml", "."),
            "--format: 'xml' is not text, json, sarif or github",
        ),
        (("upgrade", "--to", "3", "x"), "--to: '3' is not 0.2.0"),
    ],
)
def test_a_wrong_value(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = stderr(capsys, *words)
    assert message in text
    assert f"; see nvp {words[0]} --help" in text
    assert "invalid" not in text
    assert len(text) < 500


@pytest.mark.parametrize("command", ["validate", "resolve", "inspect", "matrix"])
def test_an_empty_path(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = stderr(capsys, command, "")
    assert "the path is empty; name a file" in text
    assert "'': " in text


@pytest.mark.parametrize("command", ["validate", "resolve", "inspect", "matrix"])
def test_the_url_of_another_protocol(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = stderr(capsys, command, "ftp://files.example/torch-2.8.0-variants.json")
    assert "only http and https URLs are read; download the file" in text


@pytest.mark.parametrize(
    "command", ["serve", pytest.param("releases", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("{folder}/none", "there is no such directory; give an existing directory"),
        ("file://{folder}/none", "there is no such directory"),
        ("ftp://files.example/", "no index is read by ftp; give an https URL"),
        ("http://files.example/", "plain HTTP is for this machine and for trusted"),
    ],
)
def test_no_index(
    command: str,
    url: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("httpx")
    words = ["torch"] if command == "releases" else []
    place = url.format(folder=tmp_path)
    text = stderr(capsys, command, *words, "--index-url", place)
    assert f"{place}: {message}" in text
