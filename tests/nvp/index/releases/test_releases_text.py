"""``releases``: the text of the table."""

from __future__ import annotations

import json
import platform
import re
import sys
from pathlib import Path

import pytest
from support.builds import machine
from support.command import Run
from support.wheels import stub_wheel, write_index, write_page

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="the wheels are for Linux on x86_64",
)

OLD = machine("12.8", "8.0")
HERE = "py3-none-manylinux_2_17_x86_64"


LACKS = ["no", "code", "for", "compute", "capability", "7.0"]


MIXED = (("Tesla V100", "7.0"), ("NVIDIA B200", "10.0"))


def make_machine(folder: Path, *gpus: tuple[str, str]) -> Path:
    """Write a snapshot of a machine with GPUs."""
    snapshot = {
        "cuda_driver_version": "13.0",
        "kernel_driver_version": None,
        "source": "nvml",
        "reason": None,
        "gpus": [
            {"index": i, "name": name, "compute_capability": text, "reason": None}
            for i, (name, text) in enumerate(gpus or MIXED)
        ],
    }
    path = folder / "machine.json"
    path.write_text(json.dumps(snapshot))
    return path


def test_releases_with_one_reason_are_a_range_unless_all_are_wanted(
    tmp_path: Path, run: Run
) -> None:
    versions = [f"1.{n}+cu128" for n in range(12)]
    versions += [f"2.{n}+cu130" for n in range(3)]
    index = write_index(tmp_path, "demo", *versions, "3.0rc1+cu130")
    words = ("releases", "demo", "-i", index, "--cuda-driver", "12.8")
    rows = run(*words).out.splitlines()[3:-1]
    assert rows == [
        "2.2 to 2.0   cu130  13.0  no    needs a driver for CUDA 13",
        "1.11 to 1.0  cu128  12.8  yes",
    ]
    everything = run(*words, "--all").out.splitlines()[3:-1]
    assert len(everything) == 16
    assert everything[0].startswith("3.0rc1 ")


def test_the_releases_that_are_left_out_are_counted(tmp_path: Path, run: Run) -> None:
    # Adjacent releases have different rows, except the oldest.
    versions = [f"2.{n}+cu1{26 + n % 2 * 2}" for n in range(20)]
    index = write_index(tmp_path, "demo", *versions, "1.1+cu130", "1.0+cu130")
    out = run("releases", "demo", "-i", index, "--cuda-driver", "12.8").out
    lines = out.splitlines()[:-1]
    assert len(lines) == 3 + 20 + 2
    assert lines[-1] == "2 older releases are left out; see --all."


def test_the_newest_release_is_one_that_this_python_takes(
    tmp_path: Path, run: Run
) -> None:
    stub_wheel(tmp_path / "torch", "torch", "2.10.0", tag="cp38-cp38-linux_x86_64")
    index = write_index(tmp_path, "torch", "2.9.1")
    done = run(
        *("releases", "torch", "-i", index, "--json"),
        *("--cuda-driver", "12.8", "--sm-arch", "8.0"),
    )
    data = json.loads(done.out)["data"]
    installable = [r["builds"][0]["installable"] for r in data["releases"]]
    assert (data["newest"], installable) == ("2.10.0", [False, True])
    out = run(
        *("releases", "torch", "-i", index),
        *("--cuda-driver", "12.8", "--sm-arch", "8.0"),
    ).out.splitlines()
    assert out[0].startswith("torch 2.9.1 (CUDA 12.8) is the newest release that")
    assert out[1].startswith("torch 2.10.0 would run here too, but has no wheel")
    assert out[4].split()[:5] == ["2.10.0", "plain", "12.8", "(yes)", "no"]
    assert out[5].split() == ["2.9.1", "plain", "12.8", "yes"]


