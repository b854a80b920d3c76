"""The JSON Schemas of variant metadata, with documents that they accept and refuse."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support.documents import nvidia
from support.paths import ROOT
from support.schemas import (
    HOST,
    OLD,
    PRIORITIES,
    PROVIDERS,
    URLS,
    VALIDATORS,
    accepts,
    clean,
)

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata import read_metadata
from nvidia_variant_provider.metadata.versions import find_version

SCHEMAS = ROOT / "schemas" / "variants-json"
FIXTURES = sorted((ROOT / "fixtures" / "variants-json").rglob("*-variants.json"))

ALL = tuple(URLS)
PEP_850 = ("0.2.0",)
STRICT = ("0.1.0", "0.1.1", "0.2.0")

REMOVED = "(removed)"


def changed(version: str, place: tuple[str, ...], value: Any) -> Any:
    """Return the clean document with one key set, or removed."""
    document = parent = clean(version)
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    if value is REMOVED:
        del parent[place[-1]]
    # Return a copy, because tests share the values of the tables below.
    return copy.deepcopy(document)


CU126 = nvidia("12.6")
SPACES = ("default-priorities", "namespace")
SM = ("variants", "cu126", "nvidia", "sm_arch")
OURS = ("providers", "nvidia")
BLAS = ("providers", "blas")

# Each row has versions, a place, and values. Each value is the defect of one document.
Table: TypeAlias = list[tuple[tuple[str, ...], tuple[str, ...], tuple[Any, ...]]]

DEFECTS: Table = [
    # The whole document.
    (ALL, ("variants",), (REMOVED, [])),
    (ALL, ("default-priorities",), (REMOVED, None)),
    (ALL, ("$schema",), (5, f"{HOST}/v0.0.4.json")),
    (STRICT, ("$schema",), (REMOVED, f"{HOST}/v1.0.0.json")),
    (("0.1.1",), ("$schema",), (URLS["0.1.0"],)),
    (STRICT, ("more",), (1,)),
    (STRICT, ("static-properties",), ({},)),
    (("0.1.0", "0.1.1"), ("providers",), ({},)),
    (PROVIDERS, ("providers",), (REMOVED, [], {"BLAS": {"requires": ["x"]}})),
    # Priorities.
    (ALL, SPACES, (REMOVED, [], "nvidia", ["nvidia", "nvidia"], ["nvidia", 1])),
    (ALL, SPACES, (["NVIDIA"], ["n.vidia"], ["nvidia\n"])),
    (STRICT, ("default-priorities", "more"), ([],)),
    (PEP_850, ("default-priorities", "feature"), ({},)),
    (("0.1.1", "0.2.0"), ("default-priorities", "property"), ({},)),
    (PRIORITIES, ("default-priorities", "feature"), ([], {"a": ["b", "b"]})),
    (PRIORITIES, ("default-priorities", "feature", "nvidia"), (["a.b"],)),
    (PRIORITIES, ("default-priorities", "property", "nvidia"), (["a"], {"a": ["A"]})),
    # Labels.
    (ALL, ("variants",), ({"cu-126": CU126}, {"CU126": CU126}, {"": CU126})),
    (ALL, ("variants",), ({"cu126\n": CU126}, {"null": CU126})),
    (ALL, ("variants", "cu126"), ({}, None)),
    (("0.0.1",), ("variants", "x" * 9), (CU126,)),
    (("0.0.2", "0.0.3", "0.1.0"), ("variants", "x" * 17), (CU126,)),
    (OLD, ("variants", "00000000"), (CU126,)),
    (STRICT, ("variants", "00000000"), ({},)),
    # Properties.
    (ALL, ("variants", "cu126"), ({"nvidia": {}}, {"nvidia": []})),
    (ALL, ("variants", "cu126"), ({"n.vidia": {"sm_arch": ["90_real"]}},)),
    (ALL, ("variants", "cu126", "nvidia"), ({"sm-arch": ["x"]}, {"sm.arch": ["x"]})),
    (ALL, SM, ([], "90_real", ["90_real", "90_real"], [90], [""])),
    (ALL, SM, (["90_REAL"], ["90 real"], ["90_real\n"])),
    # Providers.
    (PROVIDERS, BLAS, (None, {}, {"requires": "x"}, {"requires": [1]})),
    (PROVIDERS, BLAS, ({"requires": [""]}, {"requires": ["x"], "optional": "yes"})),
    (PROVIDERS, (*OURS, "plugin-api"), ("a:b:c", "", "a b", ":b", "a:", None)),
    (OLD, (*OURS, "requires"), (["x", "x"], REMOVED)),
    (OLD, (*OURS, "enable-if"), ("", None)),
    (("0.0.2",), (*BLAS, "plugin-use"), ("build", REMOVED)),
    (("0.0.2",), (*OURS, "plugin-use"), ("install",)),
    (("0.0.3",), (*BLAS, "install-time"), (True, REMOVED)),
    (("0.0.3",), (*OURS, "install-time"), ("no",)),
    (("0.0.3",), ("static-properties", "blas"), (["a"], {"a": ["b", "b"]})),
    # A provider has exactly one source of its answer, and the keys of this source.
    (PEP_850, OURS, ({"optional": True}, {"requires": []}, {"requires": ["x\n"]})),
    (PEP_850, OURS, ({"builtin": ""}, {"builtin": 1}, {"build-requires": ["x"]})),
    (PEP_850, (*OURS, "static-properties"), ({"a": ["b"]},)),
    (PEP_850, (*OURS, "builtin"), ("nvidia",)),
    (PEP_850, (*OURS, "feature-order"), (["sm_arch"],)),
    (PEP_850, (*OURS, "enable-if"), ("os_name == 'nt'",)),
    (PEP_850, (*OURS, "install-time"), (True,)),
    (PEP_850, OURS, ({"builtin": "x", "plugin-api": "a:b"},)),
    (PEP_850, (*BLAS, "builtin"), ("blas",)),
    (PEP_850, (*BLAS, "plugin-api"), ("a:b",)),
    (PEP_850, (*BLAS, "static-properties"), ({}, {"a": []}, {"a-b": ["c"]})),
    (PEP_850, (*BLAS, "feature-order"), ([], REMOVED, ["library", "library"])),
]

NEAR_MISSES: Table = [
    # Before 0.1.0, tools must ignore unknown keys.
    (OLD, ("$schema",), (REMOVED,)),
    (OLD, ("more",), (1,)),
    (OLD, ("default-priorities", "more"), ([],)),
    (OLD, (*BLAS, "more"), (1,)),
    (OLD, BLAS, ({"requires": []},)),
    (("0.0.1",), ("$schema",), (HOST,)),
    (PEP_850, ("$schema",), (f"{HOST}/peps/850/v0.2.0.json", "http://x/y/v0.2.0.json")),
    (ALL, ("variants",), ({}, {"null": {}}, {"nulls": CU126, "_.0": CU126})),
    (ALL, SPACES, (["nvidia", "blas", "abi_dependency", "unused"],)),
    (("0.0.1",), ("variants", "x" * 8), (CU126,)),
    (("0.0.2", "0.0.3", "0.1.0"), ("variants", "x" * 16), (CU126,)),
    (("0.1.1", "0.2.0"), ("variants",), ({"x" * 400: CU126, "00000000": CU126},)),
    (ALL, SM, (["."], ["1.2_a"])),
    (PROVIDERS, OURS, ({"requires": ["x"]}, {"requires": ["x >= 1 ; a == 'b'", "y"]})),
    (PROVIDERS, (*OURS, "plugin-api"), ("a.b", "a.b : C.d", REMOVED)),
    (PROVIDERS, (*OURS, "optional"), (False, True)),
    (("0.0.2",), (*OURS, "plugin-use"), ("build", "none", REMOVED)),
    (PEP_850, OURS, ({"builtin": "x", "optional": True},)),
    (PEP_850, BLAS, ({"static-properties": {"a": ["b"]}, "feature-order": ["a"]},)),
    (PEP_850, BLAS, ({"static-properties": {"a": ["b"]}},)),
]


def rows(table: Table) -> list[Any]:
    return [
        pytest.param(version, place, value, id=f"{version}-{'.'.join(place)}-{value}")
        for versions, place, values in table
        for version in versions
        for value in values
    ]


class TestSchemas:
    def test_each_version_has_a_schema(self) -> None:
        names = sorted(path.name for path in SCHEMAS.iterdir())
        assert names == [f"v{version}.schema.json" for version in ALL]

    @pytest.mark.parametrize("version", ALL)
    def test_each_is_a_valid_json_schema(self, version: str) -> None:
        schema = VALIDATORS[version].schema
        Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"urn:nvidia-variant-provider:variants-json:{version}"
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"

    @pytest.mark.parametrize("version", ALL)
    def test_clean_document_is_accepted(self, version: str) -> None:
        document = clean(version)
        assert list(VALIDATORS[version].iter_errors(document)) == []
        assert str(read_metadata(document).schema) == version

    @pytest.mark.parametrize(("version", "place", "value"), rows(DEFECTS))
    def test_defect_is_refused(
        self, version: str, place: tuple[str, ...], value: Any
    ) -> None:
        assert not accepts(version, changed(version, place, value))

    @pytest.mark.parametrize(("version", "place", "value"), rows(NEAR_MISSES))
    def test_near_miss_is_accepted(
        self, version: str, place: tuple[str, ...], value: Any
    ) -> None:
        document = changed(version, place, value)
        assert list(VALIDATORS[version].iter_errors(document)) == []
        # The reader also accepts the document.
        read_metadata(document)

    @pytest.mark.parametrize("document", [[], None, "x", 1, {}])
    def test_other_values_are_refused(self, document: object) -> None:
        assert not any(accepts(version, document) for version in ALL)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda x: x.relative_to(ROOT).as_posix())
def test_fixture_is_accepted_by_its_schema(path: Path) -> None:
    document = json.loads(path.read_bytes())
    version = str(find_version(document))
    assert list(VALIDATORS[version].iter_errors(document)) == []


PEP_LABELS: dict[str, Any] = {
    "null": {},
    "x86_64_v3_openblas": {
        "x86_64": {"level": ["v3"]},
        "blas_lapack": {"library": ["openblas"]},
    },
    "x86_64_v4_mkl": {"x86_64": {"level": ["v4"]}, "blas_lapack": {"library": ["mkl"]}},
}


@pytest.mark.parametrize(
    ("namespaces", "labels"),
    [
        ("x86_64 aarch64 blas_lapack", ["x86_64_v3_openblas"]),  # a wheel's
        ("x86_64 aarch64 blas_lapack", list(PEP_LABELS)),  # an index's
        ("nvidia amd", ["null"]),  # that of torch
    ],
)
def test_examples_of_pep_825_are_accepted(namespaces: str, labels: list[str]) -> None:
    document = {
        "$schema": URLS["0.1.1"],
        "default-priorities": {"namespace": namespaces.split()},
        "variants": {label: PEP_LABELS[label] for label in labels},
    }
    assert accepts("0.1.1", document)
    # The previous version has the same keys, but limits the length of labels.
    document["$schema"] = URLS["0.1.0"]
    assert accepts("0.1.0", document) == all(len(label) <= 16 for label in labels)


# These are the messages of defects that a JSON Schema cannot express, because they are
# about two places of a document.
EXCEPTIONS = (
    "the namespace is not in default-priorities.namespace",
    "feature-order has to list each feature of static-properties once",
)

# In the other direction the schemas are stricter on purpose: installers accept
# documents that publishers should not write. The reader accepts a document without
# $schema or providers, whose shape shows the version. The reader also accepts a
# provider without a source of its answer or with several, null or any text for an
# endpoint, and labels of any length.

junk: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, True, 0, 1.5, "", "X", "x", "a.b", "x\n", [], {}, [1]]),
    st.sampled_from([["a", "a"], ["A"], ["a"], {"a": {}}, {"a": ["b"]}, {"A": ["b"]}]),
    st.text(max_size=4),
)
keys = st.one_of(
    st.sampled_from(["null", "nvidia", "other", "", "a-b", "a.b", "a\n", "feature"]),
    st.sampled_from(sorted({*find_version(clean("0.2.0")).provider_keys, "enable-if"})),
    st.text(max_size=3),
)


def containers(value: Any) -> list[Any]:
    """Return all objects and arrays of a document, the document first."""
    collected = [value]
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, (dict, list)):
            collected += containers(item)
    return collected


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """Return the clean document of 0.2.0 with a few changes anywhere."""
    document = clean("0.2.0")
    for _ in range(draw(st.integers(1, 3))):
        parent = draw(st.sampled_from(containers(document)))
        places = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
        if not places:
            continue
        place = draw(st.sampled_from(places))
        how = draw(st.sampled_from(["value", "remove", "rename", "add", "repeat"]))
        if how == "value":
            parent[place] = copy.deepcopy(draw(junk))
        elif how == "remove":
            del parent[place]
        elif isinstance(parent, list):
            item = parent[place] if how == "repeat" else draw(junk)
            parent.append(copy.deepcopy(item))
        elif how == "rename":
            parent[draw(keys)] = parent.pop(place)
        else:
            parent[draw(keys)] = copy.deepcopy(parent[place])
    return document


@given(mutated())
@example(changed("0.2.0", ("variants", "x"), {"other": {"a": ["b"]}}))
@example(changed("0.2.0", (*BLAS, "feature-order"), ["library"]))
def test_what_the_reader_refuses_the_schema_refuses(document: dict[str, Any]) -> None:
    if accepts("0.2.0", document):
        try:
            read_metadata(document)
        except InputError as error:
            if error.message not in EXCEPTIONS:
                raise


@pytest.mark.parametrize("version", ALL)
def test_only_the_reader_refuses_an_undeclared_namespace(version: str) -> None:
    document = changed(version, ("variants", "x"), {"other": {"a": ["b"]}})
    assert accepts(version, document)
    with pytest.raises(InputError, match=EXCEPTIONS[0]):
        read_metadata(document)
