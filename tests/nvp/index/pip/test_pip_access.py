"""``pip`` with indexes that require credentials, certificates or a proxy."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from support.authority import HOST, Authority
from support.index_server import serve, start_server
from support.keyring_program import write_keyring
from support.processes import (
    PIPS,
    Environment,
    Pip,
    installed_labels,
    make_environment,
    provider,
)
from support.proxy import serve_proxy
from support.range_server import Answer, serve_answers
from support.shared import shared_folder
from support.wheels import stub_wheel

USER, PASSWORD = "somebody", "S3cret%/@word"
PAIR = f"{USER}:{PASSWORD}"
QUOTED = f"{USER}:S3cret%25%2F%40word"

CHOSEN = {"torch": "2.8.0 cu126", "runtime": "12.6 None"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def with_credentials(url: str, pair: str) -> str:
    return url.replace("://", f"://{pair}@")


@pytest.mark.parametrize(
    "version", [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]
)
def test_credentials_in_the_url(
    version: str, pip_of: Callable[[str], Pip], published: Path, tmp_path: Path
) -> None:
    target = tmp_path / "it"
    with serve(published, credentials=PAIR) as url:
        index = with_credentials(url, QUOTED)
        done = pip_of(version)("install", "-vvi", index, "--target", target, "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == CHOSEN
    assert "S3cret" not in done.text


@pytest.mark.parametrize(
    "words",
    [
        ("-r", "{}needs.txt"),
        pytest.param(("torch", "-c", "{}needs.txt"), marks=pytest.mark.slow),
        pytest.param(("{}torch-1.0-py3-none-any.whl",), marks=pytest.mark.slow),
        pytest.param(("-r", "needs.txt"), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "version", [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]
)
def test_credentials_for_files_that_pip_reads_itself(
    version: str, words: Sequence[str], pip_of: Callable[[str], Pip], tmp_path: Path
) -> None:
    """pip uses the credentials of an index for all files of its server."""
    (folder := tmp_path / "index").mkdir()
    wheel = stub_wheel(folder, "torch", "1.0")
    (folder / "needs.txt").write_text("torch\n")
    (folder / "torch").mkdir()
    (folder / "torch" / "index.html").write_text(
        f'<!DOCTYPE html><a href="../{wheel.name}">{wheel.name}</a>'
    )
    pip = pip_of(version)
    with serve(folder, credentials=PAIR) as url:
        index = with_credentials(url, QUOTED)
        needs = tmp_path / "needs.txt"
        needs.write_text(f"--index-url {index}\n{url}{wheel.name}\n")
        pip.environ["PIP_INDEX_URL"] = index
        words = [word.format(url) for word in words]
        done = pip("install", "-vv", "--target", "it", *words, cwd=tmp_path)
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == {"torch": "1.0 None"}
    assert "S3cret" not in done.text


@pytest.mark.slow
def test_the_log_has_what_was_requested_and_no_secret(
    pip: Pip, published: Path, tmp_path: Path
) -> None:
    with serve(published, credentials=PAIR) as url:
        done = provider(
            *("-vv", "pip", "--python", pip.python),
            *("--cuda-driver", "12.9", "--sm-arch", "8.0", "download", "torch"),
            *("-i", with_credentials(url, QUOTED), "--dest", tmp_path / "it"),
            environ=pip.environ,
        )
    assert done.code == 0, done.text
    host = url.removeprefix("http://")
    for line in (
        f"pip runs download with the indexes http://****@{host}",
        f"pip has read {url}torch/: ",
        "torch 2.8.0: showing cu126, plain, null of labels cu126, cu130, null, plain",
        f"redirected to {url}torch/torch-2.8.0-py3-none-any-cu126.whl",
        "pip ended with status 0",
    ):
        assert line in done.err
    assert "S3cret" not in done.text


def test_wrong_credentials_are_not_shown(
    pip: Pip, published: Path, tmp_path: Path
) -> None:
    with serve(published, credentials="somebody:else") as url:
        index = with_credentials(url, QUOTED)
        done = pip(
            *("install", "-vvi", index, "--no-input", "torch"),
            *("--target", tmp_path / "it"),
        )
    assert done.code == 1
    assert "401" in done.text
    assert "S3cret" not in done.text


def test_the_server_after_a_redirect_refuses(
    pip: Pip, published: Path, tmp_path: Path
) -> None:
    """pip asks for the password of that server, and ends without a terminal."""
    moved = {"/torch/": Answer(status=302, headers={"Location": ""})}
    with (
        serve(published, credentials=PAIR) as closed,
        serve_answers(moved) as first,
        serve(published) as second,
    ):
        headers = {"Location": closed.replace("127.0.0.1", "localhost") + "torch/"}
        moved["/torch/"] = Answer(status=302, headers=headers)
        index = with_credentials(first.url, "somebody:else")
        words = ("-i", index, "--extra-index-url", second, "torch")
        done = pip("download", *words, "--dest", tmp_path / "it")
    assert done.code == 2, done.text
    assert not [*(tmp_path / "it").glob("*.whl")]


def test_netrc(pip: Pip, tmp_path: Path) -> None:
    """pip sends the password at once, also to an index that a file names, and after a
    redirect. The server hides its projects from other users."""
    home = Path(pip.environ["HOME"])
    (home / ".netrc").write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}")
    wheels = [stub_wheel(tmp_path, "torch", version) for version in ("1.0", "2.0")]
    answers = {f"/{wheel.name}": Answer(body=wheel.read_bytes()) for wheel in wheels}
    for place, wheel in zip(("public", "hidden"), wheels, strict=True):
        page = f'<a href="/{wheel.name}">{wheel.name}</a>'.encode()
        answers[f"/{place}/torch/"] = Answer(body=page, kind="text/html")
    moved: dict[str, Answer] = {}
    with (
        serve_answers(answers, others={"/hidden/": PAIR}) as server,
        serve_answers(moved) as other,
    ):
        moved["/torch/"] = Answer(
            status=302, headers={"Location": f"{server.url}/hidden/torch/"}
        )
        first = other.url.replace("127.0.0.1", "localhost")
        for number, index in enumerate((f"{server.url}/hidden", first)):
            target = tmp_path / str(number)
            (needs := tmp_path / "needs.txt").write_text(
                f"--index-url {index}\n--extra-index-url {server.url}/public\ntorch\n"
            )
            done = pip("install", "-r", needs, "--target", target)
            assert done.code == 0, done.text
            assert installed_labels(target) == {"torch": "2.0 None"}
            assert "S3cret" not in done.text


def test_an_empty_password_is_a_password(pip: Pip, tmp_path: Path) -> None:
    """pip then reads no netrc file. Otherwise the next index would be used."""
    (Path(pip.environ["HOME"]) / ".netrc").write_text("default login a password b")
    wheel = stub_wheel(tmp_path, "kern", "1.0")
    page = Answer(body=f'<a href="/{wheel.name}">x</a>'.encode(), kind="text/html")
    files = {"/kern/": page, f"/{wheel.name}": Answer(body=wheel.read_bytes())}
    with serve_answers(files, credentials="token:") as server:
        index = with_credentials(server.url, "token:")
        done = pip("download", "--dest", tmp_path / "it", "-i", index, "kern")
    assert done.code == 0, done.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_index_that_serves_only_requests_like_those_of_pip(
    host: str, pip: Pip, tmp_path: Path
) -> None:
    wheel = stub_wheel(tmp_path, "kern", "1.0")

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            is_page = self.path == "/kern/"
            is_pip = self.headers["User-Agent"].startswith("pip/2")
            sends = is_pip and (is_page or self.headers["Cookie"] == "name=value")
            self.send_response(200 if sends else 403)
            self.send_header("Content-Type", "text/html")
            self.send_header("Set-Cookie", "name=value; Path=/")
            self.end_headers()
            page = f'<a href="/{wheel.name}">kern</a>'.encode()
            self.wfile.write(page if is_page else wheel.read_bytes())

    with start_server(Handler) as url:
        done = pip("lock", "-i", url.replace("127.0.0.1", host), "kern", cwd=tmp_path)
    assert done.code == 0, done.text


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the program is a script")
def test_keyring_program(pip: Pip, published: Path, tmp_path: Path) -> None:
    target = tmp_path / "it"
    with serve(published, credentials=PAIR) as url:
        programs = write_keyring(tmp_path / "programs", url, USER, PASSWORD)
        pip.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        # The URL has the user, and the keyring has the password.
        index = with_credentials(url, USER)
        done = pip(
            *("install", "-i", index, "--keyring-provider", "subprocess"),
            *("--target", target, "torch"),
        )
    assert done.code == 0, done.text
    assert installed_labels(target) == CHOSEN
    assert "S3cret" not in done.text


@pytest.fixture(scope="session")
def with_keyring(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with keyring, and a backend that has one password."""
    return Environment(shared_folder(tmp_path_factory, "keyring", _install_keyring))