def test_several_gpus(tmp_path: Path, run: Run) -> None:
    index = write_index(tmp_path / "index", "torch", "2.15.0", "2.10.0")
    machines = make_machine(tmp_path)
    words = ("releases", "torch", "-i", index, "--environment", machines)
    out = run(*words).out.splitlines()
    assert out[0].startswith("torch 2.15.0 (CUDA 13.2) is the newest release that")
    assert out[1] == (
        "torch 2.15.0 has no code for the Tesla V100 (compute capability 7.0) of "
        "this machine; torch 2.10.0 is the newest release that runs on all its "
        "GPUs: nvp pip install --every-gpu torch==2.10.0"
    )
    assert out[4].split()[3:] == ["partly", *LACKS]
    every = run(*words, "--every-gpu").out.splitlines()
    assert every[0].startswith("torch 2.10.0 (CUDA 12.8) is the newest release")
    assert every[3].split()[3:] == ["no", *LACKS]
    (report,) = [json.loads(run(*words, "--json").out)["data"]["releases"][0]["builds"]]
    assert report[0]["lacking"] == ["7.0"]


def test_every_gpu_takes_no_release_that_runs_partly(tmp_path: Path, run: Run) -> None:
    """torch 2.14.1 has a library without code for 7.5, vllm no release without one."""
    gpus = {"torch": ("Tesla T4", "7.5"), "vllm": ("GeForce GTX 1080", "6.1")}
    index = write_index(tmp_path, "torch", "2.14.1", "2.10.0")
    write_index(tmp_path, "vllm", "0.9.2", "0.6.3.post1")
    found = {}
    for project, gpu in gpus.items():
        machines = make_machine(tmp_path, gpu, ("A100", "8.0"))
        words = ("releases", project, "-i", index, "--environment", machines)
        data = json.loads(run(*words, "--every-gpu", "--json").out)["data"]
        verdicts = [release["builds"][0]["verdict"] for release in data["releases"]]
        found[project] = (data["newest"], verdicts)
    assert found == {
        "torch": ("2.10.0", ["cannot", "runs"]),
        "vllm": ("0.9.2", ["partly", "cannot"]),
    }


@pytest.mark.parametrize("tag", ["linux_aarch64", "win_amd64", "linux_x86_64"])
def test_a_platform_without_wheels(tmp_path: Path, run: Run, tag: str) -> None:
    wheels = ("manylinux_2_28_aarch64", "manylinux_2_28_x86_64", "win_amd64")
    for it in wheels:
        python = "py27" if it == tag else "py3"
        tags = f"{python}-none-{it}"
        stub_wheel(tmp_path / "torch", "torch", "2.15.0", tag=tags)
    write_page(tmp_path / "torch")
    words = ("releases", "torch", "-i", tmp_path, "--cuda-driver", "13.2")
    lines = run(*words, "--platform", tag).out.splitlines()
    python = "this Python" if tag == "win_amd64" else tag
    assert f"no wheel for {python}" in " ".join(lines), lines


def test_the_last_line_says_that_the_pick_is_not_known_to_run(
    tmp_path: Path, run: Run
) -> None:
    index = write_index(tmp_path, "torch", "2.90.0")
    words = ("releases", "torch", "-i", index, "--cuda-driver", "12.8")
    lines = run(*words, "--sm-arch", "8.0").out.splitlines()
    assert lines[-1] == "torch 2.90.0, which pip takes, is not known to run here."
    assert "Next:" not in " ".join(lines)


def test_a_project_without_gpu_code_names_what_has_it(tmp_path: Path, run: Run) -> None:
    requires = [
        "numpy>=2",
        'jax-cuda12-plugin[with-cuda]==0.10.2; extra == "cuda"',
        'jax-cuda12-plugin[with-cuda]==0.10.2; extra == "cuda12"',
        'jax-cuda13-plugin==0.10.2; extra == "cuda13"',
        'nvidia-cudnn-cu12>=9.8; extra == "cuda12"',
    ]
    stub_wheel(tmp_path / "jax", "jax", "0.10.2", requires=requires)
    write_page(tmp_path / "jax")
    done = run(
        *("releases", "jax", "-i", tmp_path),
        *("--cuda-driver", "12.8", "--sm-arch", "8.0"),
    )
    assert done.code == 0
    lines = done.out.splitlines()[:-1]
    assert lines == [
        "jax 0.10.2 is a wheel for any platform, which has no library with GPU code.",
        "jax[cuda12] requires jax-cuda12-plugin: nvp releases jax-cuda12-plugin",
        "jax[cuda13] requires jax-cuda13-plugin: nvp releases jax-cuda13-plugin; "
        "it needs a driver for CUDA 13, but this one is for CUDA 12.8",
    ]
    for extra, code, expected in (
        ("cuda12", 0, lines[1:2]),
        ("cuda13", 1, lines[:0:-1]),
    ):
        done = run(
            *("releases", f"jax[{extra}]", "-i", tmp_path),
            *("--cuda-driver", "12.8", "--sm-arch", "8.0"),
        )
        assert (done.code, done.out.splitlines()[1:-1]) == (code, expected)


