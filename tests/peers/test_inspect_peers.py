"""The suggestion of ``inspect --suggest``, carried out by the real variantlib."""

from __future__ import annotations

import json
import shlex
import zipfile
from pathlib import Path

import pytest
from support.containers import BINARIES, binaries
from support.documents import PROVIDER, document
from support.variantlib_peer import refused_properties, run_command
from support.wheels import stub_wheel

from nvidia_variant_provider import api
from nvidia_variant_provider.cli import main
from nvidia_variant_provider.gpu_code.claims import find_claim
from nvidia_variant_provider.gpu_code.suggestion import suggest
from nvidia_variant_provider.lint.runner import check_paths

TAG = "cp311-cp311-linux_x86_64"


def test_the_suggested_command_writes_the_suggested_document(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def inspect(*words: object) -> str:
        assert main(["inspect", *map(str, words)]) == 0
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    members = {"demo/plain.so": (BINARIES / "plain.so").read_bytes()}
    path = stub_wheel(tmp_path / "in", "demo", "1.0", tag=TAG, members=members)
    (file,) = json.loads(inspect(path, "--suggest", "--json"))["data"]["files"]
    suggestion = file["suggestion"]
    (tmp_path / "pyproject.toml").write_text(suggestion["pyproject"])
    program, *words = shlex.split(suggestion["command"])
    assert program == "variantlib"
    # Isolation would need an index to install the provider from.
    run_command(*words, "--no-isolation")
    made = tmp_path / f"demo-1.0-{TAG}-{suggestion['label']}.whl"
    with zipfile.ZipFile(made) as archive:
        written = archive.read("demo-1.0.dist-info/variant.json")
    assert json.loads(written) == suggestion["variant_json"]
    text = inspect(path, "--suggest")
    assert text.startswith(written.decode())
    assert suggestion["command"] in text
    assert "pip install 'variantlib[cli]'" in text
    assert {f.code for f in check_paths([made]) if f.severity != "note"} == set()
    # A wheel that has a label keeps it.
    (again,) = json.loads(inspect(made, "--suggest", "--json"))["data"]["files"]
    assert again["suggestion"]["label"] == suggestion["label"]


@pytest.mark.parametrize("path", binaries(), ids=lambda path: path.name)
def test_variantlib_accepts_what_is_suggested(path: Path) -> None:
    report = api.inspect(path)
    suggestion = suggest(find_claim(report), report.path, report.kind)
    if suggestion is None:
        assert not find_claim(report).sm_arch
        return
    variants = {
        label: {
            n: {f: list(v) for f, v in features.items()} for n, features in p.items()
        }
        for label, p in suggestion.metadata.variants.items()
    }
    release = document(variants, providers={"nvidia": PROVIDER})
    assert refused_properties(release, suggestion.label) == set()