def _install_keyring(folder: Path) -> None:
    made = make_environment(folder, f"pip=={PIPS[0]}", "keyring==25.7.0")
    (made.packages / "one_password.py").write_text(
        f"""
import os
from keyring.backend import KeyringBackend
from keyring.credentials import SimpleCredential

class Keyring(KeyringBackend):
    priority = 1
    def set_password(self, service, user, password):
        raise NotImplementedError
    def get_password(self, service, user):
        return {PASSWORD!r} if user == {USER!r} else None
    def get_credential(self, service, user):
        if service == os.environ["THE_INDEX"] and user in (None, {USER!r}):
            return SimpleCredential({USER!r}, {PASSWORD!r})
        return None
"""
    )


@pytest.mark.slow
def test_keyring_package(
    with_keyring: Environment,
    environ: dict[str, str],
    published: Path,
    tmp_path: Path,
) -> None:
    target = tmp_path / "it"
    with serve(published, credentials=PAIR) as url:
        pip = Pip(with_keyring.python, environ)
        pip.environ["PYTHON_KEYRING_BACKEND"] = "one_password.Keyring"
        pip.environ["THE_INDEX"] = url
        done = pip("install", "-i", url, "--target", target, "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == CHOSEN
    assert "S3cret" not in done.text


@pytest.mark.slow
def test_a_server_that_is_not_trusted(
    pip: Pip, published: Path, authority: Authority, tmp_path: Path
) -> None:
    """A certificate is refused, unless an option or a file trusts the host."""
    file = tmp_path / "requirements.txt"
    file.write_text("--trusted-host 127.0.0.1\n")
    with serve(published, tls=authority.context) as url:
        words = ("install", "-i", url, "--retries", "0", "torch")
        refused = pip(*words)
        for option, value in (("--trusted-host", "127.0.0.1"), ("-r", str(file))):
            done = pip(*words, option, value, "--target", tmp_path / option)
            assert done.code == 0, done.text
            assert installed_labels(tmp_path / option) == CHOSEN
    assert refused.code == 1
    assert "certificate verify failed" in refused.text.lower()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["option", "variable"])
