"""Upgraded metadata is valid, keeps the order of labels, and loses nothing silently."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import PROVIDER, TORCH_LABELS, document, nvidia
from support.paths import FIXTURES
from support.strategies import documents, machines
from variantlib.variants_json import VariantsJson  # type: ignore[import-untyped]

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)
from nvidia_variant_provider.metadata import VariantsMetadata, read_metadata
from nvidia_variant_provider.metadata.versions import WRITTEN
from nvidia_variant_provider.resolution.inputs import Priorities
from nvp import api
from nvp.metadata.checking import to_dict, to_text
from nvp.upgrading.remarks import Upgrade
from nvp.upgrading.upgrade import upgrade

FOLDER = FIXTURES / "variants-json"
FILES = sorted(FOLDER.rglob("*-variants.json"))
HOST = "https://variants-schema.wheelnext.dev"
X86_64 = {"x86_64": {"level": ["v3"]}}
GRID = [
    (cuda, sm)
    for cuda in ("11.8", "12.4", "12.6", "12.8", "12.9", "13.0")
    for sm in ("5.0", "7.0", "7.5", "8.6", "8.9", "9.0", "10.0", "12.0")
]


def machine(cuda: str | None, *capabilities: str) -> Environment:
    return Environment(
        cuda_driver_version=None if cuda is None else CudaVersion.parse(cuda),
        gpus=tuple(
            Gpu(index=index, compute_capability=ComputeCapability.parse(text))
            for index, text in enumerate(capabilities)
        ),
    )


def compatible(
    metadata: VariantsMetadata, environment: Environment, **options: Any
) -> list[str]:
    resolution = api.resolve(
        metadata,
        environment=environment,
        priorities=Priorities(),
        environ={},
        **options,
    )
    labels = ["null" if x == "00000000" else x for x in resolution.compatible]
    return list(dict.fromkeys(labels))


def upgraded(source: Mapping[str, Any]) -> Upgrade:
    return upgrade(read_metadata(source), source)


def result(outcome: Upgrade) -> VariantsMetadata:
    assert outcome.metadata is not None, outcome.problems
    return outcome.metadata


def places(remarks: Sequence[Any]) -> list[str]:
    return [remark.place for remark in remarks]


def old(
    providers: Mapping[str, Any],
    variants: Mapping[str, Any] = TORCH_LABELS,
    version: str = "v0.0.3",
    priorities: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a document of an older version, with further priorities and keys."""
    source = document(variants, providers=providers, schema=f"{HOST}/{version}.json")
    source["default-priorities"].update(priorities or {})
    return {**source, **(more or {})}


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let environment markers hold as on Linux x86_64, on every platform of the
    tests."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.parametrize(
    "path", FILES, ids=lambda path: str(path.relative_to(FOLDER).parent / path.stem)
)
class TestFixtures:
    def test_result_is_valid(self, path: Path) -> None:
        metadata = result(upgraded(json.loads(path.read_bytes())))
        text = to_text(metadata)
        again = read_metadata(text)
        assert again.schema is WRITTEN
        assert to_dict(again) == json.loads(text)
        # variantlib reads the result, and writes the same bytes.
        assert VariantsJson(json.loads(text)).to_str() + "\n" == text

    def test_upgrading_again_changes_nothing(self, path: Path) -> None:
        text = to_text(result(upgraded(json.loads(path.read_bytes()))))
        assert upgraded(json.loads(text)) == Upgrade(metadata=read_metadata(text))

    def test_order_is_kept_or_a_loss_says_so(self, path: Path) -> None:
        before = read_metadata(path)
        outcome = upgrade(before, json.loads(path.read_bytes()))
        expected = path.with_suffix(".expected.json")
        # The tests of the fixtures report a file without expectations.
        cases = json.loads(expected.read_bytes()) if expected.exists() else []
        changed = False
        for case in cases:
            environment = machine(
                case["environment"].get("cuda_driver_version"),
                *case["environment"].get("sm_arch", ()),
            )
            keys = ("supported", "enable_optional", "every_gpu")
            options = {key: case[key] for key in keys if key in case}
            changed |= compatible(before, environment, **options) != compatible(
                result(outcome), environment, **options
            )
        assert not changed or any(loss.reorders for loss in outcome.losses)
        # Each of these directories has a case in which the order changes.
        assert changed == (path.parent.name in {"feature", "property", "enable-if"})


