"""The index of stub wheels that the README uses."""

from __future__ import annotations

import json
from pathlib import Path

from support.paths import ROOT
from support.wheels import publish

PROJECT = ROOT / "fixtures" / "index" / "gpu-demo"
NAME = "gpu_demo-1.0-variants.json"


def test_wheels_are_made_from_the_metadata(tmp_path: Path) -> None:
    publish(tmp_path, json.loads((PROJECT / NAME).read_text()), "gpu-demo", "1.0")
    made = {path.name: path for path in (tmp_path / "gpu-demo").iterdir()}
    del made["index.html"]
    assert len(made) == 6
    assert sorted(made) == sorted(path.name for path in PROJECT.iterdir())
    for name, path in made.items():
        assert path.read_bytes() == (PROJECT / name).read_bytes(), name


def test_labels_are_those_of_the_tutorial() -> None:
    tutorial = ROOT / "fixtures" / "variants-json" / "torch-2.8.0-variants.json"
    expected = json.loads(tutorial.read_text())["variants"]
    expected["null"] = expected.pop("00000000")
    assert json.loads((PROJECT / NAME).read_text())["variants"] == expected
