"""What ``serve`` says at its end of the files of a project that keep its URLs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv
from support.builds import gpu_build, metadata
from support.index_server import serve
from support.processes import Environment
from support.serving import serving
from support.wheels import publish, stub_wheel, write_page

from nvp.index.server.kept_urls import find_kept_urls

OURS = "http://127.0.0.1:8642/simple/"

PROJECT = """\
[project]
name = "it"
version = "1"
requires-python = ">=3.10,<4"
dependencies = []
"""


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "text", "line", "advice"),
        [
            ("requirements.txt", f"a==1\n--index-url {OURS}\n", 2, "no-emit-index-url"),
            ("dev-requirements.txt", f"-i {OURS}\n", 1, "--no-emit-index-url"),
            ("requirements.txt", f"#  pip-compile -i {OURS}\na==1\n", None, ""),
            ("requirements.txt", "-i http://127.0.0.1:86421/simple/\n", None, ""),
            ("requirements.txt", "-i http://127.0.0.1:3141/root/pypi/\n", None, ""),
            ("notes.txt", f"-i {OURS}\n", None, ""),
            (
                "pyproject.toml",
                f'[project]\n[[tool.uv.index]]\nurl = "{OURS}"\n',
                3,
                "uv lock --default-index",
            ),
            (
                "pyproject.toml",
                f'[[tool.poetry.source]]\nname = "v"\nurl = "{OURS}"\n',
                3,
                "poetry source remove",
            ),
            (
                "pyproject.toml",
                '[[tool.pdm.source]]\nurl = "http://localhost:8642/simple"\n',
                2,
                "pdm config",
            ),
            ("uv.lock", f'source = {{ registry = "{OURS}" }}\n', None, ""),
            ("uv.lock", 'url = "http://127.0.0.1:8642/f/a/-/1/a.whl"\n', 1, "port"),
            ("pylock.gpu.toml", f'index = "{OURS}"\n', None, ""),
            ("pylock.toml", 'url = "http://127.0.0.1:8642/1/f/a/x/1/a"\n', 1, "port"),
            ("poetry.lock", 'url = "http://127.0.0.1:8642/simple"\n', 1, "poetry lock"),
            ("pdm.lock", 'url = "http://127.0.0.1:8642/f/a/-/1/a.whl"\n', 1, "static"),
            ("Pipfile", f'[[source]]\nurl = "{OURS}"\n', 2, "--pypi-mirror"),
            ("Pipfile.lock", f'{{"url": "{OURS}"}}\n', 1, "--pypi-mirror"),
        ],
    )
    def test_line_and_advice(
        self, name: str, text: str, line: int | None, advice: str, tmp_path: Path
    ) -> None:
        (tmp_path / name).write_text(text)
        found = list(find_kept_urls(tmp_path, [OURS]))
        assert [kept.line for kept in found] == ([] if line is None else [line])
        assert all(advice in kept.advice for kept in found)

    def test_a_file_that_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "requirements.txt").write_bytes(b"\xff\xfe\x00")
        (tmp_path / "uv.lock").mkdir()
        assert not list(find_kept_urls(tmp_path, [OURS]))


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("kept")
    stub_wheel(folder / "helper", "helper", "1.0")
    write_page(folder / "helper")
    publish(folder, metadata({"cu126": gpu_build("12.6")}), "torch", "1.0")
    with serve(folder) as url:
        yield url


def stop_after(
    upstream: str, environ: dict[str, str], folder: Path, *commands: list[object]
) -> list[str]:
    """Run commands in a directory; return what ``serve`` says there when it stops."""
    options = ("-i", upstream, "--cuda-driver", "12.9", "--sm-arch", "8.0")
    with serving(*options, environ=environ, cwd=folder) as server:
        for command in commands:
            words = [server.urls[0] if x == "URL" else str(x) for x in command]
            done = subprocess.run(
                words,
                env=environ,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
        code, said = server.stop(signal.SIGTERM)
    assert code == 0
    return [line for line in said.splitlines() if "server" in line]


@pytest.fixture
def project(environ: dict[str, str], tmp_path: Path) -> Path:
    """Return the directory of a project that requires nothing."""
    environ |= {
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "UV_PYTHON": sys.executable,
        "POETRY_CACHE_DIR": str(tmp_path / "poetry"),
        "POETRY_KEYRING_ENABLED": "false",
        "PIPENV_VENV_IN_PROJECT": "1",
        "PIPENV_PYTHON": sys.executable,
    }
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder


posix = pytest.mark.skipif(
    sys.platform == "win32", reason="the signals are those of POSIX"
)
UV = uv.find_uv_bin()
LOCK = [UV, "lock", "--default-index", "URL"]
COMPILE = [UV, "pip", "compile", "--no-config", "--default-index", "URL"]
COMPILE += ["pyproject.toml", "-o", "requirements.txt"]


@posix
@pytest.mark.parametrize(
    ("requires", "commands", "named"),
    [
        ("helper", [LOCK], []),
        pytest.param(
            *("", [[UV, "add", "--frozen", "helper"], LOCK], []),
            marks=pytest.mark.slow,
        ),
        ("", [[UV, "add", "--no-sync", *LOCK[2:], "helper"]], ["pyproject.toml"]),
        # The variants have URLs of the server alone.
        ("torch", [LOCK], ["uv.lock"]),
        pytest.param("torch", [COMPILE], [], marks=pytest.mark.slow),
        ("helper", [[*COMPILE, "--emit-index-url"]], ["requirements.txt"]),
    ],
)
def test_uv(
    requires: str,
    commands: list[list[object]],
    named: list[str],
    *,
    upstream: str,
    environ: dict[str, str],
    project: Path,
) -> None:
    text = PROJECT.replace("[]", f'["{requires}"]' if requires else "[]")
    (project / "pyproject.toml").write_text(text)
    said = stop_after(upstream, environ, project, *commands)
    assert [line.partition(",")[0] for line in said] == named


@posix
def test_a_lock_elsewhere_is_thought_of(
    upstream: str, environ: dict[str, str], project: Path
) -> None:
    """A directory without locked files does not tell what the server was used for."""
    words = ["pip", "install", "--no-config", "--default-index", "URL", "torch"]
    said = stop_after(upstream, environ, project, [UV, *words, "--target", "x"])
    assert said == [
        "A lock file with URLs of this server needs it again, at the same port; it may "
        "have them of torch (variants)"
    ]


@posix
@pytest.mark.slow
def test_pip_compile(
    upstream: str, pip_tools: Environment, environ: dict[str, str], project: Path
) -> None:
    program = [pip_tools.python, "-m", "piptools", "compile", "-i", "URL"]
    (project / "requirements.in").write_text("helper\n")
    options = ["--no-emit-index-url", "requirements.in"]
    assert stop_after(upstream, environ, project, [*program, *options]) == []
    (said,) = stop_after(upstream, environ, project, [*program, "requirements.in"])
    assert said.startswith("requirements.txt, line ")
    assert said.endswith("remove the line, or compile with --no-emit-index-url")


@posix
@pytest.mark.slow
def test_pipenv(
    upstream: str, pipenv: Environment, environ: dict[str, str], project: Path
) -> None:
    program = [pipenv.python, "-m", "pipenv"]
    # pipenv writes a Pipfile with PyPI as its source, for which the mirror stands.
    mirror = [*program, "install", "--pypi-mirror", "URL", "helper"]
    assert stop_after(upstream, environ, project, mirror) == []
    assert '"version": "==1.0"' in (project / "Pipfile.lock").read_text()
    install = [*program, "install", "-i", "URL", "helper"]
    (project / "Pipfile").unlink()
    said = stop_after(upstream, environ, project, install)
    assert [line.partition(",")[0] for line in said] == ["Pipfile", "Pipfile.lock"]


@posix
@pytest.mark.slow
def test_poetry(
    upstream: str, poetry: Environment, environ: dict[str, str], project: Path
) -> None:
    program = [poetry.python, "-m", "poetry", "-n"]
    text = PROJECT + "[tool.poetry]\npackage-mode = false\n"
    (project / "pyproject.toml").write_text(text)
    source = [*program, "source", "add", "--priority=primary", "variants", "URL"]
    add = [*program, "add", "--lock", "helper"]
    said = stop_after(upstream, environ, project, source, add)
    assert [line.partition(",")[0] for line in said] == [
        "poetry.lock",
        "pyproject.toml",
    ]
