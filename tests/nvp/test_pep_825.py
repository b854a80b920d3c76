"""The sentences of PEP 825 (13 August 2026) with "MUST", a test for each.

Other tests try the same rules with more cases: the order of variants is in
``tests/provider/resolution/test_ordering.py``, and markers are in
``tests/nvp/metadata/test_markers.py``. Installers with markers and lock files are in
``tests/nvp/index/pip/test_locks.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.builds import gpu_build, machine, metadata
from support.documents import document as in_newest
from support.documents import nvidia
from support.release_cases import CLEAN, Folder
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata.versions import WRITTEN
from nvp import api
from nvp.metadata.requirements import SelectedVariant, evaluate_requirement
from nvp.wheels.archive import parse_wheel_name

BUILD = {"cu128": nvidia("12.8", sm=["80_real", "90_real"])}


def codes(path: Path) -> set[str]:
    return {f.code for f in api.validate([path], ignore=["NV5"])}


def wheel(folder: Path, label: str | None, variants: Any, **options: Any) -> Path:
    own = None if variants is None else in_newest(variants)
    return stub_wheel(folder, "demo", "1.0", label, variant_json=own, **options)


def test_a_variant_wheel_must_specify_a_variant_label_in_the_filename(
    tmp_path: Path,
) -> None:
    assert "NV412" in codes(wheel(tmp_path, None, BUILD))
    assert "NV412" not in codes(wheel(tmp_path, "cu128", BUILD))


def test_it_must_include_a_variant_metadata_file(tmp_path: Path) -> None:
    assert "NV404" in codes(wheel(tmp_path, "cu128", None))


@pytest.mark.parametrize("name", ["", "Nvidia", "nv-idia", "nv.idia", "nv idia"])
def test_namespace_and_feature_must_consist_of_these_characters(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "x-1-variants.json"
    for variants, code in (
        ({"a": {name: {"x": ["1"]}}}, "NV203"),
        ({"a": {"nvidia": {name: ["1"]}}}, "NV204"),
    ):
        path.write_text(json.dumps(in_newest(variants)))
        assert code in codes(path)


@pytest.mark.parametrize(("value", "valid"), [("12.8_a", True), ("", False), ("A", 0)])
def test_the_feature_value_must_consist_of_these_characters(
    value: str, valid: bool, tmp_path: Path
) -> None:
    path = tmp_path / "x-1-variants.json"
    path.write_text(json.dumps(in_newest({"a": {"nvidia": {"sm_arch": [value]}}})))
    assert ("NV205" in codes(path)) is not bool(valid)


@pytest.mark.parametrize("tag", ["3-none-any", "3py-none-any", "1cp312-cp312-any"])
def test_the_python_tag_must_not_start_with_a_digit(tag: str, tmp_path: Path) -> None:
    path = tmp_path / f"demo-1.0-{tag}.whl"
    path.write_bytes(wheel(tmp_path, None, None).read_bytes())
    assert codes(path) == {"NV411"}
    # With one more part, the digit begins a build tag: the label would be the platform.
    assert parse_wheel_name(f"demo-1.0-{tag}-cu128.whl").label is None
    assert parse_wheel_name("demo-1.0-3py-py3-none-any-cu128.whl").label == "cu128"


@pytest.mark.parametrize("label", ["CU128", "cu-128", "cu+128"])
def test_the_variant_label_must_consist_of_these_characters(
    label: str, tmp_path: Path
) -> None:
    path = tmp_path / "x-1-variants.json"
    path.write_text(json.dumps(in_newest({label: BUILD["cu128"]})))
    assert "NV201" in codes(path)
    with pytest.raises(InputError):
        parse_wheel_name(f"demo-1.0-py3-none-any-{label}.whl")


def test_a_label_must_correspond_to_the_same_properties_for_all_wheels(
    tmp_path: Path,
) -> None:
    wheel(tmp_path, "cu128", BUILD)
    wheel(
        tmp_path, "cu128", {"cu128": nvidia("12.8", sm=["90_real"])}, tag="py2-none-any"
    )
    (tmp_path / "demo-1.0-variants.json").write_text(json.dumps(in_newest(BUILD)))
    assert {"NV405", "NV407"} <= codes(tmp_path)


def test_tools_must_reject_a_major_version_that_they_do_not_support(
    tmp_path: Path,
) -> None:
    newer = {**in_newest(BUILD), "$schema": WRITTEN.url.replace("/v0.", "/v1.")}
    with pytest.raises(InputError):
        api.resolve(newer, environment=machine("12.8", "8.0"))
    path = tmp_path / "x-1-variants.json"
    path.write_text(json.dumps(newer))
    assert "NV105" in codes(path)


def test_the_list_must_contain_all_namespaces_used_and_must_not_be_empty(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x-1-variants.json"
    for namespaces, code in (([], "NV107"), (["amd"], "NV112")):
        given = {**in_newest(BUILD), "default-priorities": {"namespace": namespaces}}
        path.write_text(json.dumps(given))
        assert code in codes(path)


def test_it_must_contain_exactly_one_entry_whose_key_is_the_label(
    tmp_path: Path,
) -> None:
    for variants in ({}, {"cu129": BUILD["cu128"]}, {**BUILD, "null": {}}):
        assert "NV412" in codes(wheel(tmp_path, "cu128", variants))


def test_the_longer_list_must_start_with_the_elements_of_the_shorter(
    tmp_path: Path,
) -> None:
    level = {"static-properties": {"level": ["v3"]}}
    folder = Folder(tmp_path, CLEAN)
    for names, contradicts in (
        (["nvidia"], False),
        (["nvidia", "x86_64"], False),
        (["x86_64", "nvidia"], True),
    ):
        folder.write(
            **{"default-priorities": {"namespace": ["nvidia", "x86_64"]}},
            providers={**CLEAN["providers"], "x86_64": level},
        )
        providers = {**CLEAN["providers"], "x86_64": level}
        own = folder.own("cu12", providers={n: providers[n] for n in names})
        own["default-priorities"] = {"namespace": names}
        folder.wheel("cu12", variant_json=own)
        assert ("NV406" in codes(folder.files)) is contradicts


def test_a_variants_json_must_be_hosted_and_must_list_all_variants(
    tmp_path: Path,
) -> None:
    wheel(tmp_path, "cu128", BUILD)
    assert "NV409" in codes(tmp_path)
    other = {"cu130": nvidia("13.0", sm=["80_real"])}
    (tmp_path / "demo-1.0-variants.json").write_text(json.dumps(in_newest(other)))
    assert {"NV402", "NV403"} <= codes(tmp_path)


def selected(release: Any, cuda: str, sm: str) -> str | None:
    return api.resolve(release, environment=machine(cuda, sm)).selected


def test_at_least_one_value_for_every_feature_must_be_compatible() -> None:
    release = metadata({"a": gpu_build("12.8", "90_real"), "null": {}})
    assert selected(release, "12.8", "9.0") == "a"
    assert selected(release, "12.6", "9.0") == "null"
    assert selected(release, "12.8", "8.0") == "null"


def test_the_group_of_the_null_variant_is_last() -> None:
    release = metadata({"a": gpu_build("12.0"), "b": gpu_build("12.0", "90_real")})
    release["variants"]["null"] = {}
    result = api.resolve(release, environment=machine("12.8", "9.0"))
    assert result.compatible == ("b", "a", "null")


def test_differences_in_whitespace_must_be_ignored() -> None:
    variant = SelectedVariant(
        label="a", properties=frozenset({("nvidia", "sm_arch", "90_real")})
    )
    for text in ("nvidia::sm_arch::90_real", "nvidia  ::  sm_arch :: 90_real"):
        line = f"x; '{text}' in variant_properties"
        assert evaluate_requirement(line, variant) == "x"
