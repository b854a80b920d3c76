"""The project's own libraries of a wheel, and copies of other projects."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.containers import library
from support.documents import document, nvidia
from support.native import needs_compiler
from support.paths import FIXTURES
from support.reports import lib
from support.wheels import stub_wheel

from nvp import api
from nvp.gpu_code import units
from nvp.gpu_code.claims import find_claim
from nvp.gpu_code.report import LibraryReport
from nvp.gpu_code.units import (
    copied_paths,
    is_of_nvidia,
    links_kernels_of_nvidia,
)

WHEELS: dict[str, Any] = json.loads(
    (FIXTURES / "copied-libraries.json").read_text(encoding="utf-8")
)["wheels"]


def copied(project: str, *libraries: LibraryReport) -> set[str]:
    return set(copied_paths(libraries, project))


@pytest.mark.parametrize(
    ("path", "project", "is_copy"),
    [
        ("demo/lib.so", "demo", False),
        ("demo.libs/libgomp-e985bcbb.so.1", "demo", True),
        ("demo/.dylibs/libomp.dylib", "demo", True),
        # Such a tool can move the project's own library into that directory.
        ("ctranslate2.libs/libctranslate2-a7a60d30.so.4.8.5", "ctranslate2", False),
        ("my_demo.libs/libmydemo-12.so", "my_demo", False),
        ("demo_gpu_cu12.libs/libdemo-1a2b3c4d.so", "demo_gpu_cu12", False),
        # If no other file names the project, the directory does.
        ("demo_gpu_cu12.libs/libdemo-1a2b3c4d.so", "", False),
        ("torch/lib/libtorch_cuda.so", "torch", False),
        ("torch/lib/libcudart-c3a75b33.so.12", "torch", True),
        ("torch/lib/libcudnn_engines_precompiled.so.9", "torch", True),
        ("torch/lib/cublasLt64_12.dll", "torch", True),
        ("nvidia/curand/bin/curand64_10.dll", "demo", True),
        ("nvidia/curand/bin/curand64_10.dll", "nvidia_curand_cu12", False),
        ("NVIDIA/curand/bin/other.dll", "demo", True),
        ("libnvjpeg.so.13", "", True),
        ("demo/nccl_wrapper.so", "demo", False),
        # NVIDIA's own wheel of cuTENSOR has the same libraries for both systems.
        ("cutensor/lib/libcutensor.so.2", "cutensor_cu12", False),
        ("cutensor/bin/cutensor.dll", "cutensor_cu12", False),
        ("demo/libcutensor.so.2", "demo", True),
        ("demo/cutensor.dll", "demo", True),
        ("tensorrt_libs/libnvinfer.so.10", "tensorrt_cu12_libs", False),
        ("demo/libnvinfer.so.10", "demo", True),
        # Static libraries have NVIDIA's names too.
        ("demo/lib/libcupti_static.a", "demo", True),
        ("demo/lib/cudart_static.lib", "demo", True),
        ("demo/lib/libcublas_static_nocallback.a", "demo", True),
        ("demo/lib/libkernels_static.a", "demo", False),
    ],
)
def test_one_library(path: str, project: str, *, is_copy: bool) -> None:
    assert copied(project, lib("80_real", path=path)) == ({path} if is_copy else set())


def test_a_general_name_counts_as_of_cupti_only_next_to_it() -> None:
    checkpoint = lib("80_real", path="demo/lib/libcheckpoint.so")
    assert copied("demo", checkpoint) == set()
    elsewhere = lib(path="demo/other/libcupti.so.12")
    assert copied("demo", checkpoint, elsewhere) == {elsewhere.path}
    beside = lib(path="demo/lib/libcupti.so.12")
    assert copied("demo", checkpoint, beside) == {checkpoint.path, beside.path}


class TestLinked:
    """A library in ``NAME.libs/`` without a name of NVIDIA or of the project."""

    core = lib("80_real", path="demo.libs/libcore-1a2b3c4d.so")

    def module(self, *needed: str) -> LibraryReport:
        return lib(path="demo/_demo.so", needed=needed)

    def test_it_is_own_if_the_project_links_it(self) -> None:
        module = self.module("libcore-1a2b3c4d.so", "libc.so.6")
        assert copied("demo", module, self.core) == set()

    def test_it_is_a_copy_if_nothing_links_it(self) -> None:
        assert copied("demo", self.module(), self.core) == {self.core.path}

    def test_it_is_own_if_it_is_linked_through_another(self) -> None:
        middle = lib(
            path="demo.libs/libmiddle-0f0f0f0f.so", needed=["libcore-1a2b3c4d.so"]
        )
        module = self.module("libmiddle-0f0f0f0f.so")
        # The library between them has no GPU code, so its kind has no effect.
        assert copied("demo", module, middle, self.core) == {middle.path}

    def test_libraries_that_link_each_other_end(self) -> None:
        one = lib("80_real", path="demo.libs/libone.so", needed=["libtwo.so"])
        two = lib("80_real", path="demo.libs/libtwo.so", needed=["libone.so"])
        assert copied("demo", one, two) == {one.path, two.path}
        assert copied("demo", self.module("libone.so"), one, two) == set()

    def test_nvidias_libraries_link_nothing_of_the_project(self) -> None:
        cudnn = lib(path="demo.libs/libcudnn.so.9", needed=["libcore-1a2b3c4d.so"])
        module = self.module("libcudnn.so.9")
        assert copied("demo", module, cudnn, self.core) == {cudnn.path, self.core.path}

    def test_it_is_a_copy_if_another_project_has_it_as_its_own(self) -> None:
        """The table of builds has torch's own libraries, and those of others."""
        theirs = lib("80_real", path="demo.libs/libtorch_cuda-1a2b3c4d.so")
        module = self.module("libtorch_cuda-1a2b3c4d.so")
        assert copied("demo", module, theirs) == {theirs.path}
        assert copied("torch", module, theirs) == set()

    def test_without_gpu_code_it_is_a_copy(self) -> None:
        blas = lib(path="demo.libs/libopenblas-1a2b3c4d.so")
        assert copied("demo", self.module("libopenblas-1a2b3c4d.so"), blas) == {
            blas.path
        }


