"""``validate URL``, ``inspect URL`` and ``pip`` connect as the user's pip does."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.authority import HOST, Authority
from support.index_server import serve
from support.keyring_program import write_keyring
from support.processes import PIPS, Done, Environment, provider
from support.processes import Pip as PipCommandLine
from support.proxy import serve_proxy
from support.range_server import Answer, serve_answers
from support.serving import fetch, serving
from support.wheels import write_index

from nvidia_variant_provider.errors import InputError
from nvp.index.http.blocking import BlockingClient
from nvp.index.http.client import Client
from nvp.index.http.logins import find_netrc
from nvp.index.pip.command import PipCommand, PipOptions
from nvp.index.pip.process import Pip
from nvp.index.pip.settings import Indexes, find_indexes, make_settings

USER, PASSWORD = "somebody", "S3cret%/@word"
PAIR = f"{USER}:{PASSWORD}"
QUOTED = f"{USER}:S3cret%25%2F%40word"
WHEEL = "torch/torch-2.8.0-py3-none-any-cu126.whl"

Read = Callable[..., Done]


def validate(index: str, environ: dict[str, str]) -> Done:
    """Validate the page of torch; findings other than NV100 do not matter here."""
    return provider("-vv", "validate", "--json", f"{index}torch/", environ=environ)


def inspect(index: str, environ: dict[str, str]) -> Done:
    """Inspect a wheel of torch."""
    return provider("-vv", "inspect", "--json", f"{index}{WHEEL}", environ=environ)


@pytest.fixture(params=[validate, pytest.param(inspect, marks=pytest.mark.slow)])
def read(request: pytest.FixtureRequest) -> Read:
    function: Read = request.param
    return function


def was_read(done: Done) -> bool:
    """Return whether the page or the wheel could be read."""
    data = json.loads(done.out).get("data") or {}
    if "files" in data:
        return bool(data["files"])
    return "findings" in data and "NV100" not in done.out and "NV411" not in done.out


def with_credentials(url: str, pair: str) -> str:
    return url.replace("://", f"://{pair}@")


def check(done: Done, *, works: bool = True) -> None:
    """Check that a URL was read, or not, and that nothing shows the password."""
    assert was_read(done) == works, done.text
    for secret in (PASSWORD, "S3cret"):
        assert secret not in done.text


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_credentials_in_the_url(
    read: Read, published: Path, environ: dict[str, str]
) -> None:
    with serve(published, credentials=PAIR) as url:
        check(read(with_credentials(url, QUOTED), environ))
        refused = read(with_credentials(url, f"{USER}:S3cret"), environ)
    check(refused, works=False)
    assert "HTTP 401" in refused.out


@pytest.mark.slow
def test_credentials_of_the_configured_index(
    read: Read, published: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    """pip uses the credentials of its index for other URLs of that index."""
    file = tmp_path / "pip.conf"
    with serve(published, credentials=PAIR) as url:
        file.write_text(f"[global]\nindex-url = {with_credentials(url, QUOTED)}\n")
        check(read(url, {**environ, "PIP_CONFIG_FILE": str(file)}))


@pytest.mark.slow
def test_netrc(read: Read, published: Path, environ: dict[str, str]) -> None:
    file = Path(environ["HOME"], ".netrc")
    file.write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}\n")
    file.chmod(0o600)
    with serve(published, credentials=PAIR) as url:
        check(read(url, environ))


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the program is a script")
def test_keyring(
    read: Read, published: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    with serve(published, credentials=PAIR) as url:
        programs = write_keyring(tmp_path / "programs", url, USER, PASSWORD)
        environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        environ["PIP_KEYRING_PROVIDER"] = "subprocess"
        check(read(with_credentials(url, USER), environ))


@pytest.mark.skipif(os.name == "nt", reason="the program is a script")
@pytest.mark.parametrize(
    ("variable", "of_pip", "status"),
    [
        *(("", "auto", 404), ("PIP", "subprocess", 200)),
        *(("UV", "auto", 200), ("UV", "disabled", 200)),
    ],
)
def test_serve_asks_a_keyring_first_only_if_it_is_chosen(
    variable: str, of_pip: str, status: int, environ: dict[str, str], tmp_path: Path
) -> None:
    """Other users can see the user name, perhaps a token, in a list of processes."""
    answers = {"/simple/torch/": Answer(body=b"<!DOCTYPE html>", kind="text/html")}
    with serve_answers(answers, others={"/simple/": "user:secret"}) as index:
        programs = write_keyring(tmp_path / "it", f"{index.url}/", "user", "secret")
        environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        environ["PIP_KEYRING_PROVIDER"] = of_pip
        environ[f"{variable}_KEYRING_PROVIDER"] = "subprocess"
        url = with_credentials(f"{index.url}/simple/", "user")
        with serving("-i", url, environ=environ) as server:
            assert fetch(f"{server.urls[0]}torch/")[0] == status


@pytest.mark.skipif(os.name == "nt", reason="the program is a script")
@pytest.mark.parametrize("path", ["absolute", os.curdir])
def test_no_keyring_of_the_current_directory_is_run(
    path: str,
    environ: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Windows, the program is looked up there first, and the URL may be from the
    lock file of a stranger."""
    url = "http://127.0.0.1:1/"
    programs = write_keyring(tmp_path / "programs", url, USER, PASSWORD)
    monkeypatch.chdir(programs)
    pip = Pip(
        sys.executable, {**environ, "PATH": path.replace("absolute", str(programs))}
    )
    options = PipOptions(keyring_provider="subprocess")
    command = PipCommand(command=None, options=options)
    found = pip.ask_credentials(with_credentials(url, USER), command)
    assert found == (USER, PASSWORD if path == "absolute" else "")


