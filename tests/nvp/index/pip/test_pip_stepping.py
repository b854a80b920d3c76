"""``pip`` and ``serve``: the older release that replaces a newest one that cannot
run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.tags import platform_tags
from support.builds import machine
from support.index_server import serve
from support.loopback import start
from support.processes import PIPS, Pip, installed_labels
from support.uv_installer import install_with_uv
from support.wheels import stub_sdist, stub_wheel, write_page

HERE = f"py3-none-{next(platform_tags())}"
OTHER_PYTHON = HERE.replace("py3", "py27")
CUDA_12 = ["nvidia-cuda-runtime-cu12==12.6.77"]
CUDA_13 = ["nvidia-cuda-runtime==13.0.96"]
MACHINE = ("--cuda-driver", "12.8", "--sm-arch", "8.0")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return an index of projects whose newest release is for CUDA 13."""
    folder = tmp_path_factory.mktemp("stepping")
    wheels: dict[str, dict[str, list[str]]] = {
        "kernels": {"4.0": CUDA_13, "3.0": [], "2.0": CUDA_12, "1.0": CUDA_12},
        "silent": {"3.0": CUDA_13, "2.0": [], "1.0": []},
        "fresh-cu12": {"1.0": []},
        "fresh-cu13": {"2.0": [], "1.0": []},
        "extra-gpu": {
            "2.0": ['nvidia-cuda-runtime~=13.0; extra == "cuda"'],
            "1.0": ['nvidia-cuda-runtime-cu12~=12.0; extra == "cuda"'],
        },
    }
    wheels["extra-cpu"] = wheels["extra-gpu"]
    for project, releases in wheels.items():
        for version, requires in releases.items():
            stub_wheel(folder / project, project, version, tag=HERE, requires=requires)
            stub_sdist(folder / project, project, version)
        # No installer of this machine selects this release, so its requirements do not
        # matter.
        stub_wheel(folder / project, project, "9.0", tag=OTHER_PYTHON, requires=CUDA_12)
    stub_wheel(folder / "fresh-cu13", "fresh-cu13", "0.0.0a0")
    stub_wheel(folder / "late-cu13", "late-cu13", "1.0", tag=HERE)
    requires = [f'{name}; extra == "cuda13"' for name in ("fresh-cu13", "late-cu13")]
    extras = ["cuda12", "cuda13"]
    stub_wheel(folder / "app", "app", "1.0", requires=requires, extras=extras)
    for project in (*wheels, "app", "late-cu13"):
        write_page(folder / project)
    with serve(folder) as served:
        yield served


@pytest.mark.parametrize(
    "version", [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]
)
def test_the_newest_release_that_is_known_to_run(
    version: str, pip_of: Callable[[str], Pip], url: str, tmp_path: Path
) -> None:
    """No source is built, and an unknown release is passed over."""
    target = tmp_path / "it"
    words = ("install", "-i", url, "--no-deps", "--target", target, "kernels", *MACHINE)
    done = pip_of(version)(*words)
    assert done.code == 0, done.text
    assert installed_labels(target) == {"kernels": "2.0 None"}
    last = done.out.splitlines()[-2]
    assert last == (
        "kernels 2.0 (CUDA 12.6): 4.0 needs a driver for CUDA 13, but this one is for "
        "CUDA 12.8; 3.0 is not known to run here, as 2.0 is"
    )


def test_a_release_of_which_nothing_is_known(pip: Pip, url: str) -> None:
    done = pip("install", "--dry-run", "-i", url, "--no-deps", "silent", *MACHINE)
    assert done.code == 0, done.text
    assert "Would install silent-2.0" in done.out
    assert done.out.splitlines()[-1] == (
        "silent 2.0: 3.0 needs a driver for CUDA 13, but this one is for CUDA 12.8; "
        "2.0 is not known to run here either"
    )


def test_the_newest_release_may_not_run_either(pip: Pip, url: str) -> None:
    words = ("install", "--dry-run", "-i", url, "--no-deps", "fresh-cu12")
    done = pip(*words, "--cuda-driver", "12.8", "--sm-arch", "12.0")
    assert done.out.splitlines()[-1] == (
        "fresh-cu12 1.0 (CUDA 12) is not known to run here: CUDA 12.8 is the first to "
        "compile for compute capability 12.0, and it is unknown which CUDA 12 the "
        "build is of (the project is named fresh-cu12)"
    )
    done = pip(*words, *MACHINE)
    assert "known" not in done.text
    assert done.out.splitlines()[-1].startswith("Next: nvp pip install ")


def test_torch_runs_without_triton(pip: Pip, tmp_path: Path) -> None:
    stub_wheel(tmp_path / "triton", "triton", "2.0.0", tag=HERE)
    requires = ["triton==2.0.0"]
    stub_wheel(tmp_path / "torch", "torch", "2.0.1", tag=HERE, requires=requires)
    for project in ("torch", "triton"):
        write_page(tmp_path / project)
    with serve(tmp_path) as url:
        words = ("install", "--dry-run", "-i", url, "--cuda-driver", "11.8")
        done = pip(*words, "--sm-arch", "8.0", "torch")
        assert "Would install torch-2.0.1 triton-2.0.0" in done.out
        assert "warning" not in done.text
        done = pip(*words, "--sm-arch", "8.0", "triton")
        assert "warning: triton 2.0.0: the GPU will not be used" in done.err


def test_nothing_is_passed_over_where_nothing_runs(pip: Pip, url: str) -> None:
    """A placeholder never replaces a newer release."""
    done = pip("install", "--dry-run", "-i", url, "--no-deps", "fresh-cu13", *MACHINE)
    assert done.code == 0, done.text
    assert "Would install fresh-cu13-2.0" in done.out.replace("_", "-")
    assert "the project is named fresh-cu13" in done.err
    # No table knows a project fresh-cu12.
    assert "instead" not in done.err


