"""Judging the builds of a page, and the requests to the index for this."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from packaging.version import Version
from simple_repository import model
from support.judged_pages import LARGE, NONE, OLD, Index, linux, wheel

from nvidia_variant_provider.machine.environment import (
    CudaVersion,
    Environment,
)
from nvp.builds.needs import requirements_on
from nvp.index.selection import evidence
from nvp.index.selection.judging import PageJudge
from nvp.metadata.requirements import Work

TORCH = [linux("torch", v) for v in ("2.9.1", "2.10.0", "2.11.0", "2.15.0")]


def test_the_table_answers_without_any_request() -> None:
    index = Index({"torch": TORCH})
    assert index.verdicts("torch") == {
        "2.15.0": "cannot",
        "2.11.0": "cannot",
        "2.10.0": "runs",
        "2.9.1": "runs",
    }
    assert index.asked == []


def test_requirements_in_the_table_count_for_a_wheel_for_any_platform() -> None:
    """sglang 0.5.10.post1 is pure Python and requires torch==2.9.1."""
    files = [
        wheel("sglang-0.5.23-cp313-cp313-manylinux_2_34_x86_64.whl"),
        wheel("sglang-0.5.10.post1-py3-none-any.whl"),
    ]
    index = Index({"sglang": files, "torch": [*TORCH, linux("torch", "2.14.1")]})
    assert index.verdicts("sglang") == {"0.5.23": "cannot", "0.5.10.post1": "runs"}
    old = Environment(cuda_driver_version=CudaVersion(11, 8), gpus=OLD.gpus)
    assert index.verdicts("sglang", old)["0.5.10.post1"] == "cannot"
    assert index.asked == []


@pytest.mark.parametrize(
    ("project", "files", "detected"),
    [
        ("six", [wheel("six-1.16-py3-none-any.whl", LARGE)], 0),
        ("six", [wheel("six-1.16.tar.gz")], 0),
        ("torch", [wheel("torch-2.9-cp311-none-any.whl")], 0),
        ("markupsafe", [linux("markupsafe", "3.0", 20_000)], 0),
        ("numpy", [wheel("numpy-2.3-cp311-cp311-win_amd64.whl")], 0),
        ("numpy", [linux("numpy", "2.3")], 1),
        ("numpy", [linux("numpy", "2.3", None)], 1),
        ("torch", [linux("torch", "2.10.0", 20_000)], 1),
        ("any", [wheel("any-1+cu126-py3-none-any.whl", 20_000)], 1),
    ],
)
def test_the_machine_is_asked_for_pages_that_may_hold_builds_alone(
    project: str, files: list[model.File], detected: int
) -> None:
    index = Index({project: files})
    builds = index.judge(project)
    assert index.detected == detected
    assert [build.file for build in builds] == [
        file.filename for file in files if file.filename.endswith(".whl")
    ]
    assert detected or all(b.judgement.verdict == "unknown" for b in builds)


def test_small_wheels_are_not_looked_up_in_the_cache() -> None:
    """A page of 135,000 wheels blocked all pages for seven seconds."""

    async def ask(*_: object, **__: object) -> Any:
        raise AssertionError

    looked: list[model.File] = []
    judge = PageJudge(
        ask, "linux_x86_64", ask, ask, print, find_inspected=looked.append
    )
    files = [linux("small", "1.0", 20_000)]
    builds, _ = asyncio.run(judge.judge("small", files))
    assert [build.judgement.verdict for build in builds] == ["unknown"]
    assert looked == []


def test_a_required_project_is_judged_once_for_all_builds_of_a_release() -> None:
    """The page of torch has 6,000 files, and twelve builds may ask at once."""
    builds = [f"1.0+b{n}" for n in range(12)]
    index = Index(
        {
            "engine": [linux("engine", build) for build in builds],
            "torchvision": [linux("torchvision", "0.30+b")],
            "torch": [linux("torch", "2.15.0")],
        },
        {f"engine-{build}": ["torchvision", "torch"] for build in builds}
        | {"torchvision-0.30+b": ["torch", "torchvision"]},
    )
    assert set(index.verdicts("engine").values()) == {"cannot"}
    assert sorted(index.read) == ["torch", "torchvision"]


def test_projects_that_require_each_other_do_not_wait_for_each_other() -> None:
    names = ["torchvision", "torchaudio", "xformers"]
    versions = [f"1.0+b{n}" for n in range(3)]
    index = Index(
        {name: [linux(name, version) for version in versions] for name in names},
        {
            # Each build asks for the others in its own order.
            f"{name}-{version}": [*names[n:], *names[:n], "torch"]
            for name in names
            for n, version in enumerate(versions)
        },
    )
    for name in names:
        assert len(index.verdicts(name)) == 3
    assert index.read.count("torch") == 2 * len(names)  # once at each depth


def test_required_projects_are_not_read_when_the_time_is_over() -> None:
    """The builds of a release wait for each other, and each for its own project."""
    names = ["torch", "torchvision", "xformers", "vllm"]
    index = Index(
        {"engine": [linux("engine", f"1.0+{name}") for name in names]},
        {f"engine-1.0+{name}": [name, *names] for name in names},
        pages_take=60,
    )
    index.judge("engine", patience=0.4)
    assert index.read == ["torch"]


def test_a_required_project_does_not_use_up_the_limit_of_another_one() -> None:
    """After 64 wheels of vllm, no METADATA of xformers was read."""
    versions = [f"99.{number}" for number in range(70)]
    wheels = {f"vllm-{version}": ["nvidia-cublas-cu13"] for version in versions}
    index = Index(
        {
            "engine": [linux("engine", "1.0")],
            "vllm": [linux("vllm", version) for version in versions],
            "xformers": [linux("xformers", "99.0")],
        },
        {
            "engine-1.0": ["vllm", "xformers"],
            "xformers-99.0": ["nvidia-cublas-cu13"],
            **wheels,
        },
    )
    (build,) = index.judge("engine")
    assert build.judgement.verdict == "cannot"
    assert build.judgement.reasons[0].startswith("it requires xformers, and none")
    assert index.read == ["vllm", "xformers"]


def test_metadata_is_read_down_to_the_first_release_that_runs() -> None:
    versions = ["0.18.0", "0.19.1", "0.20.0", "0.21.0"]
    index = Index(
        {"torch": TORCH, "engine": [linux("engine", version) for version in versions]},
        {
            "engine-0.21.0": ["torch==2.15.0"],
            "engine-0.20.0": ["numpy", "torch==2.11.0"],
            "engine-0.19.1": ["torch==2.10.0"],
        },
    )
    builds = {str(build.version): build.judgement for build in index.judge("engine")}
    assert builds["0.21.0"].reasons[0].startswith("it requires torch==2.15.0, and none")
    assert builds["0.20.0"].verdict == "cannot"
    assert builds["0.19.1"].verdict == "runs"
    assert [name.split("-")[1] for name in index.asked] == [
        "0.21.0",
        "0.20.0",
        "0.19.1",
    ]


def test_requirements_are_read_beside_other_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10,000 markers in each of 64 METADATA delayed all other pages for minutes."""
    threads: set[int] = set()

    works: set[Work] = set()

    def noted(
        requires: Sequence[str], platform: str | None, work: Work, *pythons: Any
    ) -> tuple[str, ...]:
        threads.add(threading.get_ident())
        works.add(work)
        return requirements_on(requires, platform, work, *pythons)

    monkeypatch.setattr(evidence, "requirements_on", noted)
    pages = {"torch": TORCH, "engine": [linux("engine", "1.0"), linux("engine", "2.0")]}
    required = {"engine-1.0": ["torch==2.10.0"], "engine-2.0": ["torch==2.15.0"]}
    index = Index(pages, required)
    assert index.verdicts("engine") == {"1.0": "runs", "2.0": "cannot"}
    assert len(works) == 1
    assert threads
    assert threading.get_ident() not in threads


