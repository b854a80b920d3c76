"""``pip``: its messages about regular wheels that were selected, passed over and
kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from packaging.tags import platform_tags
from support.command import CUDA, SM
from support.index_server import serve
from support.processes import PIPS, Environment, Pip, installed_labels
from support.wheels import stub_wheel, write_page

HERE = f"py3-none-{next(platform_tags())}"
LABELS = {"1.0": ("cu126", "cpu"), "2.0": ("cu130", "cpu"), "3.0": ("cu130", "cpu")}
DRIVER = "a driver for CUDA 13, but this one is for CUDA 12.9"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index of ``demo``, of which only 1.0 runs, and of projects that require
    it."""
    folder = tmp_path_factory.mktemp("label-index")
    for version, labels in LABELS.items():
        for label in labels:
            stub_wheel(folder / "demo", "demo", f"{version}+{label}", tag=HERE)
    stub_wheel(folder / "app", "app", "1.0", requires=["demo==2.0+cu130"])
    stub_wheel(folder / "new", "new", "1.0+cu130", tag=HERE)
    stub_wheel(folder / "old", "old", "1.0")
    for name in ("demo", "app", "new", "old"):
        write_page(folder / name)
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serve(folder) as served:
        yield served


@pytest.mark.parametrize(
    "version", [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]
)
def test_why_not_the_newest(
    version: str, pip_of: Callable[[str], Pip], url: str, tmp_path: Path
) -> None:
    target = tmp_path / "it"
    done = pip_of(version)("install", "-i", url, "--target", target, "demo")
    assert done.code == 0, done.text
    assert installed_labels(target) == {"demo": "1.0+cu126 None"}
    *_, note, following = done.out.splitlines()
    assert note == f"demo 1.0+cu126 (CUDA 12.6): 3.0 to 2.0 need {DRIVER}"
    assert following.startswith("Next: nvp doctor")
    assert done.err == ""


@pytest.mark.slow
def test_releases_that_the_user_excluded_are_not_named(pip: Pip, url: str) -> None:
    done = pip("install", "-i", url, "--dry-run", "--ignore-installed", "demo<3")
    assert f"demo 1.0+cu126 (CUDA 12.6): 2.0 needs {DRIVER}\n" in done.out
    done = pip("install", "-i", url, "--dry-run", "--ignore-installed", "demo<2")
    assert "needs" not in done.text


def test_what_came_in_although_it_cannot_run(pip: Pip, url: str) -> None:
    done = pip("install", "-i", url, "--dry-run", "--ignore-installed", "app")
    assert done.code == 0, done.text
    assert "demo 2.0+cu130 would be installed although it cannot run here: it " in (
        done.err
    )
    assert done.err.endswith("; app 1.0 requires demo==2.0+cu130\n")


@pytest.mark.slow
def test_a_requirement_that_leaves_nothing_that_runs(pip: Pip, url: str) -> None:
    """Of the remaining builds, the one without GPU code is selected."""
    words = ("install", "-i", url, "--dry-run", "--ignore-installed")
    done = pip(*words, "demo>=2")
    assert done.code == 0, done.text
    assert "Would install demo-3.0+cpu" in done.out
    assert f"comes without GPU support: 3.0+cu130: it needs {DRIVER}" in done.err
    done = pip(*words, "demo<2,>=2")
    assert done.code == 1
    assert f"cannot run here: demo 3.0 to 2.0 need {DRIVER}; with" in done.err
    assert "not shown" not in pip(*words, "nothing").err


@pytest.mark.parametrize("words", [(), ("--no-gpu",)], ids=["here", "elsewhere"])
def test_a_machine_without_a_driver(
    words: tuple[str, ...], pip: Pip, url: str, tmp_path: Path
) -> None:
    """A build for GPUs may run on the CPU there."""
    if words:  # this machine has a GPU
        pip.environ |= {CUDA: "12.9", SM: "8.0"}
    else:
        pip.environ["NV_VARIANT_PROVIDER_SYSROOT"] = str(tmp_path)
    words = ("install", "-i", url, "--dry-run", "--ignore-installed", "new", *words)
    done = pip(*words, forced=False)
    assert done.code == 0, done.text
    assert done.err == (
        "warning: new 1.0+cu130 will not use a GPU: this machine has no NVIDIA driver\n"
    )


def test_no_release_runs(pip: Pip, url: str) -> None:
    done = pip("install", "-i", url, "--dry-run", "--ignore-installed", "new")
    assert done.code == 0, done.text
    assert "new 1.0+cu130: the GPU will not be used: no release has a build" in done.err


def test_a_build_without_gpu_code(pip: Pip, url: str) -> None:
    done = pip(
        *("install", "-i", url, "--dry-run", "--ignore-installed", "demo==3.0+cpu")
    )
    assert done.code == 0, done.text
    assert "demo 3.0+cpu comes without GPU support" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_another_build_stays_installed(
    fresh: Callable[[str], Environment],
    folder: Path,
    url: str,
    environ: dict[str, str],
) -> None:
    """For pip, an installed ``1.0+cpu`` satisfies ``==1.0``."""
    environment = fresh(PIPS[-1])
    pip = Pip(environment.python, environ)
    (wheel,) = (folder / "demo").glob("demo-1.0+cpu-*.whl")
    assert pip("install", "--no-index", wheel).code == 0
    done = pip("install", "-i", url, "demo==1.0")
    assert environment.labels() == {"demo": "1.0+cpu None"}
    assert "demo==1.0+cpu stays installed, but +cu126 is the build of 1.0" in done.err
    again = pip("install", "-i", url, "--dry-run", "demo==1.0")
    assert "stays installed" in again.err
    assert "Next:" not in again.out
    command = done.err.rpartition("to replace it: nvp pip ")[2]
    assert command.rstrip().endswith(" demo==1.0+cu126")
    assert pip("install", "-i", url, "demo==1.0+cu126").code == 0
    assert environment.labels() == {"demo": "1.0+cu126 None"}
    assert pip("install", "-i", url, "demo==1.0").err == ""


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(
            ("--cuda-driver", "12.9", "--sm-arch", "8.0"), marks=pytest.mark.slow
        ),
        ("--no-gpu",),
    ],
)
def test_a_package_without_gpu_code_has_nothing_to_do_with_machines(
    machine: tuple[str, ...], pip: Pip, url: str
) -> None:
    words = ("-i", url, "--dry-run", "--ignore-installed", "old")
    done = pip("install", *words, *machine, forced=False)
    assert (done.code, done.err) == (0, "")
    assert "CUDA" not in done.out
    assert "GPU" not in done.out


def test_the_report_has_it_all(
    pip: Pip, url: str, report_schema: Draft202012Validator
) -> None:
    done = pip(
        *("install", "-i", url, "--dry-run", "--ignore-installed", "--json", "demo")
    )
    report = json.loads(done.out)
    report_schema.validate(report)
    (build,) = report["data"]["builds"]
    assert build["verdict"] == "runs"
    assert build["evidence"] == "label"
    assert build["passed_over"] == [
        {"versions": ["3.0", "2.0"], "reason": f"it needs {DRIVER}"}
    ]
    assert report["data"]["notes"] == [
        f"demo 1.0+cu126 (CUDA 12.6): 3.0 to 2.0 need {DRIVER}"
    ]
