"""``serve`` with other installers than pip."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uv
from packaging.tags import platform_tags
from support.builds import gpu_build, metadata
from support.index_server import serve
from support.processes import (
    PIPS,
    Done,
    Environment,
    clean_environ,
    installed_labels,
    make_environment,
    provider,
)
from support.serving import Serving, fetch, serving
from support.wheels import publish, stub_wheel, write_page

import nvidia_variant_provider
import nvp

CHOSEN = {"torch": "2.8.0 cu126", "runtime": "12.6 None"}
MACHINE = ("--cuda-driver", "12.9", "--sm-arch", "8.0")

LOCKS = (
    "A lock file with URLs of this server needs it again, at the same port; it may "
    "have them of "
)

posix = pytest.mark.skipif(os.name == "nt", reason="the signals are those of POSIX")


def run(environ: dict[str, str], *command: object, cwd: Path | None = None) -> Done:
    done = subprocess.run(
        [str(word) for word in command],
        env=environ,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def server(index: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    environ = clean_environ(tmp_path_factory.mktemp("server"))
    with serving("-i", index, *MACHINE, environ=environ) as value:
        yield value


def test_uv_without_preview(
    server: Serving, environ: dict[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "it"
    environ |= {"UV_CACHE_DIR": str(tmp_path / "cache"), "UV_PYTHON": sys.executable}
    words = ("pip", "install", "--no-config", "--default-index", server.urls[0])
    done = run(environ, uv.find_uv_bin(), *words, "--target", target, "torch[fast]")
    assert done.code == 0, done.text
    assert installed_labels(target) == {**CHOSEN, "helper": "1.0 None"}


@pytest.mark.slow
def test_uv_with_another_machine_of_the_same_cache(
    index: str, environ: dict[str, str], tmp_path: Path
) -> None:
    """Runs with the same port have the same URLs, so uv must not reuse its cache."""
    environ |= {"UV_CACHE_DIR": str(tmp_path / "cache"), "UV_PYTHON": sys.executable}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = []
    for cuda, sm in (("12.9", "8.0"), ("13.0", "12.0")):
        machine = ("--cuda-driver", cuda, "--sm-arch", sm)
        target = tmp_path / cuda
        with serving("-i", index, "--port", port, *machine, environ=environ) as server:
            words = ("--default-index", server.urls[0], "--target", target, "torch")
            done = run(
                environ, uv.find_uv_bin(), "pip", "install", "--no-config", *words
            )
        assert done.code == 0, done.text
        found.append(installed_labels(target))
    assert found == [CHOSEN, {"torch": "2.8.0 cu130", "runtime": "13.0 None"}]


@pytest.mark.slow
@posix
def test_choices_are_told_as_they_are_made(
    pips: dict[str, Environment],
    index: str,
    environ: dict[str, str],
    tmp_path: Path,
) -> None:
    """Each choice is printed once, for any number of clients."""
    extra = tmp_path / "extra"
    for label in ("1.0+cu126", "2.0+cu130", "2.0+cpu"):
        tag = f"py3-none-{next(platform_tags())}"
        stub_wheel(extra / "demo", "demo", label, tag=tag)
    write_page(extra / "demo")
    with (
        serve(extra) as second,
        serving(
            *("-i", index, "--extra-index-url", second, *MACHINE), environ=environ
        ) as server,
    ):
        one, two = server.urls
        words = [pips[PIPS[-1]].python, "-m", "pip", "download", "-q", "-i", one]
        words += ["--extra-index-url", two, "torch", "demo"]
        for number in (1, 2):
            done = run(environ, *words, "--dest", tmp_path / str(number))
            assert done.code == 0, done.text
        _, said = server.stop(signal.SIGTERM)
    assert sorted(said.splitlines()) == [
        f"{LOCKS}demo (METADATA that its index lacks), torch (variants)",
        "demo 1.0+cu126 (CUDA 12.6) is the newest shown: 2.0 needs a driver for CUDA "
        "13, but this one is for CUDA 12.9",
        "torch 2.8.0: variant cu126",
    ]


@pytest.mark.slow
def test_pip_and_several_indexes(
    index: str, environ: dict[str, str], pips: dict[str, Environment], tmp_path: Path
) -> None:
    target, extra = tmp_path / "it", tmp_path / "extra"
    publish(extra, metadata({"gpu": gpu_build("12.0")}), "other", "1.0")
    with (
        serve(extra) as second,
        serving(
            *("-i", index, "--extra-index-url", second, *MACHINE), environ=environ
        ) as server,
    ):
        one, two = server.urls
        done = run(
            environ,
            *(pips[PIPS[0]].python, "-m", "pip", "install", "-i", one, "torch"),
            *("--extra-index-url", two, "--target", target, "other"),
        )
    assert done.code == 0, done.text
    assert installed_labels(target) == {**CHOSEN, "other": "1.0 gpu"}


@pytest.mark.slow
def test_poetry(
    poetry: Environment, server: Serving, environ: dict[str, str], tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        f"""\
[project]
name = "it"
version = "1"
requires-python = ">=3.10,<4"
dependencies = ["mixed", "narrow", "torch"]

