"""A clean document with one damage has the finding about the damage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lint_cases import lint_document

from nvp.findings import NOTE
from nvp.lint.documents import check_document
from nvp.lint.findings import Collector

LOWER, UPPER = "cuda_version_lower_bound", "cuda_version_upper_bound"

Draw = Callable[[st.SearchStrategy[Any]], Any]
Damage = Callable[[Any, Draw], None]

DAMAGES: dict[str, tuple[str, Damage]] = {}


def damage(code: str) -> Callable[[Damage], Damage]:
    """Register a way to damage a document, and the rule that must report it."""

    def register(function: Damage) -> Damage:
        DAMAGES[function.__name__.replace("_", " ")] = code, function
        return function

    return register


def outside(grammar: str) -> st.SearchStrategy[str]:
    """Return texts that a grammar does not match, most because of one character."""
    one = st.sampled_from(["A", "-", "é", "²", "ß", "\n", " ", "\x00", "/", "\u0661"])
    near = st.tuples(st.sampled_from(["", "a", "12"]), one, st.sampled_from(["", "b"]))
    return (near.map("".join) | st.text(max_size=5)).filter(
        lambda text: not re.fullmatch(grammar, text)
    )


NAMES = outside("[a-z0-9_]+")
VALUES = outside("[a-z0-9_.]+")


@st.composite
def clean_documents(draw: st.DrawFn) -> Any:
    """Return documents without defects, some of them with a second namespace."""
    document = lint_document("clean")
    variants = document["variants"]
    variants["ptx"] = {"nvidia": {"sm_arch": ["50_virtual"]}}
    labels = ["cu12", "cu13", "ptx"]
    for label in draw(st.lists(st.sampled_from(labels), max_size=2, unique=True)):
        del variants[label]
    if draw(st.booleans()):
        document["default-priorities"]["namespace"].append("x86_64")
        provider = {"static-properties": {"level": ["v3", "v2"]}}
        document["providers"]["x86_64"] = provider
        variants["cpu"] = {"x86_64": {"level": ["v3"]}}
    return document


def build(document: Any, draw: Draw) -> Any:
    """Return the ``nvidia`` features of one label, which has no upper bound."""
    variants = document["variants"]
    if not variants.keys() & {"cu12", "cu13"}:
        variants["cu12"] = lint_document("clean")["variants"]["cu12"]
    labels = sorted(variants.keys() & {"cu12", "cu13"})
    return variants[draw(st.sampled_from(labels))]["nvidia"]


@damage("NV104")
def drop_schema(document: Any, _: Draw) -> None:
    del document["$schema"]


@damage("NV107")
def drop_key(document: Any, draw: Draw) -> None:
    del document[draw(st.sampled_from(["default-priorities", "providers", "variants"]))]


@damage("NV107")
def drop_namespaces(document: Any, draw: Draw) -> None:
    document["default-priorities"] = draw(st.sampled_from([{}, {"namespace": []}]))


@damage("NV108")
def wrong_type(document: Any, draw: Draw) -> None:
    wrong = draw(st.none() | st.integers() | st.booleans())
    kind = draw(st.sampled_from(["key", "label", "namespace", "values", "value"]))
    features = build(document, draw)
    feature = draw(st.sampled_from(sorted(features)))
    if kind == "key":
        document[draw(st.sampled_from(sorted(document)))] = wrong
    elif kind == "label":
        document["variants"]["cu14"] = wrong
    elif kind == "namespace":
        document["variants"]["cu14"] = {"nvidia": wrong}
    else:
        features[feature] = wrong if kind == "values" else [wrong]


@damage("NV109")
def unknown_key(document: Any, draw: Draw) -> None:
    places = [document, document["default-priorities"], document["providers"]["nvidia"]]
    known = {"$schema", "builtin", "optional", "requires"}
    name = st.text(max_size=9).filter(lambda text: text not in known)
    draw(st.sampled_from(places))[draw(name)] = draw(st.sampled_from([None, "x", {}]))


@damage("NV110")
def second_source(document: Any, draw: Draw) -> None:
    key = draw(st.sampled_from(["builtin", "static-properties"]))
    document["providers"]["nvidia"][key] = (
        "nvidia" if key == "builtin" else {"sm_arch": ["90_real"]}
    )


@damage("NV111")
def provider_without_namespace(document: Any, _: Draw) -> None:
    document["providers"]["arm64"] = {"builtin": "arm64"}


@damage("NV111")
def namespace_without_provider(document: Any, _: Draw) -> None:
    document["default-priorities"]["namespace"].append("arm64")


@damage("NV112")
def undeclared_namespace(document: Any, _: Draw) -> None:
    document["variants"]["arm"] = {"arm64": {"version": ["8"]}}


@damage("NV113")
def null_rules(document: Any, draw: Draw) -> None:
    label, value = draw(
        st.sampled_from(
            [
                ("null", {"nvidia": {"sm_arch": ["90_real"]}}),
                ("cpu_only", {}),
                ("cpu_only", {"nvidia": {}}),
            ]
        )
    )
    document["variants"][label] = value


@damage("NV114")
def no_fallback(document: Any, _: Draw) -> None:
    del document["variants"]["null"]


@damage("NV115")
def same_properties(document: Any, draw: Draw) -> None:
    features = build(document, draw)
    again = {name: draw(st.permutations(features[name])) for name in features}
    document["variants"]["zz"] = {"nvidia": again}


@damage("NV201")
def bad_label(document: Any, draw: Draw) -> None:
    document["variants"][draw(VALUES)] = {"nvidia": build(document, draw)}


@damage("NV203")
def bad_namespace(document: Any, draw: Draw) -> None:
    name = draw(NAMES)
    document["default-priorities"]["namespace"].append(name)
    document["providers"][name] = {"builtin": "x"}


@damage("NV204")
def bad_feature(document: Any, draw: Draw) -> None:
    build(document, draw)[draw(NAMES)] = ["1"]


@damage("NV205")
def bad_value(document: Any, draw: Draw) -> None:
    build(document, draw)["sm_arch"].append(draw(VALUES))


@damage("NV206")
def not_sorted(document: Any, draw: Draw) -> None:
    build(document, draw)["sm_arch"].reverse()


@damage("NV207")
def value_twice(document: Any, draw: Draw) -> None:
    features = build(document, draw)
    values = features[draw(st.sampled_from(sorted(features)))]
    values.append(draw(st.sampled_from(values)))


@damage("NV208")
def no_value(document: Any, draw: Draw) -> None:
    features = build(document, draw)
    features[draw(st.sampled_from([*sorted(features), UPPER]))] = []


@damage("NV209")
def bad_endpoint(document: Any, draw: Draw) -> None:
    bad = ["", ":", "a:", "a b", "a-b:c", "a:b:c", "1a:b"]
    document["providers"]["nvidia"]["plugin-api"] = draw(st.sampled_from(bad))


@damage("NV210")
def bad_requirement(document: Any, draw: Draw) -> None:
    bad = ["", "a b", "a>", "a; x == 'y'", "a[", "-a", "a @"]
    document["providers"]["nvidia"]["requires"] = [draw(st.sampled_from(bad))]


@damage("NV301")
def unknown_feature(document: Any, draw: Draw) -> None:
    name = st.from_regex("[a-z0-9_]+", fullmatch=True)
    known = {LOWER, UPPER, "sm_arch"}
    build(document, draw)[draw(name.filter(lambda text: text not in known))] = ["1"]


@damage("NV302")
def unknown_value(document: Any, draw: Draw) -> None:
    features = build(document, draw)
    feature = draw(st.sampled_from(sorted(features)))
    bad = ["90", "sm_90", "9.0", "12.9.1", "999_real", "90_ptx", "12.", "16"]
    known = {"9.0", "12.", "16"} if feature == "sm_arch" else set()
    features[feature] = [draw(st.sampled_from(sorted(set(bad) - known)))]


@damage("NV303")
def two_lower_bounds(document: Any, draw: Draw) -> None:
    build(document, draw)[LOWER] = ["12.0", "12.8"]


@damage("NV304")
def empty_range(document: Any, draw: Draw) -> None:
    features = build(document, draw)
    features[UPPER] = draw(st.sampled_from([["11"], ["11.8"], list(features[LOWER])]))


@damage("NV305")
def upper_bound(document: Any, draw: Draw) -> None:
    build(document, draw)[UPPER] = [draw(st.sampled_from(["13.2", "14", "15.20"]))]


@damage("NV306")
def no_sm_arch(document: Any, draw: Draw) -> None:
    del build(document, draw)["sm_arch"]


@damage("NV307")
def target_that_is_not_emitted(document: Any, draw: Draw) -> None:
    features = build(document, draw)
    # CUDA 12 has neither Kepler nor the new number of Thor; CUDA 13 has no Volta.
    number = draw(st.sampled_from([35, 110] if features[LOWER] == ["12.0"] else [70]))
    features["sm_arch"].append(f"{number}_{draw(st.sampled_from(['real', 'virtual']))}")


@damage("NV311")
def specific_code(document: Any, draw: Draw) -> None:
    target = draw(st.sampled_from(["90a", "100a", "100f", "103f", "120a"]))
    build(document, draw)["sm_arch"].append(f"{target}_real")


@damage("NV312")
def generation_left_out(document: Any, _: Draw) -> None:
    document["variants"] = {
        "null": {},
        "cu12": {"nvidia": {LOWER: ["12.0"], "sm_arch": ["70_real", "90_real"]}},
    }


@damage("NV313")
def no_ptx(document: Any, draw: Draw) -> None:
    features = build(document, draw)
    real = [text for text in features["sm_arch"] if text.endswith("_real")]
    features["sm_arch"] = real
    document["variants"] = {"null": {}, "cu12": {"nvidia": features}}


@damage("NV314")
def provider_that_uv_ignores(document: Any, draw: Draw) -> None:
    name = "nvidia-variant-provider"
    versions = [f"{name}{end}" for end in (">=0.0.2", "==0.0.2", ">1", " @ file:///x")]
    changes: list[dict[str, object]] = [
        {"optional": True},
        {"plugin-api": "nvidia_variant_provider"},
        {"plugin-api": "nvidia_variant_provider.plugin : NvidiaVariantPlugin"},
        {"requires": [draw(st.sampled_from(versions))]},
        {"requires": [f"{name}[cuda]"]},
        {"requires": [f"{name}; python_version >= '3'"]},
        {"requires": [name, "nvidia-ml-py"]},
        {"requires": ["another-provider"]},
    ]
    document["providers"]["nvidia"] |= draw(st.sampled_from(changes))
    build(document, draw)


@damage("NV315")
def shadowed(document: Any, draw: Draw) -> None:
    features = build(document, draw)
    slim = {LOWER: features[LOWER], "sm_arch": [features["sm_arch"][0]]}
    document["variants"]["zz_slim"] = {"nvidia": slim}


def codes(document: Any) -> set[str]:
    collector = Collector("file")
    check_document(document, collector)
    return {f.code for f in collector.findings}


@given(clean_documents())
@settings(deadline=None)
def test_clean_document_has_only_notes(document: Any) -> None:
    collector = Collector("file")
    check_document(document, collector)
    assert [f for f in collector.findings if f.severity != NOTE] == []


@pytest.mark.parametrize("name", DAMAGES)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_damage_is_found(name: str, data: st.DataObject) -> None:
    code, function = DAMAGES[name]
    # Writing and reading JSON makes copies: `build` may put an object in two places.
    document = json.loads(json.dumps(data.draw(clean_documents())))
    function(document, data.draw)
    assert code in codes(json.loads(json.dumps(document)))
