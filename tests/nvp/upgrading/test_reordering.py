"""The machines for the comparison when priorities are dropped."""

from __future__ import annotations

import re

import pytest

from nvidia_variant_provider.machine import supported
from nvidia_variant_provider.machine.environment import CudaVersion
from nvidia_variant_provider.machine.supported import (
    LOWER_BOUND,
    SM_ARCH,
    UPPER_BOUND,
    all_features,
)
from nvidia_variant_provider.metadata import VariantsMetadata, versions
from nvidia_variant_provider.metadata.model import Provider
from nvp.upgrading.remarks import Priorities, find_difference

(CATALOG,) = (item.values for item in all_features() if item.name == SM_ARCH)
NEWEST = CATALOG[0]
OLDEST = next(value for value in reversed(CATALOG) if value.endswith("_real"))


@pytest.mark.parametrize("target", [NEWEST, OLDEST])
def test_machines_reach_both_ends_of_the_catalog(target: str) -> None:
    """Dropping the priority of ``sm_arch`` changes the order on only one GPU."""
    metadata = VariantsMetadata(
        schema=versions.WRITTEN,
        namespaces=("nvidia",),
        variants={
            "by_target": {"nvidia": {SM_ARCH: (target,)}},
            "by_cuda": {"nvidia": {LOWER_BOUND: ("12.6",)}},
        },
    )
    first: Priorities = ((SM_ARCH,), {})
    difference = find_difference(
        metadata, {"nvidia": Provider(requires=("x",))}, first, ((), {})
    )
    assert difference is not None
    capability = re.search(r"compute capability ([0-9]+)\.([0-9])", difference)
    assert capability is not None
    major, minor = capability.groups()
    assert int(major) * 10 + int(minor) >= int(target.partition("_")[0])
    assert major == str(int(target.partition("_")[0]) // 10)


@pytest.mark.parametrize(
    ("feature", "value", "driver"),
    [
        # Only a driver for the newest CUDA of the catalog supports this bound, and
        # only one for the lowest CUDA version the other.
        (LOWER_BOUND, str(supported.NEWEST), supported.NEWEST),
        (UPPER_BOUND, f"{supported.OLDEST.major}.1", supported.OLDEST),
    ],
)
def test_drivers_reach_both_ends_of_the_catalog(
    feature: str, value: str, driver: CudaVersion
) -> None:
    metadata = VariantsMetadata(
        schema=versions.WRITTEN,
        namespaces=("nvidia",),
        variants={
            "by_target": {"nvidia": {SM_ARCH: ("75_real",)}},
            "by_cuda": {"nvidia": {feature: (value,)}},
        },
    )
    first: Priorities = ((SM_ARCH,), {})
    difference = find_difference(
        metadata, {"nvidia": Provider(requires=("x",))}, first, ((), {})
    )
    assert difference is not None
    assert f"with CUDA {driver} and compute capability" in difference