def test_metadata_of_the_tutorial_is_upgraded() -> None:
    path = FOLDER / "torch-2.8.0-variants.json"
    source = json.loads(path.read_bytes())
    outcome = upgraded(source)
    assert places(outcome.losses) == ["providers.nvidia.enable-if", "variants.00000000"]
    assert not any(loss.reorders for loss in outcome.losses)
    assert places(outcome.notes) == ["variant.json"]
    wanted = {**source, "$schema": WRITTEN.url}
    wanted["providers"] = {"nvidia": dict(PROVIDER)}
    wanted["variants"] = {**source["variants"], "null": {}}
    del wanted["variants"]["00000000"]
    assert to_dict(result(outcome)) == wanted


@given(source=documents())
def test_writing_and_reading_again_changes_nothing(source: dict[str, Any]) -> None:
    text = to_text(read_metadata(source))
    # Sets of values are written in lexical order. All other keys stay the same.
    again = to_dict(read_metadata(text))
    assert again == {**source, "variants": again["variants"]}
    assert list(again["variants"]) == sorted(source["variants"])
    for label, properties in source["variants"].items():
        assert again["variants"][label] == {
            space: {name: sorted(values) for name, values in features.items()}
            for space, features in properties.items()
        }
    assert to_text(read_metadata(text)) == text


@st.composite
def older(draw: st.DrawFn) -> dict[str, Any]:
    """Return documents of an older version, with priorities that can be kept."""
    source = draw(documents())
    static = source["providers"].get("blas_lapack")
    # Version 0.0.1 cannot express that a plugin is not queried.
    versions = ["v0.0.2.json", "v0.0.3.json", *([""] if static is None else [])]
    version = draw(st.sampled_from(versions))
    source["$schema"] = f"{HOST}/{version}"
    if static is not None:
        answer = static.pop("static-properties")
        order = static.pop("feature-order")
        source["default-priorities"]["feature"] = {"blas_lapack": order}
        values = answer
        if version == "v0.0.3.json":
            static["install-time"] = False
            source["static-properties"] = {"blas_lapack": answer}
            values = {name: draw(st.permutations(v)) for name, v in answer.items()}
        else:
            static["plugin-use"] = draw(st.sampled_from(["none", "build"]))
        source["default-priorities"]["property"] = {"blas_lapack": values}
    if draw(st.booleans()) and "null" in source["variants"]:
        source["variants"]["00000000"] = source["variants"].pop("null")
    return source


@given(source=older(), environments=st.lists(machines, min_size=1, max_size=5))
def test_static_answers_keep_the_order(
    source: dict[str, Any], environments: list[Environment]
) -> None:
    before, outcome = read_metadata(source), upgraded(source)
    assert set(places(outcome.losses)) <= {"variants.00000000"}
    after = result(outcome)
    VariantsJson(to_dict(after))
    for environment in environments:
        assert compatible(before, environment) == compatible(after, environment)


@pytest.mark.slow
@given(
    source=documents(),
    features=st.permutations(["sm_arch", "cuda_version_lower_bound"]),
    values=st.lists(st.sampled_from(["12.4", "12.8", "11.8", "13.0"]), unique=True),
    environments=st.lists(machines, min_size=5, max_size=20),
)
def test_dropped_priorities_that_change_the_order_are_reported(
    source: dict[str, Any],
    features: list[str],
    values: list[str],
    environments: list[Environment],
) -> None:
    source["$schema"] = f"{HOST}/v0.0.3.json"
    source["default-priorities"]["feature"] = {"nvidia": features}
    source["default-priorities"]["property"] = {
        "nvidia": {"cuda_version_lower_bound": values}
    }
    before, outcome = read_metadata(source), upgraded(source)
    reported = any(loss.reorders for loss in outcome.losses)
    for environment in environments:
        old_order = compatible(before, environment)
        new_order = compatible(result(outcome), environment)
        assert reported or old_order == new_order


def test_hint_names_a_machine_with_another_order() -> None:
    path = FOLDER / "priorities/feature/image_decoder-3.1.0-variants.json"
    (loss,) = (x for x in upgrade(read_metadata(path)).losses if x.reorders)
    assert loss.hint == (
        "with CUDA 12.8 and compute capability 8.9 cu128 now comes before cu126_ada"
    )


