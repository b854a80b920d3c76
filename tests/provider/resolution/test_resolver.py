"""Tests of `api.resolve`: the labels that fit a machine, and the reasons."""

from __future__ import annotations

import pytest
from support.builds import TORCH, gpu_build, machine, metadata

from nvidia_variant_provider import api
from nvidia_variant_provider.errors import OverrideError

CUDA = "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"
SM = "NV_VARIANT_PROVIDER_FORCE_SM_ARCH"


def test_compatible_labels_reasons_and_properties() -> None:
    resolution = api.resolve(TORCH, environment=machine("12.8", "8.6"))
    assert resolution.compatible == ("cu126", "plain", "null")
    assert resolution.selected == "cu126"
    (reason,) = resolution.rejected["cu130"]
    assert (reason.feature, reason.wanted) == ("cuda_version_lower_bound", ("13.0",))
    assert reason.offered[0] == "12.8"
    assert "CUDA 13.0 or newer, but this driver is for CUDA 12.8" in reason.sentence
    assert list(map(str, resolution.properties("cu126"))) == [
        "nvidia :: cuda_version_lower_bound :: 12.6",
        "nvidia :: sm_arch :: 70_real",
        "nvidia :: sm_arch :: 80_real",
    ]


def test_machine_without_gpu_gets_the_null_variant_with_reasons() -> None:
    resolution = api.resolve(TORCH, environment=machine(None))
    assert resolution.compatible == ("null",)
    assert set(resolution.rejected) == {"cu126", "cu130", "plain"}
    sentence = resolution.rejected["cu126"][0].sentence
    assert sentence == (
        "it needs an NVIDIA driver: no NVIDIA device or driver was found"
    )


def test_selected_is_none_when_no_label_fits() -> None:
    only = metadata({"cu130": gpu_build("13.0")})
    resolution = api.resolve(only, environment=machine("12.8", "8.6"))
    assert (resolution.selected, resolution.compatible) == (None, ())


def test_reason_names_the_gpus_that_a_build_has_kernels_for() -> None:
    resolution = api.resolve(TORCH, environment=machine("13.0", "7.5"))
    assert resolution.compatible == ("cu126", "plain", "null")
    assert resolution.rejected["cu130"][0].sentence == (
        "it has no kernels for compute capability 7.5, only 80_real, 120_real"
    )


def test_a_driver_before_the_catalog_is_the_only_reason() -> None:
    resolution = api.resolve(TORCH, environment=machine("10.2", "8.0"))
    assert {
        r.sentence for reasons in resolution.rejected.values() for r in reasons
    } == {"it needs a newer driver: this driver is for CUDA 10.2"}


def test_a_forced_driver_without_a_gpu_is_explained() -> None:
    environment = machine("12.9").replace(source="forced", reason="no-device")
    sentence = api.resolve(TORCH, environment=environment).rejected["cu126"][0].sentence
    assert "but no GPU is (set NV_VARIANT_PROVIDER_FORCE_SM_ARCH)" in sentence


@pytest.mark.parametrize(
    ("driver", "gpu", "target"),
    [("13.0", "11.0", "101_real"), ("12.9", "10.1", "110_real")],
)
def test_builds_for_the_other_number_of_thor(
    driver: str, gpu: str, target: str
) -> None:
    builds = metadata({"thor": gpu_build(driver, target)})
    resolution = api.resolve(builds, environment=machine(driver, gpu))
    assert resolution.rejected["thor"][0].sentence == (
        f"it has no kernels for compute capability {gpu}, only {target}; this GPU is "
        "Thor, which is 10.1 under CUDA 12 and 11.0 under CUDA 13 and newer: look for "
        "a build for the CUDA of this driver"
    )


def test_only_builds_for_thor_explain_its_two_numbers() -> None:
    builds = metadata({"other": gpu_build("12.9", "90_real")})
    resolution = api.resolve(builds, environment=machine("12.9", "10.1"))
    assert "Thor" not in resolution.rejected["other"][0].sentence


def test_ptx_of_an_older_major_is_explained() -> None:
    builds = metadata({"ptx": gpu_build("12.0", "80_virtual")})
    resolution = api.resolve(builds, environment=machine("12.9", "9.0"))
    assert (
        "could compile its PTX (80_virtual)" in resolution.rejected["ptx"][0].sentence
    )


def test_the_environment_is_detected_when_it_is_not_given() -> None:
    resolution = api.resolve(TORCH, environ={CUDA: "13.0", SM: "12.0"})
    assert resolution.selected == "cu130"
    assert resolution.environment.source == "forced"
    with pytest.raises(OverrideError):
        api.resolve(TORCH, environ={SM: "90"})


