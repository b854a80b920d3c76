"""Fixtures of the tests of ``pip`` and ``serve``: real pips, and an index of stubs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.tags import platform_tags
from support.builds import TORCH, gpu_build, metadata
from support.documents import TORCH as DOCUMENT
from support.index_server import serve
from support.loopback import Running, answers_of, start
from support.processes import (
    PIPS,
    Environment,
    Pip,
    clean_environ,
    make_environment,
)
from support.range_server import RangeServer, serve_answers
from support.shared import shared_folder
from support.wheels import publish, stub_wheel, variants_json_name, write_page


@pytest.fixture(scope="session")
def pips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Environment]:
    """Return an environment for each version of pip; no test may change them."""

    def fill(folder: Path) -> None:
        for version in PIPS:
            make_environment(folder / version, f"pip=={version}")

    folder = shared_folder(tmp_path_factory, "pips", fill)
    return {version: Environment(folder / version) for version in PIPS}


@pytest.fixture(scope="session")
def poetry(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with poetry."""

    def fill(folder: Path) -> None:
        make_environment(folder, "poetry==2.5.1")

    return Environment(shared_folder(tmp_path_factory, "poetry", fill))


@pytest.fixture(scope="session")
def pip_tools(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with pip-tools."""

    def fill(folder: Path) -> None:
        make_environment(folder, "pip-tools==7.6.2")

    return Environment(shared_folder(tmp_path_factory, "pip-tools", fill))


@pytest.fixture(scope="session")
def pipenv(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with pipenv."""

    def fill(folder: Path) -> None:
        make_environment(folder, "pipenv==2026.10.3")

    return Environment(shared_folder(tmp_path_factory, "pipenv", fill))


@pytest.fixture(scope="session")
def pdm(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with pdm."""

    def fill(folder: Path) -> None:
        # Newer versions of these two have other modules, and another httpx.
        make_environment(folder, "pdm==2.22.4", "hishel<0.1", "unearth<0.18")

    return Environment(shared_folder(tmp_path_factory, "pdm", fill))


@pytest.fixture
def fresh(pips: dict[str, Environment], tmp_path: Path) -> Callable[[str], Environment]:
    """Return a function that makes an environment with a version of pip."""

    def make(version: str) -> Environment:
        folder = tmp_path / f"pip-{version}"
        shutil.copytree(pips[version].folder, folder, symlinks=True)
        return Environment(folder)

    return make


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of `index`, which no test may change.

    Each build of ``torch`` needs another runtime.
    """
    return shared_folder(tmp_path_factory, "published", publish_all)


def publish_all(folder: Path) -> None:
    """Fill the directory of `index`."""
    runtimes = {"cu126": ["runtime==12.6"], "cu130": ["runtime==13.0"]}
    extra = ['helper; extra == "fast"']
    labels = (None, *TORCH["variants"])
    requires = {label: [*runtimes.get(label or "", ()), *extra] for label in labels}
    for version in ("2.7.0", "2.8.0"):
        publish(folder, TORCH, "torch", version, requires=requires, extras=("fast",))
    for name, version in (("runtime", "12.6"), ("runtime", "13.0"), ("helper", "1.0")):
        stub_wheel(folder / name, name, version)
        write_page(folder / name)
    # The wheels are only for this platform; the best one is in the middle by name.
    builds = {"a120": gpu_build("12.0"), "b126": gpu_build("12.6"), "null": {}}
    here = f"py3-none-{next(platform_tags())}"
    for label in (None, *builds):
        stub_wheel(
            folder / "narrow",
            "narrow",
            "1.0",
            label,
            variant_json=metadata({label: builds[label]}) if label else None,
            tag=here,
            requires=["helper"] if label == "b126" else [],
        )
    # The variant is for any platform; the others require another runtime than it.
    mixed, native = folder / "mixed", f"cp3{sys.version_info[1]}-none-{here[9:]}"
    document = metadata({"b126": builds["b126"]})
    stub_wheel(mixed, "mixed", "1.0", "b126", variant_json=document)
    for tag in ("py3-none-any", native):
        stub_wheel(mixed, "mixed", "1.0", tag=tag, requires=["runtime==13.0"])
    (mixed / variants_json_name("mixed", "1.0")).write_text(json.dumps(document))
    path = folder / "narrow" / variants_json_name("narrow", "1.0")
    path.write_text(json.dumps(metadata(builds)))
    write_page(folder / "narrow")
    write_page(mixed)
    write_page(folder)


@pytest.fixture(scope="session")
def index(published: Path) -> Iterator[str]:
    """Return the URL of an index in HTML."""
    with serve(published) as url:
        yield url


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return environment variables that configure no installer."""
    return clean_environ(tmp_path / "home")


@pytest.fixture
def pip_of(
    pips: dict[str, Environment], environ: dict[str, str]
) -> Callable[[str], Pip]:
    """Return a function that returns a version of pip, to be left unchanged."""
    return lambda version: Pip(pips[version].python, environ)


@pytest.fixture
def pip(pip_of: Callable[[str], Pip]) -> Pip:
    """Return the newest pip."""
    return pip_of(PIPS[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index in a directory."""
    found = tmp_path_factory.mktemp("index")
    publish(found, DOCUMENT, "torch", "2.8.0")
    (found / "secret.txt").write_text("hidden words")
    return found


@pytest.fixture(scope="module")
def upstream(folder: Path) -> Iterator[RangeServer]:
    """Return a server with that index, which records its requests."""
    with serve_answers(answers_of(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def running(upstream: RangeServer) -> Iterator[Running]:
    """Return a local index for `upstream`."""
    with start(f"{upstream.url}/simple/") as found:
        yield found


@pytest.fixture(scope="module")
def local(folder: Path) -> Iterator[Running]:
    """Return a local index for `folder` itself."""
    with start(str(folder)) as found:
        yield found


@pytest.fixture
def no_noise(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Check that no request makes the server print a traceback."""
    yield
    assert "Traceback" not in capfd.readouterr().err