def test_certificates(
    way: str, pip: Pip, published: Path, authority: Authority, tmp_path: Path
) -> None:
    target = tmp_path / "it"
    options = ["--client-cert", authority.client]
    if way == "option":
        options += ["--cert", authority.bundle]
    else:
        # requests prefers the variable.
        pip.environ["REQUESTS_CA_BUNDLE"] = authority.bundle
        options += ["--cert", str(tmp_path / "missing.pem")]
    with serve(published, tls=authority.ask_clients()) as url:
        done = pip("install", "-i", url, *options, "--target", target, "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == CHOSEN


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--cert", "--client-cert"])
@pytest.mark.parametrize(
    "case",
    [
        ("option", None),
        ("variable", ""),
        ("file", "no certificate"),
        ("option", "directory"),
        ("credentials", None),
        ("credentials", ""),
    ],
)
def test_certificates_that_cannot_be_loaded(
    option: str,
    case: tuple[str, str | None],
    pip: Pip,
    authority: Authority,
    tmp_path: Path,
) -> None:
    """pip ends if the file is missing, and else uses the next index."""
    (way, content), path = case, tmp_path / "given.pem"
    if content == "directory":
        path.mkdir()
    elif content is not None:
        path.write_text(content)
    words: list[str] = []
    name = option.strip("-")
    if way == "variable":
        pip.environ[f"PIP_{name.replace('-', '_').upper()}"] = str(path)
    elif way == "file":
        pip.environ["PIP_CONFIG_FILE"] = str(tmp_path / "pip.conf")
        (tmp_path / "pip.conf").write_text(f"[global]\n{name} = {path}\n")
    else:
        words += [option, str(path)]
    wheel = stub_wheel(tmp_path, "kern", "1.0")
    link = f'<!DOCTYPE html><a href="/{wheel.name}">{wheel.name}</a>'.encode()
    answers = {
        f"/{wheel.name}": Answer(body=wheel.read_bytes()),
        "/kern/": Answer(body=link, kind="text/html"),
    }
    with (
        serve(tmp_path, tls=authority.context) as url,
        serve_answers(answers) as second,
    ):
        first = with_credentials(url, QUOTED) if way == "credentials" else url
        words += ["--index-url", first, "--extra-index-url", second.url]
        words += ["--retries", "0", "--upgrade", "--target", str(tmp_path / "it")]
        alone = subprocess.run(
            [str(pip.python), "-m", "pip", "install", *words, "kern"],
            env=pip.environ,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=120,
        )
        done = pip("install", *words, "kern")
    assert alone.returncode == (1 if content is None else 0)
    assert done.code == alone.returncode, done.text
    assert "Traceback" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["option", "variable", pytest.param("file", marks=pytest.mark.slow)]
)
def test_proxy(way: str, pip: Pip, index: str, tmp_path: Path) -> None:
    target = tmp_path / "it"
    words = ["--index-url", f"http://{HOST}/", "--trusted-host", HOST]
    with serve_proxy(index) as proxy:
        if way == "option":
            words += ["--proxy", proxy.url]
        elif way == "variable":
            pip.environ["http_proxy"] = proxy.url
        else:
            file = tmp_path / "pip.conf"
            file.write_text(f"[global]\nproxy = {proxy.url}\n")
            pip.environ["PIP_CONFIG_FILE"] = str(file)
        done = pip("install", *words, "--target", target, "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == CHOSEN
    # Everything goes through the proxy, except requests to the local index.
    assert f"http://{HOST}/torch/" in proxy.asked
    assert all(url.startswith(f"http://{HOST}/") for url in proxy.asked)


@pytest.mark.parametrize(
    "name", ["NO_PROXY", pytest.param("no_proxy", marks=pytest.mark.slow)]
)
def test_a_server_that_needs_no_proxy(name: str, pip: Pip, tmp_path: Path) -> None:
    """requests prefers the lower case name, if both variables are set."""
    wheel = stub_wheel(tmp_path, "kern", "1.0")
    answers = {f"/{wheel.name}": Answer(body=wheel.read_bytes())}
    with serve_answers(answers) as server, serve_proxy(server.url) as proxy:
        near = server.url.replace("127.0.0.1", "127.1")
        link = f'<!DOCTYPE html><a href="{near}/{wheel.name}">{wheel.name}</a>'
        answers["/kern/"] = Answer(body=link.encode(), kind="text/html")
        pip.environ |= {"http_proxy": proxy.url, name: "127.1"}
        words = ["--index-url", f"http://{HOST}/", "--trusted-host", HOST]
        words += ["--trusted-host", "127.1"]
        done = pip("install", *words, "--target", tmp_path / "it", "kern")
    assert done.code == 0, done.text
    assert f"/{wheel.name} whole" in server.requests
    assert proxy.asked
    assert all(url.startswith(f"http://{HOST}/") for url in proxy.asked)


@pytest.mark.slow
def test_proxy_to_a_server_with_tls(
    pip: Pip, published: Path, authority: Authority, tmp_path: Path
) -> None:
    target = tmp_path / "it"
    with (
        serve(published, tls=authority.context) as url,
        serve_proxy(url) as proxy,
    ):
        done = pip(
            *("install", "--index-url", f"https://{HOST}/", "--target", target),
            *("--proxy", proxy.url, "--cert", authority.bundle, "torch"),
        )
    assert done.code == 0, done.text
    assert installed_labels(target) == CHOSEN
    assert set(proxy.asked) == {f"{HOST}:443"}
