"""ND307: libraries that programs open by name, and the directories that they search."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from cuda.pathfinder._dynamic_libs.descriptor_catalog import DESCRIPTOR_CATALOG
from support.containers import library
from support.stacks import Installed, machine, make_stack, run_checks

from nvp.doctor.model import Finding
from nvp.doctor.nvidia import libraries, library_of

NUMBA = Installed(
    name="numba-cuda", version="0.30.0", requires=["cuda-bindings", "cuda-pathfinder"]
)
BINDINGS = Installed(name="cuda-bindings", version="12.9.4")
NOT_IN_TABLE = ("nvpl_fftw",)


def wheel(project: str, version: str, path: str) -> Installed:
    return Installed(name=project, version=version, files={path: library()})


NVVM = wheel(
    "nvidia-cuda-nvcc-cu12", "12.9.86", "nvidia/cuda_nvcc/nvvm/lib64/libnvvm.so.4.0.0"
)
NVRTC = wheel(
    "nvidia-cuda-nvrtc-cu12", "12.9.86", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
)
NVRTC_13 = wheel("nvidia-cuda-nvrtc", "13.0.88", "nvidia/cu13/lib/libnvrtc.so.13")


def found(folder: Path, *installed: Installed, **environ: str) -> list[Finding]:
    stack = make_stack(
        folder, *installed, environment=machine("13.0", "8.0"), environ=environ
    )
    return [finding for finding in run_checks(stack) if finding.code == "ND307"]


def test_the_table_has_what_cuda_pathfinder_describes() -> None:
    described = {
        item.name.lower(): item
        for item in DESCRIPTOR_CATALOG
        if item.packaged_with != "driver" and item.name not in NOT_IN_TABLE
    }
    assert described.keys() <= libraries().keys()
    for name, item in described.items():
        own = libraries()[name]
        assert own.name == item.name
        assert own.sonames == item.linux_sonames
        assert own.folders == item.site_packages_linux
    for name in libraries().keys() - described.keys():
        assert name in ("cufile_rdma", "nvrtc-builtins", "nvtoolsext")


@pytest.mark.parametrize(
    ("name", "cuda", "project", "folder"),
    [
        ("libcublasLt.so.12", 12, "nvidia-cublas-cu12", "nvidia/cublas/lib"),
        ("libcublasLt.so.13", 13, "nvidia-cublas", "nvidia/cu13/lib"),
        ("libcudnn_ops.so.9", 13, "nvidia-cudnn-cu13", "nvidia/cudnn/lib"),
        ("libnvvm.so.4", 12, "nvidia-cuda-nvcc-cu12", "nvidia/cuda_nvcc/nvvm/lib64"),
        ("libnvvm.so.4", 13, "nvidia-nvvm", "nvidia/cu13/lib"),
        ("libcutensor.so.2", 12, "cutensor-cu12", "cutensor/lib"),
    ],
)
def test_which_wheel_has_a_library(
    name: str, cuda: int, project: str, folder: str
) -> None:
    own = library_of(name)
    assert own is not None
    assert (own.project_for(cuda), own.folder(cuda)) == (project, folder)


def test_a_library_that_is_found_nowhere(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, NUMBA, BINDINGS)
    assert "libnvvm.so.4, which is found nowhere" in finding.message
    assert "libnvrtc.so.12, which is found nowhere" in finding.message
    (command,) = finding.commands
    assert command.names == ("numba-cuda[cu12]==0.30.0",)


def test_a_library_of_a_wheel_is_found_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert found(tmp_path, NUMBA, BINDINGS, NVVM, NVRTC) == []
    assert "numba-cuda 0.30.0 opens libnvrtc.so.12: found by wheels" in caplog.text


def test_a_library_for_another_cuda_is_what_it_gets(tmp_path: Path) -> None:
    """cuda-pathfinder opens the first file, of any CUDA version."""
    (finding,) = found(tmp_path, NUMBA, BINDINGS, NVVM, NVRTC, NVRTC_13)
    assert "libnvrtc.so.12, and it gets another one by wheels" in finding.message
    assert finding.message.endswith("/nvidia/cu13/lib/libnvrtc.so.13")


@pytest.mark.parametrize(
    ("variable", "folder"),
    [
        ("CUDA_HOME", "lib64"),
        ("CUDA_PATH", "lib"),
        ("CONDA_PREFIX", "lib"),
        ("LD_LIBRARY_PATH", ""),
    ],
)
def test_the_other_places(variable: str, folder: str, tmp_path: Path) -> None:
    home = tmp_path / "toolkit"
    (home / folder).mkdir(parents=True)
    (home / folder / "libnvrtc.so.12").write_bytes(library())
    environ = {variable: str(home)}
    assert found(tmp_path / "env", NUMBA, BINDINGS, NVVM, **environ) == []
    assert len(found(tmp_path / "env", NUMBA, BINDINGS, NVVM)) == 1


def test_a_toolkit_that_the_loader_finds(tmp_path: Path) -> None:
    """NVVM is not in a directory of the loader, but next to a libcudart that is."""
    home = tmp_path / "cuda"
    for name in ("lib64/libcudart.so.12", "nvvm/lib64/libnvvm.so.4"):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_bytes(library())
    environ = {"LD_LIBRARY_PATH": str(home / "lib64")}
    assert found(tmp_path / "env", NUMBA, BINDINGS, NVRTC, **environ) == []


def test_cupy_before_it_used_cuda_pathfinder(tmp_path: Path) -> None:
    """Older releases of CuPy are linked with their libraries, which ND301 checks."""
    cupy = Installed(name="cupy-cuda12x", version="13.6.0")
    assert found(tmp_path / "a", cupy) == []
    newer = Installed(
        name="cupy-cuda12x", version="14.0.1", requires=["cuda-pathfinder"]
    )
    (finding,) = found(tmp_path / "b", newer)
    assert str(finding.commands[0]).endswith("install 'cupy-cuda12x[ctk]==14.0.1'")


def test_transformer_engine_looks_into_the_wheels(tmp_path: Path) -> None:
    own = Installed(name="transformer-engine-cu12", version="2.9.0")
    cudnn = wheel("nvidia-cudnn-cu12", "9.10.2.21", "nvidia/cudnn/lib/libcudnn.so.9")
    assert found(tmp_path / "a", own, NVRTC, cudnn) == []
    (finding,) = found(tmp_path / "b", own, NVRTC)
    assert "libcudnn.so.9" in finding.message
    assert "install 'nvidia-cudnn-cu12==9.*', and add" in finding.hint
