"""The sources of answers: the user, static properties, this package and plugins."""

from __future__ import annotations

import platform
import sys
from typing import Any

import pytest
from packaging import markers
from support.builds import gpu_build, machine, metadata

from nvidia_variant_provider import api


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
        resolution = api.resolve(self.builds, environment=self.environment)
        assert resolution.compatible == ("cu126", "null")
        assert resolution.rejected["v3"][0].sentence == (
            "x86_64 is not supported: no provider plugin for it is installed"
        )

    def test_answers_can_be_given(self) -> None:
        resolution = api.resolve(
            self.builds,
            environment=self.environment,
            supported={"x86_64": {"level": ["v3", "v2"]}},
        )
        assert resolution.compatible == ("cu126_v3", "cu126", "v3", "null")
        resolution = api.resolve(
            self.builds,
            environment=self.environment,
            supported={"x86_64": {"level": ["v2"]}},
        )
        assert "needs x86_64 :: level v3" in resolution.rejected["v3"][0].sentence
        assert "supports v2" in resolution.rejected["v3"][0].sentence


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
        resolution = api.resolve(self.build(static), environment=self.environment)
        assert resolution.compatible == ("l", "null")

    def test_static_properties_go_before_answers_of_the_user(self) -> None:
        # PEP 850: a list that the user gives stands "in place of querying the plugins".
        builds = self.build({"static-properties": {"library": ["openblas"]}})
        resolution = api.resolve(
            builds,
            environment=self.environment,
            supported={"blas": {"library": ["mkl"]}},
        )
        assert resolution.compatible == ("null",)

    def test_an_empty_static_list_supports_nothing(self) -> None:
        builds = self.build({"static-properties": {"library": []}})
        resolution = api.resolve(builds, environment=self.environment)
        assert resolution.compatible == ("null",)

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
        resolution = api.resolve(builds, environment=machine(None))
        assert resolution.selected == "cu126"

    def test_optional_provider_is_off_unless_enabled(self) -> None:
        static = {"static-properties": {"library": ["mkl"]}, "optional": True}
        builds = self.build(static)
        resolution = api.resolve(builds, environment=self.environment)
        assert resolution.compatible == ("null",)
        assert "optional" in resolution.rejected["l"][0].sentence
        for enabled in (True, ["blas"]):
            resolution = api.resolve(
                builds, environment=self.environment, enable_optional=enabled
            )
            assert resolution.selected == "l"
        given = {"blas": {"library": ["mkl"]}}
        resolution = api.resolve(builds, environment=self.environment, supported=given)
        assert resolution.selected == "null"

    def test_builtin_provider_is_unsupported(self) -> None:
        resolution = api.resolve(
            self.build({"builtin": "abi_dependency"}), environment=self.environment
        )
        assert "built into installers" in resolution.rejected["l"][0].sentence

    @pytest.mark.parametrize(
        ("marker", "fits"),
        [
            ("python_version >= '3'", True),
            ("platform_system == 'Plan9'", False),
            ("no marker", False),
            ("python_version ~= '3'", False),
            (f"{'(' * 5000}os_name", False),
            (f"os_name != 'x{'x' * 1000}'", False),
        ],
    )
    def test_enable_if(self, marker: str, fits: bool) -> None:
        builds = metadata(
            {"cu126": gpu_build("12.6", "80_real"), "null": {}},
            "v0.0.3",
            providers={"nvidia": {"requires": ["x"], "enable-if": marker}},
        )
        resolution = api.resolve(builds, environment=self.environment)
        assert ("cu126" in resolution.compatible) is fits
        if not fits:
            other = marker.startswith("platform")
            why = "does not apply here" if other else "cannot be read"
            assert why in resolution.rejected["cu126"][0].sentence

    def test_a_marker_is_evaluated_once_for_many_machines(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        evaluated: list[str] = []

        class Counted(markers.Marker):
            def __init__(self, text: str) -> None:
                evaluated.append(text)
                super().__init__(text)

        monkeypatch.setattr(markers, "Marker", Counted)
        marker = "python_version >= '3' or os_name == 'counted'"
        builds = metadata(
            {"cu126": gpu_build("12.6", "80_real"), "null": {}},
            "v0.0.3",
            providers={"nvidia": {"requires": ["x"], "enable-if": marker}},
        )
        for minor in range(10):
            api.resolve(builds, environment=machine(f"12.{minor}"))
        assert evaluated == [marker]

    def test_a_mac_can_plan_for_another_machine(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The tests do not run on a Mac: pretend to.
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
