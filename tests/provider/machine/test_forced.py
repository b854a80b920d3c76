"""Forced values and settings from environment variables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import InvalidVersion, Version

from nvidia_variant_provider.errors import OverrideError
from nvidia_variant_provider.machine.environment import (
    CUDA_DRIVER_VERSION,
    MINOR_VERSION_COMPATIBILITY,
    SM_ARCH,
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
    apply_forced,
    forced_compute_capability,
    forced_cuda_version,
    minor_version_compatibility,
)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("12.9", (12, 9)),
        ("12", (12, 0)),
        ("12.9.1", (12, 9)),
        ("v12.07", (12, 7)),
        ("12.7rc1", (12, 7)),
        ("12.7+local", (12, 7)),
        ("1!12.7", (12, 7)),
        (" 12.7 ", (12, 7)),
        ("16.25", (16, 25)),
    ],
)
def test_cuda_version_is_a_pep_440_version(text: str, version: tuple[int, int]) -> None:
    assert forced_cuda_version({CUDA_DRIVER_VERSION: text}) == CudaVersion(*version)


@given(st.text(max_size=12) | st.from_regex(r"\A[0-9.]{1,30}\Z"))
def test_cuda_version_agrees_with_packaging(text: str) -> None:
    try:
        release: tuple[int, ...] | None = (*Version(text).release, 0)[:2]
    except InvalidVersion:
        release = None
    if release is not None:  # a snapshot has room for four digits
        release = None if release[0] > 99 else (release[0], min(release[1], 9999))
    try:
        forced: tuple[int, ...] | None = forced_cuda_version(
            {CUDA_DRIVER_VERSION: text}
        )
    except OverrideError:
        forced = None
    assert forced == (release if text else None)


@pytest.mark.parametrize("environ", [{}, {CUDA_DRIVER_VERSION: "", SM_ARCH: ""}])
def test_empty_or_unset_is_absent(environ: dict[str, str]) -> None:
    assert forced_cuda_version(environ) is None
    assert forced_compute_capability(environ) is None


@pytest.mark.parametrize("text", ["12.1", " 12.1", "12.1\t", "\n12.1 "])
def test_compute_capability(text: str) -> None:
    assert forced_compute_capability({SM_ARCH: text}) == ComputeCapability(12, 1)


@pytest.mark.parametrize(
    "text",
    [
        "90",
        "9",
        "abc",
        "9.",
        ".0",
        "9.0.1",
        "-1.2",
        "9.0a",
        "\u0669.\u0660",
        "9.\u00b2",
        "9. 0",
        " ",
    ],
)
def test_malformed_compute_capability(text: str) -> None:
    with pytest.raises(OverrideError) as caught:
        forced_compute_capability({SM_ARCH: text})
    line = str(caught.value)
    assert SM_ARCH in line
    assert ascii(text) in line
    assert "MAJOR.MINOR" in line
    assert "\n" not in line
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("text", ["abc", "12.", "12..9", "12.9\n\x1b[31m", "9" * 5000])
def test_malformed_cuda_version(text: str) -> None:
    with pytest.raises(OverrideError) as caught:
        forced_cuda_version({CUDA_DRIVER_VERSION: text})
    line = str(caught.value)
    assert line.startswith(CUDA_DRIVER_VERSION)
    assert line.isprintable()
    assert len(line) < 200


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("128", "12.8 was probably meant"),
        ("130", "13.0 was probably meant"),
        ("12080", "12.8 was probably meant"),
        ("9020", "9.2 was probably meant"),
        (" 128 ", "12.8 was probably meant"),
        ("100", "10.0 was probably meant"),
        ("550.54.15", "number of a driver"),
        ("550.54", "number of a driver"),
        ("570", "number of a driver"),
        ("128.5", "number of a driver"),
        ("1208", "number of a driver"),
        ("9" * 19, "number of a driver"),
    ],
)
def test_a_number_too_large_for_a_cuda_version(text: str, meant: str) -> None:
    with pytest.raises(OverrideError, match=r" is not a CUDA version; ") as caught:
        forced_cuda_version({CUDA_DRIVER_VERSION: text})
    line = str(caught.value)
    assert line.startswith(f"{CUDA_DRIVER_VERSION}: {text!a} is not")
    assert meant in line


def test_override_error_is_a_value_error() -> None:
    assert issubclass(OverrideError, ValueError)


@pytest.mark.parametrize(("text", "on"), [("", False), ("0", False), ("1", True)])
def test_minor_version_compatibility(text: str, on: bool) -> None:
    assert minor_version_compatibility({MINOR_VERSION_COMPATIBILITY: text}) is on


def test_malformed_minor_version_compatibility() -> None:
    with pytest.raises(OverrideError, match=r"'yes' is neither 0 nor 1"):
        minor_version_compatibility({MINOR_VERSION_COMPATIBILITY: "yes"})


class TestApplyForced:
    machine = Environment(
        cuda_driver_version=CudaVersion(12, 4),
        kernel_driver_version="550.54.14",
        source="nvml",
        gpus=(Gpu(index=0, name="A", compute_capability=ComputeCapability(8, 0)),),
    )

    def test_nothing_forced_changes_nothing(self) -> None:
        assert apply_forced(self.machine, None, None) == self.machine

    def test_a_forced_version_keeps_the_gpus(self) -> None:
        environment = apply_forced(self.machine, CudaVersion(13, 0), None)
        assert environment == self.machine.replace(
            cuda_driver_version=CudaVersion(13, 0), source="forced+nvml"
        )

    def test_a_forced_capability_replaces_all_gpus(self) -> None:
        environment = apply_forced(self.machine, None, ComputeCapability(9, 0))
        assert environment.source == "nvml+forced"
        assert environment.compute_capabilities == (ComputeCapability(9, 0),)

    def test_a_reason_stays_until_both_are_known(self) -> None:
        nothing = Environment(reason="no-device")
        one = apply_forced(nothing, CudaVersion(12, 9), None)
        assert (one.reason, one.source) == ("no-device", "forced")
        both = apply_forced(nothing, CudaVersion(12, 9), ComputeCapability(9, 0))
        assert (both.reason, both.source) == (None, "forced")
