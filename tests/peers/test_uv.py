"""uv, with its own NVIDIA provider, installs the label that nvp selects.

``test_uv_exceptions.py`` has the machines with other results.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.documents import TORCH, TORCH_LABELS, document, forced, nvidia
from support.grids import some_of
from support.strategies import documents, machines
from support.uv_installer import UvIndex

from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.resolution.inputs import Priorities
from nvp import api

DRIVERS = ("11.8", "12.4", "12.6", "12.8", "12.9", "13.0", "13.2")
CAPABILITIES = ("5.0", "7.0", "7.5", "8.6", "8.9", "9.0", "10.0", "12.0", "12.1")

RELEASES = {
    "torch": TORCH,
    # If no label fits, uv installs the non-variant wheel.
    "no null": document(TORCH_LABELS),
    "upper bounds": document(
        {
            "null": {},
            "any": nvidia(sm=["50_real", "75_real", "90_virtual"]),
            "below13": nvidia("12.0", "13", ["75_real", "89_real", "90_real"]),
            "below14": nvidia("12.4", "14", ["80_real", "90_real", "120_virtual"]),
            "cu13": nvidia("13", sm=["75_real", "120_real"]),
        }
    ),
}


@pytest.fixture(scope="module")
def releases(index: UvIndex) -> dict[str, str]:
    """The project of each release in `RELEASES`."""
    return {name: index.publish(release) for name, release in RELEASES.items()}


def check(cuda: str, sm: str, index: UvIndex, releases: dict[str, str]) -> None:
    variables = forced(cuda, sm)
    installed = index.install(list(releases.values()), variables)
    assert dict(zip(releases, installed, strict=True)) == {
        name: api.resolve(release, priorities=Priorities(), environ=variables).selected
        for name, release in RELEASES.items()
    }


@pytest.mark.parametrize(
    ("cuda", "sm"),
    # By default there is one machine for each driver, each time with another GPU.
    some_of(
        [(cuda, sm) for cuda in DRIVERS for sm in CAPABILITIES], len(CAPABILITIES) - 1
    ),
)
def test_uv_installs_what_we_select(
    cuda: str, sm: str, index: UvIndex, releases: dict[str, str]
) -> None:
    check(cuda, sm, index, releases)


@pytest.mark.parametrize(
    ("cuda", "sm"),
    [
        ("12", "9.0"),
        ("12.9.1", "9.0"),
        ("12.9rc1", "9.0"),
        (" 12.9 ", "9.0"),
        ("12.9", " 9.0 "),
        ("12.9", "4.0"),
        ("12.9", "0.0"),
        ("12.20", "9.0"),
        ("15.20", "12.9"),
    ],
)
def test_forms_and_limits_of_forced_values(
    cuda: str, sm: str, index: UvIndex, releases: dict[str, str]
) -> None:
    check(cuda, sm, index, releases)


@pytest.mark.parametrize(("cuda", "sm"), [("12.9", ""), ("", "9.0"), ("", "")])
def test_one_forced_value(
    cuda: str, sm: str, index: UvIndex, releases: dict[str, str]
) -> None:
    """uv reads the other value from the machine, so the machine must not have a GPU."""
    if api.detect({}).cuda_driver_version is not None:
        pytest.skip("this machine has an NVIDIA driver")
    check(cuda, sm, index, releases)


def forced_as(environment: Environment) -> dict[str, str]:
    """Return the variables that force ``environment``, which has a driver."""
    (sm,) = map(str, environment.compute_capabilities or ("0.0",))
    return forced(str(environment.cuda_driver_version), sm)


GENERATED = given(
    metadata=st.lists(documents(), min_size=8, max_size=8),
    environments=st.lists(machines, min_size=3, max_size=3, unique=True),
)
# Do not shrink failing examples: the installations would take minutes.
FEW = settings(
    deadline=None,
    derandomize=True,
    max_examples=3,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


@FEW
@GENERATED
def test_generated_metadata(
    metadata: list[dict[str, Any]], environments: list[Environment], index: UvIndex
) -> None:
    check_generated(metadata, environments, index)


@pytest.mark.slow
@settings(FEW, max_examples=20)
@GENERATED
def test_more_generated_metadata(
    metadata: list[dict[str, Any]], environments: list[Environment], index: UvIndex
) -> None:
    check_generated(metadata, environments, index)


def check_generated(
    metadata: list[dict[str, Any]], environments: list[Environment], index: UvIndex
) -> None:
    """Install all releases on each machine, and compare with our selection."""
    projects = [index.publish(item) for item in metadata]
    for environment in environments:
        variables = forced_as(environment)
        labels = index.install(projects, variables)
        for item, label in zip(metadata, labels, strict=True):
            ours = api.resolve(
                item, environment=environment, priorities=Priorities(), environ={}
            )
            assert label == ours.selected, (variables, item)
