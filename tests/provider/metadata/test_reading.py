"""Reading metadata of every schema version, and refusing invalid metadata."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata import read_metadata

HOST = "https://variants-schema.wheelnext.dev"


def document(**changes: Any) -> dict[str, Any]:
    """Return a valid document of version 0.2.0 with some top-level keys replaced.

    :param changes: the new values; ``None`` removes the key.
    """
    fields: dict[str, Any] = {
        "$schema": f"{HOST}/v0.2.0.json",
        "default-priorities": {"namespace": ["nvidia"]},
        "providers": {"nvidia": {"requires": ["nvidia-variant-provider"]}},
        "variants": {
            "null": {},
            "cu126": {"nvidia": {"sm_arch": ["80_real", "90_real"]}},
        },
    }
    fields.update(changes)
    return {key: value for key, value in fields.items() if value is not None}


def old_document(version: str | None, **changes: Any) -> dict[str, Any]:
    """Return the same document in an older version.

    :param version: the version in its URL; ``None`` for the URL without one.
    """
    url = f"{HOST}/{version}.json" if version else f"{HOST}/"
    return document(**{"$schema": url, **changes})


@pytest.mark.parametrize(
    ("url", "number"),
    [
        (f"{HOST}/", "0.0.1"),
        (f"{HOST}", "0.0.1"),
        (f"{HOST}/v0.0.2.json", "0.0.2"),
        (f"{HOST}/v0.0.3.json", "0.0.3"),
        (f"{HOST}/peps/825/v0.1.0.json", "0.1.0"),
        (f"{HOST}/peps/825/v0.1.1.json", "0.1.1"),
        (f"{HOST}/v0.2.0.json", "0.2.0"),
        (f"{HOST}/peps/850/v0.2.0.json", "0.2.0"),
        ("https://packaging.python.org/schemas/variants/v0.2.0.json", "0.2.0"),
        (f"{HOST}/v0.2.7.json", "0.2.7"),
        (f"{HOST}/v0.9.0.json", "0.9.0"),
    ],
)
def test_the_schema_url_tells_the_version(url: str, number: str) -> None:
    providers = None if "/825/" in url else document()["providers"]
    metadata = read_metadata(document(**{"$schema": url, "providers": providers}))
    assert str(metadata.schema) == number


@pytest.mark.parametrize(
    ("provider", "number"),
    [
        ({"requires": ["x"], "enable-if": "os_name == 'posix'"}, "0.0.1"),
        ({"requires": ["x"], "plugin-use": "all"}, "0.0.2"),
        ({"requires": ["x"], "install-time": True}, "0.0.3"),
        ({"requires": ["x"]}, "0.2.0"),
        ({"static-properties": {"sm_arch": ["90_real"]}}, "0.2.0"),
        ({"requires": ["x"], "unknown": 1}, "0.0.1"),
    ],
)
def test_without_a_schema_url_the_shape_tells_the_version(
    provider: dict[str, Any], number: str
) -> None:
    providers = {"nvidia": provider}
    metadata = read_metadata(document(**{"$schema": None, "providers": providers}))
    assert str(metadata.schema) == number


def test_documents_without_providers_are_told_apart_by_their_shape() -> None:
    bare = document(**{"$schema": None, "providers": None})
    assert str(read_metadata(bare).schema) == "0.1.1"
    bare["default-priorities"]["feature"] = {"nvidia": ["sm_arch"]}
    assert str(read_metadata(bare).schema) == "0.1.0"
    bare["static-properties"] = {}
    assert str(read_metadata(bare).schema) == "0.0.3"


@pytest.mark.parametrize(
    "url",
    [f"{HOST}/v1.0.0.json", "https://x/v12.0.0.json", f"{HOST}/v9999999.0.0.json"],
)
def test_unknown_major_version_is_refused(url: str) -> None:
    with pytest.raises(InputError) as caught:
        read_metadata(document(**{"$schema": url}))
    assert caught.value.place == "$schema"


def test_a_newer_minor_version_may_have_more_keys() -> None:
    newer = document(**{"$schema": f"{HOST}/v0.99.0.json", "more": 1})
    assert list(read_metadata(newer).variants) == ["null", "cu126"]


def test_metadata_has_the_values_of_the_document() -> None:
    metadata = read_metadata(document())
    assert metadata.namespaces == ("nvidia",)
    assert metadata.providers["nvidia"].requires == ("nvidia-variant-provider",)
    assert metadata.variants["cu126"] == {"nvidia": {"sm_arch": ("80_real", "90_real")}}
    assert (metadata.name, metadata.version) == (None, None)


def test_paths_texts_and_bytes_give_the_same_metadata(tmp_path: Path) -> None:
    path = tmp_path / "my_torch-2.8.0+cu126-variants.json"
    path.write_text(json.dumps(document()))
    metadata = read_metadata(path)
    assert (metadata.name, metadata.version) == ("my_torch", "2.8.0+cu126")
    for source in (str(path), json.dumps(document()), json.dumps(document()).encode()):
        assert read_metadata(source).variants == metadata.variants


def test_file_name_of_another_form_gives_no_project(tmp_path: Path) -> None:
    path = tmp_path / "variants.json"
    path.write_text(json.dumps(document()))
    assert read_metadata(path).name is None


class TestOldVersions:
    def test_the_old_null_label_is_read(self) -> None:
        old = old_document(None, variants={"00000000": {}})
        assert list(read_metadata(old).variants) == ["00000000"]

    def test_priorities_of_features_and_values_are_read(self) -> None:
        priorities = {
            "namespace": ["nvidia"],
            "feature": {"nvidia": ["sm_arch"]},
            "property": {"nvidia": {"sm_arch": ["90_real"]}},
        }
        metadata = read_metadata(
            old_document("v0.0.3", **{"default-priorities": priorities})
        )
        assert metadata.feature_priorities == {"nvidia": ("sm_arch",)}
        assert metadata.property_priorities == {"nvidia": {"sm_arch": ("90_real",)}}

    def test_unknown_keys_are_ignored(self) -> None:
        # PEP 817: "The tools MUST ignore unknown keys in the dictionaries".
        provider = {"requires": ["nvidia-variant-provider"]}
        clean = old_document("v0.0.3", providers={"nvidia": provider})
        more = copy.deepcopy(clean)
        more["more"] = {"x": [1]}
        more["default-priorities"]["more"] = None
        more["providers"]["nvidia"]["more"] = "x"
        assert more != clean
        assert read_metadata(more) == read_metadata(clean)

    def test_ahead_of_time_provider_answers_with_static_properties(self) -> None:
        provider = {"requires": ["x"], "install-time": False}
        metadata = read_metadata(
            old_document(
                "v0.0.3",
                providers={"nvidia": provider},
                **{"static-properties": {"nvidia": {"sm_arch": ["90_real"]}}},
            )
        )
        static = metadata.providers["nvidia"].static_properties
        assert static == {"sm_arch": ("90_real",)}

    def test_install_time_provider_is_asked_despite_static_properties(self) -> None:
        metadata = read_metadata(
            old_document(
                "v0.0.3",
                **{"static-properties": {"nvidia": {"sm_arch": ["90_real"]}}},
            )
        )
        assert metadata.providers["nvidia"].static_properties is None

    @pytest.mark.parametrize("use", ["build", "none"])
    def test_priorities_are_the_answer_where_no_plugin_is_asked(self, use: str) -> None:
        priorities = {
            "namespace": ["nvidia"],
            "property": {"nvidia": {"sm_arch": ["90_real"]}},
        }
        metadata = read_metadata(
            old_document(
                "v0.0.2",
                providers={"nvidia": {"requires": ["x"], "plugin-use": use}},
                **{"default-priorities": priorities},
            )
        )
        static = metadata.providers["nvidia"].static_properties
        assert static == {"sm_arch": ("90_real",)}


def provider(**fields: Any) -> dict[str, Any]:
    names = {key.replace("_", "-"): value for key, value in fields.items()}
    return {"providers": {"nvidia": names}}


def variants(**labels: Any) -> dict[str, Any]:
    return {"variants": labels}


DEFECTS: list[tuple[dict[str, Any], str, str]] = [
    ({"$schema": 5}, "$schema", "expected a string, found a number"),
    ({"$schema": "x"}, "$schema", "is not a schema of variant metadata"),
    ({"more": 1}, "more", "version 0.2.0 has no such key"),
    ({"variants": None}, "top level", "variants is missing"),
    ({"variants": []}, "variants", "expected an object, found a list"),
    ({"default-priorities": None}, "top level", "default-priorities is missing"),
    ({"default-priorities": {}}, "default-priorities", "namespace is missing"),
    (
        {"default-priorities": {"namespace": "nvidia"}},
        "default-priorities.namespace",
        "expected a list, found a string",
    ),
    (
        {"default-priorities": {"namespace": ["nvidia", "nvidia"]}},
        "default-priorities.namespace[1]",
        "given twice",
    ),
    (
        {"default-priorities": {"namespace": ["nvidia"], "feature": {}}},
        "default-priorities.feature",
        "no such key",
    ),
    ({"providers": {"NVIDIA": {}}}, "providers", "'NVIDIA' is not a namespace"),
    ({"providers": {"nvidia": None}}, "providers.nvidia", "found null"),
    (provider(requires="x"), "providers.nvidia.requires", "expected a list"),
    (provider(requires=["x", 1]), "providers.nvidia.requires[1]", "a string"),
    (provider(optional="yes"), "providers.nvidia.optional", "expected a boolean"),
    (provider(enable_if="x"), "providers.nvidia.enable-if", "no such key"),
    (
        provider(static_properties={"sm_arch": "90"}),
        "providers.nvidia.static-properties.sm_arch",
        "expected a list, found a string",
    ),
    (
        provider(static_properties={"sm_arch": ["90"]}, feature_order=["x"]),
        "providers.nvidia.feature-order",
        "has to list each feature",
    ),
    (variants(null={"nvidia": {"sm_arch": ["90_real"]}}), "variants.null", "null"),
    (variants(cu126={}), "variants.cu126", "only the null variant"),
    (variants(cu126={"nvidia": {}}), "variants.cu126.nvidia", "no feature"),
    (variants(cu126={"amd": {"x": ["y"]}}), "variants.cu126.amd", "not in default"),
    (variants(cu126={"nvidia": {"sm_arch": []}}), "variants.cu126.nvidia.sm_arch", ""),
    (
        variants(cu126={"nvidia": {"sm_arch": ["80_real", "90_real", 5]}}),
        "variants.cu126.nvidia.sm_arch[2]",
        "expected a string, found a number",
    ),
    (
        variants(cu126={"nvidia": {"sm_arch": ["80_real", "90_REAL"]}}),
        "variants.cu126.nvidia.sm_arch[1]",
        "'90_REAL' is not a value: use only a-z, 0-9, _ and .",
    ),
    (
        variants(cu126={"nvidia": {"sm_arch": ["80_real", "80_real"]}}),
        "variants.cu126.nvidia.sm_arch[1]",
        "'80_real' is given twice",
    ),
    (
        variants(cu126={"nvidia": {"sm-arch": ["x"]}}),
        "variants.cu126.nvidia",
        "sm-arch",
    ),
    # The reasons against a label repeated long names: 6 GB for a document of 1 MB.
    (
        variants(cu126={"nvidia": {"x" * 256: ["y"]}}),
        "variants.cu126.nvidia",
        "is longer than 255 characters",
    ),
    ({"providers": {"x" * 256: {}}}, "providers", "is longer than 255 characters"),
    (variants(**{"cu 126": {}}), "variants", "'cu 126' is not a label"),
    (variants(**{"cu126\n": {}}), "variants", r"'cu126\n' is not a label"),
    (variants(**{"../x": {}}), "variants", "is not a label"),
]


@pytest.mark.parametrize(("change", "place", "message"), DEFECTS)
def test_each_defect_has_a_place_and_a_message(
    change: dict[str, Any], place: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_metadata(document(**change), path="f.json")
    assert caught.value.place == place
    assert message in caught.value.message
    assert str(caught.value).startswith(f"f.json: {place}: ")


def test_plugin_use_has_one_of_three_values() -> None:
    old = old_document("v0.0.2", **provider(requires=["x"], plugin_use="install"))
    with pytest.raises(InputError, match=r"plugin-use: 'install' is none of"):
        read_metadata(old)


@pytest.mark.parametrize("value", [[], "x", 5, None, True])
def test_document_must_be_an_object(value: object) -> None:
    with pytest.raises(InputError):
        read_metadata(json.dumps({"x": value})[6:-1].encode())


def test_providers_are_refused_in_version_0_1() -> None:
    url = {"$schema": f"{HOST}/peps/825/v0.1.1.json"}
    with pytest.raises(InputError, match=r"providers: version 0\.1\.1 has no such key"):
        read_metadata(document(**url))


paths = st.lists(st.integers(0, 9), min_size=1, max_size=6)
junk: st.SearchStrategy[Any] = st.sampled_from(
    [None, 1, 1.5, True, "", "X", [], {}, [[]], {"a": {}}, ["a", "a"]]
)


@given(paths, junk)
def test_any_value_in_any_place_is_read_or_refused(path: list[int], value: Any) -> None:
    mutated = copy.deepcopy(document())
    parent: Any = mutated
    for step in path:
        keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
        key = keys[step % len(keys)]
        if not isinstance(parent[key], (dict, list)) or not parent[key]:
            break
        if step == path[-1]:
            break
        parent = parent[key]
    parent[key] = value
    try:
        read_metadata(mutated)
    except InputError as error:
        place = error.place
    else:
        place = "no error"
    assert place