def test_one_wheel_of_each_build_is_read() -> None:
    names = [f"demo-1.0-cp3{n}-cp3{n}-manylinux_2_28_x86_64.whl" for n in range(9, 14)]
    index = Index(
        {"demo": [wheel(name) for name in names]},
        {"demo-1.0": ["nvidia-cuda-runtime-cu12==12.8.90"]},
    )
    builds = index.judge("demo")
    assert [build.judgement.verdict for build in builds] == ["runs"] * 5
    assert len(index.asked) == 1


@pytest.mark.parametrize(
    "file",
    [
        wheel("numpy-2.0-cp311-cp311-manylinux_2_28_x86_64.whl", 999_999),
        wheel("numpy-2.0-py3-none-any.whl"),
        wheel("numpy-2.0-cp311-cp311-macosx_14_0_arm64.whl"),
        wheel("numpy-2.0-cp311-cp311-win_amd64.whl"),
        wheel("numpy-2.0-cp311-cp311-manylinux_2_28_aarch64.whl"),
        wheel("numpy-2.0.tar.gz"),
        wheel("not a wheel.whl"),
    ],
)
def test_files_that_are_not_asked_for_metadata(file: model.File) -> None:
    index = Index({"numpy": [file]})
    assert set(index.verdicts("numpy").values()) <= {"unknown"}
    assert index.asked == []


