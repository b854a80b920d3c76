"""Real wheels: the libraries that they load by the model, and by the real loader.

The wheels of three projects are installed by pip under the mark ``network``. torch with
its libraries has 5 GB, so the last tests use an environment that the variable
``NVP_TEST_TORCH`` names: one with torch 2.15, torchvision and triton of PyPI, for CUDA
13. The tests run the interpreter of this environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support.shared_objects import SharedObject, dlopen, needs_compiler
from support.stacks import machine

from nvidia_variant_provider.machine.environment import Environment
from nvp.doctor.distributions import find_distributions
from nvp.doctor.installation import find_installation
from nvp.doctor.loader import Process, split_library_path
from nvp.doctor.loading import load_jax, load_torch
from nvp.doctor.model import Stack
from nvp.doctor.runner import diagnose
from nvp.doctor.software import CodeReader
from nvp.doctor.system import System

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the loader of Linux")

STACK = os.environ.get("NVP_TEST_TORCH", "")
needs_stack = pytest.mark.skipif(not STACK, reason="needs NVP_TEST_TORCH")

CACHE = Path(tempfile.gettempdir(), f"nv-test-cache-{os.getuid()}")
"""Reading the environment takes ten seconds; it is read once for all tests."""

_MISSING = re.compile(r"(\S+): cannot open shared object file")


def stack_of(prefix: str, environment: Environment, *, is_here: bool = True) -> Stack:
    installation = find_installation(prefix, {})
    return Stack(
        environment=environment,
        installation=installation,
        distributions=find_distributions(installation.folders),
        reader=CodeReader(str(CACHE), jobs=2),
        is_here=is_here,
    )


def agrees(path: str, python: str, environ: Mapping[str, str]) -> bool:
    """Load a single library, by the model and by the real loader, and compare.

    :returns: whether the library can be loaded.
    """
    process = Process(
        System(),
        program=python,
        library_path=split_library_path(environ.get("LD_LIBRARY_PATH", "")),
    )
    before = {item.real for item in process.loaded}
    failures = process.load(path)
    files, error = dlopen(Path(path), environ=environ, python=python)
    if error is None:
        assert failures == []
        ours = {item.real for item in process.loaded} - before
        assert ours <= set(files)
        packages = f"{os.sep}site-packages{os.sep}"
        assert {f for f in ours if packages in f} == {
            f for f in files if packages in f and ".so" in f and "/_ctypes" not in f
        }
        return True
    if "undefined symbol" in error:
        # The loader has found all files, but one of them needs symbols of a library
        # that must be loaded before.
        assert failures == []
        return True
    missing = _MISSING.match(error)
    assert missing is not None, error
    assert failures[0].name == missing[1]
    return False


def libraries_of(stack: Stack, project: str) -> list[str]:
    report = stack.code_of(stack.distributions[project])
    assert report is not None
    return [
        stack.distributions[project].locate(item.path)
        for item in report.libraries
        if item.format == "elf" and ".so" in item.path
    ]


@pytest.mark.network
@pytest.mark.parametrize("project", ["bitsandbytes", "onnxruntime-gpu", "xgboost"])
def test_published_libraries_load_as_on_paper(project: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = str(tmp_path / "env/bin/python")
    options = ["install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([python, "-m", "pip", *options, project], check=True)
    stack = stack_of(str(tmp_path / "env"), machine("13.4", "9.0"))
    results = [agrees(path, python, {}) for path in libraries_of(stack, project)]
    assert results


_JAX = """
import sys, types
sys.path[:0] = [sys.argv[1]]
for name in ("jax", "jax._src", "jax._src.lib", "jax._src.xla_bridge"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["jax._src.lib"].triton = sys.modules["jax._src.lib"].xla_client = None
sys.modules["jax._src"].xla_bridge = sys.modules["jax._src.xla_bridge"]
import jax_plugins.xla_cuda12
jax_plugins.xla_cuda12._load_nvidia_libraries()
lines = open("/proc/self/maps").read().splitlines()
print(*sorted({line.split(None, 5)[5] for line in lines if sys.argv[1] in line}))
"""
"""A program that runs the function of the real plug-in that loads NVIDIA's libraries,
without jax."""

_LAYOUT = {
    "cuda_runtime": ["libcudart.so.12"],
    "cuda_nvrtc": ["libnvrtc.so.12"],
    "cublas": ["libcublas.so.12", "libcublasLt.so.12"],
    "cudnn": ["libcudnn.so.9"],
    "cusparse": ["libcusparse.so.12"],
    "nccl": ["libnccl.so.2"],
    "cu13": ["libcublas.so.13", "libcudart.so.13"],
    "nvjitlink": ["libnvJitLink.so.12"],
}
"""Some files of NVIDIA's distributions; jax does not load the last one."""


@pytest.mark.network
@needs_compiler
def test_the_plug_in_of_jax_loads_what_it_loads_on_paper(tmp_path: Path) -> None:
    options = ["install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    options += ["--target", str(tmp_path)]
    wheels = ["jax-cuda12-pjrt==0.9.2", "jax-cuda12-plugin==0.9.2"]
    subprocess.run([sys.executable, "-m", "pip", *options, *wheels], check=True)
    for folder, names in _LAYOUT.items():
        for name in names:
            SharedObject(soname=name).compile(tmp_path / "nvidia" / folder / "lib")
    result = subprocess.run(
        [sys.executable, "-c", _JAX, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    really = set(result.stdout.split())
    process = Process(System(), program=sys.executable)
    load_jax(process, [str(tmp_path)])
    ours = {item.real for item in process.loaded if item.real.startswith(str(tmp_path))}
    assert len(ours) == sum(map(len, _LAYOUT.values())) - 1
    assert {file for file in really if f"{os.sep}nvidia{os.sep}" in file} == ours
    extensions = tmp_path.glob("jax_cuda12_plugin/*.so")
    assert all(agrees(str(path), sys.executable, {}) for path in extensions)


@needs_stack
def test_each_library_of_a_real_stack_loads_as_on_paper() -> None:
    stack = stack_of(STACK, machine("13.4", "9.0"))
    python = str(stack.installation.python)
    paths = [
        path
        for name, distribution in stack.distributions.items()
        if name in ("torch", "torchvision", "triton") or distribution.is_library
        if stack.code_of(distribution) is not None
        for path in libraries_of(stack, name)
    ]
    results = [agrees(path, python, {}) for path in paths]
    assert len(results) > 60
    # torchvision finds the libraries of torch only after torch is imported.
    assert {True, False} == set(results)


@needs_stack
@pytest.mark.parametrize("folder", ["", "triton/backends/nvidia/lib/cupti-blackwell"])
def test_import_torch_loads_what_it_loads_on_paper(folder: str) -> None:
    stack = stack_of(STACK, machine("13.4", "9.0"))
    (packages,) = stack.installation.folders
    path = os.path.join(packages, folder) if folder else ""
    python = str(stack.installation.python)
    process = Process(System(), program=python, library_path=split_library_path(path))
    assert load_torch(process, [packages]) == []
    result = subprocess.run(
        [python, "-c", "import torch"],
        env={"LD_DEBUG": "libs", "LD_LIBRARY_PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    really = {
        os.path.realpath(file)
        for file in re.findall(r"calling init: (\S+)", result.stderr)
    }
    ours = {item.real for item in process.loaded if packages in item.real}
    assert len(ours) > 20
    assert ours <= really
    # Importing torch also imports numpy and the bindings of CUDA.
    of_cuda = (f"{packages}/torch/", f"{packages}/nvidia/")
    assert {file for file in really if file.startswith(of_cuda)} == ours


@needs_stack
@pytest.mark.parametrize("is_here", [False, True])
def test_a_machine_that_fits_is_reported_clean(is_here: bool) -> None:
    stack = stack_of(STACK, machine("13.4", "9.0"), is_here=is_here)
    diagnosis = diagnose(replace(stack, environ={}))
    assert list(diagnosis.findings) == []
    assert diagnosis.notes == ()


@needs_stack
def test_machines_that_do_not_fit_are_wrong() -> None:
    stack = stack_of(STACK, machine("13.4", "9.0"))
    codes = {}
    for driver, capability in [("12.8", "9.0"), ("13.4", "7.0"), ("13.4", "12.1")]:
        other = replace(stack, environment=machine(driver, capability), is_here=False)
        findings = diagnose(other).findings
        codes[driver, capability] = {
            (finding.code, finding.distribution)
            for finding in findings
            if finding.severity == "error"
        }
    assert ("ND201", "torch") in codes["12.8", "9.0"]
    assert ("ND202", "torch") in codes["13.4", "7.0"]
    assert codes["13.4", "12.1"] == set()


@needs_stack
def test_a_real_stack_without_one_library(tmp_path: Path) -> None:
    """A copy of the environment, made of links, without libcusolver."""
    (packages,) = map(
        Path, stack_of(STACK, machine("13.4", "9.0")).installation.folders
    )
    copy = tmp_path / "lib" / packages.parent.name / "site-packages"
    (tmp_path / "pyvenv.cfg").write_text(
        (packages.parents[2] / "pyvenv.cfg").read_text()
    )
    for folder, _, names in os.walk(packages):
        place = copy / Path(folder).relative_to(packages)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            if not name.startswith("libcusolver.so"):
                (place / name).symlink_to(Path(folder, name))
    findings = diagnose(stack_of(str(tmp_path), machine("13.4", "9.0"))).findings
    (finding,) = (item for item in findings if item.code == "ND301")
    assert finding.distribution == "torch"
    assert "libcusolver.so.12" in finding.message
    assert "--no-deps nvidia-cusolver==" in finding.hint
