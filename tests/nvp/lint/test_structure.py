"""The rules about the format follow from the defects that the reader reports."""

from __future__ import annotations

from typing import get_args

import pytest
from support.documents import TORCH

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata.document import metadata_from_dict
from nvidia_variant_provider.metadata.fields import Kind
from nvp.findings import ERROR
from nvp.lint.documents import CODES
from nvp.lint.documents import check_document as lint_document
from nvp.lint.findings import RULES, Collector
from nvp.metadata.checking import check_document


def test_every_kind_of_defect_has_a_rule() -> None:
    assert set(get_args(Kind)) - CODES.keys() == {"not-metadata"}
    assert len(set(CODES.values())) == len(CODES)


def test_document_that_is_not_metadata_has_findings() -> None:
    """The kind without a rule comes with missing keys, which have one."""
    collector = Collector("file.json")
    lint_document({"schema_version": 1, "command": "detect"}, collector)
    severities = {RULES[finding.code].severity for finding in collector.findings}
    assert ERROR in severities


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"$schema": 5},
        {"variants": []},
        {"default-priorities": {"namespace": ["NVIDIA", "NVIDIA", 1]}},
        {"providers": {"nvidia": {"feature-order": ["a"], "optional": 1}}},
        {"variants": {"CU": {}, "null": {"amd": {"a": []}}, "x": {"nvidia": {}}}},
    ],
)
def test_reading_raises_the_first_defect_that_linting_collects(
    change: dict[str, object],
) -> None:
    document = {**TORCH, **change}
    refused = [item for item in check_document(document).defects if not item.tolerated]
    assert refused
    with pytest.raises(InputError) as caught:
        metadata_from_dict(document)
    error = caught.value
    first = refused[0]
    assert (error.place, error.message, error.hint) == (
        first.place,
        first.message,
        first.hint,
    )


def test_defects_that_reading_accepts_are_tolerated() -> None:
    document = {**TORCH, "providers": {"nvidia": {"plugin-api": None}}}
    metadata_from_dict(document)
    checked = check_document(document)
    assert checked.is_readable
    assert {CODES[defect.kind] for defect in checked.defects} == {
        "NV108",
        "NV110",
        "NV117",
    }
