"""Builds that run from indexes of vendors, by the tables alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from support.builds import machine

from nvp.builds.needs import parse_backend
from nvp.builds.vendors import find_elsewhere, say_elsewhere
from nvp.builds.verdicts import judge
from nvp.knowledge.builds import build_records

LINUX = "linux_x86_64"
WHL = "https://download.pytorch.org/whl"


def found(
    project: str, cuda: str, *gpus: str, platform: str = LINUX, **options: Any
) -> list[str]:
    every = find_elsewhere(project, machine(cuda, *gpus), platform, **options)
    return [
        f"{item.version}+{item.backend.label}" if item.backend else item.url
        for item in every
        if item.version
    ]


@pytest.mark.parametrize(
    ("project", "cuda", "gpu", "newer_than", "expected"),
    [
        ("torch", "12.8", "7.0", "2.10.0", ["2.14.1+cu126"]),
        ("torch", "12.8", "6.1", "2.7.1", ["2.14.1+cu126"]),
        ("torch", "11.8", "8.0", "2.0.1", ["2.7.1+cu118"]),
        ("torch", "12.8", "8.0", "2.14.1", []),
        ("torch", "13.2", "8.0", "2.15.0", []),
        # The code for this GPU needs CUDA 12.8, and cu126 has none.
        ("torch", "12.8", "12.0", "2.10.0", ["2.11.0+cu128"]),
        ("torchvision", "12.8", "8.0", "0.25.0", ["0.29.1+cu126"]),
        ("torchaudio", "12.8", "8.0", "2.10.0", []),
    ],
)
def test_newer_builds_of_the_index_of_torch(
    project: str, cuda: str, gpu: str, newer_than: str, expected: list[str]
) -> None:
    assert found(project, cuda, gpu, newer_than=newer_than) == expected


def test_on_windows_nothing_of_pypi_runs() -> None:
    for project in ("torch", "torchvision", "torchaudio"):
        (version,) = found(project, "13.0", "12.0", platform="win_amd64")
        assert version.endswith("+cu130")


def test_the_sentence_has_the_command() -> None:
    every = [
        item
        for project in ("torch", "torchvision")
        for item in find_elsewhere(project, machine("12.8", "7.0"), LINUX)
    ]
    assert every[0].sentence == (
        "torch 2.14.1+cu126 runs here, from PyTorch's index: nvp pip install "
        f"--index-url {WHL}/cu126 torch"
    )
    assert say_elsewhere(every) == [
        "torch 2.14.1+cu126 and torchvision 0.29.1+cu126 run here, from PyTorch's "
        f"index: nvp pip install --index-url {WHL}/cu126 torch torchvision"
    ]


@pytest.mark.parametrize(
    ("used", "said"),
    [
        (f"{WHL}/cu126", False),
        (f"{WHL}/cu126/", False),
        (f"{WHL}/", False),
        ("https://user:word@download.pytorch.org/whl/cu126/simple/", False),
        (f"{WHL}/cpu", True),
        (f"{WHL}/cu12", True),
        ("https://wheels.example/whl/cu126", True),
    ],
)
def test_not_where_the_user_has_that_index(used: str, said: bool) -> None:
    assert bool(found("torch", "12.8", "7.0", used=[used])) is said


def test_what_the_requirements_allow() -> None:
    for specifier, expected in (("==2.12.1", ["2.12.1+cu126"]), (">=2.15", [])):
        allows = SpecifierSet(specifier).contains
        assert expected == found(
            "torch", "12.8", "8.0", allows=lambda _, version, ok=allows: ok(version)
        )


@pytest.mark.parametrize(
    ("project", "cuda", "gpu", "options", "url"),
    [
        (
            "vllm",
            "12.8",
            "8.0",
            {"newer_than": "0.19.1", "wanted": "0.33.0"},
            "https://wheels.vllm.ai/0.33.0/cu129",
        ),
        (
            "vllm",
            "13.0",
            "8.0",
            {"wanted": "0.33.0"},
            "https://wheels.vllm.ai/0.33.0/cu130",
        ),
        # PyPI's torch that runs on this machine is built with CUDA 12.8.
        ("flash-attn", "12.4", "8.0", {}, "https://wheels.astral.sh/simple/cu128/"),
        (
            "torch-cluster",
            "12.4",
            "8.0",
            {},
            "https://data.pyg.org/whl/torch-2.10.0+cu128.html",
        ),
        (
            "torch-sparse",
            "12.8",
            "8.0",
            {"torch": "2.8.0+cu128"},
            "https://data.pyg.org/whl/torch-2.8.0+cu128.html",
        ),
        ("cudf-cu12", "12.4", "8.0", {}, "https://pypi.nvidia.com"),
        ("torch", "12.6", "8.7", {"platform": "linux_aarch64"}, "jp6/cu126/+simple/"),
    ],
)
def test_indexes_of_which_no_more_is_known(
    project: str, cuda: str, gpu: str, options: dict[str, Any], url: str
) -> None:
    platform = options.pop("platform", LINUX)
    item = find_elsewhere(project, machine(cuda, gpu), platform, **options)[0]
    assert item.url.endswith(url)
    assert (item.version, item.verdict) == (None, "unknown")
    assert "nvp does not know of which releases" in item.sentence
    assert item.command is not None
    assert item.url in item.command
    assert item.sentence.endswith(item.command)
    if "torch-2" in url:
        assert item.command.endswith(f"'{item.torch}'")


def test_a_url_that_is_not_known_is_said_in_words() -> None:
    vllm = find_elsewhere("vllm", machine("12.8", "8.0"), LINUX)[0]
    assert vllm.url == "https://wheels.vllm.ai/VERSION/cu129"
    assert vllm.command is None
    assert "VERSION" not in vllm.sentence
    assert "below https://wheels.vllm.ai/, with a page for each release" in (
        vllm.sentence
    )


@pytest.mark.parametrize(
    "used",
    [
        "https://wheels.vllm.ai/0.33.0/cu129",
        "https://wheels.vllm.ai/0.32.0/cu130/",
        "https://wheels.astral.sh/simple/cu126/",
    ],
)
def test_indexes_of_unknown_contents_do_not_name_each_other(used: str) -> None:
    here = machine("12.8", "8.0")
    assert find_elsewhere("vllm", here, LINUX, wanted="0.33.0", used=[used]) == ()


def test_an_index_that_is_used_is_not_named_besides() -> None:
    here = machine("12.8", "8.0")
    used = [f"{WHL}/cu129"]
    item = find_elsewhere("vllm", here, LINUX, wanted="0.33.0", used=used)[0]
    assert item.command == (
        "nvp pip install --extra-index-url https://wheels.vllm.ai/0.33.0/cu129 vllm"
    )


@pytest.mark.parametrize(
    ("torch", "vision"),
    [("<=2.14.1", "0.29.1"), ("<2.14", "0.28.0"), ("==2.12.1", "0.27.1"), ("<2", "")],
)
def test_companions_of_what_is_named(torch: str, vision: str) -> None:
    """torchvision is the release for that torch, also if the user does not name
    torch."""
    here = machine("12.8", "8.0")

    def allows(project: str, version: Version) -> bool:
        return project != "torch" or version in SpecifierSet(torch)

    leader = find_elsewhere("torch", here, LINUX, allows=allows)
    for beside in ((), leader):
        found = find_elsewhere("torchvision", here, LINUX, allows=allows, beside=beside)
        assert [item.version for item in found] == ([vision] if vision else [])
    found = find_elsewhere("torchvision", here, LINUX, beside=leader)
    assert [item.version for item in found] == ([vision] if vision else ["0.29.1"])


def test_silent_where_nothing_is_wrong() -> None:
    assert find_elsewhere("vllm", machine("13.2", "8.0"), LINUX, newer_than="1") == ()
    assert find_elsewhere("torch", machine(None), LINUX) == ()
    assert find_elsewhere("numpy", machine("12.8", "8.0"), LINUX) == ()
    assert find_elsewhere("cudf-cu13", machine("12.8", "8.0"), LINUX) == ()


def test_the_cuda_of_torch_is_preferred() -> None:
    here = machine("12.9", "8.0")
    backend = parse_backend("cu126")
    assert backend is not None
    item = find_elsewhere("flash-attn", here, LINUX, cuda=backend.cuda)[0]
    assert item.url == "https://wheels.astral.sh/simple/cu126/"


@given(
    cuda=st.sampled_from(["11.8", "12.0", "12.4", "12.8", "13.0", "13.2", "13.4"]),
    gpus=st.lists(
        st.sampled_from(["5.0", "6.1", "7.0", "7.5", "8.0", "9.0", "10.0", "12.0"]),
        max_size=2,
    ),
    platform=st.sampled_from(["linux_x86_64", "linux_aarch64", "win_amd64"]),
)
def test_what_is_named_is_the_newest_that_runs(
    cuda: str, gpus: list[str], platform: str
) -> None:
    here = machine(cuda, *gpus)
    running = [
        Version(row.version)
        for row in build_records()["torch"]
        if row.label and row.platform == platform
        if judge(row.needs, here).verdict in ("runs", "partly")
    ]
    named = found("torch", cuda, *gpus, platform=platform)
    assert [Version(Version(text).public) for text in named] == (
        [max(running)] if running else []
    )
