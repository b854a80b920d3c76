"""Builds that cannot run because of their requirements."""

from __future__ import annotations

import pytest
from packaging.version import Version

from nvidia_variant_provider.machine.environment import CudaVersion, Environment
from nvp.builds.releases import (
    GpuRequirement,
    ListedBuild,
    ListedRelease,
    ReleaseTable,
    find_gpu_requirements,
)
from nvp.builds.verdicts import Judgement, find_refusal, judge_by_pin
from nvp.cli.release_text import say_releases
from nvp.knowledge.builds import required_projects
from nvp.metadata.requirements import parse_requirement

RUNS = Judgement(verdict="runs")
CPU = Judgement(verdict="cpu")
UNKNOWN = Judgement(verdict="unknown")
CANNOT = Judgement(verdict="cannot", reasons=("it needs a driver for CUDA 13",))

TORCH = {
    Version("2.10.0"): [RUNS],
    Version("2.11.0"): [CANNOT],
    Version("2.14.0"): [CANNOT, CANNOT],
    Version("2.15.0"): [CANNOT],
}


def test_a_version_that_python_does_not_convert_says_nothing() -> None:
    requirement = f"torch=={'1' * 4301}"
    assert required_projects([requirement], ["torch"]) == {}
    assert find_refusal(requirement, TORCH) is None
    assert judge_by_pin(requirement, TORCH, Environment()) is None


@pytest.mark.parametrize(
    ("requirement", "newest"),
    [
        ("torch==2.11.0", "2.11.0"),
        ("torch>=2.14.0", "2.15.0"),
        ("torch>=2.11,<2.15", "2.14.0"),
        ("torch>2.10.0,!=2.15.0", "2.14.0"),
    ],
)
def test_no_release_that_satisfies_it_runs(requirement: str, newest: str) -> None:
    assert find_refusal(requirement, TORCH) == (
        f"it requires {requirement}, and none of these runs here: {newest}: it needs a "
        "driver for CUDA 13"
    )


@pytest.mark.parametrize(
    "requirement",
    ["torch", "torch>=2.0", "torch==2.10.0", "torch==2.16.0", "torch<2", "not valid ("],
)
def test_no_refusal(requirement: str) -> None:
    assert find_refusal(requirement, TORCH) is None


@pytest.mark.parametrize("other", [RUNS, CPU, UNKNOWN])
def test_one_build_of_a_release_that_may_run_is_enough(other: Judgement) -> None:
    assert find_refusal("torch==2", {Version("2"): [CANNOT, other]}) is None


def test_a_release_without_builds_is_not_judged() -> None:
    assert find_refusal("torch==2", {Version("2"): []}) is None


def test_only_projects_with_gpu_builds_count() -> None:
    requires = [
        "numpy>=1.26",
        "Torch (==2.11.0)",
        "torch-geometric==1",
        "torchvision==0.26.0; extra == 'vision'",
        "vllm @ https://a.example/vllm.whl",
        "torch broken (",
    ]
    assert required_projects(requires, ["torch", "torchvision", "vllm"]) == {
        "torch": "Torch==2.11.0",
        "vllm": "vllm",
    }


@pytest.mark.parametrize(
    ("requirement", "verdict"),
    [
        ("torch==2.10.0", "runs"),
        ("torch==2.9.1", None),  # it has only a CPU build
        ("torch==2.8.0", "unknown"),  # there is none: another index may have it
        ("torch==2.7.0", "unknown"),
        ("torch>=2.10.0", None),  # a range does not name what it was built with
        ("torch", None),
        ("not a requirement !", None),
    ],
)
def test_a_build_is_judged_by_the_one_release_that_it_requires(
    requirement: str, verdict: str | None
) -> None:
    cuda = CudaVersion(12, 8)
    judged = {
        Version("2.10.0"): [
            Judgement(verdict="cannot"),
            Judgement(verdict="runs", cuda=cuda, how="native"),
        ],
        Version("2.9.1"): [Judgement(verdict="cpu")],
        Version("2.7.0"): [Judgement(verdict="cpu"), UNKNOWN],
    }
    judgement = judge_by_pin(requirement, judged, Environment())
    assert (judgement and judgement.verdict) == verdict
    assert judgement is None or judgement.is_open is (verdict == "unknown")
    if verdict == "runs" and judgement is not None:
        assert (judgement.cuda, judgement.how) == (cuda, None)
        assert judgement.reasons[0].startswith("it requires torch==2.10.0, which runs")


def test_a_reason_has_only_the_start_of_a_long_requirement() -> None:
    """`serve` keeps reasons in memory: 60 builds of a page took 1.1 MB."""
    judged = {Version("2.10.0"): [Judgement(verdict="runs")]}
    requirement = "torch==2.10.0" + ".0" * 5000
    judgement = judge_by_pin(requirement, judged, Environment())
    assert judgement is not None
    assert judgement.reasons[0].startswith("it requires torch==2.10.0.0")
    assert len(judgement.reasons[0]) < 200


def test_a_requirement_with_too_many_specifiers_says_nothing() -> None:
    """METADATA of 190 kB took minutes: each release was compared with each of them."""
    requirement = "torch>=2.14" + "".join(f",!=1.{n}" for n in range(100))
    assert required_projects([requirement], ["torch"]) == {}
    assert find_refusal(requirement, TORCH) is None


def test_a_requirement_of_many_characters_is_not_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str] = []
    monkeypatch.setattr("packaging.requirements.Requirement", parsed.append)
    long = ",".join(["torch==2.8.0"] + ["!=1"] * 10_000)
    assert (parse_requirement(long), parsed) == (None, [])


def test_many_required_gpu_projects_are_not_compared_with_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stranger's METADATA may have thousands of requirements."""
    compared: list[object] = []
    equal = GpuRequirement.__eq__

    def counted(one: GpuRequirement, other: object) -> bool:
        compared.append(other)
        return equal(one, other)

    monkeypatch.setattr(GpuRequirement, "__eq__", counted)
    environment = Environment(cuda_driver_version=CudaVersion(12))
    requires = [f"a{n}-cu13" for n in range(50)]
    requires += [f"b{n}-cu12; extra == 'x'" for n in range(50)]
    file = "demo-1-py3-none-any.whl"
    build = ListedBuild(
        file=file, label=None, cuda=None, verdict="unknown", how=None, evidence=None
    )
    table = ReleaseTable(
        project="demo",
        newest=None,
        releases=(ListedRelease(version="1", selected=file, builds=(build,)),),
        gpu_requirements=find_gpu_requirements("demo", requires, environment),
    )
    text, _ = say_releases(
        table, environment, everything=False, every_gpu=False, labels=(), platforms=()
    )
    said = [line for line in text if "requires" in str(line)]
    assert len(said) == 100
    assert sum("needs a driver" in str(line) for line in said) == 50
    assert compared == []


@pytest.mark.parametrize(
    ("requires", "required"),
    [
        (["torch>=2", "torch<3"], {"torch": "torch<3,>=2"}),
        (["torch==2.9"], {"torch": "torch==2.9"}),
        (["torch==2.9; python_version<'3.12'"], {"torch": "torch==2.9"}),
        # It depends on the Python which of these applies.
        (
            ["torch==2.8; python_version<'3.12'", "torch==2.9; python_version>='3.12'"],
            {},
        ),
        (["torch>=2", "torch==2.9; python_version<'3.12'"], {}),
    ],
)
def test_several_requirements_on_a_project(
    requires: list[str], required: dict[str, str]
) -> None:
    """The last one counted alone, so pip took an older release."""
    assert required_projects(requires, ["torch"]) == required
