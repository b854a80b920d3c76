"""Two releases, pair by pair."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from support.command import Run
from support.documents import TORCH, TORCH_LABELS, document, nvidia
from support.strategies import documents

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvidia_variant_provider.metadata import read_metadata
from nvidia_variant_provider.resolution import resolver
from nvidia_variant_provider.resolution.ordering import Mismatch, Rejections
from nvp import api
from nvp.knowledge.tables import can_exist, driver_versions
from nvp.matrix import changes
from nvp.matrix.cells import all_capabilities, describe_pairs, find_cells
from nvp.matrix.changes import (
    CHANGED,
    GAINED,
    LOST,
    SAME,
    PairChange,
    compare,
    find_differences,
    release_names,
)
from nvp.matrix.text import make_groups

COMMAND = "diff"

CU130 = ["75_real", "80_real", "86_real", "90_real", "100_real", "120_real"]
CU130_ONLY = document({"null": {}, "cu130": nvidia("13.0", sm=CU130)})
"""A release that drops all CUDA 12 builds."""

DRIVERS = [CudaVersion(11, 8), CudaVersion(12, 4), CudaVersion(12, 9), CudaVersion(13)]
PAIRS = [(cuda, gpu) for cuda in driver_versions() for gpu in all_capabilities()]
EXISTING = sum(can_exist(*pair) for pair in PAIRS)
GPUS = [ComputeCapability(*gpu) for gpu in ((5, 2), (7, 0), (9, 0), (12, 0))]


@pytest.fixture
def releases(fixtures: Path) -> list[Path]:
    folder = fixtures / "variants-json"
    return [folder / f"torch-{v}-variants.json" for v in ("2.8.0", "2.9.1", "2.10.0")]


@pytest.fixture
def cu130_only(tmp_path: Path) -> Path:
    path = tmp_path / "torch-2.11.0-variants.json"
    path.write_text(json.dumps(CU130_ONLY))
    return path


def pairs_of(old: Any, new: Any, **options: Any) -> dict[tuple[str, str], PairChange]:
    """Return the pairs by driver and GPU, such as ``("12.9", "9.0")``."""
    pairs = compare(read_metadata(old), read_metadata(new), **options)
    return {(str(pair.new.cuda), str(pair.new.capability)): pair for pair in pairs}


def test_a_reason_is_searched_among_few_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a hostile release takes minutes: it has a reason for each pair."""
    searched: set[str] = set()
    explained: list[Mismatch] = []
    search, explain = Rejections.__getitem__, resolver.explain

    def count(self: Rejections, label: str) -> Any:
        searched.add(label)
        return search(self, label)

    def count_explained(mismatch: Mismatch, *arguments: Any, **options: Any) -> Any:
        explained.append(mismatch)
        return explain(mismatch, *arguments, **options)

    monkeypatch.setattr(Rejections, "__getitem__", count)
    for module in (resolver, changes):
        monkeypatch.setattr(module, "explain", count_explained, raising=False)
    labels: dict[str, Any] = {f"x{n:03}": nvidia(f"99.{n}") for n in range(99)}
    for label in ("x001", "x002", "x003"):
        labels[label]["nvidia"] |= {f"f{n}": ["a"] for n in range(30)}
    few = {label: labels[label] for label in ("x001", "x002", "x003")}
    for new, judged in ((labels, 50), (few, 3)):
        searched.clear()
        explained.clear()
        pairs = pairs_of(CU130_ONLY, document(new), all_pairs=False)
        lost = [pair for pair in pairs.values() if pair.change == LOST]
        assert len(pairs) == EXISTING
        assert len(searched) == judged
        assert 0 < len(explained) <= 3 * 8 * len(lost)
    (cause, *_), reason = lost[0].causes, str(lost[0].reason)
    assert "f6 and " in cause
    assert "f7" not in cause + reason
    assert "and 23 more features do not fit either; x002 does not fit" in reason