class TestMarkers:
    LINUX_AND_WINDOWS = "sys_platform == 'linux' or os_name == 'nt'"

    @pytest.mark.parametrize(
        ("marker", "reorders"),
        [
            (LINUX_AND_WINDOWS, False),
            ("platform_system != 'Darwin'", False),
            ("platform_system == 'Linux'", True),
            ("platform_machine == 'x86_64' or platform_machine == 'AMD64'", True),
            ("python_version >= '3.1'", True),
            ("no marker", True),
            ("os_name ~= 'x'", True),
            (f"{'(' * 5000}os_name", True),
        ],
    )
    def test_marker_of_nvidia_matters_where_there_are_drivers(
        self, marker: str, reorders: bool
    ) -> None:
        outcome = upgraded(old({"nvidia": {**PROVIDER, "enable-if": marker}}))
        (loss,) = outcome.losses
        assert loss.place == "providers.nvidia.enable-if"
        assert marker in loss.message
        assert loss.reorders is reorders

    def test_marker_of_another_provider_may_change_the_order(self) -> None:
        other = {"requires": ["x86"], "enable-if": self.LINUX_AND_WINDOWS}
        providers = {"nvidia": PROVIDER, "x86_64": other}
        (loss,) = upgraded(old(providers, {"v3": X86_64})).losses
        assert loss.reorders

    def test_marker_of_an_unused_namespace_changes_nothing(self) -> None:
        other = {"requires": ["x86"], "enable-if": "os_name == 'nt'"}
        (loss,) = upgraded(old({"nvidia": PROVIDER, "x86_64": other})).losses
        assert not loss.reorders


class TestProviders:
    @pytest.mark.parametrize("requirement", ["???", f"a; {'(' * 5000}os_name"])
    def test_malformed_requirement_is_noted(self, requirement: str) -> None:
        provider = {**PROVIDER, "requires": [requirement]}
        outcome = upgraded(document(TORCH_LABELS, providers={"nvidia": provider}))
        assert "providers.nvidia" in places(outcome.notes)

    @pytest.mark.parametrize("version", ["v0.1.0", "v0.1.1"])
    def test_missing_provider_of_nvidia_is_added(self, version: str) -> None:
        source = old({"nvidia": {}}, version=f"peps/825/{version}")
        del source["providers"]
        outcome = upgraded(source)
        assert to_dict(result(outcome))["providers"] == {"nvidia": dict(PROVIDER)}
        assert places(outcome.notes) == ["providers.nvidia"]
        assert not outcome.losses

    def test_missing_provider_of_another_namespace_is_a_problem(self) -> None:
        source = document(
            {**TORCH_LABELS, "v3": X86_64},
            namespaces=["nvidia", "x86_64"],
            schema=f"{HOST}/peps/825/v0.1.1.json",
        )
        del source["providers"]
        outcome = upgraded(source)
        assert outcome.metadata is None
        assert places(outcome.problems) == ["providers.x86_64"]

    def test_unused_namespaces_are_left_out(self) -> None:
        source = document(TORCH_LABELS, namespaces=["nvidia", "x86_64"])
        source["providers"]["riscv"] = {"requires": ["riscv"]}
        outcome = upgraded(source)
        assert places(outcome.losses) == ["providers.x86_64", "providers.riscv"]
        assert list(result(outcome).providers) == ["nvidia"]
        VariantsJson(to_dict(result(outcome)))

    def test_metadata_with_only_unused_namespaces_is_a_problem(self) -> None:
        outcome = upgraded(document({"null": {}}, providers={}, namespaces=["x86_64"]))
        assert places(outcome.problems) == ["default-priorities.namespace"]

    @pytest.mark.parametrize(
        "provider",
        [
            {"requires": ["nvidia-variant-provider>=0.1"]},
            {"requires": ["nvidia-variant-provider; os_name == 'nt'"]},
            {"requires": ["nvidia-variant-provider", "packaging"]},
            {"requires": ["a fork of it"]},
            {"plugin-api": "nvidia_variant_provider"},
            {"plugin-api": None},
        ],
    )
    def test_provider_that_uv_does_not_know_stays_with_a_note(
        self, provider: dict[str, Any]
    ) -> None:
        merged = {**PROVIDER, **provider}
        outcome = upgraded(document(TORCH_LABELS, providers={"nvidia": merged}))
        wanted = {key: value for key, value in merged.items() if value is not None}
        assert to_dict(result(outcome))["providers"] == {"nvidia": wanted}
        assert places(outcome.notes) == ["providers.nvidia"]
        assert not outcome.losses

    def test_other_sources_next_to_static_properties_are_lost(self) -> None:
        static = {"static-properties": {"level": ["v2", "v1"]}, "requires": ["x86"]}
        providers = {"nvidia": PROVIDER, "x86_64": {**static, "plugin-api": "x86"}}
        outcome = upgraded(document({"v1": X86_64}, providers=providers))
        assert places(outcome.losses) == [
            "providers.x86_64.requires",
            "providers.x86_64.plugin-api",
        ]
        VariantsJson(to_dict(result(outcome)))

    def test_static_provider_without_values_is_a_problem(self) -> None:
        """The labels of the namespace fit no machine, which 0.2.0 cannot express."""
        providers = {"nvidia": PROVIDER, "x86_64": {"install-time": False}}
        outcome = upgraded(old(providers, {"v3": X86_64}))
        assert places(outcome.problems) == ["providers.x86_64"]

    @pytest.mark.parametrize(
        ("provider", "place"),
        [
            ({"requires": [""]}, "providers.x86_64.requires[0]"),
            ({"requires": ["x\t"]}, "providers.x86_64.requires[0]"),
            ({"requires": ["x"], "plugin-api": "a-b"}, "providers.x86_64.plugin-api"),
        ],
    )
    def test_texts_that_variantlib_refuses_are_problems(
        self, provider: Any, place: str
    ) -> None:
        providers = {"nvidia": PROVIDER, "x86_64": provider}
        assert places(upgraded(old(providers)).problems) == [place]

    def test_optional_is_kept(self) -> None:
        outcome = upgraded(old({"nvidia": {**PROVIDER, "optional": True}}))
        assert result(outcome).providers["nvidia"].optional


