"""``serve``: the URLs in the lock files of other installers, and their validity."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import uv
from packaging.tags import platform_tags
from support.builds import gpu_build, metadata
from support.index_server import serve
from support.processes import Environment, clean_environ
from support.serving import Serving, fetch, serving
from support.wheels import publish, stub_sdist, stub_wheel, write_page

MACHINE = ("--cuda-driver", "12.9", "--sm-arch", "8.0")


class Served(NamedTuple):
    """An index with its URL, and the server in front of it."""

    upstream: str
    server: Serving

    def shown(self, text: str) -> str:
        """Return a lock file with names for the two servers."""
        here = self.server.urls[0].removesuffix("simple/")
        return text.replace(self.upstream, "UPSTREAM/").replace(here, "SERVE/")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve builds with local labels, a regular wheel, and variants."""
    folder = tmp_path_factory.mktemp("locks")
    for version in ("1.0+cu126", "2.0+cu130", "2.0+cpu"):
        stub_wheel(folder / "demo", "demo", version, tag=HERE, requires=["helper"])
    stub_wheel(folder / "helper", "helper", "1.0")
    publish(folder, metadata({"cu126": gpu_build("12.6")}), "torch", "1.0")
    for name in ("demo", "helper"):
        write_page(folder / name)
    environ = clean_environ(tmp_path_factory.mktemp("server"))
    with (
        serve(folder) as upstream,
        serving("-i", upstream, *MACHINE, environ=environ) as server,
    ):
        yield Served(upstream, server)


PROJECT = """\
[project]
name = "it"
version = "1"
requires-python = ">=3.10,<4"
dependencies = ["demo", "torch"]
"""

HERE = f"py3-none-{next(platform_tags())}"

REAL = [
    f"UPSTREAM/demo/demo-1.0+cu126-{HERE}.whl",
    "UPSTREAM/helper/helper-1.0-py3-none-any.whl",
    "UPSTREAM/torch/torch-1.0-py3-none-any.whl",
]
"""The files that keep their own URLs: a build, a regular wheel, a non-variant one."""


@pytest.fixture
def project(environ: dict[str, str], tmp_path: Path) -> Path:
    """Return the directory of a project, without the index that it uses."""
    environ |= {
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "UV_PYTHON": sys.executable,
        "POETRY_CACHE_DIR": str(tmp_path / "poetry"),
        "POETRY_VIRTUALENVS_USE_POETRY_PYTHON": "true",
        "POETRY_KEYRING_ENABLED": "false",
        "PDM_CACHE_DIR": str(tmp_path / "pdm"),
        "PDM_CHECK_UPDATE": "false",
        "PDM_PYTHON": sys.executable,
    }
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def run(environ: dict[str, str], cwd: Path, *words: object) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        env=environ,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def real_urls(text: str) -> list[str]:
    """Return the URLs of wheels of the upstream that a lock file records."""
    words = {word for word in text.split('"') if word.endswith(".whl")}
    return sorted(word for word in words if word.startswith("UPSTREAM/"))


def own_urls(text: str) -> set[str]:
    """Return the URLs of wheels of the server that a lock file records."""
    words = {word for word in text.split('"') if word.endswith(".whl")}
    return {word.split("/")[2] for word in words if word.startswith("SERVE/f/")}


def test_uv_lock_and_export(
    served: Served, environ: dict[str, str], project: Path
) -> None:
    url = served.server.urls[0]
    source = f'[[tool.uv.index]]\nurl = "{url}"\ndefault = true\n'
    (project / "pyproject.toml").write_text(PROJECT + source)
    run(environ, project, uv.find_uv_bin(), "lock")
    lock = served.shown((project / "uv.lock").read_text())
    words = ("export", "--frozen", "--no-emit-project", "--format", "pylock.toml")
    exported = served.shown(run(environ, project, uv.find_uv_bin(), *words))
    for text in (lock, exported):
        assert real_urls(text) == REAL
        # The label is in the path, and a lock made elsewhere gets a reason.
        assert own_urls(text) == {"torch"}
    # uv records the given index next to the files.
    assert lock.count('registry = "SERVE/simple/"') == 3
    assert exported.count('index = "SERVE/simple/"') == 3


