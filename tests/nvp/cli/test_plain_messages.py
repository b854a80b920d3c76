"""Messages about wrong paths, URLs and values: the problem, the place, the next
step."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.command import Run

from nvp.cli import main

PIP = ("pip", "--python", sys.executable, "install")


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
        (
            ("fleet", "x", "--emit", "yaml"),
            "--emit: 'yaml' is not env, dockerfile or affinity",
        ),
        (("census", "x", "--per-release", "2"), "--per-release: '2' is not one or all"),
        (
            ("doctor", "--live-timeout", "1e9"),
            "--live-timeout: '1e9' is not a number of seconds above 0, up to 86400",
        ),
        (
            ("doctor", "--deadline", "nan"),
            "--deadline: 'nan' is not a number of seconds",
        ),
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


SECRET = "//user:s3cret@"


@pytest.fixture(name="folder")
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a directory that has ``pins.txt``."""
    pytest.importorskip("httpx")
    monkeypatch.chdir(tmp_path)
    Path("pins.txt").write_text("torch==1.0\n")
    return tmp_path


@pytest.mark.parametrize("scheme", ["https", "ftp", "file"])
@pytest.mark.parametrize(
    "words",
    [
        "releases URL",
        "releases --environment URL torch",
        "releases --python URL torch",
        "releases --label URL torch",
        "matrix URL==1",
        "fleet nodes.csv --project URL",
        "census -o URL https://127.0.0.1:9/",
        "census --report -o URL",
        "check pins.txt --platform URL",
        "serve -i https://127.0.0.1:9/ --host URL",
    ],
)
def test_messages_have_no_password(
    words: str, scheme: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user may confuse the arguments, or the commands."""
    nodes = "name, driver_version, compute_cap\nGPU,550.54,9.0\n"
    (folder / "nodes.csv").write_text(nodes)
    url = f"{scheme}:{SECRET}files.example/torch-1.0-py3-none-any.whl"
    text = stderr(capsys, *words.replace("URL", url).split())
    assert "s3cret" not in text
    assert "****@files.example" in text or "census -o" in words


@pytest.mark.parametrize("path", ["a//user:b@c", "user:b@c/d", "a?b;c", "./x@y"])
def test_a_path_is_printed_as_given(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = stderr(capsys, "releases", "torch", "--environment", path)
    assert f"{path}: cannot be read" in text


MALFORMED = [f"http:{SECRET}[h/", "ftp://u:]s3cret@h/", "file://\uff20u:s3cret@h/"]


@pytest.mark.parametrize("url", MALFORMED)
@pytest.mark.parametrize(
    "words",
    [
        "serve -i",
        "releases torch -i",
        "releases torch -f",
        "matrix torch==1 -i",
        "diff torch==1 torch==2 -i",
        "check pins.txt -i",
        "check pins.txt --extra-index-url",
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_malformed_index(
    words: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), url]) == 2
    text = capsys.readouterr().err
    assert "****@h/: is not a URL: its server is malformed" in text.replace("[h", "h")
    assert "s3cret" not in text
    assert len(text.splitlines()) == 1


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
        ("ftp://]/", "is not a URL: its server is malformed; check the URL"),
        ("file://[/simple", "is not a URL: its server is malformed"),
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


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("inspect {folder}", 3, "{folder}: there are no files in it; name a wheel"),
        ("inspect {text}", 3, "{text}: it is neither a wheel nor a library, and has"),
        ("check torch==2.8.0", 3, "torch==2.8.0: there is no such file or directory; "),
        (
            "check https://a.example/uv.lock?token=secret",
            2,
            "https://a.example/uv.lock?token=****: a file on a server is not read; ",
        ),
        ("inspect -", 2, "-: standard input is not read; name a wheel or a library"),
        ("fleet {text} --index-url {folder}", 2, "--index-url: only a project is"),
        ("fleet {text}", 3, "{text}: this is not an inventory; give the output of "),
        ("resolve {text} --sm-arch", 2, "--sm-arch needs a value; see nvp resolve"),
        ("upgrade {folder}", 2, "{folder}: this is a directory; name a file"),
        ("matrix {text}", 3, "{text}: not UTF-8: byte 5; save it as UTF-8"),
        ("validate {folder} --select X", 2, "there is no rule 'X'; use a code such as"),
        ("serve --port 70000 -i {folder}", 2, "70000 is not a port number; give 0 to"),
        ("detect --cuda-driver 12,8", 4, "--cuda-driver: '12,8' is not a CUDA version"),
    ],
)
def test_a_wrong_command_line(
    words: str, code: int, message: str, tmp_path: Path, run: Run
) -> None:
    """The message is one line with the input, the fault and the next step."""
    text = tmp_path / "README.md"
    text.write_bytes("# caf\xe9\n".encode("latin-1"))
    (tmp_path / "empty").mkdir()
    names = {"folder": tmp_path / "empty", "text": text}
    outcome = run(*(word.format(**names) for word in words.split()))
    assert outcome.code == code
    assert outcome.err.startswith(f"error: {message.format(**names)}")
    assert outcome.err.count("\n") == 1
    assert "; " in outcome.err
    assert (
        len(outcome.err) - outcome.err.count(str(tmp_path)) * len(str(tmp_path)) < 200
    )


@pytest.mark.skipif(os.name == "nt", reason="links differ there")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("doctor", "--receipt", "0.json"), "cannot be written: there is no such dir"),
        (("doctor", "--share", "--python", sys.executable), "doctor"),
        (("pip", "list"), "which is activated, is neither"),
        ((*PIP, "-r", "r.txt"), "Too many levels of symbolic links"),
        ((*PIP, "-f", "0.json/..", "x"), "No matching distribution found for x"),
    ],
)
def test_a_chain_of_links_that_is_too_long_for_python(
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for number in range(1500):
        (tmp_path / f"{number}.json").symlink_to(tmp_path / f"{number + 1}.json")
    (tmp_path / "r.txt").write_text("-r 0.json\n")
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, str(tmp_path / "0.json"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    main([*words])
    assert message in "".join(capfd.readouterr())
