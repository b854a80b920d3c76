"""`matrix` and `diff` on published metadata, which also has builds for other
vendors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import Run
from support.documents import document, nvidia
from support.paths import FIXTURES

from nvidia_variant_provider.machine.environment import CudaVersion
from nvp import api
from nvp.knowledge.tables import (
    driver_branches,
    driver_versions,
    newest_cuda,
    toolkits,
)

COMMAND = "matrix"

FOLDER = FIXTURES / "published"
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
TORCH = FOLDER / "torch-2.9.0-variants.json"


class TestOtherMakers:
    @pytest.mark.parametrize("name", sorted(EXPECTED["selected"]))
    def test_a_pair_gets_what_resolve_says(self, name: str) -> None:
        cells = api.matrix(FOLDER / name).cells
        picks = {(str(cell.cuda), str(cell.capability)): cell.label for cell in cells}
        for driver, labels in EXPECTED["selected"][name].items():
            for gpu, label in zip(EXPECTED["gpus"], labels, strict=True):
                assert picks.get((driver, gpu), label) == label

    def test_no_pair_of_a_comparison_gets_their_builds(self) -> None:
        pairs = api.diff(TORCH, FOLDER / "torch-2.10.0-variants.json").pairs
        picks = {cell.label for pair in pairs for cell in (pair.old, pair.new)}
        assert picks == {"null", "cuda12.6", "cuda12.8", "cuda13.0"}

    @pytest.mark.parametrize(("name", "label"), [("intel", "xpu"), ("amd", "rocm6.3")])
    def test_a_namespace_is_turned_on(self, name: str, label: str, run: Run) -> None:
        plain = run(TORCH).out
        assert "Hardware of other vendors (amd, intel) counts as absent" in plain
        out = run(TORCH, "--assume", name).out
        assert label not in plain
        assert label in out
        assert f"({name})" not in out

    def test_all_of_them_may_be_turned_on(self, run: Run) -> None:
        out = run(TORCH, "--assume", "intel", "--assume", "amd").out
        assert "other vendors" not in out

    def test_a_namespace_that_no_label_has(self, run: Run) -> None:
        outcome = run(TORCH, "--assume", "inteel")
        assert (outcome.code, outcome.out) == (2, "")
        assert "--assume: no label uses the namespace 'inteel'" in outcome.err
        assert "choose from: amd, intel, nvidia, priority" in outcome.err


class TestNewestCuda:
    def test_every_table_counts(self) -> None:
        assert newest_cuda() >= max(toolkits())
        assert newest_cuda() >= max(driver_branches().values())

    def test_pairs_reach_one_minor_version_past_it(self) -> None:
        drivers, newest = driver_versions(), newest_cuda()
        assert drivers[-1] == CudaVersion(newest.major, newest.minor + 1)
        assert newest in drivers
        assert {*driver_branches().values()} <= {*drivers}
        # No driver reports a version between two of them.
        later = [v for v in drivers if v > CudaVersion(12, 0) and v.minor]
        assert all(CudaVersion(v.major, v.minor - 1) in drivers for v in later)

    @pytest.mark.parametrize("past", [0, 1])
    def test_a_label_for_it_has_its_pairs(self, past: int, tmp_path: Path) -> None:
        cuda = CudaVersion(newest_cuda().major, newest_cuda().minor + past)
        label = f"cu{cuda.major}{cuda.minor}"
        path = tmp_path / "torch-2.9.1-variants.json"
        build = nvidia(str(cuda), sm=["90_real"])
        path.write_text(json.dumps(document({"null": {}, label: build})))
        picks = {cell.cuda for cell in api.matrix(path).cells if cell.label == label}
        assert picks == {version for version in driver_versions() if version >= cuda}
        assert "NV315" not in {finding.code for finding in api.validate([path])}
