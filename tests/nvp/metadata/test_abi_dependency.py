"""The namespace ``abi_dependency``, which PEP 817 reserves: version 0.0.3 only."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support.documents import PROVIDER, forced, nvidia

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata import read_metadata
from nvidia_variant_provider.resolution.inputs import Priorities
from nvp import api
from nvp.metadata.checking import check_document
from nvp.upgrading.upgrade import upgrade

HOST = "https://variants-schema.wheelnext.dev"

# The example of PEP 817: builds of vllm for different versions of PyTorch.
VLLM: dict[str, Any] = {
    "$schema": f"{HOST}/v0.0.3.json",
    "default-priorities": {"namespace": ["nvidia"]},
    "providers": {"nvidia": dict(PROVIDER)},
    "variants": {
        "null": {},
        "cu12": nvidia("12.0"),
        "torch29": {**nvidia("12.0"), "abi_dependency": {"torch": ["2.9"]}},
        "torch28": {"abi_dependency": {"torch": ["2.8.0"], "huggingface-hub": ["0"]}},
    },
}


def changed(*path: str, value: object) -> dict[str, Any]:
    document = copy.deepcopy(VLLM)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


def kinds(document: object) -> list[tuple[str, str]]:
    return [(item.kind, item.place) for item in check_document(document).defects]


def test_labels_use_the_namespace_without_a_provider() -> None:
    assert kinds(VLLM) == []
    variants = read_metadata(VLLM).variants
    assert variants["torch28"]["abi_dependency"]["huggingface-hub"] == ("0",)


def test_the_namespace_may_have_a_priority() -> None:
    names = ["nvidia", "abi_dependency"]
    assert kinds(changed("default-priorities", "namespace", value=names)) == []


def test_the_namespace_has_no_provider() -> None:
    document = changed("providers", "abi_dependency", value={"requires": ["x"]})
    assert kinds(document) == [("providers-differ", "providers.abi_dependency")]
    read_metadata(document)


@pytest.mark.parametrize("version", ["v0.0.2", "v0.2.0"])
def test_other_versions_do_not_reserve_it(version: str) -> None:
    document = {**VLLM, "$schema": f"{HOST}/{version}.json"}
    assert ("undeclared-namespace", "variants.torch29.abi_dependency") in kinds(
        document
    )
    with pytest.raises(InputError, match="not in default-priorities"):
        read_metadata(document)


@pytest.mark.parametrize(
    ("item", "kind", "place"),
    [
        ({"torch": ["2.9.1.0"]}, "value", ".torch[0]"),
        ({"torch": ["2.9rc1"]}, "value", ".torch[0]"),
        ({"torch": ["1!2"]}, "value", ".torch[0]"),
        ({"torch": ["2.9", "2.9"]}, "repeated", ".torch"),
        ({"torch": []}, "no-value", ".torch"),
        ({"huggingface_hub": ["0"]}, "feature", ""),
        ({"Torch": ["2"]}, "feature", ""),
        ({}, "null-rules", ""),
        ({"torch": "2.9"}, "wrong-type", ".torch"),
        ([], "wrong-type", ""),
    ],
)
def test_what_the_pep_does_not_allow_is_refused(
    item: object, kind: str, place: str
) -> None:
    document = changed("variants", "torch29", "abi_dependency", value=item)
    assert kinds(document) == [(kind, f"variants.torch29.abi_dependency{place}")]
    with pytest.raises(InputError):
        read_metadata(document)


def test_its_labels_fit_no_machine_and_the_reason_is_told() -> None:
    resolution = api.resolve(
        VLLM, priorities=Priorities(), environ=forced("12.9", "9.0")
    )
    assert resolution.compatible == ("cu12", "null")
    (reason,) = resolution.rejected["torch29"]
    assert "only an installer knows the versions of dependencies" in reason.sentence


def test_an_upgrade_names_the_labels_that_the_written_version_cannot_have() -> None:
    outcome = upgrade(read_metadata(VLLM), VLLM)
    (problem,) = outcome.problems
    assert outcome.metadata is None
    assert problem.place == "variants"
    assert "abi_dependency" in problem.message
    assert "torch28, torch29" in problem.hint
