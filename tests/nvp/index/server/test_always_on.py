"""``serve`` as a service: a socket that is handed over, ending by itself, units."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from support.processes import Done, provider
from support.serving import fetch, serving

from nvp.cli.service_unit import quote, settings

MACHINE = ("--cuda-driver", "12.9", "--sm-arch", "8.0")

posix = pytest.mark.skipif(os.name == "nt", reason="systemd hands sockets over")

_HAND_OVER = """
import os, sys
descriptor, number, process, *command = sys.argv[1:]
if descriptor != "-":
    os.dup2(int(descriptor), 3)
    os.set_inheritable(3, True)
os.environ["LISTEN_FDS"] = number
os.environ["LISTEN_PID"] = process or str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "nvp", *command])
"""


@contextmanager
def activated(
    descriptor: int | None,
    *words: object,
    environ: dict[str, str],
    number: str = "1",
    process: str = "",
) -> Iterator[subprocess.Popen[str]]:
    """Run ``serve`` with a descriptor as systemd hands it over."""
    shown = "-" if descriptor is None else str(descriptor)
    command = [sys.executable, "-c", _HAND_OVER, shown, number, process, "serve"]
    with subprocess.Popen(
        [*command, *map(str, words)],
        env=environ,
        pass_fds=() if descriptor is None else (descriptor,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def end(child: subprocess.Popen[str]) -> Done:
    out, err = child.communicate(timeout=60)
    return Done(child.returncode, out, err)


@pytest.mark.slow
@posix
def test_socket_is_taken_over_and_the_server_ends_when_idle(
    index: str, environ: dict[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/simple/torch/"
        # The second server answers after the first one has ended, as with systemd.
        for _ in range(2):
            words = ("-i", index, "--idle", 1, *MACHINE)
            with activated(listening.fileno(), *words, environ=environ) as child:
                status, _, body = fetch(url)
                done = end(child)
            assert (status, done.code, done.err) == (200, 0, "")
            assert b"torch-2.8.0" in body
            assert url.removesuffix("torch/") in done.out
            assert "It ends after 1 seconds without a request" in done.out


@pytest.mark.slow
@posix
def test_pip_that_is_configured_for_the_server_does_not_make_it_ask_itself(
    index: str, environ: dict[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        root = f"http://127.0.0.1:{listening.getsockname()[1]}"
        environ |= {"PIP_EXTRA_INDEX_URL": f"{root}/1/simple/"}
        words = ("-i", index, "--idle", 1, "--json", *MACHINE)
        with activated(listening.fileno(), *words, environ=environ) as child:
            assert fetch(f"{root}/simple/torch/")[0] == 200
            done = end(child)
        indexes = json.loads(done.out)["data"]["indexes"]
        assert [item["upstream"] for item in indexes] == [index]
        environ |= {"PIP_EXTRA_INDEX_URL": "", "PIP_INDEX_URL": f"{root}/simple/"}
        with activated(listening.fileno(), environ=environ) as child:
            done = end(child)
        assert done.code == 2
        assert "pip is configured for this server itself; give --index-url" in done.err


@posix
@pytest.mark.parametrize(
    ("number", "process", "message"),
    [
        ("one", "", "LISTEN_FDS: 'one' is not a number"),
        ("-1", "", "LISTEN_FDS: '-1' is not a number"),
        ("1", "me", "LISTEN_PID: 'me' is not a number"),
        ("2", "", "LISTEN_FDS: 2 sockets were handed over, but one can be used"),
    ],
)
def test_malformed_variables(
    number: str, process: str, message: str, index: str, environ: dict[str, str]
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        activated(
            *(listening.fileno(), "-i", index),
            environ=environ,
            number=number,
            process=process,
        ) as child,
    ):
        done = end(child)
    assert done.code == 3
    assert message in done.err


@posix
@pytest.mark.parametrize("kind", ["file", "datagram", "not listening", "unix", "none"])
def test_descriptor_that_is_no_listening_socket(
    kind: str, index: str, environ: dict[str, str], tmp_path: Path
) -> None:
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "socket"))
    unix.listen()
    with (
        (tmp_path / "file").open("w") as file,
        socket.socket(type=socket.SOCK_DGRAM) as datagram,
        socket.socket() as closed,
        unix,
    ):
        descriptors = {
            "file": file.fileno(),
            "datagram": datagram.fileno(),
            "not listening": closed.fileno(),
            "unix": unix.fileno(),
            "none": None,
        }
        with activated(descriptors[kind], "-i", index, environ=environ) as child:
            done = end(child)
    assert done.code == 3
    assert "LISTEN_FDS: descriptor 3 is not a" in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
@posix
def test_variables_for_another_process_do_not_count(
    index: str, environ: dict[str, str]
) -> None:
    words = ("-i", index, "--idle", 1, *MACHINE)
    with activated(None, *words, environ=environ, process="1") as child:
        done = end(child)
    assert (done.code, done.err) == (0, "")
    assert f"{index} is at http://127.0.0.1:" in done.out


@posix
def test_other_machines_must_be_allowed_on_a_handed_over_socket(
    index: str, environ: dict[str, str]
) -> None:
    with (
        socket.create_server(("0.0.0.0", 0)) as listening,
        activated(listening.fileno(), "-i", index, environ=environ) as child,
    ):
        done = end(child)
    assert done.code == 2
    assert "other machines can connect to 0.0.0.0" in done.err


@pytest.mark.slow
def test_ends_when_idle_without_a_handed_over_socket(
    index: str, environ: dict[str, str]
) -> None:
    with serving("-i", index, "--idle", 1, *MACHINE, environ=environ) as server:
        assert fetch(server.urls[0] + "torch/")[0] == 200
        _, said = server.process.communicate(timeout=60)
    assert (server.process.returncode, said) == (0, "")


@pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None, reason="there is no systemd"
)
def test_systemd_starts_it_at_the_first_request(
    index: str, environ: dict[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["systemd-socket-activate", f"--listen=127.0.0.1:{port}"]
    command += [f"--setenv={name}" for name in environ]
    command += [sys.executable, "-m", "nvp", "serve"]
    with subprocess.Popen(
        [*command, "-i", index, "--idle", "1", *MACHINE],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as child:
        try:
            status = fetch_when_up(f"http://127.0.0.1:{port}/simple/torch/", child)
            done = end(child)
        finally:
            child.kill()
    assert (status, done.code) == (200, 0)
    assert "is at http://127.0.0.1:" in done.out


def fetch_when_up(url: str, child: subprocess.Popen[str]) -> int:
    """Fetch ``url`` as soon as the process listens."""
    until = time.monotonic() + 60
    while child.poll() is None and time.monotonic() < until:
        with suppress(ConnectionRefusedError):
            return fetch(url)[0]
    raise AssertionError("nothing listens")


def parts_of(text: str) -> dict[str, str]:
    """Return the unit files in what ``serve --unit`` prints."""
    found: dict[str, list[str]] = {}
    name = None
    for line in text.splitlines():
        if line.startswith("# ~/"):
            name = line.rpartition("/")[2]
            found[name] = []
        elif name and not line.startswith("#"):
            found[name].append(line)
    return {name: "\n".join(lines) + "\n" for name, lines in found.items()}


class TestUnit:
    def test_text_and_json(
        self, environ: dict[str, str], report_schema: Draft202012Validator
    ) -> None:
        words = ("--unit", "-i", "https://wheels.example/simple/", *MACHINE)
        done = provider("serve", *words, environ=environ)
        assert (done.code, done.err) == (0, "")
        setting = "pip config --user set global.index-url http://127.0.0.1:8642/simple/"
        assert setting in done.out
        parts = parts_of(done.out)
        assert set(parts) == {
            "nvidia-variant-provider.socket",
            "nvidia-variant-provider.service",
        }
        report = json.loads(provider("serve", *words, "--json", environ=environ).out)
        report_schema.validate(report)
        texts = {
            Path(unit["path"]).name: unit["text"].strip()
            for unit in report["data"]["units"]
        }
        assert texts == {name: text.strip() for name, text in parts.items()}

    def test_service_runs_with_the_options_of_the_user(
        self, environ: dict[str, str], tmp_path: Path
    ) -> None:
        words = ("-i", tmp_path, "--idle", "30", "--every-gpu", "--label", "cu126")
        done = provider("serve", "--unit", *words, *MACHINE, environ=environ)
        (line,) = (li for li in done.out.splitlines() if li.startswith("ExecStart="))
        assert line == (
            f"ExecStart={sys.executable} -m nvp serve --idle 30 "
            f"--index-url {tmp_path} --label cu126 --cuda-driver 12.9 --sm-arch 8.0 "
            "--every-gpu"
        )

    def test_credentials_are_not_printed(self, environ: dict[str, str]) -> None:
        url = "https://somebody:S3cret@wheels.example/simple/"
        done = provider("serve", "--unit", "-i", url, environ=environ)
        assert done.code == 0
        assert "S3cret" not in done.text
        assert "the units do not have its credentials" in done.err

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("--port", "0"), "--port: 0 is not a fixed port"),
            (("--port", "70000"), "--port: 70000 is not a fixed port"),
            (("--host", "0.0.0.0"), "other machines can connect to 0.0.0.0"),
            (("--idle", "0"), "--idle: 0 is not a number of seconds"),
            (("-i", "http://localhost:8642/simple/"), "for this server itself"),
        ],
    )
    def test_bad_options(
        self, words: Sequence[str], message: str, environ: dict[str, str]
    ) -> None:
        index = ("-i", "https://wheels.example/simple/")
        done = provider("serve", "--unit", *index, *words, environ=environ)
        assert done.code == 2
        assert message in done.err

    @pytest.mark.skipif(
        shutil.which("systemd-analyze") is None, reason="there is no systemd"
    )
    def test_systemd_accepts_the_units(
        self, environ: dict[str, str], tmp_path: Path
    ) -> None:
        odd = tmp_path / 'a "folder" of 100 % $HOME'
        odd.mkdir()
        done = provider("serve", "--unit", "-i", odd, environ=environ)
        for name, text in parts_of(done.out).items():
            (tmp_path / name).write_text(text)
        checked = subprocess.run(
            ["systemd-analyze", "verify", "--user", "--recursive-errors=no"]
            + [str(tmp_path / name) for name in parts_of(done.out)],
            env={**environ, "XDG_RUNTIME_DIR": str(tmp_path)},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert "nvidia-variant-provider" not in checked.stderr, checked.stderr


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("plain-1.0", "plain-1.0"),
        ("https://wheels.example/a%20b/", '"https://wheels.example/a%%20b/"'),
        ('a "b" $c \\', '"a \\"b\\" $$c \\\\"'),
        ("it's", '"it\'s"'),
        ("", '""'),
    ],
)
def test_words_are_quoted_as_systemd_reads_them(word: str, quoted: str) -> None:
    assert quote(word) == quoted


def test_uv_asks_the_first_index_first() -> None:
    assert settings(["http://a/", "http://b/"])["uv"] == [
        *("[[index]]", 'url = "http://a/"'),
        *("[[index]]", 'url = "http://b/"', "default = true"),
    ]
