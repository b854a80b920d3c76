"""`api.resolve`: environment and metadata to a resolution."""

from __future__ import annotations

import pytest
from support.builds import TORCH, gpu_build, machine, metadata

from nvidia_variant_provider import api
from nvidia_variant_provider.errors import OverrideError

CUDA = "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"
SM = "NV_VARIANT_PROVIDER_FORCE_SM_ARCH"


def test_resolution() -> None:
    found = api.resolve(TORCH, environment=machine("12.8", "8.6"))
    assert found.compatible == ("cu126", "plain", "null")
    assert found.selected == "cu126"
    (reason,) = found.rejected["cu130"]
    assert (reason.feature, reason.wanted) == ("cuda_version_lower_bound", ("13.0",))
    assert reason.offered[0] == "12.8"
    assert "CUDA 13.0 or newer, this one is for 12.8" in reason.sentence
    assert list(map(str, found.properties("cu126"))) == [
        "nvidia :: cuda_version_lower_bound :: 12.6",
        "nvidia :: sm_arch :: 70_real",
        "nvidia :: sm_arch :: 80_real",
    ]


def test_machine_without_gpu_gets_the_null_variant_with_reasons() -> None:
    found = api.resolve(TORCH, environment=machine(None))
    assert found.compatible == ("null",)
    assert set(found.rejected) == {"cu126", "cu130", "plain"}
    sentence = found.rejected["cu126"][0].sentence
    assert sentence == (
        "it needs an NVIDIA driver: no NVIDIA device or driver was found"
    )


def test_nothing_fits() -> None:
    only = metadata({"cu130": gpu_build("13.0")})
    found = api.resolve(only, environment=machine("12.8", "8.6"))
    assert (found.selected, found.compatible) == (None, ())


def test_kernels_for_other_gpus() -> None:
    found = api.resolve(TORCH, environment=machine("13.0", "7.5"))
    assert found.compatible == ("cu126", "plain", "null")
    assert found.rejected["cu130"][0].sentence == (
        "it has no kernels for compute capability 7.5, only 80_real, 120_real"
    )


def test_an_old_driver_is_the_reason_whatever_the_gpu() -> None:
    found = api.resolve(TORCH, environment=machine("10.2", "8.0"))
    assert {r.sentence for reasons in found.rejected.values() for r in reasons} == {
        "it needs a newer driver: this one is for CUDA 10.2"
    }


def test_a_capability_that_is_not_forced_is_named() -> None:
    environment = machine("12.9").replace(source="forced", reason="no-device")
    sentence = api.resolve(TORCH, environment=environment).rejected["cu126"][0].sentence
    assert "none is forced (NV_VARIANT_PROVIDER_FORCE_SM_ARCH)" in sentence


def test_thor_has_two_numbers() -> None:
    builds = metadata({"cu129": gpu_build("12.9", "101_real")})
    found = api.resolve(builds, environment=machine("13.0", "11.0"))
    assert "Thor is 101 to other CUDA majors" in found.rejected["cu129"][0].sentence


def test_ptx_of_an_older_major_is_explained() -> None:
    builds = metadata({"ptx": gpu_build("12.0", "80_virtual")})
    found = api.resolve(builds, environment=machine("12.9", "9.0"))
    assert "could compile its PTX (80_virtual)" in found.rejected["ptx"][0].sentence


def test_the_environment_is_detected_when_it_is_not_given() -> None:
    found = api.resolve(TORCH, environ={CUDA: "13.0", SM: "12.0"})
    assert found.selected == "cu130"
    assert found.environment.source == "forced"
    with pytest.raises(OverrideError):
        api.resolve(TORCH, environ={SM: "90"})


def test_minor_version_compatibility() -> None:
    opt_in = {"NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY": "1"}
    environment = machine("12.2", "8.0")
    assert api.resolve(TORCH, environment=environment).selected == "plain"
    found = api.resolve(TORCH, environment=environment, environ=opt_in)
    # A build that is strictly supported still wins.
    assert found.compatible == ("plain", "cu126", "null")


class TestOutlook:
    """What minor-version compatibility would change is said with the reason."""

    builds = metadata(
        {
            "cubin": gpu_build("12.6", "80_real"),
            "ptx": gpu_build("12.6", "80_virtual"),
            "other": gpu_build("12.6", "75_real"),
            "next": gpu_build("13.0", "80_real"),
        }
    )

    def sentence(self, label: str, **environ: str) -> str:
        found = api.resolve(
            self.builds, environment=machine("12.2", "8.0"), environ=environ
        )
        return found.rejected[label][0].sentence

    def test_it_would_run(self) -> None:
        assert self.sentence("cubin") == (
            "it needs a driver for CUDA 12.6 or newer, this one is for 12.2; its "
            "machine code would run under CUDA's minor-version compatibility "
            "(NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY=1)"
        )

    def test_ptx_would_not(self) -> None:
        assert self.sentence("ptx").endswith(
            "; minor-version compatibility would not help: it covers machine code, "
            "and the build has none for 8.0"
        )

    def test_another_major_would_not(self) -> None:
        assert self.sentence("next").endswith("this one is for 12.2")

    def test_in_force_it_is_not_offered(self) -> None:
        opt_in = {"NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY": "1"}
        assert "compatibility" not in self.sentence("next", **opt_in)
        assert "no machine code" not in self.sentence("ptx", **opt_in)


def test_cuda_compat_is_noted() -> None:
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
        found = api.resolve(TORCH, environment=self.environment, every_gpu=True)
        assert found.compatible == ("null",)
        assert found.rejected["cu130"][0].sentence == (
            "it has no kernels for compute capability 7.0, only 80_real, 120_real"
        )
        assert set(found.rejected) == {"cu126", "cu130", "plain"}

    def test_by_default_the_highest_gpu_decides(self) -> None:
        found = api.resolve(TORCH, environment=self.environment)
        assert found.selected == "cu130"
        assert "may have no kernels for 7.0" in found.notes[0]

    def test_a_label_that_covers_all_is_kept(self) -> None:
        fat = metadata({"fat": gpu_build("12.8", "70_real", "120_real"), "null": {}})
        found = api.resolve(fat, environment=self.environment, every_gpu=True)
        assert found.compatible == ("fat", "null")

    def test_ptx_covers_where_it_is_supported(self) -> None:
        ptx = metadata({"ptx": gpu_build("12.8", "70_virtual", "120_real")})
        found = api.resolve(ptx, environment=self.environment, every_gpu=True)
        assert found.compatible == ("ptx",)
        opt_in = {"NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY": "1"}
        found = api.resolve(
            ptx, environment=self.environment, every_gpu=True, environ=opt_in
        )
        assert found.compatible == ()
