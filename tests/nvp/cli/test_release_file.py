"""The argument FILE of `resolve`, `matrix` and `diff`, if it is a URL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from support.documents import TORCH
from support.grids import some_of

pytest.importorskip("httpx", reason="it reads the URLs")
pytest.importorskip("uv", reason="the helpers find uv")

from support.processes import Done, clean_environ, provider
from support.range_server import Answer, RangeServer, serve_answers

NAME = "torch-2.8.0-variants.json"
MACHINE = ("--cuda-driver", "12.9", "--sm-arch", "9.0")

COMMANDS: dict[str, Callable[[str], Sequence[str]]] = {
    "resolve": lambda url: ("resolve", url, *MACHINE),
    "matrix": lambda url: ("matrix", url),
    "diff": lambda url: ("diff", url, url),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RangeServer]:
    """Return a server that requires credentials."""
    answer = Answer(body=json.dumps(TORCH).encode())
    answers = {f"/a/{NAME}": answer, f"/a/{NAME}?key=S3cret": answer}
    with serve_answers(answers, credentials="me:S3cret") as running:
        yield running


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return clean_environ(tmp_path / "home")


def with_password(url: str, password: str = "S3cret") -> str:
    return url.replace("://", f"://me:{password}@")


@pytest.mark.parametrize("command", some_of(((command,) for command in COMMANDS), 3))
def test_a_url_is_read_with_its_credentials(
    command: str, server: RangeServer, environ: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / NAME
    file.write_text(json.dumps(TORCH))
    plain = provider(*COMMANDS[command](str(file)), environ=environ)
    url = with_password(f"{server.url}/a/{NAME}")
    for given in (url, f"{url}#sha256=00", f"{url}?key=S3cret"):
        done = provider(*COMMANDS[command](given), environ=environ)
        assert done == plain
    assert plain.code == 0
    assert "2.8.0" in plain.out


def test_credentials_are_found_as_pip_finds_them(
    server: RangeServer, environ: dict[str, str]
) -> None:
    netrc = Path(environ["HOME"], ".netrc")
    netrc.write_text("machine 127.0.0.1 login me password S3cret\n")
    netrc.chmod(0o600)
    done = provider("resolve", f"{server.url}/a/{NAME}", *MACHINE, environ=environ)
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    "command",
    some_of(
        ((command,) for command in (*COMMANDS, "inspect", "validate", "upgrade")), 3
    ),
)
@pytest.mark.parametrize(
    "scheme", ["http", pytest.param("ftp", marks=pytest.mark.slow)]
)
def test_no_password_is_shown(
    command: str, scheme: str, server: RangeServer, environ: dict[str, str]
) -> None:
    address = server.url.partition("://")[2]
    url = f"{scheme}://me:pa55word@{address}/a/{NAME}?key=pa55word"
    words = COMMANDS[command](url) if command in COMMANDS else (command, url)
    for json_option in ((), ("--json",)):
        done = provider(*words, *json_option, environ=environ)
        assert done.code in (1, 2, 3), done.text
        assert "pa55word" not in done.text
        assert "Traceback" not in done.text
    if scheme == "http" and command in COMMANDS:
        assert f"http://{address}/a/{NAME}" in done.text
        assert "HTTP 401" in done.text


@pytest.mark.parametrize("command", COMMANDS)
def test_other_kinds_of_urls_are_refused(command: str, environ: dict[str, str]) -> None:
    done = provider(
        *COMMANDS[command]("ftp://me:pw@files.example/x.json"), environ=environ
    )
    expected = (
        "error: ftp://****@files.example/x.json: only http and https URLs are read; "
        "download the file\n"
    )
    assert done == Done(2, "", expected)


@pytest.mark.parametrize("option", ["--index-url", "--extra-index-url"])
def test_the_password_of_an_index_that_is_not_read(
    option: str, environ: dict[str, str]
) -> None:
    url = "ftp://me:pa55word@index.example/simple/"
    done = provider("serve", option, url, environ=environ)
    assert done.code == 2
    assert "ftp://****@index.example/simple/" in done.err
    assert "pa55word" not in done.text
