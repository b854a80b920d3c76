"""The lowest driver that the code of a wheel runs with, strictly and relaxed."""

from __future__ import annotations

import pytest
from support.documents import document
from support.reports import lib, wheel

from nvidia_variant_provider.machine.environment import CudaVersion
from nvidia_variant_provider.machine.supported import LOWER_BOUND, SM_ARCH
from nvp.gpu_code import bounds
from nvp.gpu_code.bounds import newest_runtime, required_runtimes
from nvp.gpu_code.claims import find_claim
from nvp.gpu_code.report import LibraryReport
from nvp.lint.findings import Collector
from nvp.lint.labels import check_meaning


@pytest.mark.parametrize(
    ("libraries", "requires", "strict", "relaxed"),
    [
        ([lib("80_real", "90_virtual", isa="8.7")], [], "12.8", "12.0"),
        ([lib("80_real", needed=["libcudart.so.13"])], [], "13.0", "13.0"),
        ([lib("80_real", needed=["libcublas-1a2b.so.12"])], [], "12.0", "12.0"),
        ([lib("80_real", needed=["libcudart.so.11.0"])], [], "11.0", "11.0"),
        ([lib("80_real", needed=["cudart64_12.dll"])], [], "12.0", "12.0"),
        ([lib("80_real", needed=["libcufft.so.11"])], [], "11.0", "11.0"),
        ([lib("120_real")], [], "12.8", "12.8"),
        ([lib("103a_real")], [], "12.9", None),
        # No driver before 12.8 supports the GPU.
        ([lib("100f_real")], [], "12.9", "12.8"),
        ([lib("80_virtual", isa="8.4")], [], "12.4", None),
        # The PTX is so old that all drivers of the major compile it.
        (
            [lib("80_virtual", isa="7.0", needed=["libcudart.so.12"])],
            [],
            "12.0",
            "12.0",
        ),
        (
            [lib("50_real", "80_real", isa="7.7")],
            ["cuda-toolkit==11.7"],
            "11.7",
            "11.0",
        ),
        ([lib("80_real", "90_virtual", isa="99.0")], [], None, None),
        # Toolkits before CUDA 11, which properties cannot name, emit code for these.
        ([lib("35_real", "80_real", "35_virtual", isa="7.0")], [], "11.0", "11.0"),
        ([lib("20_virtual", "80_real", isa="4.0")], [], "11.0", "11.0"),
        ([lib("30_real", "32_real", "37_real", "80_real")], [], "11.0", "11.0"),
        ([lib("80_real")], ["nvidia-cuda-runtime-cu12==12.8.90"], "12.8", "12.0"),
        ([lib("80_real")], ["cuda-toolkit[cublas]==13.*"], "13.0", "13.0"),
        ([lib("80_real")], ["nvidia-cublas-cu12>=12.4"], "12.0", "12.0"),
        ([lib("80_real")], ["nvidia-cuda-runtime>=13.1,<14"], "13.0", "13.0"),
        ([lib("80_real")], ["cuda-toolkit==13.0.2; extra == 'cuda'"], "11.0", "11.0"),
        ([lib(needed=["libcudart.so.12"])], [], "12.0", "12.0"),
        # The bytes show the version, regardless of the linked libraries.
        ([lib("80_real", static_cudart=12)], [], "12.0", "12.0"),
        ([lib("80_real", static_cudart=11)], [], "11.0", "11.0"),
        ([lib("80_real", toolkit="13.0")], ["nvidia-nccl-cu12"], "13.0", "13.0"),
        ([lib("80_real", toolkit="13.4", static_cudart=13)], [], "13.4", "13.0"),
        # A program loads one of these, and no driver is older than all of them.
        (
            [
                lib("80_real", path="l_cuda118.so", needed=["libcudart.so.11.0"]),
                lib("80_real", path="l_cuda132.so", needed=["libcudart.so.13"]),
            ],
            [],
            "11.8",
            "11.8",
        ),
        ([lib()], [], None, None),
    ],
)
def test_bounds(
    libraries: list[LibraryReport],
    requires: list[str],
    strict: str | None,
    relaxed: str | None,
) -> None:
    claim = find_claim(wheel(*libraries, requires=requires))
    bounds = [claim.strict.to_dict()["version"], claim.relaxed.to_dict()["version"]]
    assert bounds == [strict, relaxed]
    assert claim.strict.reason or strict is None


@pytest.mark.parametrize(
    ("targets", "isa", "reason"),
    [
        (
            ["80_real", "100_real", "80_virtual"],
            "7.0",
            "is from CUDA 11.0 or older",
        ),
        (
            ["80_real", "100_real", "80_virtual"],
            "8.3",
            "is from CUDA 12.3, and must",
        ),
        (["70_virtual", "100_real"], "8.3", "needs a driver for CUDA 12.3"),
        (["80_real", "100_real"], "", "with any driver for CUDA 12"),
    ],
)
def test_the_relaxed_bound_names_the_toolkit_of_the_ptx(
    targets: list[str], isa: str, reason: str
) -> None:
    """The newest machine code needs another toolkit, CUDA 12.8."""
    report = wheel(lib(*targets, isa=isa), lib("80_real", "100_real", path="b.so"))
    claim = find_claim(report)
    assert str(claim.strict.version) == "12.8"
    assert reason in claim.relaxed.reason