@pytest.mark.skipif(os.name == "nt", reason="the program is a script")
@pytest.mark.parametrize(
    "place", ["http://h.example:81/a/", "h.example:81", "http://h.example:81", "-"]
)
@pytest.mark.parametrize("path", ["absolute", os.curdir])
def test_without_a_pip_the_keyring_of_uv_is_asked(
    place: str,
    path: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    text = f"[ $1,$3 = get,me ] && [ $2 = {place} ] && echo word && exit; echo no >&2"
    (programs / "keyring").write_text(f"#!/bin/sh\n{text}; exit 1\n")
    (programs / "keyring").chmod(0o700)
    monkeypatch.chdir(programs)

    def refuse(*_: object) -> None:
        raise InputError("has no pip")

    monkeypatch.setattr(Pip, "understand", refuse)
    environ = {"PATH": path.replace("absolute", str(programs))}
    indexes = Indexes(url="http://me@h.example:81/a/", extra=["http://h.example:81/b/"])
    assert find_indexes(environ, indexes)[1] is None
    environ["UV_KEYRING_PROVIDER"] = "subprocess"
    ask = find_indexes(environ, indexes)[1]
    assert ask is not None
    is_found = path == "absolute" and place != "-"
    found = ask("http://me@h.example:81/a/torch/")
    assert found == (("me", "word") if is_found else None)
    assert ask("http://h.example:81/a/torch/") is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_private_certificate_authority(
    read: Read, published: Path, environ: dict[str, str], authority: Authority
) -> None:
    with serve(published, tls=authority.ask_clients()) as url:
        refused = read(url, environ)
        environ |= {"PIP_CERT": authority.bundle, "PIP_CLIENT_CERT": authority.client}
        check(read(url, environ))
    check(refused, works=False)
    assert "certificate verify failed" in refused.out.lower()


def test_the_certificates_of_the_system(
    published: Path, environ: dict[str, str], authority: Authority, tmp_path: Path
) -> None:
    """Like pip since 24.2, add those of an option to them."""
    (tmp_path / "other").mkdir()
    environ |= {
        "SSL_CERT_FILE": authority.bundle,
        "PIP_CERT": Authority(tmp_path / "other").bundle,
    }
    with serve(published, tls=authority.context) as url:
        check(validate(url, environ))
        environ["PIP_USE_DEPRECATED"] = "legacy-certs"
        check(validate(url, environ), works=False)


@pytest.mark.parametrize("version", PIPS)
def test_the_pips_that_accept_the_certificates_of_the_system(
    version: str, pips: dict[str, Environment], environ: dict[str, str]
) -> None:
    pip = Pip(str(pips[version].python), environ)
    assert pip.understand(["list"]).options.trusts_system == (version != PIPS[0])
    words = ["list", "--use-feature", "truststore"]
    assert pip.understand(words).options.trusts_system


def test_certificates_that_a_distribution_gives_to_its_pip(
    environ: dict[str, str],
    pips: dict[str, Environment],
    published: Path,
    authority: Authority,
) -> None:
    """Debian and Fedora replace the certificates of the pip that they include."""
    found = pips[PIPS[0]]
    command = Pip(str(found.python), environ).understand(["list"])
    path = found.packages / "pip" / "_vendor" / "certifi" / "cacert.pem"
    assert path.samefile(command.options.bundle or "")
    options = replace(command.options, bundle=authority.bundle)
    settings = make_settings(replace(command, options=options), environ)
    with (
        serve(published, tls=authority.context) as url,
        BlockingClient(lambda: Client(settings)) as reader,
    ):
        assert reader.read_page(f"{url}torch/").files


@pytest.mark.slow
def test_a_trusted_host(
    read: Read, published: Path, environ: dict[str, str], authority: Authority
) -> None:
    environ["PIP_TRUSTED_HOST"] = "127.0.0.1"
    with serve(published, tls=authority.context) as url:
        check(read(url, environ))


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["PIP_PROXY", "http_proxy"])
def test_a_proxy(
    variable: str, read: Read, index: str, environ: dict[str, str]
) -> None:
    with serve_proxy(index) as proxy:
        environ[variable] = with_credentials(proxy.url, QUOTED)
        check(read(f"http://{HOST}/", environ))
    assert proxy.asked
    assert all(url.startswith(f"http://{HOST}/torch/") for url in proxy.asked)