def test_a_page_without_sizes_is_asked_once_for_a_project_without_gpu_code() -> None:
    """Pages in HTML have no sizes."""
    files = [linux("numpy", f"2.{minor}", None) for minor in range(30)]
    index = Index({"numpy": files}, {"numpy-2.29": []})
    assert set(index.verdicts("numpy").values()) == {"unknown"}
    assert len(index.asked) == 1


def test_metadata_that_cannot_be_read_is_unknown_and_warned_of() -> None:
    index = Index({"demo": [linux("demo", "1.0")]})
    assert index.verdicts("demo") == {"1.0": "unknown"}
    assert len(index.warnings) == 1
    assert "its METADATA could not be read" in index.warnings[0]


def test_a_machine_without_a_driver_asks_nothing() -> None:
    index = Index({"demo": [linux("demo", "1.0")]})
    assert index.verdicts("demo", NONE) == {"1.0": "unknown"}
    assert index.asked == []


def test_labels_of_projects_that_the_table_does_not_know() -> None:
    labels = ["cu118", "cu128", "cu130", "cpu", "xpu", "foo", "pt28cu126"]
    index = Index(
        {"demo": [linux("demo", f"1.0+{label}") for label in labels]},
        {f"demo-1.0+{label}": [] for label in labels},
    )
    assert index.verdicts("demo") == {
        "1.0+cu118": "runs",
        "1.0+cu128": "runs",
        "1.0+cu130": "cannot",
        "1.0+cpu": "cpu",
        "1.0+xpu": "unknown",
        "1.0+foo": "unknown",
        "1.0+pt28cu126": "runs",
    }


def test_a_label_requires_the_torch_that_it_names() -> None:
    newest = max(Version(file.filename.split("-")[1]) for file in TORCH)
    labels = ["cu.12.8.torch.2.10", f"cu12torch{newest.major}.{newest.minor}"]
    index = Index(
        {"torch": TORCH, "demo": [linux("demo", f"1.0+{label}") for label in labels]},
        # METADATA does not name a release of torch.
        {f"demo-1.0+{label}": ["torch"] for label in labels},
    )
    assert list(index.verdicts("demo").values()) == ["runs", "cannot"]


def test_a_label_that_requires_what_cannot_run() -> None:
    index = Index(
        {"torch": TORCH, "demo": [linux("demo", "1.0+cu128")]},
        {"demo-1.0+cu128": ["torch>=2.14.0"]},
    )
    assert index.verdicts("demo") == {"1.0+cu128": "cannot"}


def test_projects_that_require_each_other() -> None:
    index = Index(
        {
            "torch": [linux("torch", "9.0")],
            "torchvision": [linux("torchvision", "9.0")],
        },
        {"torch-9.0": ["torchvision==9.0"], "torchvision-9.0": ["torch==9.0"]},
    )
    assert index.verdicts("torch") == {"9.0": "unknown"}


def test_releases_are_judged_newest_first() -> None:
    index = Index({"torch": list(reversed(TORCH))})
    versions = [build.version for build in index.judge("torch")]
    assert versions == sorted(versions, reverse=True)
    assert versions[0] == Version("2.15.0")


def test_a_label_and_a_name_tell_what_metadata_contradicts() -> None:
    both = ["nvidia-cublas-cu12", "nvidia-cublas-cu13"]
    for project, version, verdict in (
        ("demo", "1.0", "unknown"),
        ("demo", "1.0+cu128", "runs"),
        ("demo", "1.0+cu130", "cannot"),
        ("demo-cu13", "1.0", "cannot"),
    ):
        file = linux(project.replace("-", "_"), version)
        requires = {"-".join(file.filename.split("-")[:2]): both}
        index = Index({project: [file]}, requires)
        assert list(index.verdicts(project).values()) == [verdict], project


def test_a_project_is_warned_of_once() -> None:
    labels = ["cu128", "cu130", "foo"]
    index = Index({"demo": [linux("demo", f"1.0+{label}") for label in labels]})
    index.verdicts("demo")
    assert len(index.asked) == 3
    assert len(index.warnings) == 1


def test_metadata_that_does_not_arrive() -> None:
    files = [linux("demo", f"{major}.0+cu130") for major in range(1, 9)]
    stalled = frozenset({"demo-8.0+cu130"})
    index = Index({"demo": files}, stalled=stalled)
    verdicts = {b.judgement.verdict for b in index.judge("demo", patience=0.5)}
    assert verdicts == {"cannot"}
    assert index.asked == [files[-1].filename]
    assert len(index.warnings) == 1
    assert index.warnings[0].endswith("could not be read: not there after 0.5 s")


def test_cpu_builds_are_not_asked_for_metadata() -> None:
    index = Index({"demo": [linux("demo", "1.0+cpu"), linux("demo", "1.0+xpu")]})
    assert index.verdicts("demo") == {"1.0+cpu": "cpu", "1.0+xpu": "unknown"}
    assert index.asked == []


