"""The endpoint that installers call."""

from __future__ import annotations

import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest

import nvidia_variant_provider
from nvidia_variant_provider.errors import OverrideError, SelectionWarning
from nvidia_variant_provider.plugin import NvidiaVariantPlugin

CUDA = "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"
SM = "NV_VARIANT_PROVIDER_FORCE_SM_ARCH"

Endpoint = type[NvidiaVariantPlugin] | NvidiaVariantPlugin | types.ModuleType

each_endpoint = pytest.mark.parametrize(
    "endpoint",
    [NvidiaVariantPlugin, NvidiaVariantPlugin(), nvidia_variant_provider],
    ids=["class", "instance", "module"],
)


@each_endpoint
def test_attributes_of_the_plugin_api(endpoint: Endpoint) -> None:
    assert endpoint.namespace == "nvidia"
    assert endpoint.is_aot_plugin is False
    assert endpoint.is_build_plugin is False
    assert endpoint.all_properties_compatible is False


@each_endpoint
def test_forced_answer(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUDA, "12.9")
    monkeypatch.setenv(SM, "7.5")
    features = endpoint.get_supported_configs()
    assert type(features) is list
    assert [(f.name, f.values[0], f.multi_value) for f in features] == [
        ("cuda_version_lower_bound", "12.9", False),
        ("cuda_version_upper_bound", "15.20", False),
        ("sm_arch", "75_real", True),
    ]
    assert all(type(feature.values) is list for feature in features)


@each_endpoint
def test_no_driver_is_an_empty_answer(endpoint: Endpoint) -> None:
    assert endpoint.get_supported_configs() == []


def test_overrides_are_read_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SM, "9.0")
    monkeypatch.setenv(CUDA, "12.9")
    first = NvidiaVariantPlugin.get_supported_configs()
    monkeypatch.setenv(CUDA, "12.4")
    second = NvidiaVariantPlugin.get_supported_configs()
    assert (first[0].values[0], second[0].values[0]) == ("12.9", "12.4")


@pytest.mark.parametrize("method", ["get_all_configs", "get_supported_configs"])
def test_a_caller_cannot_change_later_answers(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CUDA, "12.9")
    monkeypatch.setenv(SM, "9.0")
    call = getattr(NvidiaVariantPlugin, method)
    first, again = call(), call()
    assert first == again
    first[0].values.clear()
    first.clear()
    assert call() == again


def test_forced_capability_alone_has_no_effect_and_warns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SM, "9.0")
    with pytest.warns(SelectionWarning, match="no effect"):
        assert NvidiaVariantPlugin.get_supported_configs() == []


def test_an_answer_that_leaves_nothing_out_does_not_warn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CUDA, "12.9")
    monkeypatch.setenv(SM, "9.0")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        features = NvidiaVariantPlugin.get_supported_configs()
    assert [feature.name for feature in features] == [
        "cuda_version_lower_bound",
        "cuda_version_upper_bound",
        "sm_arch",
    ]
    assert caught == []


def test_an_answer_that_leaves_something_out_warns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CUDA, "16.0")
    monkeypatch.setenv(SM, "9.0")
    with pytest.warns(SelectionWarning, match=r"cannot name the driver's CUDA 16\.0"):
        features = NvidiaVariantPlugin.get_supported_configs()
    assert features[0].values[0] == "15.20"


def test_minor_version_compatibility_is_an_opt_in_by_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CUDA, "12.4")
    monkeypatch.setenv(SM, "9.0")
    monkeypatch.setenv("NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY", "1")
    lower, _, sm_arch = NvidiaVariantPlugin.get_supported_configs()
    assert lower.values[-1] == "12.20"
    assert sm_arch.values == ["90_real"]


@pytest.mark.parametrize(("name", "text"), [(CUDA, "abc"), (SM, "90")])
def test_malformed_override_is_an_error_that_names_the_variable(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(OverrideError, match=name):
        NvidiaVariantPlugin.get_supported_configs()


def test_warnings_go_to_stderr_and_stdout_stays_empty() -> None:
    # Installers read the plugin's answer from the stdout of its process.
    code = "import nvidia_variant_provider as n; n.get_supported_configs()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={CUDA: "99.0", SM: "9.0", "SYSTEMROOT": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    assert "counts as 15.20" in done.stderr
    assert "<string>:1: SelectionWarning" in done.stderr


FORCED = {CUDA: "12.9", SM: "9.0"}


def loaded_modules(variables: dict[str, str]) -> set[str]:
    """Return the modules that an answer loads beyond those of Python itself."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "from nvidia_variant_provider.plugin import NvidiaVariantPlugin as P\n"
        "P.get_all_configs(); P.get_supported_configs()\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        env={"SYSTEMROOT": "", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("variables", [FORCED, {}], ids=["forced", "no GPU"])
def test_an_answer_loads_nothing_of_the_standard_library(
    variables: dict[str, str], tmp_path: Path
) -> None:
    sysroot = {"NV_VARIANT_PROVIDER_SYSROOT": str(tmp_path)}
    modules = loaded_modules({**variables, **sysroot})
    own = {name for name in modules if name.startswith("nvidia_")}
    assert modules - own <= {"__future__", "warnings"}


def test_a_forced_answer_loads_neither_tables_nor_readers() -> None:
    modules = loaded_modules(FORCED)
    unwanted = ("cli", "knowledge", "metadata", "strict_json", "driver_table", "probe")
    assert not [name for name in modules if name.rpartition(".")[2] in unwanted]
