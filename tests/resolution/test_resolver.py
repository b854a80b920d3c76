"""`api.resolve`: environment and metadata to a resolution."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from nvidia_variant_provider import api
from nvidia_variant_provider.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)
from nvidia_variant_provider.errors import ConfigurationError, InputError, OverrideError

CUDA = "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"
SM = "NV_VARIANT_PROVIDER_FORCE_SM_ARCH"


def machine(cuda: str | None, *capabilities: str) -> Environment:
    return Environment(
        cuda_driver_version=CudaVersion.parse(cuda) if cuda else None,
        reason=None if cuda else "no-device",
        gpus=tuple(
            Gpu(index=index, compute_capability=ComputeCapability.parse(text))
            for index, text in enumerate(capabilities)
        ),
    )


def metadata(
    variants: dict[str, Any], version: str = "v0.2.0", /, **changes: Any
) -> dict[str, Any]:
    namespaces = list({space: None for item in variants.values() for space in item})
    found: dict[str, Any] = {
        "$schema": f"https://variants-schema.wheelnext.dev/{version}.json",
        "default-priorities": {"namespace": namespaces},
        "providers": {name: {"requires": [f"{name}-provider"]} for name in namespaces},
        "variants": variants,
    }
    found.update(changes)
    return found


def gpu_build(bound: str, *targets: str) -> dict[str, Any]:
    features = {"cuda_version_lower_bound": [bound]}
    return {"nvidia": {**features, **({"sm_arch": list(targets)} if targets else {})}}


TORCH = metadata(
    {
        "null": {},
        "cu126": gpu_build("12.6", "70_real", "80_real"),
        "cu130": gpu_build("13.0", "80_real", "120_real"),
        "plain": gpu_build("12.0"),
    }
)


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


class TestOtherNamespaces:
    builds = metadata(
        {
            "v3": {"x86_64": {"level": ["v3"]}},
            "cu126_v3": {**gpu_build("12.6", "80_real"), "x86_64": {"level": ["v3"]}},
            "cu126": gpu_build("12.6", "80_real"),
            "null": {},
        },
        **{"default-priorities": {"namespace": ["nvidia", "x86_64"]}},
    )
    environment = machine("12.8", "8.0")

    def test_without_an_answer_a_namespace_is_unsupported(self) -> None:
        found = api.resolve(self.builds, environment=self.environment)
        assert found.compatible == ("cu126", "null")
        assert found.rejected["v3"][0].sentence == (
            "x86_64 is not supported: no provider plugin for it is installed here"
        )

    def test_answers_can_be_given(self) -> None:
        found = api.resolve(
            self.builds,
            environment=self.environment,
            supported={"x86_64": {"level": ["v3", "v2"]}},
        )
        assert found.compatible == ("cu126_v3", "cu126", "v3", "null")
        found = api.resolve(
            self.builds,
            environment=self.environment,
            supported={"x86_64": {"level": ["v2"]}},
        )
        assert "needs x86_64 :: level v3" in found.rejected["v3"][0].sentence
        assert "supports v2" in found.rejected["v3"][0].sentence


class TestProviders:
    environment = machine("12.8", "8.0")

    def build(
        self, provider: dict[str, Any], version: str = "v0.2.0"
    ) -> dict[str, Any]:
        return metadata(
            {"l": {"blas": {"library": ["mkl"]}}, "null": {}},
            version,
            providers={"blas": provider},
        )

    def test_static_properties(self) -> None:
        static = {"static-properties": {"library": ["openblas", "mkl"]}}
        found = api.resolve(self.build(static), environment=self.environment)
        assert found.compatible == ("l", "null")

    def test_static_properties_go_before_given_answers(self) -> None:
        # PEP 850: a given list stands "in place of querying the plugins".
        builds = self.build({"static-properties": {"library": ["openblas"]}})
        found = api.resolve(
            builds,
            environment=self.environment,
            supported={"blas": {"library": ["mkl"]}},
        )
        assert found.compatible == ("null",)

    def test_an_empty_static_list_supports_nothing(self) -> None:
        builds = self.build({"static-properties": {"library": []}})
        found = api.resolve(builds, environment=self.environment)
        assert found.compatible == ("null",)

    def test_static_properties_replace_our_own_answer(self) -> None:
        builds = metadata(
            {"cu126": gpu_build("12.6", "80_real")},
            providers={
                "nvidia": {
                    "static-properties": {
                        "cuda_version_lower_bound": ["12.6"],
                        "sm_arch": ["80_real"],
                    },
                    "feature-order": ["sm_arch", "cuda_version_lower_bound"],
                }
            },
        )
        found = api.resolve(builds, environment=machine(None))
        assert found.selected == "cu126"

    def test_optional_provider_is_off_unless_enabled(self) -> None:
        static = {"static-properties": {"library": ["mkl"]}, "optional": True}
        builds = self.build(static)
        found = api.resolve(builds, environment=self.environment)
        assert found.compatible == ("null",)
        assert "optional" in found.rejected["l"][0].sentence
        for enabled in (True, ["blas"]):
            found = api.resolve(
                builds, environment=self.environment, enable_optional=enabled
            )
            assert found.selected == "l"
        given = {"blas": {"library": ["mkl"]}}
        found = api.resolve(builds, environment=self.environment, supported=given)
        assert found.selected == "null"

    def test_builtin_provider_is_unsupported(self) -> None:
        found = api.resolve(
            self.build({"builtin": "abi_dependency"}), environment=self.environment
        )
        assert "built into installers" in found.rejected["l"][0].sentence

    @pytest.mark.parametrize(
        ("marker", "fits"),
        [
            ("python_version >= '3'", True),
            ("platform_system == 'Plan9'", False),
            ("no marker", False),
        ],
    )
    def test_enable_if(self, marker: str, fits: bool) -> None:
        builds = metadata(
            {"cu126": gpu_build("12.6", "80_real"), "null": {}},
            "v0.0.3",
            providers={"nvidia": {"requires": ["x"], "enable-if": marker}},
        )
        found = api.resolve(builds, environment=self.environment)
        assert ("cu126" in found.compatible) is fits
        if not fits:
            assert "not for this platform" in found.rejected["cu126"][0].sentence

    def test_a_mac_can_plan_for_another_machine(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The real platform cannot be had here.
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(platform, "system", lambda: "Darwin")
        marker = "platform_system == 'Linux' and sys_platform == 'linux'"
        builds = metadata(
            {"cu126": gpu_build("12.6", "80_real"), "null": {}},
            "v0.0.3",
            providers={"nvidia": {"requires": ["x"], "enable-if": marker}},
        )
        assert api.resolve(builds, environment=self.environment).selected == "cu126"
        assert api.resolve(builds, environment=machine(None)).selected == "null"


class TestVariantsToml:
    builds = metadata(
        {
            "cu126": gpu_build("12.6", "80_real"),
            "cu128": gpu_build("12.8", "80_real"),
            "mkl": {"blas": {"library": ["mkl"]}},
        },
        providers={
            "nvidia": {"requires": ["nvidia-variant-provider"]},
            "blas": {"static-properties": {"library": ["mkl"]}},
        },
    )

    def order(self, text: str | None = None) -> tuple[str, ...]:
        if text is not None:
            Path("variants.toml").write_text(text)
        return api.resolve(self.builds, environment=machine("12.8", "8.0")).compatible

    def test_namespaces(self) -> None:
        assert self.order() == ("cu128", "cu126", "mkl")
        found = self.order('namespace_priorities = ["blas", "x"]')
        assert found == ("mkl", "cu128", "cu126")

    def test_features_and_values(self) -> None:
        text = (
            'feature_priorities.nvidia = ["sm_arch"]\n'
            'property_priorities.nvidia.cuda_version_lower_bound = ["12.6"]\n'
        )
        assert self.order(text) == ("cu126", "cu128", "mkl")

    def test_the_working_folder_goes_before_the_user(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("platformdirs.user_config_dir", lambda *_, **__: tmp_path)
        user = tmp_path / "variants.toml"
        user.write_text('namespace_priorities = ["blas"]')
        assert self.order() == ("mkl", "cu128", "cu126")
        assert self.order("") == ("cu128", "cu126", "mkl")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("x = ", "not TOML: "),
            ("priorities = []", "priorities: unknown key"),
            (
                'namespace_priorities = "nvidia"',
                "namespace_priorities: expected a list",
            ),
            (
                "property_priorities.nvidia.sm_arch = [5]",
                "property_priorities.nvidia.sm_arch[0]: expected a string",
            ),
        ],
    )
    def test_a_broken_file_is_an_error(self, text: str, message: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            self.order(text)
        assert str(caught.value).startswith(f"{Path.cwd()}/variants.toml: {message}")
        assert "\n" not in str(caught.value)

    def test_a_file_that_is_not_utf_8_is_an_error(self) -> None:
        Path("variants.toml").write_bytes(b"\xff")
        with pytest.raises(ConfigurationError, match="not TOML"):
            self.order()


class TestSnapshots:
    def test_both_forms(self, tmp_path: Path) -> None:
        environment = machine("12.8", "8.0")
        bare, report = tmp_path / "bare.json", tmp_path / "report.json"
        bare.write_text(json.dumps(environment.to_dict()))
        data = {"schema_version": 1, "command": "detect"}
        report.write_text(json.dumps({**data, "data": environment.to_dict()}))
        expected = environment.replace(source="snapshot")
        assert api.read_environment(bare) == expected
        assert api.read_environment(str(report)) == expected

    @pytest.mark.parametrize(
        ("document", "message"),
        [
            (TORCH, "this is variant metadata, not a snapshot"),
            (
                {"schema_version": 1, "command": "properties"},
                "not the report of detect",
            ),
            ([], "top level: expected an object, found a list"),
        ],
    )
    def test_other_files(self, document: object, message: str, tmp_path: Path) -> None:
        path = tmp_path / "x.json"
        path.write_text(json.dumps(document))
        with pytest.raises(InputError, match=message):
            api.read_environment(path)

    def test_a_snapshot_is_no_metadata(self) -> None:
        with pytest.raises(
            InputError, match=r"not variant metadata; a snapshot .* --en"
        ):
            api.resolve(machine("12.9", "9.0").to_dict())

    def test_defects_name_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "x.json"
        path.write_text('{"cuda_driver_version": 12.9, "gpus": []}')
        with pytest.raises(InputError) as caught:
            api.read_environment(path)
        assert str(caught.value).startswith(f"{path}: cuda_driver_version: expected")