@pytest.mark.parametrize("name", WHEELS)
def test_wheels_of_the_package_index(name: str) -> None:
    """The kinds of libraries in released wheels, by the sources of the projects."""
    libraries = [
        lib(*item.get("targets", ()), path=item["path"], needed=item.get("needed", ()))
        for item in WHEELS[name]["libraries"]
    ]
    expected = {i["path"] for i in WHEELS[name]["libraries"] if i.get("copied")}
    assert copied(name.partition("-")[0], *libraries) == expected


def test_ten_of_the_wheels_were_repaired() -> None:
    repaired = [
        name
        for name, wheel in WHEELS.items()
        if any(".libs/" in item["path"] for item in wheel["libraries"])
    ]
    assert len(repaired) >= 10


def test_a_name_with_a_line_break_is_matched_in_linear_time() -> None:
    # Without DOTALL, each ".so." is tried in vain, up to the line break.
    assert units._LIBRARY.fullmatch("liba" + ".so" * 3 + "\n.so") is not None


def test_names_of_nvidia() -> None:
    assert is_of_nvidia("libcublasLt.so.12")
    assert not is_of_nvidia("libtorch_cuda.so")
    assert links_kernels_of_nvidia(["libc.so.6", "cudnn64_9.dll"])
    assert not links_kernels_of_nvidia(["libcudart.so.12", "libcupti.so.12"])


@needs_compiler
def test_a_compiled_wheel_whose_kernels_are_in_the_folder_of_a_repair(
    tmp_path: Path,
) -> None:
    """The shape of faiss-gpu-cu12 1.14.1: no claim, and a false NV510, until now."""
    (tmp_path / "code.bin").write_bytes(library("70_real", "80_real"))
    (tmp_path / "core.c").write_text(
        '__asm__(".section .nv_fatbin,\\"a\\"\\n.balign 8\\n'
        f'.incbin \\"{tmp_path}/code.bin\\",64\\n.previous");\n'
        "int core(void) { return 1; }\n"
    )
    (tmp_path / "module.c").write_text(
        "int core(void);\nint call(void) { return core(); }\n"
    )
    core, module = tmp_path / "libengine-6b43fd57.so", tmp_path / "_swigdemo.so"
    shared = ("cc", "-shared", "-fPIC")
    for command in (
        (*shared, f"-Wl,-soname,{core.name}", "-o", core, tmp_path / "core.c"),
        (*shared, "-o", module, tmp_path / "module.c", core),
    ):
        subprocess.run(command, check=True)
    members = {
        "demo/_swigdemo.so": module.read_bytes(),
        f"demo_gpu_cu12.libs/{core.name}": core.read_bytes(),
        "demo_gpu_cu12.libs/libgomp-a34b3233.so.1.0.0": library(),
    }
    own = document({"cu120": nvidia("12.0", sm=["70_real", "80_real"])})
    tag = "cp311-cp311-linux_x86_64"
    path = stub_wheel(
        tmp_path,
        "demo-gpu-cu12",
        "1.0",
        "cu120",
        variant_json=own,
        tag=tag,
        members=members,
    )
    report = api.inspect(path)
    assert [item.path for item in report.vendored] == [
        "demo_gpu_cu12.libs/libgomp-a34b3233.so.1.0.0"
    ]
    assert find_claim(report).sm_arch == ("70_real", "80_real")
    assert [f for f in api.validate([path]) if f.code.startswith("NV5")] == []
