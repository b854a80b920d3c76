"""The libraries that torch and jax load first: a real package, compared to the
model."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from support.shared_objects import SharedObject, needs_compiler

from nvp.doctor.loader import Process
from nvp.doctor.loading import load_jax, load_torch
from nvp.doctor.system import System

pytestmark = needs_compiler

_HEAD = """
import ctypes, glob, os, sys
from torch.version import cuda

def _preload(folder, pattern):
    for path in sys.path:
        places = glob.glob(os.path.join(path, "nvidia", folder, "lib", pattern))
        name = f"cu{cuda.split('.')[0]}"
        places += glob.glob(os.path.join(path, "nvidia", name, "lib", pattern))
        if places:
            ctypes.CDLL(places[0])
            return

def _preload_cuda_deps(err=None, required=True):
"""

PAIRS = """
    for folder, pattern in [
        ("cublas", "libcublas.so.*[0-9]"), ("cuda_runtime", "libcudart.so.*[0-9]"),
    ]:
        _preload(folder, pattern)
"""
MAPPING = """
    for folder, pattern in {
        "cublas": "libcublas.so.*[0-9]", 'cuda_runtime': 'libcudart.so.*[0-9]',
    }.items():
        _preload(folder, pattern)
"""
_LOADING = """
def _load_global_deps():
    name = os.path.join(os.path.dirname(__file__), "lib", "libtorch_global_deps.so")
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        if "libcudart.so" in open("/proc/self/maps").read():
            %s
    except OSError as error:
        _preload_cuda_deps(error)
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)

_load_global_deps()
"""
ALL = "_preload_cuda_deps(required=False)"
ONE = '_preload("nvjitlink", "libnvJitLink.so.*[0-9]")'

_REPORT = """
import json, sys
sys.path[:] = [sys.argv[1], *sys.path]
import importlib
importlib.import_module(sys.argv[2])
lines = open("/proc/self/maps").read().splitlines()
files = {line.split(None, 5)[5] for line in lines if len(line.split()) > 5}
print(json.dumps(sorted(files)))
"""


def imported(packages: Path, module: str) -> set[str]:
    """Import a module, and return the libraries of the directory that it has loaded."""
    command = [sys.executable, "-S", "-E", "-c", _REPORT, str(packages), module]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    files = {file for file in json.loads(result.stdout) if file.endswith(SUFFIXES)}
    return {file for file in files if file.startswith(str(packages))}


SUFFIXES = (".so", ".so.12", ".so.13")


def torch_in(packages: Path, *, source: str, cuda: str, needed: list[str]) -> None:
    """Install a torch that has no RPATH, and NVIDIA's libraries in its layout."""
    (packages / "torch/lib").mkdir(parents=True)
    (packages / "torch/__init__.py").write_text(source)
    (packages / "torch/version.py").write_text(f"cuda: str | None = '{cuda}'\n")
    major = cuda.partition(".")[0]
    deps = SharedObject(soname="libtorch_global_deps.so", needed=needed)
    if "libcudart" in "".join(needed):
        deps = SharedObject(
            soname=deps.soname,
            needed=needed,
            rpath=f"$ORIGIN/../../{layout('cuda_runtime', major)}",
        )
    deps.compile(packages / "torch/lib")
    for folder, name in [
        ("cublas", "libcublas"),
        ("cuda_runtime", "libcudart"),
        ("nvjitlink", "libnvJitLink"),
    ]:
        soname = f"{name}.so.{major}"
        SharedObject(soname=soname).compile(packages / layout(folder, major))


def layout(folder: str, major: str) -> str:
    return f"nvidia/cu{major}/lib" if major == "13" else f"nvidia/{folder}/lib"


def on_paper(packages: Path) -> set[str]:
    system = System(machine=platform.machine())
    process = Process(system, program=sys.executable)
    assert load_torch(process, [str(packages)]) == []
    return {item.real for item in process.loaded if item.real.startswith(str(packages))}


@pytest.mark.parametrize("cuda", ["12.8", "13.2"])
@pytest.mark.parametrize("listing", [PAIRS, MAPPING])
@pytest.mark.parametrize("on_success", [ALL, ONE])
@pytest.mark.parametrize("is_found", [False, True])
def test_the_libraries_of_torch(
    cuda: str, listing: str, on_success: str, is_found: bool, tmp_path: Path
) -> None:
    major = cuda.partition(".")[0]
    source = _HEAD + listing + _LOADING % on_success
    name = "libcudart" if is_found else "libcublas"
    torch_in(tmp_path, source=source, cuda=cuda, needed=[f"{name}.so.{major}"])
    files = imported(tmp_path, "torch")
    assert any("libcu" in file for file in files)
    assert on_paper(tmp_path) == files


def test_a_library_that_torch_does_not_look_for(tmp_path: Path) -> None:
    source = _HEAD + PAIRS + _LOADING % ALL
    torch_in(tmp_path, source=source, cuda="12.8", needed=["libother.so.1"])
    process = Process(System(machine=platform.machine()))
    (failure,) = load_torch(process, [str(tmp_path)])
    assert failure.name == "libother.so.1"


def test_without_torch_nothing_is_loaded(tmp_path: Path) -> None:
    process = Process(System(machine=platform.machine()))
    assert load_torch(process, [str(tmp_path)]) == []
    assert process.loaded == []


def test_the_libraries_of_jax(tmp_path: Path) -> None:
    plug_in = tmp_path / "jax_plugins/xla_cuda12"
    plug_in.mkdir(parents=True)
    (plug_in / "__init__.py").write_text(
        "import ctypes, pathlib\n"
        "def _load(folder, names):\n"
        "    for name in names:\n"
        "        path = pathlib.Path(__file__).parents[2] / 'nvidia' / folder / 'lib'\n"
        "        if (path / name).exists():\n"
        "            ctypes.CDLL(str(path / name))\n"
        '_load("cublas", ["libcublas.so.12", "libcublasLt.so.12"])\n'
        '_load("cu13", ["libcublas.so.13"])\n'
    )
    for name in ("libcublas.so.12", "libcublasLt.so.12"):
        SharedObject(soname=name).compile(tmp_path / "nvidia/cublas/lib")
    SharedObject(soname="libcudart.so.12").compile(tmp_path / "nvidia/cudart/lib")
    process = Process(System(machine=platform.machine()))
    load_jax(process, [str(tmp_path)])
    files = imported(tmp_path, "jax_plugins.xla_cuda12")
    assert len(files) == 2
    assert {item.real for item in process.loaded} == files
