"""The provider's answer, which `machine.supported` derives from an `Environment`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)
from nvidia_variant_provider.machine.supported import (
    HIGHEST,
    LOWEST,
    all_features,
    catalog_capabilities,
    left_out,
    supported_features,
    supported_sm_arch,
)


def machine(
    cuda: str | None, *capabilities: str, kernel: str | None = None
) -> Environment:
    return Environment(
        cuda_driver_version=CudaVersion.parse(cuda) if cuda else None,
        kernel_driver_version=kernel,
        gpus=tuple(
            Gpu(index=index, compute_capability=ComputeCapability.parse(text))
            for index, text in enumerate(capabilities)
        ),
    )


def answer(environment: Environment, *, relaxed: bool = False) -> dict[str, list[str]]:
    features, _ = supported_features(environment, minor_version_compatibility=relaxed)
    return {feature.name: feature.values for feature in features}


def notes(environment: Environment) -> list[str]:
    return supported_features(environment)[1]


def test_catalog_has_the_published_values() -> None:
    lower, upper, sm_arch = all_features()
    assert (lower.name, len(lower.values)) == ("cuda_version_lower_bound", 110)
    assert lower.values[:2] == ["15.20", "15.19"]
    assert lower.values[20:23] == ["15.0", "15", "14.20"]
    assert lower.values[-2:] == ["11.0", "11"]
    assert (upper.name, upper.values) == ("cuda_version_upper_bound", lower.values)
    assert (sm_arch.name, len(sm_arch.values)) == ("sm_arch", 160)
    assert sm_arch.values[0] == "129_real"
    assert sm_arch.values[79:81] == ["50_real", "129_virtual"]
    assert sm_arch.values[-1] == "50_virtual"
    assert [f.multi_value for f in all_features()] == [False, False, True]


def test_catalog_names_the_capabilities_of_its_sm_arch_values() -> None:
    _, _, sm_arch = all_features()
    named = [f"{capability.sm}_real" for capability in reversed(catalog_capabilities())]
    assert [value for value in sm_arch.values if value.endswith("_real")] == named
    assert (catalog_capabilities()[0], catalog_capabilities()[-1]) == (LOWEST, HIGHEST)


def test_catalog_lists_are_not_shared() -> None:
    lower, upper, _ = all_features()
    lower.values.clear()
    assert len(upper.values) == 110
    assert len(all_features()[0].values) == 110


def test_values_of_turing_with_a_driver_for_cuda_12_9() -> None:
    features = answer(machine("12.9", "7.5"))
    assert list(features) == [
        "cuda_version_lower_bound",
        "cuda_version_upper_bound",
        "sm_arch",
    ]
    lower = features["cuda_version_lower_bound"]
    assert lower[:2] == ["12.9", "12.8"]
    assert lower[9:12] == ["12.0", "12", "11.20"]
    assert lower[-2:] == ["11.0", "11"]
    upper = features["cuda_version_upper_bound"]
    assert upper[:1] == ["15.20"]
    assert upper[21:23] == ["15", "14.20"]
    assert upper[-12:-10] == ["13", "12.20"]
    assert upper[-1] == "12.10"
    assert features["sm_arch"] == [
        "75_real",
        "74_real",
        "73_real",
        "72_real",
        "71_real",
        "70_real",
        "70_virtual",
    ]


def test_newest_nameable_driver_has_no_upper_bound() -> None:
    assert "cuda_version_upper_bound" not in answer(machine("15.20", "9.0"))


def test_a_note_is_one_printable_line() -> None:
    """Texts of the driver's library reach the log of an installer."""
    text = "450.57.\x1b[31m\n##vso[x]\n::error::x"
    unread = Gpu(index=1, compute_capability=None, reason=text)
    described = machine("12.8", "9.0", kernel=text)
    described = described.replace(reason=text, gpus=(*described.gpus, unread))
    _, notes = supported_features(described)
    assert len(notes) >= 2
    assert all(note.isprintable() for note in notes)


def test_the_highest_of_several_gpus_decides() -> None:
    mixed = answer(machine("12.9", "7.5", "9.0", "8.9"))
    assert mixed == answer(machine("12.9", "9.0"))


def test_a_note_names_gpus_of_other_majors() -> None:
    (note,) = left_out(machine("12.9", "7.5", "9.0", "8.9"))
    assert "8.9, 7.5" in note
    assert left_out(machine("12.9", "8.0", "8.9")) == []
    assert left_out(machine(None, "7.5", "9.0")) == []


def test_no_driver_supports_nothing() -> None:
    assert supported_features(machine(None)) == ([], [])


def test_gpu_without_driver_version_is_noted() -> None:
    features, sentences = supported_features(machine(None, "9.0"))
    assert features == []
    assert "no effect" in sentences[0]