@pytest.mark.slow
def test_a_signed_url_is_not_shown(environ: dict[str, str], index: str) -> None:
    """The query of a signed URL is also a secret, even if the URL is invalid."""
    for name in (WHEEL, "torch/missing.whl"):
        url = f"{index}{name}?Signature=S3cret"
        done = provider("-vv", "inspect", url, environ=environ)
        assert "Signature=****" in done.text
        assert "S3cret" not in done.text


@pytest.mark.parametrize("name", ["mine", ".netrc", "_netrc"])
def test_the_netrc_file_is_the_one_that_requests_reads(
    name: str, tmp_path: Path
) -> None:
    environ = {"HOME": str(tmp_path)}
    if name == "mine":
        (tmp_path / ".netrc").write_text("default login other password b\n")
        environ["NETRC"] = str(tmp_path / name)
    url, command = "https://index.example/", PipCommand(command=None)
    settings = make_settings(command, environ)
    assert find_netrc(settings.netrc, url) is None
    # The file may be written after `serve` has started.
    (tmp_path / name).write_text("machine index.example login me password word\n")
    assert find_netrc(settings.netrc, url) == ("me", "word")
    settings = make_settings(command, {**environ, "NETRC": ""})
    assert find_netrc(settings.netrc, url) is None


@pytest.mark.parametrize("pair", [None, PAIR], ids=["open", "credentials"])
@pytest.mark.parametrize(
    "version", [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]
)
def test_pip_reads_a_page_itself_if_only_pip_trusts_the_host(
    version: str,
    pair: str | None,
    pip_of: Callable[[str], PipCommandLine],
    tmp_path: Path,
) -> None:
    """Otherwise, pip would install the file of the next index."""
    inner, outer = (write_index(tmp_path / v, "kern", v) for v in ("2.0", "1.0"))
    (Path(outer) / "needs.txt").write_text("--trusted-host 127.0.0.1\nkern\n")
    context = Authority(tmp_path).context
    with (
        serve(Path(inner), tls=context, credentials=pair) as first,
        serve(Path(outer)) as second,
    ):
        own = with_credentials(first, QUOTED) if pair else first
        words = ("-i", own, "--extra-index-url", second)
        more = ("-r", f"{second}needs.txt", "--platform", "manylinux_2_17_x86_64")
        dest = ("--retries", "0", "--no-deps", "--dest", tmp_path / "it")
        done = pip_of(version)("download", *words, *more, *dest)
    found = [path.name.split("-")[1] for path in (tmp_path / "it").glob("*")]
    assert (done.code, found) == (0, ["2.0"]), done.text