[tool.poetry]
package-mode = false

[[tool.poetry.source]]
name = "variants"
url = "{server.urls[0]}"
priority = "primary"
"""
    )
    environ |= {
        "POETRY_VIRTUALENVS_IN_PROJECT": "true",
        "POETRY_VIRTUALENVS_USE_POETRY_PYTHON": "true",
        "POETRY_CACHE_DIR": str(tmp_path / "cache"),
        "POETRY_KEYRING_ENABLED": "false",
    }
    program = (poetry.python, "-m", "poetry", "--no-interaction")
    for command in ("lock", "install"):
        done = run(environ, *program, command, cwd=project)
        assert done.code == 0, done.text
    # The dependencies are those of the builds, not of other wheels of the release.
    assert Environment(project / ".venv").labels() == {
        **CHOSEN,
        "narrow": "1.0 b126",
        "mixed": "1.0 b126",
        "helper": "1.0 None",
    }


@pytest.mark.slow
def test_pdm(
    pdm: Environment, server: Serving, environ: dict[str, str], tmp_path: Path
) -> None:
    """pdm takes the first of the wheels for any platform, and poetry the last."""
    project = tmp_path / "project"
    own = make_environment(project / ".venv")
    (project / "pyproject.toml").write_text(
        f"""\
[project]
name = "it"
version = "1"
requires-python = ">=3.10,<4"
dependencies = ["mixed", "narrow", "torch"]

[[tool.pdm.source]]
name = "pypi"
url = "{server.urls[0]}"
verify_ssl = true
"""
    )
    environ |= {
        "PDM_CACHE_DIR": str(tmp_path / "cache"),
        "PDM_CHECK_UPDATE": "false",
        "PDM_PYTHON": str(own.python),
    }
    command = (pdm.python, "-m", "pdm")
    for words in (["lock"], ["sync", "--no-self"]):
        done = run(environ, *command, *words, cwd=project)
        assert done.code == 0, done.text
    assert own.labels() == {
        **CHOSEN,
        "narrow": "1.0 b126",
        "mixed": "1.0 b126",
        "helper": "1.0 None",
    }


@posix
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        getattr(signal, "SIGHUP", None),
    ],
)
def test_signals_stop_it(
    number: signal.Signals, index: str, environ: dict[str, str]
) -> None:
    with serving("-i", index, *MACHINE, environ=environ) as server:
        assert fetch(server.urls[0] + "torch/")[0] == 200
        assert server.stop(number) == (0, f"{LOCKS}torch (variants)\n")
        with pytest.raises(ConnectionRefusedError):
            fetch(server.urls[0])


@pytest.mark.slow
def test_a_port_that_is_taken(index: str, environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = provider("serve", "-i", index, "--port", port, environ=environ)
    assert done.code == 3
    assert f"cannot listen on 127.0.0.1 port {port}" in done.err
    assert "choose another --port" in done.err
    for port in ("65536", "-1"):
        done = provider("serve", "-i", index, "--port", port, environ=environ)
        assert done.code == 2, done.text


def test_a_port_that_had_another_index(environ: dict[str, str]) -> None:
    """uv would install the wheels that it has cached from the other index."""
    told, port = [], 0  # any free port at first
    for name in "abb":
        words = ["-i", f"https://{name}.example/", "--port", port, *MACHINE]
        with serving(*words, environ=environ) as server:
            port = urlsplit(server.urls[0]).port or 0
            told.append("uv cache clean" in server.stop(signal.SIGINT)[1])
    assert told == [False, True, False]


def test_other_machines_can_connect_only_with_an_option(
    index: str, environ: dict[str, str]
) -> None:
    done = provider("serve", "-i", index, "--host", "0.0.0.0", environ=environ)
    assert done.code == 2
    assert "other machines can connect to 0.0.0.0" in done.err
    words = ("-i", index, "--host", "0.0.0.0", "--allow-remote")
    with serving(*words, environ=environ) as server:
        port = re.findall(r":(\d+)/", server.urls[0])[0]
        url = f"http://127.0.0.1:{port}/simple/torch/"
        assert fetch(url, headers={"Host": "some.name"})[0] == 200
        if os.name != "nt":
            code, said = server.stop(signal.SIGTERM)
            assert code == 0
            assert "everyone who can connect to this port reads the indexes" in said


@pytest.mark.slow
def test_an_index_that_is_the_server_itself_is_left_out(
    index: str, environ: dict[str, str]
) -> None:
    """If the server is a service, the configuration of pip has its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    root = f"http://127.0.0.1:{port}"
    words = ("-i", index, "--port", port, *MACHINE)
    own = environ | {"PIP_EXTRA_INDEX_URL": f"{root}/1/simple/"}
    with serving(*words, environ=own) as server:
        assert server.urls == [f"{root}/simple/"]
        assert fetch(f"{root}/simple/torch/")[0] == 200
    own = environ | {"PIP_INDEX_URL": f"{root}/simple/"}
    done = provider("serve", "--port", port, environ=own)
    assert done.code == 2
    assert "pip is configured for this server itself; give --index-url" in done.err