def test_without_wheels_and_without_a_gpu(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "demo"
    stub_wheel(folder, "demo", "0.1.dev1")
    (folder / "demo-1.0.tar.gz").write_bytes(b"")
    write_page(folder)
    done = run("releases", "demo", "-i", tmp_path, "--cuda-driver", "12.8")
    assert done.code == 0
    assert done.out.splitlines()[:-1] == [
        "demo 1.0 has no wheel for the platform of this machine: pip builds 1.0 from "
        "source."
    ]
    for project, needs in [
        (
            "deepspeed",
            "A build may need torch, installed before it, with --no-build-iso",
        ),
        ("cupy", "cupy-cuda12x has wheels: nvp releases cupy-cuda12x"),
    ]:
        (tmp_path / project).mkdir()
        (tmp_path / project / f"{project}-1.0.tar.gz").write_bytes(b"")
        write_page(tmp_path / project)
        done = run("releases", project, "-i", tmp_path, "--cuda-driver", "12.8")
        assert f"{project} 1.0 has no wheel for " in done.out
        assert f": pip builds 1.0 from source.\n{needs}" in done.out.replace(
            "cupy-cuda11x has wheels: nvp releases cupy-cuda11x\n", ""
        )
    index = write_index(tmp_path, "torch", "2.10.0")
    none = run("releases", "torch", "-i", index, "--no-gpu")
    assert none.code == 0
    assert none.out.startswith("pip takes torch 2.10.0 on a machine with no NVIDIA")
    none = run("releases", "torch", "-i", index, "--no-gpu", "--label", "cu126")
    assert none.code == 1
    assert none.out.startswith(
        "No build of torch with --label cu126 uses a GPU on a machine with no NVIDIA "
    )


def test_arguments_that_are_more_than_a_name(tmp_path: Path, run: Run) -> None:
    index = write_index(tmp_path, "torch", "2.10.0")
    words = ("-i", index, "--cuda-driver", "12.8", "--sm-arch", "8.0")
    done = run("releases", "torch[opt-einsum]", *words)
    assert done.code == 0
    assert done.out.startswith("torch 2.10.0 (CUDA 12.8) is the newest release that")
    assert "\ntorch[opt-einsum] is the same build, and requires other " in done.out
    for text, hint in [
        ("torch==2.10.0", "nvp releases torch"),
        ("Torch[x]>=2; python_version > '3'", "nvp releases torch"),
        ("torch @ https://wheels.example/torch/", "nvp releases torch"),
        ("./dist/torch-2.10.0-py3-none-any.whl", "nvp inspect ./dist/torch-2.10.0-"),
        ("torch-2.10.0-py3-none-any.whl", "nvp inspect torch-2.10.0-py3-none-any.whl"),
        (
            "torch @ https://wheels.example/a.whl",
            "inspect https://wheels.example/a.whl",
        ),
        ("https://wheels.example/simple", "nvp releases torch"),
        ("a b", "nvp releases torch"),
    ]:
        done = run("releases", text, *words)
        assert (done.code, len(done.err.splitlines())) == (2, 1)
        assert hint in done.err


@pytest.mark.parametrize("columns", [60, 80])
def test_the_table_fits_a_terminal(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    index = write_index(tmp_path, "torch", "2.15.0", "2.10.0+cu128", "2.10.0+cpu")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    out = run("releases", "torch", "-i", index, "--cuda-driver", "12.8").out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    # A command stays on one line, so users can copy it.
    lines = [line for line in plain.splitlines() if "nvp pip " not in line]
    assert max(map(len, lines)) <= columns
    assert "release" in out
    assert "cu128" in out