def test_uv_locks_no_release_that_runs_on_another_platform_only(
    environ: dict[str, str], project: Path, tmp_path: Path
) -> None:
    """uv locks one version for all platforms, if one of its files is not yanked."""
    folder = tmp_path / "index"
    tags = (HERE, "py3-none-win_amd64", "py3-none-macosx_14_0_arm64")
    for version in ("2.1.0", "2.11.0"):
        for tag in tags:
            stub_wheel(folder / "torch", "torch", version, tag=tag)
    write_page(folder / "torch")
    page = folder / "torch" / "index.html"
    # Without a hash, the table of builds knows torch by its version.
    page.write_text(re.sub("#sha256=[0-9a-f]+", "", page.read_text()))
    with (
        serve(folder) as upstream,
        serving("-i", upstream, *MACHINE, environ=environ) as server,
    ):
        source = f'[[tool.uv.index]]\nurl = "{server.urls[0]}"\ndefault = true\n'
        text = PROJECT.replace('"demo", "torch"', '"torch"') + source
        (project / "pyproject.toml").write_text(text)
        run(environ, project, uv.find_uv_bin(), "lock")
        _, said = server.stop(signal.SIGTERM)
    lock = (project / "uv.lock").read_text()
    assert 'name = "torch"\nversion = "2.1.0"\n' in lock
    assert "torch 2.1.0 (CUDA 12.1) is the newest shown: 2.11.0 needs a driver" in said


def test_uv_pip_compile(served: Served, environ: dict[str, str], project: Path) -> None:
    (project / "it.in").write_text("demo\ntorch\n")
    words = ("pip", "compile", "--no-config", "--default-index", served.server.urls[0])
    program = uv.find_uv_bin()
    form = ("--format", "pylock.toml")
    text = served.shown(run(environ, project, program, *words, *form, "it.in"))
    assert real_urls(text) == REAL
    assert own_urls(text) == {"torch"}
    assert "index = " not in text
    form = ("--generate-hashes", "--emit-index-url")
    text = served.shown(run(environ, project, program, *words, *form, "it.in"))
    # Requirements have no URLs of files, and name the index only with an option.
    assert "--index-url SERVE/simple/" in text
    assert "SERVE/f/" not in text
    assert text.count("--hash=sha256:") >= 4


def test_a_lock_of_uv_outlives_the_server(
    served: Served, environ: dict[str, str], project: Path
) -> None:
    """Without variants, an installation from the lock file does not need the server."""
    target = project / ".venv"
    with serving("-i", served.upstream, *MACHINE, environ=environ) as server:
        source = f'[[tool.uv.index]]\nurl = "{server.urls[0]}"\ndefault = true\n'
        text = PROJECT.replace('"demo", "torch"', '"demo"') + source
        (project / "pyproject.toml").write_text(text)
        run(environ, project, uv.find_uv_bin(), "lock")
    assert server.process.wait(60) != 0
    run(environ, project, uv.find_uv_bin(), "sync", "--frozen", "--no-cache")
    assert Environment(target).labels() == {
        "demo": "1.0+cu126 None",
        "helper": "1.0 None",
    }


@pytest.mark.slow
def test_poetry_lock(
    served: Served, poetry: Environment, environ: dict[str, str], project: Path
) -> None:
    """Poetry records the index, and the names and hashes of files, but not their
    URLs."""
    source = (
        "[tool.poetry]\npackage-mode = false\n[[tool.poetry.source]]\n"
        f'name = "variants"\nurl = "{served.server.urls[0]}"\npriority = "primary"\n'
    )
    (project / "pyproject.toml").write_text(PROJECT + source)
    run(environ, project, poetry.python, "-m", "poetry", "-n", "lock")
    text = served.shown((project / "poetry.lock").read_text())
    assert text.count('url = "SERVE/simple"') == 3
    assert "http://" not in text
    for url in REAL:
        assert f'file = "{url.rpartition("/")[2]}", hash = "sha256:' in text