class TestLabels:
    def test_two_spellings_of_null_become_one(self) -> None:
        source = old({"nvidia": PROVIDER}, {"00000000": {}, "null": {}})
        outcome = upgraded(source)
        assert places(outcome.losses) == ["variants.00000000"]
        assert dict(result(outcome).variants) == {"null": {}}

    def test_the_old_null_label_is_an_ordinary_label_in_later_versions(self) -> None:
        source = document({"00000000": nvidia("12.6")})
        assert upgraded(source) == Upgrade(metadata=read_metadata(source))


def test_keys_that_readers_ignore_are_reported() -> None:
    source = old(
        {"nvidia": {**PROVIDER, "homepage": "x"}, "x86_64": {"requires": ["x86"]}},
        priorities={"vendor": []},
        more={"comment": "x", "static-properties": {"x86_64": {"level": ["v1"]}}},
    )
    assert places(upgraded(source).losses) == [
        "comment",
        "default-priorities.vendor",
        "providers.nvidia.homepage",
        "static-properties.x86_64",
    ]


def test_priorities_without_an_effect_are_reported() -> None:
    source = old(
        {"nvidia": PROVIDER, "x86_64": {"install-time": False}},
        {"v3": X86_64},
        priorities={
            "feature": {"x86_64": ["level", "sse"], "riscv": ["rv"]},
            "property": {"x86_64": {"level": ["v9", "v3"]}},
        },
        more={"static-properties": {"x86_64": {"level": ["v1", "v3"]}}},
    )
    outcome = upgraded(source)
    assert places(outcome.losses) == [
        "default-priorities",
        "default-priorities.feature.riscv",
    ]
    assert "sse, level :: v9" in outcome.losses[0].message
    assert not any(loss.reorders for loss in outcome.losses)
    provider = result(outcome).providers["x86_64"]
    assert provider.static_properties == {"level": ("v3", "v1")}


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(InputError, match=r"0\.9\.0 is newer than 0\.2\.0"):
        upgraded(document(TORCH_LABELS, schema=f"{HOST}/v0.9.0.json"))


@pytest.mark.parametrize("path", [*FILES[:1], FOLDER / "torch-2.8.0-variants.json"])
def test_only_the_current_version_is_written(path: Path) -> None:
    metadata = read_metadata(path)
    if str(metadata.schema) == "0.2.0":
        to_dict(metadata)
    else:
        with pytest.raises(InputError, match="upgrade it first"):
            to_dict(metadata)


@pytest.mark.parametrize(("cuda", "sm"), GRID)
def test_order_of_the_tutorial_stays_on_all_machines_of_a_grid(
    cuda: str, sm: str
) -> None:
    before = read_metadata(FOLDER / "torch-2.8.0-variants.json")
    after = result(upgrade(before))
    environment = machine(cuda, sm)
    assert compatible(before, environment) == compatible(after, environment)