def test_minor_version_compatibility() -> None:
    opt_in = {"NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY": "1"}
    environment = machine("12.2", "8.0")
    assert api.resolve(TORCH, environment=environment).selected == "plain"
    resolution = api.resolve(TORCH, environment=environment, environ=opt_in)
    # A build that is strictly supported still wins.
    assert resolution.compatible == ("plain", "cu126", "null")


class TestOutlook:
    """A reason mentions minor-version compatibility if the option would help."""

    builds = metadata(
        {
            "cubin": gpu_build("12.6", "80_real"),
            "ptx": gpu_build("12.6", "80_virtual"),
            "other": gpu_build("12.6", "75_real"),
            "next": gpu_build("13.0", "80_real"),
        }
    )

    def sentence(self, label: str, **environ: str) -> str:
        resolution = api.resolve(
            self.builds, environment=machine("12.2", "8.0"), environ=environ
        )
        return resolution.rejected[label][0].sentence

    def test_machine_code_would_run(self) -> None:
        assert self.sentence("cubin") == (
            "it needs a driver for CUDA 12.6 or newer, but this driver is for CUDA "
            "12.2; its machine code would run under CUDA's minor-version "
            "compatibility (set NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY=1)"
        )

    def test_ptx_would_not_run(self) -> None:
        assert self.sentence("ptx").endswith(
            "; minor-version compatibility would not help: it covers only machine "
            "code, and this build has none for 8.0"
        )

    def test_a_build_for_another_major_would_not_run(self) -> None:
        assert self.sentence("next").endswith("but this driver is for CUDA 12.2")

    def test_no_outlook_when_it_is_in_force(self) -> None:
        opt_in = {"NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY": "1"}
        assert "compatibility" not in self.sentence("next", **opt_in)
        assert "no machine code" not in self.sentence("ptx", **opt_in)


def test_note_on_cuda_compat_libraries() -> None:
    environment = machine("13.0", "9.0").replace(kernel_driver_version="550.54.14")
    (note,) = api.resolve(TORCH, environment=environment).notes
    assert "for CUDA 13.0, the kernel driver 550.54.14 for 12.4" in note
    for kernel in ("580.65.06", "540.3.0", "999.1", None):
        environment = environment.replace(kernel_driver_version=kernel)
        assert api.resolve(TORCH, environment=environment).notes == ()
    forced = environment.replace(kernel_driver_version="550.1", source="forced+nvml")
    assert api.resolve(TORCH, environment=forced).notes == ()


class TestEveryGpu:
    environment = machine("13.0", "12.0", "7.0")

    def test_labels_that_leave_out_a_gpu_are_rejected(self) -> None:
        resolution = api.resolve(TORCH, environment=self.environment, every_gpu=True)
        assert resolution.compatible == ("null",)
        assert resolution.rejected["cu130"][0].sentence == (
            "it has no kernels for compute capability 7.0, only 80_real, 120_real"
        )
        assert set(resolution.rejected) == {"cu126", "cu130", "plain"}

    def test_by_default_the_highest_gpu_decides(self) -> None:
        resolution = api.resolve(TORCH, environment=self.environment)
        assert resolution.selected == "cu130"
        assert "may have no kernels for 7.0" in resolution.notes[0]

    def test_a_label_that_covers_all_is_kept(self) -> None:
        fat = metadata({"fat": gpu_build("12.8", "70_real", "120_real"), "null": {}})
        resolution = api.resolve(fat, environment=self.environment, every_gpu=True)
        assert resolution.compatible == ("fat", "null")

    def test_ptx_covers_a_gpu_unless_minor_version_compatibility_is_on(self) -> None:
        ptx = metadata({"ptx": gpu_build("12.8", "70_virtual", "120_real")})
        resolution = api.resolve(ptx, environment=self.environment, every_gpu=True)
        assert resolution.compatible == ("ptx",)
        opt_in = {"NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY": "1"}
        resolution = api.resolve(
            ptx, environment=self.environment, every_gpu=True, environ=opt_in
        )
        assert resolution.compatible == ()


@pytest.mark.parametrize("number", ["9" * 5000, ""])
def test_targets_that_are_no_numbers(number: str) -> None:
    """The explanation of such a value ended with a traceback."""
    document = metadata({"odd": {"nvidia": {"sm_arch": [f"{number}_virtual"]}}})
    resolution = api.resolve(document, environment=machine("12.8", "8.6"))
    assert resolution.rejected["odd"][0].sentence
