"""The names of metadata files."""

from __future__ import annotations

import pytest

from nvidia_variant_provider.metadata.document import (
    MetadataName,
    metadata_name,
    parse_metadata_name,
)


@pytest.mark.parametrize(
    ("file_name", "name", "version"),
    [
        ("torch-2.8.0-variants.json", "torch", "2.8.0"),
        ("my_torch-2.8.0+cu126-variants.json", "my_torch", "2.8.0+cu126"),
        ("My.Torch-v2.8-variants.json", "My.Torch", "v2.8"),
    ],
)
def test_parts_are_as_the_file_spells_them(
    file_name: str, name: str, version: str
) -> None:
    parts = parse_metadata_name(file_name)
    assert parts == MetadataName(name=name, version=version)
    assert metadata_name(name, version) == file_name


@pytest.mark.parametrize(
    "file_name",
    [
        "variants.json",
        "torch-variants.json",
        "my-torch-2.8.0-variants.json",
        "torch-2.8.0-variants.jsonx",
        "torch-2.8.0.json",
        "a/torch-2.8.0-variants.json",
        "torch-2.8.0-variants.json\n",
    ],
)
def test_other_names_have_no_parts(file_name: str) -> None:
    assert parse_metadata_name(file_name) is None


@pytest.mark.parametrize(
    ("given", "normalized"),
    [
        (("My.Torch", "v2.8.0_1"), ("my_torch", "2.8.0.post1")),
        (("a__b", "1.0+CU_1"), ("a_b", "1.0+cu.1")),
        (("torch", "2.8.0"), ("torch", "2.8.0")),
    ],
)
def test_normalized_as_in_the_names_of_wheels(
    given: tuple[str, str], normalized: tuple[str, str]
) -> None:
    name, version = given
    parts = MetadataName(name=name, version=version).normalized()
    assert parts == MetadataName(name=normalized[0], version=normalized[1])


def test_text_that_is_not_a_version_cannot_be_normalized() -> None:
    assert MetadataName(name="torch", version="x").normalized() is None
