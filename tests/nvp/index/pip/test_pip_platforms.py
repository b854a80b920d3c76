"""pip and ``releases`` for another platform than this one, and another Python."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.command import Run
from support.index_server import serve
from support.processes import PIPS, Pip
from support.wheels import stub_wheel, write_page

X86, ARM = "manylinux_2_28_x86_64", "manylinux_2_28_aarch64"
WINDOWS = "win_amd64"
FOR_WINDOWS = "torch for Windows on this index does not use a GPU"
GRACE = ("--cuda-driver", "12.8", "--sm-arch", "9.0")
"""A machine for which the CUDA of torch 2.11 and newer is too new; PyPI's torch 2.10
for it uses no GPU."""
UNUSED = "torch 2.10.0: the GPU will not be used: no release has a build that runs; "


@pytest.fixture(scope="module")
def pypi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of an index such as PyPI, whose wheels name no builds."""
    folder = tmp_path_factory.mktemp("pypi")
    for version in ("2.15.0", "2.14.1", "2.10.0", "2.9.1"):
        for tag in (X86, ARM, WINDOWS):
            # The newest release has no wheel for the Python of these tests.
            python = "cp315" if version == "2.15.0" else "cp312"
            stub_wheel(
                folder / "torch", "torch", version, tag=f"{python}-{python}-{tag}"
            )
    linux = 'nothing==1.0; platform_system == "Linux"'
    tag = f"cp312-cp312-{WINDOWS}"
    stub_wheel(folder / "marked", "marked", "1.0", tag=tag, requires=["torch", linux])
    stub_wheel(folder / "accelerate", "accelerate", "1.0", requires=["torch>=2.0"])
    for project in folder.iterdir():
        write_page(project)
    with serve(folder) as url:
        yield url


def words(platform: str, *more: object) -> tuple[object, ...]:
    return ("--platform", platform, "--only-binary", ":all:", *more)


@pytest.mark.parametrize(
    "version", [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]
)
def test_the_rows_of_the_platform_count(
    version: str, pypi: str, pip_of: Callable[[str], Pip], tmp_path: Path
) -> None:
    pip = pip_of(version)
    target = tmp_path / "it"
    options = ("--target", target, "--python-version", "3.12", "-i", pypi)
    done = pip("install", *words(ARM, *options), *GRACE, "torch", forced=False)
    assert done.code == 0, done.text
    assert (target / "torch-2.10.0.dist-info").is_dir()
    assert (
        "torch 2.10.0: 2.14.1 needs a driver for CUDA 13, but this one is for CUDA 12.8"
    ) in done.out
    assert UNUSED in done.err


def test_download(pypi: str, pip: Pip, tmp_path: Path) -> None:
    options = (
        *("-d", tmp_path, "-i", pypi, "--python-version", "3.12"),
        *("--abi", "cp312", "--implementation", "cp"),
    )
    done = pip("download", *words(ARM, *options), *GRACE, "torch", forced=False)
    assert done.code == 0, done.text
    wheels = [path.name for path in tmp_path.glob("*.whl")]
    assert wheels == [f"torch-2.10.0-cp312-cp312-{ARM}.whl"]
    assert "torch 2.10.0: 2.14.1 needs a driver for CUDA 13" in done.out
    assert UNUSED in done.err


@pytest.mark.parametrize(
    "project", ["torch", pytest.param("accelerate", marks=pytest.mark.slow)]
)
def test_builds_for_windows_without_gpu_code(
    project: str, pypi: str, pip: Pip, tmp_path: Path
) -> None:
    options = ("--target", tmp_path / "it", "--python-version", "3.12", "-i", pypi)
    done = pip("install", "--dry-run", *words(WINDOWS, *options), project)
    assert done.code == 0, done.text
    assert "torch-2.14.1" in done.out
    warning = f"warning: torch 2.14.1 comes without GPU support: {FOR_WINDOWS}"
    assert done.err.splitlines() == [warning]


def test_a_download_without_gpu_code(pypi: str, pip: Pip, tmp_path: Path) -> None:
    options = ("-d", tmp_path, "--python-version", "3.12", "-i", pypi)
    done = pip("download", *words(WINDOWS, *options), "torch")
    warning = f"warning: torch 2.14.1 comes without GPU support: {FOR_WINDOWS}"
    assert (done.code, done.err.splitlines()) == (0, [warning])


def test_what_is_left_is_what_this_python_takes(
    pypi: str, pip: Pip, tmp_path: Path
) -> None:
    options = ("--target", tmp_path / "it", "--python-version", "3.12", "-i", pypi)
    done = pip("install", *words(ARM, *options), *GRACE, "torch>2.10", forced=False)
    assert done.code == 0, done.text
    assert "torch 2.14.1: the GPU will not be used: no release has" in done.err


@pytest.mark.skipif(sys.platform != "linux", reason="the marker is for Linux")
def test_a_failure_by_markers_that_pip_reads_for_this_machine(
    pypi: str, pip: Pip, tmp_path: Path
) -> None:
    options = ("--target", tmp_path / "it", "--python-version", "3.12", "-i", pypi)
    done = pip("install", *words(WINDOWS, *options), "torch", "marked")
    assert done.code == 1
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert errors == [
        f"error: {FOR_WINDOWS}",
        "error: torch 2.14.1 is the newest shown for win_amd64, but pip reads markers "
        "such as platform_system as on this machine, and may look for what torch does "
        "not require there; to leave requirements out: --no-deps",
    ]


def releases(run: Run, pypi: str, *options: str) -> tuple[int, dict[str, object]]:
    done = run("releases", "torch", "-i", pypi, "--json", *options)
    return done.code, json.loads(done.out)["data"]


def test_releases_for_another_platform(run: Run, pypi: str) -> None:
    code, data = releases(run, pypi, "--platform", ARM, *GRACE)
    assert (code, data["platform"], data["newest"]) == (1, "linux_aarch64", None)
    newer = ("--cuda-driver", "13.0", "--sm-arch", "9.0")
    code, data = releases(run, pypi, "--platform", ARM, *newer)
    assert (code, data["platform"], data["newest"]) == (0, "linux_aarch64", "2.15.0")
    code, data = releases(run, pypi, "--platform", WINDOWS, *GRACE)
    assert (code, data["platform"], data["newest"]) == (1, "win_amd64", None)
    done = run("releases", "torch", "-i", pypi, "--platform", WINDOWS, *GRACE)
    assert done.out.splitlines()[0] == f"{FOR_WINDOWS}."
    done = run("releases", "torch", "-i", pypi, "--platform", "win_arm64", *GRACE)
    assert done.out.splitlines()[0] == "torch has no wheel for win_arm64."


@pytest.mark.parametrize("platform", ["a-b", "ftp://user:s3cret@a-b"])
def test_releases_for_what_is_no_platform(platform: str, run: Run, pypi: str) -> None:
    """pip accepts the option, and finds no wheel."""
    done = run("releases", "torch", "-i", pypi, "--platform", platform, *GRACE)
    assert done.code == 1
    shown = platform.replace("user:s3cret", "****")
    assert done.out.splitlines()[0] == f"torch has no wheel for {shown}."
    assert "s3cret" not in done.out + done.err
