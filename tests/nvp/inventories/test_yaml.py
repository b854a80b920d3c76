"""YAML of Kubernetes is read as PyYAML reads it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvidia_variant_provider.errors import InputError
from nvp.inventories.reading import parse_yaml

yaml = pytest.importorskip("yaml", reason="it reads YAML")

VALUES = st.recursive(
    st.text(max_size=8) | st.integers() | st.booleans() | st.none(),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)


def dump(document: Any, *, flow: bool) -> str:
    class Dumper(yaml.SafeDumper):  # type: ignore[misc, name-defined]
        """A writer without anchors for equal objects, as kubectl writes them."""

        def ignore_aliases(self, _: Any) -> bool:
            return True

    text: str = yaml.dump(document, Dumper=Dumper, default_flow_style=flow)
    return text


def parse(text: str) -> list[Any]:
    return list(parse_yaml(text))


@given(st.lists(OBJECTS, max_size=4), st.booleans())
def test_the_elements_of_a_list(objects: list[Any], flow: bool) -> None:
    text = dump({"apiVersion": "v1", "items": objects, "kind": "List"}, flow=flow)
    assert parse(text) == yaml.load(text, yaml.BaseLoader)["items"]


@given(st.lists(OBJECTS, min_size=1, max_size=3))
def test_several_documents(objects: list[Any]) -> None:
    documents = [{**item, "items": None} for item in objects]
    text = "".join(f"---\n{dump(item, flow=False)}" for item in documents)
    assert parse(text) == list(yaml.load_all(text, yaml.BaseLoader))


@given(st.text(alphabet="ab:-[]{}&*!<>|#\"' \n\t", max_size=40))
def test_no_text_makes_it_fail(text: str) -> None:
    try:
        objects = parse(text)
    except InputError:
        return
    assert all(isinstance(item, dict) for item in objects)