def test_requirements_of_extras(pip: Pip, url: str) -> None:
    """tensorflow-cpu has the extras of tensorflow, but needs no GPU."""
    words = ("install", "--dry-run", "-i", url, "--no-deps", "extra-gpu", "extra-cpu")
    done = pip(*words, *MACHINE)
    assert "Would install extra-cpu-2.0 extra-gpu-1.0" in done.out, done.text


def test_a_source_that_the_user_asks_for(pip: Pip, url: str) -> None:
    words = ("install", "--dry-run", "-i", url, "--no-deps", "--no-binary", "kernels")
    done = pip(*words, "kernels", *MACHINE)
    assert "it was built from its source" in done.text


def test_uv_builds_no_source(url: str, environ: dict[str, str], tmp_path: Path) -> None:
    with start(url, machine=machine("12.8", "8.0")) as running:
        done = install_with_uv(
            running.urls[0], tmp_path / "it", environ, "kernels==4.0", "--no-deps"
        )
        assert done.returncode == 0, done.stderr
        done = install_with_uv(
            running.urls[0], tmp_path / "that", environ, "kernels", "--no-deps"
        )
    assert done.returncode == 0, done.stderr
    assert installed_labels(tmp_path / "that") == {"kernels": "2.0 None"}


def test_what_there_is_for_the_driver_is_named(pip: Pip, url: str) -> None:
    words = ("install", "--dry-run", "-i", url)
    done = pip(*words, "app[cuda13]", *MACHINE)
    assert done.code == 0, done.text
    first, second = [line for line in done.err.splitlines() if "warning: " in line]
    assert first.endswith("; try app[cuda12] instead")
    assert second == "warning: late-cu13 1.0 will not use it either"


def test_a_lock_has_no_source_of_what_is_passed_over(pip: Pip, url: str) -> None:
    words = ("lock", "-i", url, "--no-deps", "--output", "-", "kernels", *MACHINE)
    done = pip(*words)
    assert done.code == 0, done.text
    assert 'version = "2.0"' in done.out
    assert "kernels-2.0" in done.out
    assert not any(f"kernels-{version}" in done.out for version in ("4.0", "3.0"))


def test_a_project_that_never_had_a_wheel(pip: Pip, tmp_path: Path) -> None:
    for name in ("flash-attn", "other"):
        (tmp_path / name).mkdir()
        stub_sdist(tmp_path / name, name, "2.8.3")
        # Wheels for another platform and pre-releases are not selected.
        stub_wheel(tmp_path / name, name, "2.0", tag="cp311-cp311-win_amd64")
        stub_wheel(tmp_path / name, name, "0.1.dev1")
        write_page(tmp_path / name)
    words = ("install", "--dry-run", "--no-deps", *MACHINE)
    with serve(tmp_path) as served:
        done = pip(*words, "-i", served, "flash-attn")
        assert done.code == 1
        assert "it was built from its source" in done.text
        assert (
            "warning: your indexes have no wheel of flash-attn for this platform, only "
            "its source: a build may need torch, installed before it, with "
            "--no-build-isolation, and the nvcc of that torch's CUDA\n"
        ) in done.err
        assert "Astral publishes builds of flash-attn for CUDA 12.8 at" in done.text
        assert "its source: a build" not in pip(*words, "-i", served, "other").text
        done = pip(*words, "-i", served, "flashinfer-jit-cache")
        assert (
            "nvp pip install --extra-index-url https://flashinfer.ai/whl/" in done.out
        )


def test_a_gpu_that_the_newest_release_leaves_out(pip: Pip, tmp_path: Path) -> None:
    """The table has torch 2.15.0 with code for 10.0 alone, and 2.10.0 for both."""
    for version in ("2.15.0", "2.10.0"):
        stub_wheel(tmp_path / "torch", "torch", version, tag=HERE)
        needs = [f"torch=={version}", "nvidia-cuda-runtime-cu12==12.8.90"]
        number = version.split(".")[1]
        stub_wheel(tmp_path / "own", "own", number, tag=HERE, requires=needs)
    for project in ("torch", "own"):
        write_page(tmp_path / project)
    path = tmp_path / "machine.json"
    gpus = [
        {"index": 0, "name": "Tesla V100", "compute_capability": "7.0", "reason": None},
        {"index": 1, "name": None, "compute_capability": "10.0", "reason": None},
    ]
    snapshot = {"cuda_driver_version": "13.0", "kernel_driver_version": None}
    path.write_text(json.dumps({**snapshot, "source": "nvml", "gpus": gpus}))
    words = ("install", "--dry-run", "-i", tmp_path, "--environment", path)
    done = pip(*words, "torch", forced=False)
    assert "Would install torch-2.15.0" in done.out
    assert (
        "warning: torch 2.15.0 has no code for the Tesla V100 (compute capability 7.0) "
        "of this machine; torch 2.10.0 is the newest release that runs on all its GPUs:"
        " nvp pip install "
    ) in done.text
    assert done.text.rstrip().endswith("--every-gpu torch==2.10.0")
    every = pip(*words, "--every-gpu", "torch", forced=False)
    assert "Would install torch-2.10.0" in every.out
    assert "2.15.0 has no code for compute capability 7.0" in every.text
    assert "Tesla V100" not in every.text
    # The requirements of a build also exclude GPUs.
    done = pip(*words, "--no-deps", "own", forced=False)
    assert "Would install own-15" in done.out
    assert "own 10 is the newest release that runs on all its GPUs" in done.text
