"""Fixtures for all tests, and an environment that is the same on every machine."""

from __future__ import annotations

# ruff: noqa: E402
import os
import sys

# With this variable, each process of a run would compile all of its modules again.
# Tests start many processes, and pip alone has hundreds of modules.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import gc
import itertools
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from support.command import Outcome, Run
from support.native import compile_libraries
from support.paths import FIXTURES, SCHEMAS
from support.shared import shared_folder

from nvp.cli import main

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from referencing import Registry

# `tools` and `benchmarks` are not installed. At the end of the path, the checkout
# provides them, and the tests still import the installed package.
sys.path.append(str(Path(__file__).resolve().parents[1]))

# A shell makes programs in the background ignore this signal. Their children inherit
# this, so tests that send the signal to children would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.platform != "win32":
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:  # nohup; it goes on itself
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude the thousands of tests, which stay until the end, from garbage
    collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Use three workers for two cores, because many tests wait for other programs."""
    return max(1, (os.cpu_count() or 1) * 3 // 2)


# With the defaults of hypothesis, a slow test fails on a busy machine. The daily job
# tries many more examples than other runs.
settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=500 if os.environ.get("NVP_TEST_ALL") == "1" else 30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def empty_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield new directories.

    ``mktemp`` lists all earlier directories for each new one, which takes seconds in a
    run of 5,000 tests.
    """
    parent = tmp_path_factory.mktemp("empty")

    def folders() -> Iterator[Path]:
        for number in itertools.count():
            folder = parent / str(number)
            folder.mkdir()
            yield folder

    return folders()


@pytest.fixture(autouse=True)
def clean_environment(
    monkeypatch: pytest.MonkeyPatch, empty_folders: Iterator[Path]
) -> None:
    """Hide the machine's driver, overrides and ``variants.toml`` from the test."""
    for name in list(os.environ):
        if name.startswith("NV_VARIANT_PROVIDER_"):
            monkeypatch.delenv(name)
    empty = next(empty_folders)
    monkeypatch.setenv("NV_VARIANT_PROVIDER_SYSROOT", str(empty))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(empty))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(empty))
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty / "cache"))
    monkeypatch.chdir(empty)


@pytest.fixture
def fixtures() -> Path:
    """Return the directory ``fixtures/`` of the checkout."""
    return FIXTURES


@pytest.fixture
def torch(fixtures: Path) -> Path:
    """Return the path of the tutorial's metadata of torch 2.8.0."""
    return fixtures / "variants-json" / "torch-2.8.0-variants.json"


@pytest.fixture
def run(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line; a test module may name the command in ``COMMAND``."""
    command = [request.module.COMMAND] if hasattr(request.module, "COMMAND") else []

    def call(*arguments: object) -> Outcome:
        code = main([*command, *map(str, arguments)])
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the fake ``libnvidia-ml.so.1`` and ``libcuda.so.1``."""
    return shared_folder(tmp_path_factory, "libraries", compile_libraries)


@pytest.fixture(scope="session")
def report_schema() -> Draft202012Validator:
    """Return the schema of the output of ``--json``, with the schemas that it refers
    to."""
    return _schema("Report")


@pytest.fixture(scope="session")
def receipt_schema() -> Draft202012Validator:
    """Return the schema of the file of ``doctor --receipt``."""
    return _schema("Receipt")


def _schema(title: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource

    folder = SCHEMAS
    schemas = [json.loads(path.read_text()) for path in folder.glob("*.schema.json")]
    for schema in schemas:
        Draft202012Validator.check_schema(schema)
    registry: Registry[Any] = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema)) for schema in schemas
    )
    (wanted,) = (schema for schema in schemas if schema["title"] == title)
    return Draft202012Validator(wanted, registry=registry)
