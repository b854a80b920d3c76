"""`Environment`, and its snapshot, which is a file."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)

texts = st.none() | st.text(max_size=20)
capabilities = st.builds(ComputeCapability, st.integers(0, 99), st.integers(0, 99))
environments = st.builds(
    Environment,
    cuda_driver_version=st.none()
    | st.builds(CudaVersion, st.integers(0, 99), st.integers(0, 99)),
    kernel_driver_version=texts,
    source=texts,
    reason=texts,
    gpus=st.lists(
        st.builds(
            Gpu,
            index=st.integers(0, 99),
            name=texts,
            compute_capability=st.none() | capabilities,
            reason=texts,
        ),
        max_size=4,
        unique_by=lambda gpu: gpu.index,
    ).map(tuple),
)

H100 = Environment(
    cuda_driver_version=CudaVersion(12, 9),
    kernel_driver_version="575.57.08",
    source="nvml",
    gpus=(
        Gpu(index=0, name="NVIDIA H100", compute_capability=ComputeCapability(9, 0)),
        Gpu(index=1, reason="gpu-lost"),
    ),
)


@given(environments)
def test_json_round_trip(environment: Environment) -> None:
    text = json.dumps(environment.to_dict())
    assert Environment.from_dict(json.loads(text)) == environment


@given(environments)
def test_copies_are_equal(environment: Environment) -> None:
    assert pickle.loads(pickle.dumps(environment)) == environment
    assert copy.deepcopy(environment) == environment
    assert hash(copy.copy(environment)) == hash(environment)


def test_snapshot_has_every_key() -> None:
    assert H100.to_dict() == {
        "cuda_driver_version": "12.9",
        "kernel_driver_version": "575.57.08",
        "source": "nvml",
        "reason": None,
        "gpus": [
            {
                "index": 0,
                "name": "NVIDIA H100",
                "compute_capability": "9.0",
                "reason": None,
            },
            {
                "index": 1,
                "name": None,
                "compute_capability": None,
                "reason": "gpu-lost",
            },
        ],
    }


def test_gpus_that_could_not_be_read_have_no_capability() -> None:
    assert H100.compute_capabilities == (ComputeCapability(9, 0),)


def test_fields_cannot_be_assigned_to_or_deleted() -> None:
    with pytest.raises(AttributeError, match=r"Environment\.reason"):
        H100.reason = "x"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del H100.gpus


def test_environments_differ_by_any_field() -> None:
    assert H100.replace(reason="x") != H100
    assert H100 != "H100"
    assert repr(CudaVersion(12, 9)) in repr(H100)


def test_versions_are_ordered_by_their_numbers() -> None:
    assert str(CudaVersion(13)) == "13.0"
    ordered = [CudaVersion(12, 9), CudaVersion(12, 10), CudaVersion(13)]
    assert sorted([ordered[2], ordered[0], ordered[1]]) == ordered
    assert ComputeCapability(12, 1).sm == "121"


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        ({"cuda_driver_version": 12.9}, "cuda_driver_version", "expected a string"),
        ({"cuda_driver_version": "12"}, "cuda_driver_version", "MAJOR.MINOR"),
        ({"cuda_driver_version": "12.9999999"}, "cuda_driver_version", "too long"),
        ({"reason": 5}, "reason", "expected a string"),
        ({"gpus": {}}, "gpus", "expected a list"),
        ({"gpus": ["x"]}, "gpus[0]", "expected an object"),
        ({"gpus": [{}]}, "gpus[0]", "index is missing"),
        ({"gpus": [{"index": True}]}, "gpus[0].index", "whole number"),
        ({"gpus": [{"index": -1}]}, "gpus[0].index", "not an index"),
        ({"gpus": [{"index": 0}, {"index": 0}]}, "gpus", "same index"),
        (
            {"gpus": [{"index": 0}, {"index": 1, "compute_capability": "90"}]},
            "gpus[1].compute_capability",
            "MAJOR.MINOR",
        ),
        ({"gpus": [{"index": 0, "sm": "90"}]}, "gpus[0].sm", "unknown key"),
        ({"cuda": "12.9"}, "cuda", "unknown key"),
    ],
)
def test_errors_name_the_place_of_a_defect(
    change: dict[str, object], place: str, message: str
) -> None:
    document = {"cuda_driver_version": None, "gpus": [], **change}
    with pytest.raises(InputError) as caught:
        Environment.from_dict(document)
    assert caught.value.place == place
    assert message in str(caught.value)


@pytest.mark.parametrize("key", ["cuda_driver_version", "gpus"])
def test_a_missing_fact_is_an_error_and_not_null(key: str) -> None:
    document: dict[str, object] = {"cuda_driver_version": "12.9", "gpus": []}
    del document[key]
    with pytest.raises(InputError, match=f"{key} is missing"):
        Environment.from_dict(document)


def test_a_snapshot_of_too_many_gpus() -> None:
    """The indexes of GPUs are keys, which a stranger can choose to be slow."""
    gpus = [{"index": n, "compute_capability": "9.0"} for n in range(1025)]
    document: dict[str, object] = {"cuda_driver_version": "12.9", "gpus": gpus}
    with pytest.raises(InputError, match="more than 1024 GPUs"):
        Environment.from_dict(document)
    document["gpus"] = gpus[1:]
    assert len(Environment.from_dict(document).gpus) == 1024


def test_a_snapshot_of_too_many_compute_capabilities() -> None:
    """Each build is judged for each of them."""
    gpus = [{"index": n, "compute_capability": f"{n + 1}.0"} for n in range(33)]
    document: dict[str, object] = {"cuda_driver_version": "12.9", "gpus": gpus}
    with pytest.raises(InputError, match="more than 32 different compute capabilities"):
        Environment.from_dict(document)
    document["gpus"] = gpus[1:]
    assert len(Environment.from_dict(document).compute_capabilities) == 32