@pytest.mark.parametrize(
    "targets", [["50_real", "80_real"], ["80_real", "90_real"], ["90_real", "100_real"]]
)
def test_lint_and_inspect_loosen_a_bound_alike(targets: list[str]) -> None:
    claim = find_claim(wheel(lib(*targets), requires=["cuda-toolkit==12.9"]))
    features = {LOWER_BOUND: [str(claim.strict.version)], SM_ARCH: list(claim.sm_arch)}
    collector = Collector("x.json")
    check_meaning(document({"cu": {"nvidia": features}}), collector)
    hints = [item.hint for item in collector.findings if item.code == "NV310"]
    assert hints == [f"a lower bound of {claim.relaxed.version} would reach them"]


def test_a_library_of_empty_cubins_does_not_loosen_or_tighten_a_bound() -> None:
    """Drivers cannot load empty cubins (deepspeed 0.16.5 for Windows has such
    libraries)."""
    full = lib("80_real", "100_real", needed=["cudart64_12.dll"])
    empty = lib("80_real", path="b.so", stubs={"80_real": 1})
    claim = find_claim(wheel(full, empty))
    assert claim == find_claim(wheel(full))
    assert claim.relaxed.version == CudaVersion(12)
    # Without loadable code, the wheel has no bound.
    assert find_claim(wheel(empty)).sm_arch == ()


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("demo_cu13-1.0-py3-none-any.whl", "13"),
        ("https://index/demo_gpu_cu12-1.0-py3-none-any.whl?key=1", "12"),
        ("C:\\wheels\\demo_cuda12x-1.0-py3-none-any.whl", "12"),
        ("jax_cuda12_plugin-1.0-py3-none-any.whl", "12"),
        ("demo_cuda92-1.0-py3-none-any.whl", "9.2"),
        ("demo_cuda110-1.0-py3-none-any.whl", "11.0"),
        ("demo_cu128-1.0-py3-none-any.whl", "12.8"),
        # These names say nothing about CUDA.
        ("demo_cuda-1.0-py3-none-any.whl", None),
        ("demo_cu3-1.0-py3-none-any.whl", None),
        ("demo_cu55-1.0-py3-none-any.whl", None),
        ("documentcu12-1.0-py3-none-any.whl", None),
        ("demo-1.0+cu128-py3-none-any.whl", None),
    ],
)
def test_the_name_of_a_project_is_evidence_of_cuda(
    name: str, named: str | None
) -> None:
    runtime = newest_runtime(wheel(path=name), ())
    assert (None if runtime is None else str(runtime.version)) == named


def test_the_name_of_a_project_sets_the_bound() -> None:
    claim = find_claim(wheel(lib("80_real"), path="demo_cu13-1.0-py3-none-any.whl"))
    assert str(claim.strict.version) == str(claim.relaxed.version) == "13.0"
    assert claim.strict.reason == "the project is named demo-cu13"


def test_the_name_of_a_vendored_runtime_has_its_full_version() -> None:
    name = "libcudart-b5a066d7.so.12"
    report = wheel(
        lib("80_real", needed=[name]),
        lib(path=f"demo.libs/{name}.4.127", vendored=True),
        # No library is linked with this one.
        lib(path="demo.libs/libcudart-0000.so.13.0.1", vendored=True),
    )
    claim = find_claim(report)
    assert claim.strict.version == CudaVersion(12, 4)
    assert f"{name}.4.127" in claim.strict.reason


def test_only_requirements_on_cuda_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def parse(text: str) -> None:
        parsed.append(text)

    monkeypatch.setattr(bounds, "parse_requirement", parse)
    texts = [
        "numpy",
        "nvidia-never-seen-cu12",
        *["x ("] * 100,
        *["cuda-toolkit"] * 9000,
    ]
    for _ in range(3):
        assert required_runtimes(texts) == []
    assert set(parsed) == {"nvidia-never-seen-cu12", "cuda-toolkit"}
    assert sum(map(len, parsed)) <= bounds.MAX_PARSED


def test_long_requirements_on_cuda_are_not_all_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 255 such requirements fit in METADATA. Each takes 0.02 seconds.
    parsed: list[str] = []
    monkeypatch.setattr(bounds, "parse_requirement", parsed.append)
    marker = " or ".join(["python_version > '3'"] * 700)
    assert required_runtimes(f"nvidia-a{n}; {marker}" for n in range(255)) == []
    assert 0 < sum(map(len, parsed)) <= bounds.MAX_PARSED
