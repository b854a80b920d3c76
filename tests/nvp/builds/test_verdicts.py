"""Verdicts about builds, compared to the rule of the benchmarks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from benchmarks.selection import GPUS, works
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)
from nvp.builds.needs import (
    needs_of_backend,
    needs_of_name,
    needs_of_requirements,
    parse_backend,
)
from nvp.builds.verdicts import judge
from nvp.knowledge.builds import BuildRecord, LibraryCode, Needs
from nvp.knowledge.tables import gpu_models, toolkits

TARGETS = [50, 60, 61, 70, 75, 80, 86, 89, 90, 100, 103, 120, 121]


def machine(driver: str | None, *gpus: str) -> Environment:
    return Environment(
        cuda_driver_version=None if driver is None else CudaVersion.parse(driver),
        gpus=tuple(
            Gpu(index=i, compute_capability=ComputeCapability.parse(gpu))
            for i, gpu in enumerate(gpus)
        ),
    )


def torch(
    cuda: str, real: str, ptx: str = "", name: str = "libtorch.so"
) -> LibraryCode:
    version = CudaVersion.parse(cuda)
    return LibraryCode(
        name=name,
        cuda=version,
        machine_code=frozenset(real.split()),
        ptx=dict.fromkeys(ptx.split(), version),
    )


def needs(
    *pieces: LibraryCode | tuple[LibraryCode, ...], cuda: str | None = None
) -> Needs:
    return Needs(
        evidence="table",
        source="the table",
        cuda=None if cuda is None else CudaVersion.parse(cuda),
        pieces=tuple(
            piece if isinstance(piece, tuple) else (piece,) for piece in pieces
        ),
    )


@given(
    toolkit=st.sampled_from(["11.8", "12.4", "12.8", "13.0", "13.2"]),
    real=st.sets(st.sampled_from(TARGETS)),
    virtual=st.sets(st.sampled_from(TARGETS)),
    driver=st.sampled_from(["11.4", "11.8", "12.2", "12.8", "13.0", "13.4"]),
    gpu=st.sampled_from(GPUS),
)
def test_a_build_that_is_said_to_run_works_and_the_reverse(
    toolkit: str, real: set[int], virtual: set[int], driver: str, gpu: str
) -> None:
    targets = [" ".join(map(str, sorted(numbers))) for numbers in (real, virtual)]
    if not real and not virtual:
        return
    code = torch(toolkit, *targets)
    verdict = judge(needs(code, cuda=toolkit), machine(driver, gpu)).verdict
    expected = works((toolkit, sorted(real), sorted(virtual)), driver, gpu)
    assert verdict == ("runs" if expected else "cannot")


class TestReasons:
    def test_a_driver_of_an_older_major(self) -> None:
        judgement = judge(
            needs(torch("13.2", "75 80"), cuda="13.2"), machine("12.8", "8.0")
        )
        assert judgement.verdict == "cannot"
        assert judgement.reasons == (
            "it needs a driver for CUDA 13, but this one is for CUDA 12.8 (the table)",
        )

    def test_minor_version_compatibility_is_not_strict(self) -> None:
        build = needs(torch("12.8", "75 80"), cuda="12.8")
        assert not judge(build, machine("12.2", "8.6")).strict
        assert judge(build, machine("12.2", "8.6")).verdict == "runs"
        assert judge(build, machine("12.8", "8.6")).strict

    def test_no_code_for_the_gpu(self) -> None:
        judgement = judge(
            needs(torch("12.8", "75 80 100")), machine("12.8", "7.0", "6.1")
        )
        assert judgement.verdict == "cannot"
        assert judgement.reasons == (
            "libtorch.so has no code for compute capability 6.1, only for 75, 80, 100",
            "libtorch.so has no code for compute capability 7.0, only for 75, 80, 100",
        )

    def test_ptx_that_is_newer_than_the_driver(self) -> None:
        judgement = judge(needs(torch("12.9", "75", ptx="90")), machine("12.8", "10.0"))
        assert judgement.verdict == "cannot"
        assert judgement.reasons == (
            "libtorch.so has only PTX for compute capability 10.0, which needs a "
            "driver for CUDA 12.9, but this one is for CUDA 12.8",
        )

    def test_some_libraries_have_no_code(self) -> None:
        build = needs(torch("12.8", "80"), torch("12.8", "90", name="extra.so"))
        judgement = judge(build, machine("12.8", "8.0"))
        assert (judgement.verdict, judgement.how) == ("partly", "native")
        assert judgement.reasons == (
            "extra.so has no code for compute capability 8.0, only for 90",
        )

    @pytest.mark.parametrize(
        ("toolkit", "driver", "gpus", "verdict"),
        [
            ("13.2", "13.2", ["8.7"], "runs"),
            ("13.2", "13.0", ["8.7"], "cannot"),
            ("13.0", "13.2", ["8.7"], "unknown"),
            ("13.0", "13.2", ["8.7", "9.0"], "partly"),
        ],
    )
    def test_code_for_desktop_gpus_on_a_jetson(
        self, toolkit: str, driver: str, gpus: list[str], verdict: str
    ) -> None:
        judgement = judge(needs(torch(toolkit, "80 90")), machine(driver, *gpus))
        assert judgement.verdict == verdict
        if verdict in ("unknown", "partly"):
            assert judgement.reasons == (
                "libtorch.so: it is unknown whether its machine code for 80, 90 runs "
                "on compute capability 8.7: it is of CUDA 13.0, and newer code is "
                "known to",
            )

    def test_a_small_library_alone_does_not_make_a_build_run(self) -> None:
        small = replace(torch("12.8", "60", name="linalg.so"), minor=True)
        build = needs(torch("12.8", "80"), small)
        assert judge(build, machine("12.8", "6.1")).verdict == "cannot"
        assert judge(build, machine("12.8", "8.0")).verdict == "partly"

    def test_some_gpus_have_no_code(self) -> None:
        judgement = judge(needs(torch("12.8", "80")), machine("12.8", "8.0", "7.0"))
        assert judgement.verdict == "partly"

    def test_a_library_for_each_cuda(self) -> None:
        choice = (
            torch("11.8", "70 80", name="lib_cuda118.so"),
            torch("13.0", "80 90", name="lib_cuda130.so"),
        )
        build = needs(choice)
        assert judge(build, machine("12.4", "7.0")).verdict == "runs"
        assert judge(build, machine("12.4", "9.0")).verdict == "cannot"
        assert judge(build, machine("13.0", "9.0")).verdict == "runs"
        assert judge(build, machine("10.2", "7.0")).verdict == "cannot"


class TestMetadataAlone:
    wheel = needs_of_requirements(["numpy", "nvidia-cuda-runtime-cu12==12.8.90"])

    @pytest.mark.parametrize(
        ("driver", "gpu", "verdict"),
        [
            ("12.8", "8.0", "runs"),
            ("12.2", "8.0", "runs"),
            ("13.0", "8.0", "runs"),
            ("11.8", "8.0", "cannot"),
            ("12.8", "6.1", "runs"),
            ("12.8", "12.1", "unknown"),
        ],
    )
    def test_driver_and_gpu(self, driver: str, gpu: str, verdict: str) -> None:
        judgement = judge(self.wheel, machine(driver, gpu))
        assert judgement.verdict == verdict
        assert judgement.how is None

    def test_a_gpu_that_the_toolkit_has_dropped(self) -> None:
        wheel = needs_of_requirements(["cuda-toolkit[cudart]==13.0.2"])
        judgement = judge(wheel, machine("13.0", "7.0"))
        assert judgement.verdict == "cannot"
        assert judgement.reasons[0].startswith(
            "CUDA 13.0 does not compile for compute capability 7.0, CUDA 12.9 was the"
        )
        assert judge(wheel, machine("13.0", "7.0", "8.0")).verdict == "partly"

    @pytest.mark.parametrize(
        ("gpu", "ours", "theirs"),
        [
            ("3.7", "cannot", "cannot"),
            ("6.1", "runs", "runs"),
            ("9.0", "runs", "runs"),
            # The first toolkit for this GPU is CUDA 12.8.
            ("12.0", "runs", "unknown"),
        ],
    )
    def test_a_major_alone(self, gpu: str, ours: str, theirs: str) -> None:
        """A library of NVIDIA has code for all targets of the toolkits of its major."""
        where = machine("13.0", gpu)
        needed = ["nvidia-cublas-cu12"]
        for wheel, verdict in (
            (needs_of_name("nvidia-cudnn-cu12"), ours),
            (needs_of_requirements(needed, "nvidia-cudnn-cu12"), ours),
            (needs_of_name("cupy-cuda12x"), theirs),
            (needs_of_requirements(needed), theirs),
            (needs_of_backend(parse_backend("cu12")), theirs),
        ):
            judgement = judge(wheel, where)
            assert (judgement.verdict, str(judgement.cuda)) == (verdict, "12")
        assert "12.0" not in str(judge(wheel, machine("13.0", "3.7")).reasons)

    @pytest.mark.parametrize(
        ("project", "release", "verdict"),
        [
            ("nvidia-cublas", "13.0.0.19", "cannot"),
            ("nvidia-cuda-runtime", "13.5.37", "cannot"),
            ("nvidia-curand", "10.4.0.35", "cannot"),
            # The name is older than CUDA 13, so it does not show the code for CUDA 13.
            ("nvidia-curand", "10.3.10", "unknown"),
            ("nvidia-cuda-nvcc", "13.0.48", "unknown"),
        ],
    )
    def test_libraries_without_cuda_in_their_names(
        self, project: str, release: str, verdict: str
    ) -> None:
        wheel = needs_of_name(project, Version(release))
        assert judge(wheel, machine("12.8", "8.0")).verdict == verdict
        assert judge(wheel, machine("13.0", "12.0")).verdict in ("runs", "unknown")

    def test_two_majors_contradict_each_other(self) -> None:
        both = ["nvidia-cublas-cu12", "nvidia-cuda-runtime==13.0.48", "numpy"]
        judgement = judge(needs_of_requirements(both), machine("12.8", "8.0"))
        assert judgement.verdict == "unknown"
        for text in both[:2]:
            assert text in judgement.reasons[0]

    def test_no_cuda_in_the_dependencies_is_no_evidence(self) -> None:
        assert needs_of_requirements(["numpy", "torch>=2"]) is None
        assert judge(None, machine("12.8", "8.0")).verdict == "unknown"


class TestLabelAlone:
    @pytest.mark.parametrize(
        ("label", "cuda"),
        [("cu92", "9.2"), ("cu118", "11.8"), ("cu126", "12.6"), ("cu130", "13.0")],
    )
    def test_cuda(self, label: str, cuda: str) -> None:
        backend = parse_backend(label)
        assert backend is not None
        assert (backend.kind, backend.cuda) == ("cuda", CudaVersion.parse(cuda))

    @pytest.mark.parametrize(
        "label",
        [
            "foo",
            "cu",
            "cu1",
            "cu1x",
            "cu1234",
            "computecanada",
            "rocm",
            "rocm7.",
            "",
            None,
        ],
    )
    def test_a_label_that_says_nothing(self, label: str | None) -> None:
        assert parse_backend(label) is None
        assert (
            judge(
                needs_of_backend(parse_backend(label)), machine("11.8", "7.0")
            ).verdict
            == "unknown"
        )

    def test_other_hardware_and_cpu(self) -> None:
        foreign = [parse_backend(label) for label in ("xpu", "rocm7.2", "rocm6.4.1")]
        assert all(backend and backend.is_foreign for backend in foreign)
        assert (
            judge(
                needs_of_backend(parse_backend("cpu")), machine("12.8", "8.0")
            ).verdict
            == "cpu"
        )

    def test_judged_by_the_toolkit(self) -> None:
        build = needs_of_backend(parse_backend("cu130"))
        assert judge(build, machine("12.9", "8.0")).verdict == "cannot"
        assert judge(build, machine("13.0", "6.1")).verdict == "cannot"
        assert judge(build, machine("13.0", "8.0")).verdict == "runs"


def test_without_a_driver_gpu_code_cannot_run() -> None:
    judgement = judge(needs(torch("12.8", "80")), Environment(reason="no-device"))
    assert judgement.verdict == "cannot"
    assert judgement.reasons == ("this machine has no NVIDIA driver",)


def test_a_driver_alone_is_judged_by_its_version() -> None:
    assert judge(needs(torch("12.8", "80"), cuda="12.8"), machine("12.2")).verdict == (
        "runs"
    )


@given(
    driver=st.sampled_from(["11.8", "12.8", "13.2"]),
    gpu=st.sampled_from(sorted(gpu_models())),
    cuda=st.sampled_from(["11.8", "12.4", "12.8", "13.0"]),
)
def test_metadata_never_refuses_what_full_code_would_run(
    driver: str, gpu: ComputeCapability, cuda: str
) -> None:
    """A build with SASS for every target of its toolkit is the best case."""
    toolkit = toolkits()[CudaVersion.parse(cuda)]
    full = needs(torch(cuda, " ".join(toolkit.targets)), cuda=cuda)
    where = machine(driver, str(gpu))
    if judge(full, where).verdict == "runs":
        wheel = needs_of_requirements([f"cuda-toolkit=={cuda}.0"])
        assert judge(wheel, where).verdict in ("runs", "unknown")


def record(version: str, *pieces: LibraryCode) -> BuildRecord:
    return BuildRecord(
        project="demo",
        version=version,
        label=None,
        platform="linux_x86_64",
        needs=needs(*pieces),
        wheels={},
        source="inspected",
        date="2026-11-22",
    )


@pytest.mark.parametrize(
    ("near", "verdict"),
    [
        ([], "runs"),
        ([record("1", torch("12.1", "60 70"))], "runs"),
        ([record("1", torch("12.1", "70"))], "unknown"),
        (
            [record("1", torch("12.1", "60")), record("3", torch("12.8", "70"))],
            "unknown",
        ),
        # A build that needs a newer driver does not show whether it supports the GPU.
        ([record("1", torch("12.1", "60")), record("3", torch("13.0", "75"))], "runs"),
    ],
)
def test_the_code_of_the_releases_before_and_after(
    near: list[BuildRecord], verdict: str
) -> None:
    build = needs_of_requirements(["nvidia-cuda-runtime-cu12==12.6.77"])
    judgement = judge(build, machine("12.8", "6.1"), near=near)
    assert judgement.verdict == verdict
    if verdict == "unknown":
        assert judgement.reasons[0].startswith("its code was not read, and ")


def test_builds_for_desktop_gpus_are_not_known_to_run_on_a_jetson() -> None:
    build = needs_of_requirements(["nvidia-cuda-runtime-cu12==12.6.77"])
    assert judge(build, machine("12.6", "8.7")).verdict == "unknown"


@given(
    real=st.sets(st.sampled_from(TARGETS), min_size=1),
    gpus=st.lists(st.sampled_from(GPUS), min_size=1, max_size=3),
)
def test_of_several_gpus_the_highest_decides(real: set[int], gpus: list[str]) -> None:
    """The rule is for runs without --every-gpu; with it, each GPU counts."""
    build = needs(torch("12.8", " ".join(map(str, real))), cuda="12.8")
    each = {gpu: judge(build, machine("12.8", gpu)).verdict for gpu in gpus}
    highest = max(gpus, key=ComputeCapability.parse)
    together = judge(build, machine("12.8", *gpus))
    assert (together.verdict == "cannot") is (each[highest] == "cannot")
    if together.verdict != "cannot":
        lacking = {gpu for gpu, verdict in each.items() if verdict == "cannot"}
        assert set(map(str, together.lacking)) == lacking
    all_of_them = judge(build, machine("12.8", *gpus), every_gpu=True).verdict
    assert (all_of_them == "cannot") is ("cannot" in each.values())
