"""variantlib runs the provider and orders labels, as it does for users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.documents import (
    PROVIDER,
    TORCH,
    TORCH_LABELS,
    document,
    forced,
    nvidia,
)
from support.grids import some_of
from support.variantlib_peer import (
    Config,
    by_priority,
    configs_of_document,
    configs_of_endpoint,
    isolate,
    refused_properties,
    run_command,
)
from variantlib.errors import PluginError  # type: ignore[import-untyped]

from nvidia_variant_provider.errors import ConfigurationError
from nvidia_variant_provider.machine.supported import all_features, supported_features
from nvidia_variant_provider.resolution.inputs import Priorities
from nvp import api

CLASS = "nvidia_variant_provider.plugin:NvidiaVariantPlugin"
MODULE = "nvidia_variant_provider"

MACHINES = {
    "both forced": ("12.9", "9.0"),
    "no gpu": ("13.0", ""),
    "no driver": ("", "9.0"),
    # Both values cause warnings, which must not be on stdout, because variantlib parses
    # it.
    "beyond the catalog": ("16.0", "13.0"),
    "too old": ("10.2", "9.0"),
}

RELEASES = {
    "torch": TORCH,
    "no null": document(TORCH_LABELS),
    "upper bounds": document(
        {
            "null": {},
            "any": nvidia(sm=["75_real", "90_virtual"]),
            "below13": nvidia("12.0", "13", ["75_real", "89_real", "90_real"]),
            "below14": nvidia("12.4", "14", ["80_real", "90_real"]),
            "cu13": nvidia("13", sm=["75_real", "120_real"]),
        }
    ),
}


@pytest.fixture(autouse=True)
def _user_without_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate(monkeypatch, tmp_path)


def force(monkeypatch: pytest.MonkeyPatch, cuda: str, sm: str) -> None:
    for name, value in forced(cuda, sm).items():
        monkeypatch.setenv(name, value)


def our_catalog() -> list[Config]:
    return [(x.name, x.values, x.multi_value) for x in all_features()]


def our_answer() -> list[Config]:
    features, _ = supported_features(api.detect())
    return [(x.name, x.values, x.multi_value) for x in features]


@pytest.mark.parametrize("endpoint", [CLASS, MODULE])
def test_endpoint_gives_the_catalog(endpoint: str) -> None:
    assert configs_of_endpoint(endpoint, supported=False) == our_catalog()


@pytest.mark.parametrize(("cuda", "sm"), MACHINES.values(), ids=MACHINES)
def test_endpoint_gives_the_answer(
    cuda: str, sm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, cuda, sm)
    assert configs_of_endpoint(CLASS, supported=True) == our_answer()


def test_endpoint_gives_nothing_without_a_driver() -> None:
    assert configs_of_endpoint(CLASS, supported=True) == []


def test_endpoint_is_inferred_without_plugin_api(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force(monkeypatch, "12.9", "9.0")
    # PEP 817: "If it is missing, the package name from the first dependency
    # specifier in requires is used, after replacing all - characters with _".
    release = document(TORCH_LABELS, providers={"nvidia": {**PROVIDER}})
    del release["providers"]["nvidia"]["plugin-api"]
    assert configs_of_document(release, supported=False) == our_catalog()
    assert configs_of_document(release, supported=True) == our_answer()
    assert by_priority(release) == ["cu128", "cu126", "null"]


@pytest.mark.parametrize(
    ("features", "refused"),
    [
        (TORCH_LABELS["cu130"]["nvidia"], set()),
        (
            {
                "cuda_version_lower_bound": ["12.8", "12.9"],
                "cuda_version_upper_bound": ["13", "14"],
            },
            {
                "nvidia :: cuda_version_lower_bound",
                "nvidia :: cuda_version_upper_bound",
            },
        ),
        (
            {"cuda_version_lower_bound": ["16.0"], "sm_arch": ["130_real", "90_real"]},
            {
                "nvidia :: cuda_version_lower_bound :: 16.0",
                "nvidia :: sm_arch :: 130_real",
            },
        ),
    ],
    ids=["torch", "two bounds", "unknown values"],
)
def test_variantlib_refuses_properties_outside_of_the_catalog(
    features: dict[str, list[str]], refused: set[str]
) -> None:
    release = document({"built": {"nvidia": features}})
    assert refused_properties(release, "built") == refused


def test_bad_override_is_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force(monkeypatch, "12.9", "90")
    with pytest.raises(PluginError) as caught:
        configs_of_endpoint(CLASS, supported=True)
    last = str(caught.value).rstrip().splitlines()[-1]
    assert last.startswith("nvidia_variant_provider.errors.OverrideError: ")
    assert "NV_VARIANT_PROVIDER_FORCE_SM_ARCH" in last
    assert "'90'" in last
    assert "MAJOR.MINOR" in last


def test_command_lists_the_namespace() -> None:
    assert "nvidia" in run_command("plugins", "list").splitlines()


@pytest.mark.parametrize("option", ["--all", "--supported"])
def test_command_prints_the_configs(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, "16.0", "9.0")  # causes a warning on stderr
    configs = json.loads(run_command("plugins", "get-configs", option))
    expected = our_catalog() if option == "--all" else our_answer()
    assert configs["nvidia"] == [
        {"name": name, "values": values, "multi_value": multi_value}
        for name, values, multi_value in expected
    ]


@pytest.mark.parametrize(
    ("cuda", "sm"),
    some_of(
        [
            ("11.0", "8.0"),
            ("11.8", "9.0"),
            ("12.0", "8.9"),
            ("12.4", "7.5"),
            ("12.6", "5.0"),
            ("12.6", "7.0"),
            ("12.8", "7.0"),
            ("12.8", "10.0"),
            ("12.9", "8.6"),
            ("12.9", "12.1"),
            ("13.0", "5.0"),
            ("13.0", "7.5"),
            ("13.0", "9.0"),
            ("13.2", "12.0"),
            ("15.20", "12.9"),
            ("16.0", "9.0"),
            ("12.9", ""),
            ("", ""),
        ],
        7,
    ),
)
def test_variantlib_and_we_order_labels_alike(
    cuda: str, sm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, cuda, sm)
    # Run the plugin only once, because the machine stays the same.
    theirs = {
        name: by_priority(release, ask_again=name == "torch")
        for name, release in RELEASES.items()
    }
    ours = {name: with_null(release) for name, release in RELEASES.items()}
    assert ours == theirs


def with_null(release: Mapping[str, Any]) -> list[str]:
    """Return our order, with the null variant that variantlib adds if it is missing."""
    labels = list(api.resolve(release, priorities=Priorities()).compatible)
    return labels if "null" in release["variants"] else [*labels, "null"]


OPTIONAL = {"nvidia": {**PROVIDER, "optional": True}}


@pytest.mark.parametrize(
    ("enabled", "best"),
    [
        (False, "null"),
        (["other"], "null"),
        (["other", "nvidia"], "cu128"),
        (True, "cu128"),
    ],
)
def test_an_optional_provider_is_asked_only_if_enabled(
    enabled: bool | list[str], best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, "12.9", "9.0")
    release = document(TORCH["variants"], providers=OPTIONAL)
    ours = api.resolve(release, priorities=Priorities(), enable_optional=enabled)
    assert by_priority(release, enable_optional=enabled) == list(ours.compatible)
    assert ours.selected == best


# Preferences of the user, in variants.toml

PREFERENCES = document(
    {
        "null": {},
        "exact": nvidia("12.4", sm=["90_real"]),
        "mkl": {"blas_lapack": {"library": ["mkl"]}},
        "mkl_gpu": {"blas_lapack": {"library": ["mkl"]}, **nvidia("12.0")},
        "openblas_gpu": {"blas_lapack": {"library": ["openblas"]}, **nvidia("12.6")},
        "ptx": nvidia("12.8", sm=["90_virtual"]),
    },
    providers={
        "nvidia": PROVIDER,
        "blas_lapack": {"static-properties": {"library": ["openblas", "mkl"]}},
    },
)

VARIANTS_TOML = {
    "nothing": ("", "ptx"),
    "feature": ('feature_priorities = {nvidia = ["other", "sm_arch"]}', "exact"),
    "value": (
        "[property_priorities.nvidia]\n"
        'cuda_version_lower_bound = ["99.0", "12.0", "12.4"]',
        "mkl_gpu",
    ),
    "all": (
        'namespace_priorities = ["blas_lapack", "nvidia"]\n'
        "[feature_priorities]\n"
        'nvidia = ["sm_arch", "cuda_version_upper_bound"]\n'
        "[property_priorities]\n"
        'blas_lapack = {library = ["mkl"]}\n'
        'nvidia = {sm_arch = ["90_virtual"]}',
        "mkl_gpu",
    ),
}

RUN_VARIANTLIB = """
import json, sys
from variantlib.api import get_variants_by_priority
descriptions = get_variants_by_priority(variants_json=json.load(sys.stdin))
print(*(description.label for description in descriptions))
"""


def run_variantlib(
    folder: Path, release: Mapping[str, Any]
) -> subprocess.CompletedProcess[str]:
    """Run variantlib in a process: each looks for its configuration only once."""
    return subprocess.run(
        [sys.executable, "-c", RUN_VARIANTLIB],
        cwd=folder,
        env={**os.environ, **forced("12.9", "9.0")},
        input=json.dumps(release),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("text", "best"), VARIANTS_TOML.values(), ids=VARIANTS_TOML)
def test_variantlib_and_we_read_the_same_preferences(
    text: str, best: str, tmp_path: Path
) -> None:
    (tmp_path / "variants.toml").write_text(text, encoding="utf-8")
    theirs = run_variantlib(tmp_path, PREFERENCES)
    ours = api.resolve(PREFERENCES, environ=forced("12.9", "9.0"))
    assert theirs.stdout.split() == list(ours.compatible), theirs.stderr
    assert ours.selected == best
    assert set(ours.compatible) == set(PREFERENCES["variants"])


@pytest.mark.parametrize(
    "text",
    [
        'namespace_priority = ["nvidia"]',
        'property_priorities = {nvidia = ["12.4"]}',
        "namespace_priorities = [",
    ],
    ids=["unknown key", "not nested", "not TOML"],
)
def test_variantlib_and_we_refuse_the_same_preferences(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "variants.toml").write_text(text, encoding="utf-8")
    assert run_variantlib(tmp_path, TORCH).returncode != 0
    with pytest.raises(ConfigurationError, match=r"variants\.toml"):
        api.resolve(TORCH, environ=forced("12.9", "9.0"))