def test_driver_without_gpu_has_bounds_only() -> None:
    assert list(answer(machine("12.4"))) == [
        "cuda_version_lower_bound",
        "cuda_version_upper_bound",
    ]


@pytest.mark.parametrize("cuda", ["10.2", "9.0", "0.0"])
def test_driver_that_is_too_old_supports_nothing(cuda: str) -> None:
    features, sentences = supported_features(machine(cuda, "7.0"))
    assert features == []
    assert cuda in sentences[0]


@pytest.mark.parametrize(
    ("cuda", "counts_as"), [("15.21", "15.20"), ("16.0", "15.20"), ("12.25", "12.20")]
)
def test_a_driver_that_the_catalog_cannot_name_counts_as_the_nearest_older_one(
    cuda: str, counts_as: str
) -> None:
    assert answer(machine(cuda, "9.0")) == answer(machine(counts_as, "9.0"))
    assert counts_as in notes(machine(cuda, "9.0"))[0]


@pytest.mark.parametrize("capability", ["4.9", "3.5", "12.10", "13.0"])
def test_a_capability_that_the_catalog_cannot_name_has_no_sm_arch(
    capability: str,
) -> None:
    assert "sm_arch" not in answer(machine("12.9", capability))
    (note,) = notes(machine("12.9", capability))
    assert f"cannot name compute capability {capability}, only 5.0 to 12.9" in note


def test_lowest_and_highest_nameable_capability() -> None:
    assert supported_sm_arch(ComputeCapability(5, 0)) == ["50_real", "50_virtual"]
    assert supported_sm_arch(ComputeCapability(12, 1)) == [
        "121_real",
        "120_real",
        "120_virtual",
    ]


class TestMinorVersionCompatibility:
    def test_newer_minors_follow_the_strict_ones_nearest_first(self) -> None:
        strict = answer(machine("12.4", "8.0"))["cuda_version_lower_bound"]
        relaxed = answer(machine("12.4", "8.0"), relaxed=True)
        assert relaxed["cuda_version_lower_bound"] == [
            *strict,
            *(f"12.{minor}" for minor in range(5, 21)),
        ]

    def test_ptx_is_left_out(self) -> None:
        assert answer(machine("12.4", "8.0"), relaxed=True)["sm_arch"] == ["80_real"]

    def test_upper_bounds_stay(self) -> None:
        environment = machine("12.4", "8.0")
        upper = "cuda_version_upper_bound"
        assert answer(environment, relaxed=True)[upper] == answer(environment)[upper]

    @pytest.mark.parametrize(
        ("kernel", "granted"),
        [("450.51.05", False), ("450.80.02", True), ("470.57.02", True), (None, True)],
    )
    def test_cuda_11_0_needs_the_floor_of_its_major(
        self, kernel: str | None, granted: bool
    ) -> None:
        features = answer(machine("11.0", "8.0", kernel=kernel), relaxed=True)
        assert ("11.1" in features["cuda_version_lower_bound"]) is granted

    def test_without_a_driver_nothing_is_supported(self) -> None:
        assert answer(machine(None), relaxed=True) == {}


versions = st.builds(CudaVersion, st.integers(0, 99), st.integers(0, 99))
capabilities = st.builds(ComputeCapability, st.integers(0, 30), st.integers(0, 15))
gpus = st.lists(st.none() | capabilities, max_size=8).map(
    lambda items: tuple(
        Gpu(index=index, compute_capability=item) for index, item in enumerate(items)
    )
)
environments = st.builds(
    Environment, cuda_driver_version=st.none() | versions, gpus=gpus
)


@given(environments, st.booleans())
def test_answer_is_a_subset_of_the_catalog(
    environment: Environment, relaxed: bool
) -> None:
    # PEP 817: "The value returned by get_supported_configs() MUST be a subset of
    # the feature names and values returned by get_all_configs()".
    catalog = {feature.name: feature for feature in all_features()}
    features, _ = supported_features(environment, minor_version_compatibility=relaxed)
    for feature in features:
        assert set(feature.values) <= set(catalog[feature.name].values)
        assert feature.multi_value == catalog[feature.name].multi_value
        assert len(set(feature.values)) == len(feature.values) > 0


@given(environments)
def test_a_driver_supports_exactly_the_bounds_that_hold(
    environment: Environment,
) -> None:
    features = answer(environment)
    driver = environment.cuda_driver_version
    if driver is None or driver < (11, 0):
        assert features == {}
        return
    lower = features["cuda_version_lower_bound"]
    upper = features.get("cuda_version_upper_bound", [])
    # Each version fits either as a lower bound or as an upper bound.
    assert not set(lower) & set(upper)
    assert set(lower) | set(upper) == set(all_features()[0].values)
    for text in lower:
        assert tuple(map(int, text.split("."))) <= driver
