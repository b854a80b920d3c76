"""``--for-uv``, and providers that are never queried and have no answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.documents import PROVIDER, TORCH, document, nvidia

from nvidia_variant_provider.metadata.model import PLUGIN_API, REQUIRES
from nvp import api

COMMAND = "upgrade"


def torch_from(provider: Any) -> str:
    """Return a release whose ``nvidia`` labels have this provider."""
    variants = {"null": {}, "cu126": nvidia("12.6", sm=["80_real"])}
    return json.dumps(document(variants, providers={"nvidia": provider}))


def codes(path: Path) -> set[str]:
    return {finding.code for finding in api.validate([path])}


@pytest.fixture
def newer(fixtures: Path) -> Path:
    """Return a published file whose requirement excludes the provider of uv."""
    return fixtures / "published" / "torch-2.10.0-variants.json"


def test_the_command_writes_the_names_that_uv_knows(
    run: Run, newer: Path, tmp_path: Path
) -> None:
    output = tmp_path / "torch-2.10.0-variants.json"
    outcome = run(newer, "--for-uv", "--output", output)
    assert outcome.code == 1  # enable-if is lost, with or without the option
    provider = json.loads(output.read_bytes())["providers"]["nvidia"]
    assert provider == {"requires": [REQUIRES], "plugin-api": PLUGIN_API}
    assert "nvidia-variant-provider>=0.0.2,<1.0.0" in outcome.err
    assert "which uv 0.13.8 recognizes" in outcome.err
    assert "NV314" in codes(newer)
    assert "NV314" not in codes(output)


def test_without_the_option_the_names_stay_and_a_note_names_it(
    run: Run, newer: Path
) -> None:
    outcome = run(newer)
    provider = json.loads(outcome.out)["providers"]["nvidia"]
    assert provider["requires"] == ["nvidia-variant-provider>=0.0.2,<1.0.0"]
    assert "--for-uv" in outcome.err


@pytest.mark.parametrize(
    "provider",
    [
        {"requires": ["nvidia-variant-provider"]},
        {**PROVIDER, "requires": ["nvidia-variant-provider; os_name == 'posix'"]},
        {**PROVIDER, "requires": ["nvidia-variant-provider", "more"]},
        {**PROVIDER, "plugin-api": "other:Plugin"},
    ],
)
def test_every_other_naming_is_replaced(provider: Any) -> None:
    file = api.upgrade(torch_from(provider), for_uv=True)
    assert file.document is not None
    assert file.document["providers"]["nvidia"] == dict(PROVIDER)
    (note,) = file.notes
    assert provider["requires"][0] in note.message


@pytest.mark.parametrize(
    "provider",
    [
        dict(PROVIDER),
        {"static-properties": {"sm_arch": ["80_real"]}},
        {"builtin": "nvidia"},
    ],
)
def test_what_uv_understands_stays(provider: Any) -> None:
    text = torch_from(provider)
    assert api.upgrade(text, for_uv=True).text == api.upgrade(text).text
    assert api.upgrade(text, for_uv=True).notes == ()


def test_an_optional_provider_stays_optional_and_a_note_says_so() -> None:
    text = torch_from({**PROVIDER, "optional": True})
    file = api.upgrade(text, for_uv=True)
    assert file.document is not None
    assert file.document["providers"]["nvidia"]["optional"] is True
    assert [note.place for note in file.notes] == ["providers.nvidia.optional"]


def test_a_folder_is_written_for_uv(tmp_path: Path) -> None:
    provider = {**PROVIDER, "requires": ["nvidia-variant-provider>=0.0.2"]}
    path = tmp_path / "torch-2.9.1-variants.json"
    path.write_text(json.dumps({**TORCH, "providers": {"nvidia": provider}}))
    (file,) = api.upgrade_index(tmp_path, for_uv=True)
    assert file.changed
    assert json.loads(path.read_bytes())["providers"]["nvidia"] == dict(PROVIDER)


class TestNeverAsked:
    """The cases are about torchvision 0.25.0, with its first metadata."""

    @pytest.fixture
    def path(self, fixtures: Path) -> Path:
        return fixtures / "published" / "first" / "torchvision-0.25.0-variants.json"

    def test_validate_reports_it(self, path: Path, fixtures: Path) -> None:
        (finding,) = (f for f in api.validate([path]) if f.code == "NV118")
        assert finding.place == "providers.priority"
        assert "the 3 labels that use it fit no machine" in finding.message
        corrected = fixtures / "published" / "torchvision-0.25.0-variants.json"
        assert "NV118" not in codes(corrected)

    def test_upgrade_says_what_to_add_and_nothing_that_is_wrong(
        self, run: Run, path: Path
    ) -> None:
        outcome = run(path)
        assert (outcome.code, outcome.out) == (1, "")
        assert '"order": ["1", "2", "3"]' in outcome.err
        assert "then upgrade the file again" in outcome.err
        assert "no label uses the namespace" not in outcome.err
        assert "nothing was written" in outcome.err

    def test_following_the_advice_gives_the_corrected_file(
        self, path: Path, fixtures: Path
    ) -> None:
        text = json.loads(path.read_bytes())
        del text["default-priorities"]["property"]
        text["static-properties"] = {"priority": {"order": ["1", "2", "3"]}}
        corrected = fixtures / "published" / "torchvision-0.25.0-variants.json"
        assert api.upgrade(json.dumps(text)).text == api.upgrade(corrected).text