@pytest.mark.slow
def test_pdm_lock(
    served: Served, pdm: Environment, environ: dict[str, str], project: Path
) -> None:
    """pdm records URLs with ``--static-urls`` only, and then those of the files.

    It has no files of a release with a local version label, with or without a server.
    """
    source = f'[[tool.pdm.source]]\nname = "pypi"\nurl = "{served.server.urls[0]}"\n'
    (project / "pyproject.toml").write_text(PROJECT + source)
    own = (pdm.python, "-m", "pdm", "lock")
    run(environ, project, *own)
    plain = served.shown((project / "pdm.lock").read_text())
    assert "http://" not in plain
    assert "SERVE" not in plain
    assert 'file = "helper-1.0-py3-none-any.whl", hash = "sha256:' in plain
    run(environ, project, *own, "--static-urls")
    text = served.shown((project / "pdm.lock").read_text())
    assert real_urls(text) == REAL[1:]
    assert own_urls(text) == {"torch"}


@pytest.fixture(scope="module")
def stepping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Serve a project whose two newest releases are not shown, sources included."""
    folder = tmp_path_factory.mktemp("stepping")
    releases: dict[str, list[str]] = {
        "4.0": ["nvidia-cuda-runtime==13.0.96"],
        "3.0": [],
        "2.0": ["nvidia-cuda-runtime-cu12==12.6.77"],
        "1.0": ["nvidia-cuda-runtime-cu12==12.6.77"],
    }
    for version, requires in releases.items():
        for tag in (HERE, "py3-none-win_amd64", "py3-none-macosx_14_0_arm64"):
            own = requires if tag == HERE else []
            stub_wheel(folder / "kernels", "kernels", version, tag=tag, requires=own)
        stub_sdist(folder / "kernels", "kernels", version)
    for name, version in (
        ("nvidia-cuda-runtime", "13.0.96"),
        ("nvidia-cuda-runtime-cu12", "12.6.77"),
    ):
        stub_wheel(folder / name, name, version)
    for name in ("kernels", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        write_page(folder / name)
    environ = clean_environ(tmp_path_factory.mktemp("server"))
    with (
        serve(folder) as upstream,
        serving("-i", upstream, *MACHINE, environ=environ) as server,
    ):
        yield server


ONE = PROJECT.replace('"demo", "torch"', '"kernels"')


def check_older(text: str) -> None:
    """Check that a lock has the release that runs, and no file of a newer one."""
    assert "kernels" in text
    assert "2.0" in text
    assert not re.findall(r"kernels[-=@ ]+[34][.]0", text)
    assert not re.findall(r"version = .[34][.]0", text)


@pytest.mark.parametrize("words", [["lock"], ["add", "--no-sync"]])
def test_uv_locks_no_source_of_what_is_passed_over(
    stepping: Serving, environ: dict[str, str], project: Path, words: list[str]
) -> None:
    text = ONE if words == ["lock"] else ONE.replace('"kernels"', "")
    (project / "pyproject.toml").write_text(text)
    more = [] if words == ["lock"] else ["kernels"]
    url = stepping.urls[0]
    run(environ, project, uv.find_uv_bin(), *words, "--default-index", url, *more)
    lock = (project / "uv.lock").read_text()
    check_older(lock)
    # The files of the release itself are there, for every platform.
    assert lock.count("/kernels-2.0") == 4


@pytest.mark.parametrize("form", ["pylock.toml", "requirements.txt"])
def test_uv_compiles_no_source_of_what_is_passed_over(
    stepping: Serving, environ: dict[str, str], project: Path, form: str
) -> None:
    (project / "it.in").write_text("kernels\n")
    words = ["pip", "compile", "--no-config", "--default-index", stepping.urls[0]]
    words += ["--universal"] if form == "pylock.toml" else ["--generate-hashes"]
    text = run(environ, project, uv.find_uv_bin(), *words, "--format", form, "it.in")
    check_older(text)
    assert text.count("--hash=" if form != "pylock.toml" else "kernels-2.0") >= 4


@pytest.mark.slow
def test_pip_compile_takes_no_source_of_what_is_passed_over(
    stepping: Serving,
    pip_tools: Environment,
    environ: dict[str, str],
    project: Path,
) -> None:
    (project / "it.in").write_text("kernels\n")
    words = ["compile", "--generate-hashes", "-i", stepping.urls[0], "it.in"]
    run(environ, project, pip_tools.python, "-m", "piptools", *words)
    text = (project / "it.txt").read_text()
    check_older(text)
    assert text.count("--hash=") >= 4


@pytest.mark.slow
def test_poetry_locks_no_source_of_what_is_passed_over(
    stepping: Serving, poetry: Environment, environ: dict[str, str], project: Path
) -> None:
    source = (
        "[tool.poetry]\npackage-mode = false\n[[tool.poetry.source]]\n"
        f'name = "variants"\nurl = "{stepping.urls[0]}"\npriority = "primary"\n'
    )
    (project / "pyproject.toml").write_text(ONE + source)
    run(environ, project, poetry.python, "-m", "poetry", "-n", "lock")
    text = (project / "poetry.lock").read_text()
    check_older(text)
    assert text.count('file = "kernels-2.0') == 4


@pytest.mark.slow
def test_pdm_locks_no_source_of_what_is_passed_over(
    stepping: Serving, pdm: Environment, environ: dict[str, str], project: Path
) -> None:
    source = f'[[tool.pdm.source]]\nname = "pypi"\nurl = "{stepping.urls[0]}"\n'
    (project / "pyproject.toml").write_text(ONE + source)
    run(environ, project, pdm.python, "-m", "pdm", "lock")
    text = (project / "pdm.lock").read_text()
    check_older(text)
    assert text.count('file = "kernels-2.0') == 4


@pytest.mark.slow
def test_the_line_is_true_for_clients_of_each_python(
    environ: dict[str, str], tmp_path: Path
) -> None:
    platform = HERE.removeprefix("py3-none-")
    folder = tmp_path / "index"
    releases: dict[str, dict[str, tuple[str | None, list[int]]]] = {
        "kernels": {
            "4.0": ("13.0.96", [13, 14]),
            "3.0": ("12.8.90", [12, 13]),
            "2.0": ("13.0.96", [11, 12]),
            "1.0": ("12.6.77", [10, 11]),
        },
        # The newest release for an older Python is no reason, regardless of its
        # requirements.
        "lagging": {"2.0": ("13.0.96", [12]), "1.0": ("12.6.77", [11])},
        "silent": {"2.0": ("13.0.96", [11]), "1.0": (None, [11])},
    }
    for project, by_version in releases.items():
        for version, (cuda, pythons) in by_version.items():
            name = f"nvidia-cuda-runtime-cu{(cuda or '')[:2]}"
            requires = [f"{name}=={cuda}"] if cuda else []
            for minor in pythons:
                tag = f"cp3{minor}-cp3{minor}-{platform}"
                stub_wheel(
                    folder / project, project, version, tag=tag, requires=requires
                )
            stub_sdist(folder / project, project, version)
        stub_sdist(folder / project, project, "0.5")
        write_page(folder / project)
    with (
        serve(folder) as upstream,
        serving("-i", upstream, *MACHINE, environ=environ) as server,
    ):
        for project in releases:
            fetch(f"{server.urls[0]}{project}/")
        url = server.urls[0]
        command = [uv.find_uv_bin(), *["pip", "compile", "--no-config", "--no-deps"]]
        command += ["--default-index", url, "it.in", "--python-version"]
        (tmp_path / "it.in").write_text("kernels")
        texts = [
            subprocess.run(
                [*command, f"3.{python}"],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            )
            for python in (13, 14)
        ]
        _, said = server.stop(signal.SIGTERM)
    assert "kernels==3.0" in texts[0].stdout
    # No source of an older release is built in place of a wheel that is passed over.
    assert texts[1].returncode == 1
    assert "kernels" not in texts[1].stdout
    why = "2.0 needs a driver for CUDA 13, but this one is for CUDA 12.9"
    lines = [line for line in said.splitlines() if "is the newest shown" in line]
    assert lines == [
        f"kernels 3.0 (CUDA 12.8) is the newest shown: {why.replace('2', '4', 1)}; for "
        "Python 3.10 to 3.11: 1.0 (CUDA 12.6); for Python 3.14: none",
        f"lagging 1.0 (CUDA 12.6) is the newest shown: {why}; for Python 3.12: none",
        f"silent 1.0 is the newest shown: {why}; 1.0 is not known to run here either",
    ]