@pytest.mark.parametrize("words", [("--unit",), ("--idle", "600")])
def test_retired_options_are_unknown(
    words: Sequence[str], environ: dict[str, str]
) -> None:
    done = provider("serve", *words, environ=environ)
    assert done.code == 2
    assert words[0] in done.err


def read_lines(process: subprocess.Popen[str]) -> list[str]:
    """Read the text of ``serve``, up to its last line."""
    lines = []
    for line in process.stdout or ():
        lines.append(line.strip())
        if "Ctrl-C" in line:
            break
    return lines


@contextmanager
def serving_for_people(
    *arguments: object, environ: dict[str, str]
) -> Iterator[list[str]]:
    """Run ``serve`` without ``--json`` while the context lasts."""
    command = [sys.executable, "-m", "nvp", "serve"]
    with subprocess.Popen(
        [*command, *map(str, arguments)],
        env=environ,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            yield read_lines(process)
        finally:
            process.kill()


def test_text_for_people(index: str, environ: dict[str, str]) -> None:
    secret = index.replace("://", "://somebody:S3cret@")
    with serving_for_people("-i", secret, environ=environ) as lines:
        url = lines[0].rpartition(" is at ")[2]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/simple/", url)
    assert "S3cret" not in lines[0]
    assert lines[1:] == [
        f"pip:        pip install --index-url {url} torch",
        f"uv:         uv pip install --default-index {url} torch",
        f"poetry:     poetry source add --priority=primary variants {url}",
        f"pdm:        pdm config pypi.url {url}",
        f"containers: docker run --network host -e PIP_INDEX_URL={url} IMAGE",
        "Stop it with Ctrl-C.",
    ]


@pytest.mark.slow
def test_the_printed_commands_use_every_index(
    index: str, environ: dict[str, str], pips: dict[str, Environment], tmp_path: Path
) -> None:
    """The commands of pip and uv are run as they are printed.

    An old release in the second index must not hide the releases of the first one.
    """
    extra = tmp_path / "extra"
    stub_wheel(extra / "torch", "torch", "1.0")
    write_page(extra / "torch")
    publish(extra, metadata({"gpu": gpu_build("12.0")}), "other", "1.0")
    environ |= {"UV_CACHE_DIR": str(tmp_path / "cache"), "UV_PYTHON": sys.executable}
    with (
        serve(extra) as second,
        serving_for_people(
            *("-i", index, "--extra-index-url", second, *MACHINE), environ=environ
        ) as lines,
    ):
        one, two = (line.rpartition(" is at ")[2] for line in lines[:2])
        commands = [line.split(":", 1) for line in lines[2:-1]]
        programs = {
            "pip": [str(pips[PIPS[-1]].python), "-m", "pip"],
            "uv": [uv.find_uv_bin()],
        }
        for name, program in programs.items():
            (text,) = (text for key, text in commands if key == name)
            words = [*program, *shlex.split(text)[1:], "other"]
            target = tmp_path / name
            done = run(environ, *words, "--target", target, cwd=tmp_path)
            assert done.code == 0, done.text
            assert installed_labels(target) == {**CHOSEN, "other": "1.0 gpu"}
    assert [text.strip() for key, text in commands if key not in programs] == [
        f"poetry source add --priority=primary variants {one}",
        f"poetry source add --priority=primary variants-2 {two}",
        f"pdm config pypi.url {one}",
        f"pdm config pypi.variants-2.url {two}",
        f"docker run --network host -e PIP_INDEX_URL={one} "
        f"-e PIP_EXTRA_INDEX_URL='{two}' IMAGE",
    ]


@pytest.mark.slow
@posix
def test_without_pip(index: str, environ: dict[str, str], tmp_path: Path) -> None:
    """Without a pip, as for many users of uv, the options are enough."""
    bare, packages = make_environment(tmp_path / "bare"), tmp_path / "packages"
    packages.mkdir()
    for item in Path(pytest.__file__).parents[1].iterdir():
        if not item.name.startswith(("pip", "_", "nvidia_variant", "nvp")):
            (packages / item.name).symlink_to(item)
    for package in (nvidia_variant_provider, nvp):
        folder = Path(package.__path__[0])
        (packages / folder.name).symlink_to(folder)
    environ["PYTHONPATH"] = str(packages)
    words = ("-m", "nvp", "serve")
    # The pip that comes with Python itself reads the configuration.
    done = run({**environ, "PIP_NO_INDEX": "1"}, bare.python, *words)
    assert done.code == 2
    assert "there is no index to serve" in done.err
    with serving("-i", index, *MACHINE, environ=environ, python=bare.python) as server:
        status, _, body = fetch(server.urls[0] + "torch/")
    assert status == 200
    assert b"cu126-py3-none-any.whl" in body


def test_a_configuration_that_pip_refuses(
    environ: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("no section\n")
    environ["PIP_CONFIG_FILE"] = str(file)
    done = provider("serve", environ=environ)
    assert done.code == 2
    assert "there is no index to serve" in done.err
