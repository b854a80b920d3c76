"""The verbs `detect` and `properties`, and the options that name a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import CUDA, FORCED, SM, Run


class TestMachineOptions:
    def test_flags_win_over_variables(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(CUDA, "13.0")
        monkeypatch.setenv(SM, "9.0")
        data = json.loads(run("detect", "--json", "--cuda-driver", "12.4").out)["data"]
        assert data["cuda_driver_version"] == "12.4"
        assert data["gpus"][0]["compute_capability"] == "9.0"

    def test_a_snapshot_and_flags(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "machine.json"
        path.write_text(run("detect", "--json", *FORCED).out)
        monkeypatch.setenv(CUDA, "13.0")
        data = json.loads(run("detect", "--json", "--environment", path).out)["data"]
        assert (data["cuda_driver_version"], data["source"]) == ("12.9", "snapshot")
        outcome = run("detect", "--json", "--environment", path, "--sm-arch", "9.0")
        data = json.loads(outcome.out)["data"]
        assert data["gpus"][0]["compute_capability"] == "9.0"
        assert data["source"] == "snapshot+forced"

    def test_a_snapshot_that_is_not_valid(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "machine.json"
        path.write_text('{"gpus": []}')
        outcome = run("properties", "--environment", path)
        assert (outcome.code, outcome.out) == (3, "")
        assert outcome.err.startswith(
            f"error: {path}: top level: cuda_driver_version is"
        )

    @pytest.mark.parametrize("verb", ["detect", "properties"])
    def test_the_error_of_a_bad_flag_names_the_flag(self, verb: str, run: Run) -> None:
        outcome = run(verb, "--sm-arch", "90")
        assert outcome.code == 4
        assert outcome.err == (
            "error: --sm-arch: '90' is not a compute capability; give MAJOR.MINOR "
            "such as 9.0\n"
        )

    def test_an_empty_flag_is_an_error(self, run: Run) -> None:
        outcome = run("detect", "--cuda-driver", "")
        assert (outcome.code, outcome.err) == (
            4,
            "error: --cuda-driver: is empty; give a value\n",
        )

    def test_the_error_of_a_bad_variable_names_the_variable(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(CUDA, "abc")
        outcome = run("detect", "--sm-arch", "9.0")
        assert outcome.code == 4
        assert outcome.err.startswith(f"error: {CUDA}: 'abc' is not a CUDA version")


class TestDetect:
    def test_a_machine_without_a_gpu(self, run: Run) -> None:
        outcome = run("detect")
        assert outcome.code == 0
        assert "no-device: no NVIDIA device or driver was found" in outcome.out
        assert "Next step: " in outcome.out

    def test_a_forced_gpu(self, run: Run) -> None:
        assert run("detect", *FORCED).out.splitlines() == [
            "CUDA version of the driver: 12.9",
            "Kernel driver:              unknown",
            "Source:                     forced",
            "GPU  Name     Compute capability  Problem",
            "0    unknown  7.5",
        ]

    def test_a_snapshot_cannot_send_escapes_to_the_terminal(
        self, run: Run, tmp_path: Path
    ) -> None:
        path = tmp_path / "machine.json"
        gpus = [{"index": 0, "name": "\x1b[31mred\n", "compute_capability": "9.0"}]
        path.write_text(json.dumps({"cuda_driver_version": "12.9", "gpus": gpus}))
        assert r"\x1b[31mred\n" in run("detect", "--environment", path).out


class TestProperties:
    def test_properties_of_a_forced_machine(self, run: Run) -> None:
        outcome = run("properties", *FORCED)
        lines = outcome.out.splitlines()
        assert lines[0] == "nvidia :: cuda_version_lower_bound :: 12.9"
        assert lines[-1] == "nvidia :: sm_arch :: 70_virtual"
        assert (outcome.code, outcome.err) == (0, "")

    def test_all_properties(self, run: Run) -> None:
        lines = run("properties", "--all").out.splitlines()
        assert len(lines) == 110 + 110 + 160

    def test_empty_output_is_explained(self, run: Run) -> None:
        outcome = run("properties")
        assert (outcome.code, outcome.out) == (0, "")
        assert outcome.err.startswith("warning: no-device: ")