def test_builds_for_other_platforms_do_not_count_as_read() -> None:
    """A page has wheels for many platforms, and the limit is for the wheels that are
    read."""
    files = [
        wheel(f"demo-{minor}.0{label}-cp311-cp311-{platform}.whl")
        for minor in range(30)
        for label in ("+cu130", "+cpu", "+xpu")
        for platform in ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "win_amd64")
    ]
    requires = {f"demo-{minor}.0+cu130": ["numpy"] for minor in range(30)}
    index = Index({"demo": files}, requires)
    index.verdicts("demo")
    assert len(index.asked) == 30


class TestWhatWasNotAsked:
    """A verdict does not claim missing evidence if nvp has not searched for it."""

    def reasons(self, *versions: str, **more: Any) -> list[str]:
        requires = {f"demo-{version}": ["numpy"] for version in versions}
        index = Index({"demo": [linux("demo", v) for v in versions]}, requires)
        return [build.judgement.reasons[0] for build in index.judge("demo", **more)]

    def test_older_releases(self) -> None:
        assert self.reasons("1.0", "2.0") == [
            "it is unknown what the build needs",
            "its METADATA was not read: a newer release may run",
        ]

    def test_a_machine_without_a_driver(self) -> None:
        assert self.reasons("1.0", environment=NONE) == [
            "its METADATA was not read: this machine has no NVIDIA driver"
        ]

    def test_the_time_is_over(self) -> None:
        assert self.reasons("1.0", patience=0) == [
            "its METADATA was not read: reading that of newer wheels has taken "
            "long enough"
        ]

    def test_wheels_that_hold_no_gpu_code(self) -> None:
        index = Index(
            {"demo": [linux("demo", "1.0", 5000), linux("demo", "2.0", 5000)]}
        )
        assert {build.judgement.reasons for build in index.judge("demo")} == {
            ("it is unknown what the build needs",)
        }


def test_the_name_of_a_project_refuses_what_its_metadata_does_not() -> None:
    files = [linux("demo_cuda12x", version) for version in ("1.0", "2.0")]
    silent = {"demo_cuda12x-2.0": ["numpy"], "demo_cuda12x-1.0": ["numpy"]}
    old = Environment(cuda_driver_version=CudaVersion(11, 8), gpus=OLD.gpus)
    index = Index({"demo-cuda12x": files}, silent)
    assert index.verdicts("demo-cuda12x", old) == {"1.0": "cannot", "2.0": "cannot"}
    assert index.verdicts("demo-cuda12x") == {"1.0": "runs", "2.0": "runs"}
    # jax-cuda12-plugin requires jax-cuda12-pjrt, and only one of them is in the table.
    index = Index({"jax-cuda12-plugin": [linux("jax_cuda12_plugin", "0.4.22")]})
    assert index.verdicts("jax-cuda12-plugin", old) == {"0.4.22": "cannot"}


def test_the_search_goes_on_for_each_python() -> None:
    """Clients of a server may have any Python that the newest releases support."""
    names = {
        "demo-5.0": ("cp312", "cp313"),
        "demo-4.0": ("cp311", "cp312"),
        "demo-3.0": ("cp311", "cp312", "cp313"),
        "demo-2.0": ("cp311",),
        "demo-1.0": ("cp39", "cp313"),
    }
    files = [
        wheel(f"{name}-{tag}-{tag}-manylinux_2_28_x86_64.whl")
        for name, tags in names.items()
        for tag in tags
    ]
    runtimes = {"5.0": "13.0.48", "4.0": "12.8.90", "3.0": "12.6.77"}
    requires = {
        f"demo-{version}": [f"nvidia-cuda-runtime-cu{cuda[:2]}=={cuda}"]
        for version, cuda in runtimes.items()
    }
    index = Index({"demo": files}, requires)
    verdicts = index.verdicts("demo")
    assert verdicts == {
        "5.0": "cannot",
        "4.0": "runs",
        "3.0": "runs",
        "2.0": "unknown",
        "1.0": "unknown",
    }
    assert [name.split("-")[1] for name in index.asked] == ["5.0", "4.0", "3.0"]


def test_ordinary_projects_are_asked_about_once() -> None:
    """No evidence shows that the newest release is for GPUs, for any Python."""
    files = [
        wheel(f"plain-{version}-{tag}-{tag}-manylinux_2_28_x86_64.whl")
        for version, tag in (("3.0", "cp313"), ("2.0", "cp312"), ("1.0", "cp311"))
    ]
    index = Index({"plain": files}, {f"plain-{v}.0": [] for v in (1, 2, 3)})
    assert set(index.verdicts("plain").values()) == {"unknown"}
    assert len(index.asked) == 1
