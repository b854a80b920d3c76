"""The table of schema versions agrees with the schemas, and other code derives from
it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.documents import PROVIDER, TORCH_LABELS, document
from support.paths import ROOT

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata import read_metadata, versions
from nvidia_variant_provider.metadata.versions import SchemaVersion, find_version
from nvp import api
from nvp.lint.documents import check_document
from nvp.lint.findings import Collector
from nvp.metadata.checking import to_dict

TODAY = versions.WRITTEN
_MAJOR, _MINOR, _ = versions.KNOWN[-1].number
NEXT = TODAY.replace(
    number=(_MAJOR, _MINOR + 1, 0),
    url=f"https://variants-schema.wheelnext.dev/v{_MAJOR}.{_MINOR + 1}.0.json",
    keys=TODAY.keys | {"homepage"},
    provider_keys=TODAY.provider_keys | {"channel"},
)


def of_version(version: SchemaVersion, **more: Any) -> dict[str, Any]:
    return {**document(TORCH_LABELS, schema=version.url), **more}


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> SchemaVersion:
    """Add a version to the table and write it; clients do not read it yet."""
    monkeypatch.setattr(versions, "KNOWN", (*versions.KNOWN, NEXT))
    monkeypatch.setattr(versions, "WRITTEN", NEXT)
    return NEXT


def lint(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the message of each rule that reports something."""
    collector = Collector("file.json")
    check_document(value, collector)
    return {finding.code: finding.message for finding in collector.findings}


class TestTable:
    def test_versions_ascend(self) -> None:
        numbers = [version.number for version in versions.KNOWN]
        assert numbers == sorted(set(numbers))
        assert versions.WRITTEN in versions.KNOWN
        assert set(versions.READ_BY_CLIENTS) <= set(versions.KNOWN)

    @pytest.mark.parametrize("version", versions.KNOWN, ids=str)
    def test_url_is_that_of_the_version(self, version: SchemaVersion) -> None:
        assert find_version({"$schema": version.url}) is version

    @pytest.mark.parametrize("version", versions.KNOWN, ids=str)
    def test_keys_are_those_of_the_json_schema(self, version: SchemaVersion) -> None:
        path = ROOT / "schemas" / "variants-json" / f"v{version}.schema.json"
        schema = json.loads(path.read_bytes())
        properties, definitions = schema["properties"], schema["$defs"]
        priorities = properties["default-priorities"]["properties"]
        provider = definitions.get("provider", {"properties": {}})
        label = definitions["label"]
        assert version.keys == set(properties)
        assert version.priority_keys == set(priorities)
        assert version.provider_keys == set(provider["properties"])
        assert version.strict == (schema.get("additionalProperties") is False)
        assert version.one_source == ("oneOf" in provider)
        assert version.old_null == ("00000000" in properties["variants"]["properties"])
        assert version.label_limit == label.get("maxLength")

    def test_every_version_has_a_json_schema(self) -> None:
        names = {path.name for path in (ROOT / "schemas" / "variants-json").iterdir()}
        assert names == {f"v{version}.schema.json" for version in versions.KNOWN}

    def test_report_schema_names_the_version_that_is_written(self) -> None:
        path = ROOT / "schemas" / "report.schema.json"
        upgraded = json.loads(path.read_bytes())["$defs"]["upgraded"]["properties"]
        assert upgraded["to"]["enum"] == [str(versions.WRITTEN), None]


class TestNextVersion:
    def test_it_is_read_with_its_own_keys(self, next_version: SchemaVersion) -> None:
        provider = {**PROVIDER, "channel": "stable"}
        source = of_version(NEXT, homepage="x", providers={"nvidia": provider})
        assert read_metadata(source).schema is next_version
        with pytest.raises(InputError, match=f"version {NEXT} has no such key"):
            read_metadata({**source, "other": 1})
        with pytest.raises(InputError, match=f"version {TODAY} has no such key"):
            read_metadata({**source, "$schema": TODAY.url})

    def test_the_newer_of_two_versions_is_not_guessed_from_the_shape(
        self, next_version: SchemaVersion
    ) -> None:
        source = document(TORCH_LABELS)
        del source["$schema"]
        assert find_version(source) is TODAY
        source["providers"]["nvidia"]["channel"] = "stable"
        assert find_version(source) is next_version

    def test_it_is_written(self, next_version: SchemaVersion) -> None:
        metadata = read_metadata(of_version(NEXT))
        assert to_dict(metadata)["$schema"] == next_version.url
        with pytest.raises(InputError, match=f"version {TODAY}, not {NEXT}"):
            to_dict(read_metadata(of_version(TODAY)))

    @pytest.mark.usefixtures("next_version")
    def test_upgrade_writes_and_reports_it(self) -> None:
        file = api.upgrade(json.dumps(of_version(TODAY)))
        assert (file.old_version, file.new_version) == (str(TODAY), str(NEXT))
        assert file.document == of_version(NEXT)
        assert file.to_dict()["to"] == str(NEXT)
        assert file.losses == ()

    @pytest.mark.usefixtures("next_version")
    def test_keys_that_it_defines_are_not_losses(self) -> None:
        file = api.upgrade(json.dumps(of_version(NEXT, homepage="x")))
        assert file.losses == ()

    @pytest.mark.usefixtures("next_version")
    def test_nv106_is_about_what_clients_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "NV106" not in lint(of_version(NEXT))
        assert "NV106" not in lint(of_version(TODAY))
        older = versions.KNOWN[4]
        assert f"{older} is not read by" in lint(of_version(older))["NV106"]
        monkeypatch.setattr(versions, "READ_BY_CLIENTS", (NEXT,))
        assert f"{TODAY} is not read by" in lint(of_version(TODAY))["NV106"]

    @pytest.mark.usefixtures("next_version")
    def test_hints_name_its_url(self) -> None:
        source = of_version(TODAY)
        del source["$schema"]
        collector = Collector("file.json")
        check_document(source, collector)
        check_document({**source, "$schema": "x"}, collector)
        hints = {finding.code: finding.hint for finding in collector.findings}
        assert hints["NV104"] == f"add {NEXT.url}"
        assert hints["NV105"].startswith(f"use {NEXT.url}; versions 0.0.1 to {NEXT}")


def test_unknown_version_is_read_as_the_known_one_before_it() -> None:
    version = find_version({"$schema": "https://host/v0.1.5.json"})
    assert str(version) == "0.1.5"
    assert version.keys == versions.KNOWN[4].keys
    assert not version.strict
    assert find_version({"$schema": "https://host/v0.0.0.json"}) is versions.KNOWN[0]
