"""The CUDA version in the name and in the features of a label."""

from __future__ import annotations

import pytest

from nvidia_variant_provider.machine.environment import CudaVersion
from nvp.lint.labels import claim_of, nvidia_labels


def named(label: str) -> CudaVersion | None:
    document = {"variants": {label: {"nvidia": {"sm_arch": ["90_real"]}}}}
    (item,) = nvidia_labels(document, by_cuda=False)
    return item.named


@pytest.mark.parametrize(
    ("label", "version"),
    [
        ("cu118", (11, 8)),
        ("cu128", (12, 8)),
        ("cu130", (13, 0)),
        ("cu1410", (14, 10)),
        ("cu1520", (15, 20)),
        ("torch_cu129_full", (12, 9)),
    ],
)
def test_label_that_names_a_cuda_version(label: str, version: tuple[int, int]) -> None:
    assert named(label) == CudaVersion(*version)


@pytest.mark.parametrize("label", ["cu12", "cu12345", "cu1209", "cu098", "cpu", "cu"])
def test_label_that_names_no_cuda_version(label: str) -> None:
    assert named(label) is None


@pytest.mark.parametrize("names", [("sm_arch", "sm-arch"), ("sm-arch", "sm_arch")])
def test_a_correct_name_takes_precedence(names: tuple[str, str]) -> None:
    values = {"sm_arch": ["90_real"], "sm-arch": ["70_real"]}
    assert claim_of({name: values[name] for name in names}).real == (90,)


def test_a_misspelled_name_is_corrected() -> None:
    assert claim_of({"sm-arch": ["70-real"]}).real == (70,)
