"""The lines of the report about a toolchain."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from support.stacks import Installed, machine, make_stack
from support.toolchains import (
    GET_PTXAS,
    NVCC_BANNER,
    banner,
    needs_programs,
    program,
    torch_for,
    triton,
)

from nvp.doctor.runner import diagnose
from nvp.doctor.toolchain import Toolchain


@needs_programs
def test_everything_that_was_found(
    tmp_path: Path, report_schema: Draft202012Validator
) -> None:
    nvcc = tmp_path / "cuda/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_bytes(program(NVCC_BANNER.format("13.2")))
    nvcc.chmod(0o755)
    stack = make_stack(
        tmp_path / "env",
        torch_for("13.2"),
        triton(banner("12.9"), banner("13.4"), choice=GET_PTXAS["3.9"]),
        Installed(name="nvidia-cuda-nvrtc", version="13.2.86"),
        environment=machine("13.4", "9.0", "8.6"),
        environ={
            "CUDA_HOME": str(tmp_path / "cuda"),
            "CUDA_PATH": "/no/such/folder",
            "TORCH_CUDA_ARCH_LIST": "8.6 9.0a+PTX",
        },
    )
    folder = f"{stack.distributions['triton'].root}/triton/backends/nvidia/bin"
    for name in os.listdir(folder):
        os.chmod(f"{folder}/{name}", 0o755)
    diagnosis = diagnose(stack)
    toolchain = json.loads(json.dumps(diagnosis.to_dict()))["toolchain"]
    assert diagnosis.findings == ()
    problem = "/no/such/folder/bin/nvcc, by CUDA_PATH: there is no such file"
    assert diagnosis.notes == (problem,)
    assert toolchain == {
        "torch": {"version": "2.15.0", "cuda": "13.2", "source": "torch/version.py"},
        "triton": {"distribution": "triton", "version": "3.9.0"},
        "ptxas": [
            {
                "tool": name,
                "path": f"{folder}/{name}",
                "named_by": "triton",
                "cuda": cuda,
                "release": f"{cuda}.86",
                "problem": None,
                "gpus": gpus,
            }
            for name, cuda, gpus in (
                ("ptxas", "12.9", ["8.6"]),
                ("ptxas-blackwell", "13.4", ["9.0"]),
            )
        ],
        "nvcc": [
            {
                "path": str(nvcc),
                "named_by": "CUDA_HOME",
                "cuda": "13.2",
                "release": "13.2.88",
                "problem": None,
            },
            {
                "path": "/no/such/folder/bin/nvcc",
                "named_by": "CUDA_PATH",
                "cuda": None,
                "release": None,
                "problem": "there is no such file",
            },
        ],
        "nvrtc": [
            {"distribution": "nvidia-cuda-nvrtc", "version": "13.2.86", "cuda": "13.2"}
        ],
        "architectures": {
            "text": "8.6 9.0a+PTX",
            "machine_code": ["86", "90a"],
            "ptx": ["90a"],
            "unknown": [],
        },
        "unknown": [problem],
    }
    envelope = {
        "schema_version": 1,
        "command": "doctor",
        "status": "ok",
        "data": json.loads(json.dumps(diagnosis.to_dict())),
        "errors": [],
    }
    report_schema.validate(envelope)


def test_an_environment_without_any(tmp_path: Path) -> None:
    toolchain = diagnose(make_stack(tmp_path)).toolchain
    assert toolchain == {
        "torch": None,
        "triton": None,
        "ptxas": [],
        "nvcc": [],
        "nvrtc": [],
        "architectures": None,
        "unknown": [],
    }


@pytest.mark.parametrize(
    ("torch", "cuda", "source"),
    [
        (torch_for("13.2"), "13.2", "torch/version.py"),
        (
            Installed(version="2.4", files={"torch/version.py": b"cuda = '12.1'\n"}),
            "12.1",
            "torch/version.py",
        ),
        (
            Installed(
                version="2.9+cpu", files={"torch/version.py": b"cuda: str = None\n"}
            ),
            None,
            "torch/version.py",
        ),
        (Installed(version="2.9+cu126"), "12.6", "label"),
        (
            Installed(
                version="2.9", files={"torch/version.py": b"cudalike = '12.1'\n"}
            ),
            None,
            None,
        ),
        (
            Installed(version="2.9", requires=["nvidia-cuda-runtime-cu12==12.8.90"]),
            "12.8",
            "METADATA",
        ),
        (
            Installed(version="2.9", requires=["cuda-toolkit==13.2.*"]),
            "13.2",
            "METADATA",
        ),
        (Installed(version="2.9", requires=["cuda-toolkit>=13"]), None, None),
    ],
)
def test_the_cuda_of_torch(
    torch: Installed, cuda: str | None, source: str | None, tmp_path: Path
) -> None:
    installed = Installed(
        name="torch",
        version=torch.version,
        files=torch.files,
        requires=torch.requires,
    )
    build = make_stack(tmp_path, installed).toolchain.torch
    assert build is not None
    assert (build.to_dict()["cuda"], build.source) == (cuda, source)
    assert build.is_known == (source is not None)


@needs_programs
def test_all_programs_are_asked_at_the_same_time(tmp_path: Path) -> None:
    # Opening a named pipe waits for the other side, so neither program ends alone.
    os.mkfifo(tmp_path / "pipe")
    scripts = {
        "ptxas": f"echo > {tmp_path}/pipe\necho release 12.9,\n",
        "bin/nvcc": f"read line < {tmp_path}/pipe\necho release 13.2,\n",
    }
    for name, lines in scripts.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{lines}")
        path.chmod(0o755)
    environ = {
        "CUDA_HOME": str(tmp_path),
        "TRITON_PTXAS_PATH": str(tmp_path / "ptxas"),
    }
    installed = (torch_for("13.2"), triton(banner("12.9")))
    toolchain = Toolchain(make_stack(tmp_path / "env", *installed, environ=environ))
    (assembler,) = toolchain.assemblers
    (nvcc,) = toolchain.nvcc
    assert (str(assembler.used.cuda), str(nvcc.cuda)) == ("12.9", "13.2")
