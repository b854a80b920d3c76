"""The commands `detect` and `properties`, and the options that name a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.version import Version
from support.command import CUDA, FORCED, SM, Run

from nvidia_variant_provider.machine.supported import catalog_capabilities
from nvp.knowledge.tables import driver_branches, gpu_models


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

    @pytest.mark.parametrize("command", ["detect", "properties"])
    def test_the_error_of_a_bad_flag_names_the_flag(
        self, command: str, run: Run
    ) -> None:
        outcome = run(command, "--sm-arch", "90")
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
        assert "Next: " in outcome.out

    def test_a_forced_gpu(self, run: Run) -> None:
        assert run("detect", *FORCED).out.splitlines() == [
            "CUDA version of the driver: 12.9",
            "Kernel driver:              unknown",
            "Source:                     forced",
            "GPU  Name     Compute capability  Problem",
            "0    unknown  7.5",
            f"Next: nvp releases torch {' '.join(FORCED)}",
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


class TestDriverNumbers:
    """``--cuda-driver`` also accepts the number of a driver."""

    @pytest.mark.parametrize(
        ("text", "cuda"),
        [
            ("550.54.15", "12.4"),
            ("550.54", "12.4"),
            ("570", "12.8"),
            (" 535.183.01", "12.2"),
            ("566.36", "12.7"),  # Windows, branch 565
            ("475.14", "11.4"),
            ("450.51", "11.0"),
        ],
    )
    def test_its_cuda_version_is_looked_up(
        self, text: str, cuda: str, run: Run
    ) -> None:
        outcome = run("detect", "--json", "--cuda-driver", text, "--sm-arch", "8.0")
        assert outcome.data["cuda_driver_version"] == cuda
        assert outcome.err == f"driver {text.strip()} is for CUDA {cuda}\n"

    def test_each_branch_of_the_table(self, run: Run) -> None:
        for branch, cuda in driver_branches().items():
            outcome = run("detect", "--json", "--cuda-driver", f"{branch}.10.02")
            assert outcome.data["cuda_driver_version"] == str(cuda)

    @pytest.mark.parametrize("text", ["30", "20.0", "99.9", "440.33", "700.1.2", "0"])
    def test_a_number_that_is_neither_is_refused(self, text: str, run: Run) -> None:
        outcome = run("detect", "--cuda-driver", text)
        assert (outcome.code, outcome.err) == (
            4,
            f"error: --cuda-driver: '{text}' is neither a CUDA version nor the number "
            "of a known driver; give the CUDA version that nvidia-smi shows, such as "
            "12.9\n",
        )

    @pytest.mark.parametrize(
        ("text", "meant"),
        [
            ("128", "12.8 was probably meant"),
            ("12080", "12.8 was probably meant"),
            ("cu128", "give a version such as 12.9"),
        ],
    )
    def test_what_was_meant(self, text: str, meant: str, run: Run) -> None:
        outcome = run("detect", "--cuda-driver", text)
        assert (outcome.code, outcome.err) == (
            4,
            f"error: --cuda-driver: '{text}' is not a CUDA version; {meant}\n",
        )

    @pytest.mark.parametrize("text", ["12", "13.0", "10.2", "12.9rc1", "15.20", "16.0"])
    def test_a_cuda_version_is_taken_as_it_is(self, text: str, run: Run) -> None:
        outcome = run("detect", "--json", "--cuda-driver", text)
        expected = Version(text).release if "." in text else (int(text), 0)
        assert outcome.data["cuda_driver_version"] == "{}.{}".format(*expected)
        assert outcome.err == ""


class TestCapabilities:
    @pytest.mark.parametrize("text", ["99.9", "0.0", "1.3", "13.0", "9.10", "120.0"])
    def test_one_that_no_gpu_has_is_refused(self, text: str, run: Run) -> None:
        outcome = run("detect", "--cuda-driver", "12.9", "--sm-arch", text)
        assert outcome.code == 4
        assert outcome.err == (
            f"error: --sm-arch: '{text}' is not the compute capability of any GPU; "
            f"give one such as 9.0; the newest that is known is {max(gpu_models())}\n"
        )

    def test_known_ones_and_all_of_the_catalog_pass(self, run: Run) -> None:
        for capability in [*gpu_models(), *catalog_capabilities()]:
            words = ["--cuda-driver", "12.9", "--sm-arch", capability]
            (gpu,) = run("detect", "--json", *words).data["gpus"]
            assert gpu["compute_capability"] == str(capability)

    @pytest.mark.parametrize("command", ["detect", "properties"])
    def test_a_gpu_without_a_driver(self, command: str, run: Run) -> None:
        outcome = run(command, "--sm-arch", "8.0")
        assert (outcome.code, outcome.out, outcome.err) == (
            2,
            "",
            "error: --sm-arch: names a GPU, but the machine has no NVIDIA driver; give "
            "its CUDA version as well, such as --cuda-driver 12.9\n",
        )


class TestNoGpu:
    def test_it_wins_over_the_variables(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(CUDA, "13.0")
        monkeypatch.setenv(SM, "9.0")
        assert run("detect", "--json", "--no-gpu").data == {
            "cuda_driver_version": None,
            "kernel_driver_version": None,
            "source": "forced",
            "reason": "no-device",
            "gpus": [],
        }
        outcome = run("properties", "--no-gpu")
        assert (outcome.code, outcome.out) == (0, "")

    @pytest.mark.parametrize(
        ("option", "value"),
        [("--cuda-driver", "12.9"), ("--sm-arch", "9.0"), ("--environment", "a.json")],
    )
    def test_another_machine_contradicts_it(
        self, option: str, value: str, run: Run
    ) -> None:
        outcome = run("detect", "--no-gpu", option, value)
        assert (outcome.code, outcome.err) == (
            2,
            f"error: --no-gpu and {option} contradict each other; give one of them\n",
        )