class TestPairs:
    @given(documents(), documents())
    @settings(max_examples=settings().max_examples // 4)
    def test_pairs_have_the_cells_of_both_releases(
        self, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        before, after = read_metadata(old), read_metadata(new)
        pairs = compare(before, after, drivers=DRIVERS, capabilities=GPUS)
        for metadata, cells in (
            (before, [pair.old for pair in pairs]),
            (after, [pair.new for pair in pairs]),
        ):
            assert cells == find_cells(metadata, drivers=DRIVERS, capabilities=GPUS)
        for pair in pairs:
            uses_gpu = pair.old.how != "cpu", pair.new.how != "cpu"
            assert (pair.change == LOST) == (uses_gpu == (True, False))
            assert (pair.change == GAINED) == (uses_gpu == (False, True))
            assert (pair.reason is not None) == (pair.change in (LOST, CHANGED))
            assert bool(pair.workaround) == (pair.change == LOST)

    @given(documents())
    @settings(max_examples=settings().max_examples // 6)
    def test_a_release_does_not_differ_from_itself(
        self, sample: dict[str, Any]
    ) -> None:
        pairs = pairs_of(sample, sample, drivers=DRIVERS, capabilities=GPUS)
        assert {pair.change for pair in pairs.values()} == {SAME}

    @given(documents(), documents())
    @settings(max_examples=settings().max_examples // 4)
    def test_swapping_the_releases_swaps_gained_and_lost(
        self, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        there = pairs_of(old, new, drivers=DRIVERS, capabilities=GPUS)
        back = pairs_of(new, old, drivers=DRIVERS, capabilities=GPUS)
        swapped = {LOST: GAINED, GAINED: LOST, SAME: SAME, CHANGED: CHANGED}
        assert {key: swapped[pair.change] for key, pair in there.items()} == {
            key: pair.change for key, pair in back.items()
        }

    @given(documents(), documents())
    @settings(max_examples=settings().max_examples // 4)
    def test_the_reason_of_a_lost_pair_names_a_feature(
        self, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        builds = [x for x, spaces in new["variants"].items() if "nvidia" in spaces]
        pairs = pairs_of(old, new, drivers=DRIVERS, capabilities=GPUS)
        for pair in pairs.values():
            if pair.change != LOST or not builds:
                continue
            reason = pair.reason or ""
            assert any(reason.startswith(f"{label} ") for label in builds)
            assert re.search(
                r"cuda_version_(lower|upper)_bound|sm_arch|blas_lapack :: |before it",
                reason,
            )

    def test_a_driver_that_is_too_old_for_the_new_release(self) -> None:
        pair = pairs_of(TORCH, CU130_ONLY)["12.8", "9.0"]
        assert (pair.change, pair.old.label, pair.new.label) == (LOST, "cu128", "null")
        assert pair.reason == (
            "cu130 does not fit (cuda_version_lower_bound): it needs a driver for "
            "CUDA 13.0 or newer, but this driver is for CUDA 12.8"
        )
        assert pair.workaround == (
            "a driver for CUDA 13.0 gets cu130",
            "stay with OLD: it has cu128",
        )
        assert pair.risk == (
            "an installer silently takes the CPU build, and the GPU stays idle",
        )

    def test_a_gpu_that_the_new_release_leaves_out(self) -> None:
        pair = pairs_of(TORCH, CU130_ONLY)["13.0", "7.0"]
        assert (pair.reason or "").startswith(
            "cu130 does not fit (sm_arch): it has no kernels for compute capability 7.0"
        )
        assert pair.workaround == ("stay with OLD: it has cu128",)

    def test_minor_version_compatibility_is_a_workaround_but_not_a_reason(self) -> None:
        new = document({"null": {}, "cu128": TORCH_LABELS["cu128"]})
        pair = pairs_of(TORCH, new)["12.6", "9.0"]
        assert "compatibility" not in (pair.reason or "")
        assert pair.workaround == (
            "NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY=1 gets cu128: "
            "minor-version compatibility runs its machine code",
            "a driver for CUDA 12.8 gets cu128",
            "stay with OLD: it has cu126",
        )
        relaxed = pairs_of(TORCH, new, minor_version_compatibility=True)["12.6", "9.0"]
        assert (relaxed.change, relaxed.new.label) == (CHANGED, "cu128")
        assert any("newer CUDA minor version" in risk for risk in relaxed.risk)

    def test_the_reason_names_the_nearest_builds(self) -> None:
        builds = {f"b{n}": nvidia("13.0", sm=["120_real"]) for n in range(4)}
        new = document({**builds, "near": nvidia("13.0", sm=["90_real"])})
        reason = pairs_of(TORCH, new)["12.9", "9.0"].reason or ""
        assert reason.startswith("near does not fit (cuda_version_lower_bound): ")
        assert reason.endswith("; 2 more do not fit either")

    def test_a_new_release_whose_labels_do_not_fit(self) -> None:
        new = document({"cu130": nvidia("13.0", sm=CU130)})
        pair = pairs_of(TORCH, new)["12.9", "9.0"]
        assert (pair.change, pair.to_dict()["new"]) == (LOST, None)
        assert "non-variant wheel" in pair.risk[0]

    def test_a_new_release_without_gpu_builds(self) -> None:
        pair = pairs_of(TORCH, document({"null": {}}))["12.9", "9.0"]
        assert pair.reason == "NEW has no build with nvidia properties"

    def test_both_spellings_of_the_null_variant_are_equal(self) -> None:
        old = document(
            {"00000000": {}}, schema="https://variants-schema.wheelnext.dev/v0.0.3.json"
        )
        del old["providers"]["nvidia"]["requires"]
        old["providers"]["nvidia"]["requires"] = ["nvidia-variant-provider>=0.0.1"]
        pair = pairs_of(old, document({"null": {}}))["12.9", "9.0"]
        assert (pair.old.label, pair.new.label) == ("00000000", "null")
        assert pair.change == SAME

    @pytest.mark.parametrize(
        ("old", "new", "change", "reason"),
        [
            (["90_real"], ["90_virtual"], CHANGED, "cu has machine code for the GPU"),
            (["90_virtual"], ["90_real"], CHANGED, "cu has only PTX for it in OLD"),
            (["90_virtual"], ["90_virtual", "80_real"], SAME, ""),
        ],
    )
    def test_the_same_label_that_runs_in_another_way(
        self, old: list[str], new: list[str], change: str, reason: str
    ) -> None:
        pair = pairs_of(
            document({"cu": nvidia("12.0", sm=old)}),
            document({"cu": nvidia("12.0", sm=new)}),
        )["12.9", "9.0"]
        assert pair.change == change
        assert (pair.reason or "").startswith(reason)

    @pytest.mark.parametrize(
        ("features", "gpu", "words"),
        [
            (nvidia("12.0", sm=["90_virtual"]), "9.0", "only PTX"),
            (nvidia("12.0"), "9.0", "no sm_arch"),
            (nvidia(sm=["90_real"]), "9.0", "no cuda_version_lower_bound"),
            (
                nvidia("12.0", sm=["80_real"]),
                "8.7",
                "a driver for CUDA 13.2 on this GPU",
            ),
            (nvidia("13.1", sm=["80_real"]), "8.8", "built with CUDA before 13.2"),
            (nvidia("13.2", sm=["80_real"]), "8.7", None),
            (nvidia("12.0", sm=["60_real"]), "6.2", "does not run on this Jetson"),
            (nvidia("12.0", sm=["87_real"]), "8.9", "for a Jetson needs a driver"),
            (nvidia("11.0", sm=["72_real"]), "7.5", "code for a Jetson"),
            (nvidia("12.0", sm=["80_real"]), "8.6", None),
            (nvidia("12.0", sm=["87_real"]), "8.7", None),
        ],
    )
    def test_open_risks(
        self, features: dict[str, Any], gpu: str, words: str | None
    ) -> None:
        sample = document({"null": {}, "x": features})
        driver = "13.2" if "'13." in str(features) else "12.9"
        risk = pairs_of(sample, sample)[driver, gpu].risk
        assert len(risk) == (0 if words is None else 1)
        assert (words or "") in "".join(risk)

    def test_values_that_are_not_numbers_are_no_risk(self) -> None:
        odd = {
            "cuda_version_lower_bound": ["12.0", "newest"],
            "sm_arch": ["a_real", "real", "90_real"],
        }
        sample = document({"x": {"nvidia": odd}})
        assert pairs_of(sample, sample)["12.9", "9.0"].risk == ()


class TestNames:
    def test_names_of_releases(self, releases: list[Path]) -> None:
        old, new = map(read_metadata, releases[:2])
        assert release_names(old, new) == ("torch 2.8.0", "torch 2.9.1")
        assert release_names(old, old) == ("torch 2.8.0 (OLD)", "torch 2.8.0 (NEW)")


class TestDescription:
    @given(documents(), documents())
    @settings(max_examples=settings().max_examples // 6)
    def test_groups_partition_the_pairs(
        self, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        differences = find_differences(read_metadata(old), read_metadata(new))
        pairs = differences.pairs
        groups = make_groups(pairs, with_same=True)
        described = [pair.key for group in groups for pair in group]
        assert sorted(described) == sorted(pair.key for pair in pairs)
        listed: Counter[tuple[CudaVersion, ComputeCapability]] = Counter()
        for group in groups:
            for rectangle in differences.where(group):
                spread = read_rectangle(rectangle)
                listed.update(key for key in spread if can_exist(*key))
        assert listed == Counter(described)
        assert sum(differences.counts.values()) == len(pairs)

    def test_a_range_leaves_no_version_out(self) -> None:
        pairs = {(cuda, GPUS[0]) for cuda in (DRIVERS[0], DRIVERS[2])}
        known = {(cuda, gpu) for cuda in DRIVERS for gpu in GPUS}
        assert describe_pairs(pairs, known) == ["drivers 11.8, 12.9, GPU 5.2"]
        # No machine has a driver between the two.
        known = {key for key in known if key in pairs or key[1] != GPUS[0]}
        assert describe_pairs(pairs, known) == ["drivers 11.8-12.9, GPU 5.2"]


def read_rectangle(text: str) -> list[tuple[CudaVersion, ComputeCapability]]:
    """Return the pairs that a text such as ``drivers 12.6-12.9, GPU 9.0`` names."""
    match = re.fullmatch(r"drivers? (.*), GPUs? (.*)", text)
    assert match
    sides = []
    for part, known in zip(
        match.groups(), (driver_versions(), all_capabilities()), strict=True
    ):
        names = [str(item) for item in known]
        side: list[Any] = []
        for item in part.split(", "):
            first, _, last = item.partition("-")
            side += known[names.index(first) : names.index(last or first) + 1]
        sides.append(side)
    return [(cuda, gpu) for cuda in sides[0] for gpu in sides[1]]


class TestCommand:
    def test_a_release_that_loses_nothing(self, run: Run, releases: list[Path]) -> None:
        outcome = run(*releases[:2])
        assert (outcome.code, outcome.err) == (0, "")
        lines = outcome.out.splitlines()
        assert lines[0] == "torch 2.8.0 -> torch 2.9.1"
        summary = rf"0 lost, \d+ changed, 0 gained, \d+ same, of {EXISTING} pairs"
        assert re.fullmatch(summary, lines[-1])
        assert max(map(len, lines)) <= 80
        start = lines.index("changed: cu126 -> cu128")
        assert lines[start + 1 : start + 3] == [
            "  pairs:      drivers 12.8-13.0, GPUs 7.0-7.2",
            "  reason:     cu126 still fits, cu128 goes before it",
        ]

    def test_a_release_that_loses_pairs(
        self, run: Run, releases: list[Path], cu130_only: Path
    ) -> None:
        outcome = run(releases[1], cu130_only)
        assert (outcome.code, outcome.err) == (1, "")
        blocks = [block.splitlines() for block in outcome.out.split("\n\n")]
        lost = [block for block in blocks if block[0].startswith("lost: ")]
        assert lost
        for block in lost:
            names = dict.fromkeys(line[2:13].strip() for line in block[1:])
            kept_apart = ["pairs:", "reason:", "default:", "workaround:", "open risk:"]
            assert [name for name in names if name] == kept_apart
        summary = rf"\d+ lost, .* same, of {EXISTING} pairs"
        assert re.fullmatch(summary, blocks[-1][-1])

    def test_all_shows_the_pairs_that_stay_the_same(
        self, run: Run, releases: list[Path]
    ) -> None:
        same = run(releases[0], releases[0])
        assert same.out.splitlines()[1:] == [
            "",
            f"0 lost, 0 changed, 0 gained, {EXISTING} same, of {EXISTING} pairs",
        ]
        assert "same: cu129 -> cu129" in run(releases[0], releases[0], "--all").out

    def test_pairs_that_cannot_exist_are_set_apart(
        self, run: Run, releases: list[Path], cu130_only: Path
    ) -> None:
        plain = run(releases[1], cu130_only).out.splitlines()
        lines = run(releases[1], cu130_only, "--all-pairs").out.splitlines()
        assert lines[: len(plain) - 1] == plain[:-1]
        assert any(line.startswith("lost, if it existed: [cu1") for line in lines)
        assert lines[-1] == f"{plain[-1]}; {len(PAIRS) - EXISTING} more cannot exist"
        report = run(releases[1], cu130_only, "--all-pairs", "--json")
        pairs = json.loads(report.out)["data"]["pairs"]
        assert len(pairs) == len(PAIRS)
        assert sum(pair["exists"] for pair in pairs) == EXISTING

    def test_a_driver_that_cannot_exist_is_no_workaround(self) -> None:
        old = document({"null": {}, "x": nvidia("12.8", sm=["101_real"])})
        new = document({"null": {}, "x": nvidia("13.0", sm=["101_real"])})
        pair = pairs_of(old, new)["12.9", "10.1"]
        assert pair.change == LOST
        assert pair.workaround[-1] == "stay with OLD: it has x"
        assert not any("driver for CUDA" in way for way in pair.workaround)

    def test_the_report(self, run: Run, releases: list[Path], cu130_only: Path) -> None:
        outcome = run(releases[1], cu130_only, "--json")
        report = json.loads(outcome.out)
        assert (outcome.code, report["status"]) == (1, "findings")
        keys = ["cuda", "sm", "old", "new", "change", "reason", "workaround", "risk"]
        keys.append("exists")
        assert all(list(pair) == keys for pair in report["data"]["pairs"])
        assert len(report["data"]["pairs"]) == EXISTING
        assert run(releases[1], cu130_only, "--format", "json") == outcome

    def test_the_function_returns_what_the_command_reports(
        self, run: Run, releases: list[Path], cu130_only: Path
    ) -> None:
        differences = api.diff(releases[1], cu130_only.read_bytes())
        report = json.loads(run(releases[1], cu130_only, "--json").out)
        assert differences.to_dict()["pairs"] == report["data"]["pairs"]
        assert (differences.old, differences.new) == ("torch 2.9.1", "NEW")
        assert differences.counts[LOST] > 0

    @pytest.mark.parametrize("columns", [60, 100])
    def test_the_text_is_as_wide_as_the_terminal(
        self,
        columns: int,
        run: Run,
        releases: list[Path],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = run(*releases[:2]).out.splitlines()
        assert columns - 20 < max(map(len, lines)) <= columns

    def test_markdown(self, run: Run, releases: list[Path], cu130_only: Path) -> None:
        outcome = run(releases[1], cu130_only, "--format", "markdown")
        lines = outcome.out.splitlines()
        assert outcome.code == 1
        assert lines[0].startswith("# torch 2.9.1 to torch 2.11.0")
        assert "## Lost: `cu128` to cpu" in lines
        assert "- **workaround**: a driver for CUDA 13.0 gets cu130" in lines
        assert "sm\\_arch" in outcome.out

    def test_different_projects_are_noted(
        self, run: Run, releases: list[Path], tmp_path: Path
    ) -> None:
        other = tmp_path / "other-1-variants.json"
        other.write_text(releases[0].read_text())
        outcome = run(releases[0], other)
        assert outcome.code == 0
        assert (
            outcome.err == "warning: torch 2.8.0 and other 1 are different projects\n"
        )

    def test_errors_of_input_and_usage(self, run: Run, releases: list[Path]) -> None:
        assert run(releases[0], "missing").code == 3
        assert run(releases[0]).code == 2
        outcome = run("-", "-")
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
