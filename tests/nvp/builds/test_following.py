"""Companions that follow the backend of another project."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from nvidia_variant_provider.machine.environment import CudaVersion
from nvp.builds.needs import parse_backend
from nvp.builds.page import Build, find_visibility
from nvp.builds.stepping_back import _for_torch, find_strays, follow
from nvp.builds.verdicts import Judgement, Verdict


def build(project: str, version: str, verdict: Verdict = "runs") -> Build:
    parsed = Version(version)
    backend = parse_backend(parsed.local)
    return Build(
        file=f"{project}-{version}.whl",
        version=parsed,
        backend=backend,
        judgement=Judgement(verdict=verdict, cuda=backend.cuda if backend else None),
    )


# In the newest release, only the build for the older CUDA has code for this GPU.
TORCH = [
    build("torch", "2.14.1+cu126"),
    build("torch", "2.14.1+cu130", "cannot"),
    build("torch", "2.11.0+cu126"),
    build("torch", "2.11.0+cu128"),
    build("torch", "2.9.0+cu129"),
]
VISION = [
    build("torchvision", "0.29.1+cu126"),
    build("torchvision", "0.29.1+cu130"),
    build("torchvision", "0.26.0+cu126"),
    build("torchvision", "0.26.0+cu128"),
    build("torchvision", "0.20.0+cu118"),
]


def backends(requirements: dict[Version, str]) -> dict[str, str]:
    visibility = find_visibility(TORCH, driver=True)
    followed = follow(VISION, requirements, TORCH, visibility)
    return {str(release): backend.label for release, backend in followed.items()}


def test_the_release_that_it_requires() -> None:
    requirements = {
        Version("0.29.1"): "torch==2.14.1",
        Version("0.26.0"): "torch==2.9.0",
    }
    assert backends(requirements)["0.29.1"] == "cu126"
    assert backends(requirements)["0.26.0"] == "cu129"


def test_the_release_with_the_same_labels() -> None:
    assert backends({}) == {"0.29.1": "cu126", "0.26.0": "cu128", "0.20.0": "cu126"}


def test_a_requirement_that_no_release_meets() -> None:
    """Another index may have that release, for any backend."""
    assert "0.26.0" not in backends({Version("0.26.0"): "torch==3.0"})


def test_a_required_release_without_a_label() -> None:
    """The companion followed an older release for CPUs."""
    torch = [build("torch", "2.10.0"), build("torch", "2.9.0+cpu", "cpu")]
    requirements = {Version("0.26.0"): "torch==2.10.0"}
    visibility = find_visibility(torch, driver=True)
    followed = follow(VISION[2:4], requirements, torch, visibility)
    assert followed == {}


def test_nothing_to_follow() -> None:
    plain = [build("torch", "2.10.0")]
    assert follow(VISION, {}, plain, find_visibility(plain, driver=True)) == {}


FLASH = [
    build("flash_attn", "2.8.3+cu.12.6.torch.2.14"),
    build("flash_attn", "2.8.3+cu.12.6.torch.2.11"),
    build("flash_attn", "2.8.3+cu.12.8.torch.2.11"),
    build("flash_attn", "2.7.4+cu12torch2.9cxx11abiTRUE"),
    build("flash_attn", "2.7.4+cu12torch2.8cxx11abiTRUE"),
    build("flash_attn", "2.7.0+pt27cu126"),
]


def test_extensions_follow_the_torch_that_their_labels_name() -> None:
    visibility = find_visibility(TORCH, driver=True)
    followed = follow(FLASH, {}, TORCH, visibility)
    assert {str(release): backend.label for release, backend in followed.items()} == {
        "2.8.3": "cu.12.6.torch.2.14",
        "2.7.4": "cu12torch2.9cxx11abitrue",
        # The index has no torch 2.7, so only the backend may agree.
        "2.7.0": "pt27cu126",
    }
    shown = find_visibility(FLASH, driver=True, follow=followed).files
    assert [file for file, each in shown.items() if each.action == "show"] == [
        "flash_attn-2.8.3+cu.12.6.torch.2.14.whl",
        "flash_attn-2.7.4+cu12torch2.9cxx11abiTRUE.whl",
        "flash_attn-2.7.0+pt27cu126.whl",
    ]


def test_without_torch_the_newest_cuda_and_torch_are_shown() -> None:
    backends = find_visibility(FLASH, driver=True).backends
    assert [backend.label for backend in backends.values()] == [
        "cu.12.8.torch.2.11",
        "cu12torch2.9cxx11abitrue",
        "pt27cu126",
    ]
    ages = ("pt28cu128", "pt210cu128", "cu128.with.pypi.cudnn")
    newest = find_visibility([build("x", f"1+{label}") for label in ages], driver=True)
    assert newest.backends[Version("1")].label == "pt210cu128"


def test_the_releases_of_torch_are_not_all_compared() -> None:
    """20,000 releases beside 20,000 of torch took 17 seconds."""

    class Running(dict[tuple[int, int], list[CudaVersion]]):
        def __iter__(self) -> Iterator[tuple[int, int]]:
            raise AssertionError

    backend = parse_backend("pt28cu126")
    assert backend is not None
    running = Running({(2, 8): [CudaVersion(12, 6)]})
    assert _for_torch([backend], running) == backend
    assert _for_torch([backend], Running()) is None


def test_releases_that_cannot_follow() -> None:
    followed = follow(VISION, {}, TORCH, find_visibility(TORCH, driver=True))
    visibility = find_visibility(VISION, driver=True, follow=followed)
    strays = find_strays(visibility, followed)
    assert {str(release): (a.label, b.label) for release, (a, b) in strays.items()} == {
        "0.20.0": ("cu118", "cu126")
    }


class Counted(list[Build]):
    reads = 0

    def __iter__(self) -> Iterator[Build]:
        Counted.reads += 1
        return super().__iter__()


def test_the_leader_is_not_read_again_for_each_release() -> None:
    """5,000 releases of each project took three minutes."""
    torch = Counted(TORCH)
    visibility = find_visibility(TORCH, driver=True)
    many = [build("torchvision", f"0.{n}+cu126") for n in range(50)]
    followed = follow(many, {}, torch, visibility)
    assert {backend.label for backend in followed.values()} == {"cu126"}
    assert 0 < Counted.reads < 5
