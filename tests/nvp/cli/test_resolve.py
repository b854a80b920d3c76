"""The command `resolve`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import CUDA, FORCED, SM, Run


def test_the_session_of_the_tutorial(
    run: Run, torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CUDA, "12.9")
    monkeypatch.setenv(SM, "7.5")
    assert run("resolve", torch) == (
        0,
        "####################### torch==2.8.0; variant_hash=cu129 "
        "#######################\n"
        "Variant-property: nvidia :: cuda_version_lower_bound :: 12.9\n"
        "Variant-property: nvidia :: sm_arch :: 100_real\n"
        "Variant-property: nvidia :: sm_arch :: 120_real\n"
        "Variant-property: nvidia :: sm_arch :: 120_virtual\n"
        "Variant-property: nvidia :: sm_arch :: 75_real\n"
        "Variant-property: nvidia :: sm_arch :: 80_real\n"
        "Variant-property: nvidia :: sm_arch :: 86_real\n"
        "Variant-property: nvidia :: sm_arch :: 90_real\n" + "#" * 80 + "\n",
        "",
    )


@pytest.mark.parametrize(
    ("driver", "label"),
    [("12.5", "00000000"), ("12.6", "cu126"), ("12.8", "cu128"), ("13.0", "cu129")],
)
@pytest.mark.parametrize("sm", ["7.5", "9.0"])
def test_the_drivers_that_the_tutorial_proposes(
    driver: str, sm: str, label: str, run: Run, torch: Path
) -> None:
    outcome = run("resolve", torch, "--cuda-driver", driver, "--sm-arch", sm)
    assert outcome.code == 0
    assert f" torch==2.8.0; variant_hash={label} ".center(80, "#") in outcome.out


@pytest.mark.parametrize(
    ("sm", "label"), [("4.0", "00000000"), ("5.0", "cu126"), ("12.0", "cu129")]
)
def test_the_gpus_that_the_tutorial_proposes(
    sm: str, label: str, run: Run, torch: Path
) -> None:
    outcome = run("resolve", torch, "--cuda-driver", "12.9", "--sm-arch", sm, "--json")
    assert json.loads(outcome.out)["data"]["selected"] == label


class TestResolve:
    def test_explain_says_why_other_labels_lost(self, run: Run, torch: Path) -> None:
        outcome = run(
            "resolve", torch, "--cuda-driver", "12.8", "--sm-arch", "12.0", "--explain"
        )
        assert outcome.out.splitlines()[-3:] == [
            "Fits, best first: cu128, 00000000",
            "cu126 does not fit: it has no kernels for compute capability 12.0, only "
            "50_real, 60_real, 70_real, 75_real, 80_real, 86_real, 90_real",
            "cu129 does not fit: it needs a driver for CUDA 12.9 or newer, but this "
            "driver is for CUDA 12.8; its machine code would run under CUDA's "
            "minor-version compatibility "
            "(set NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY=1)",
        ]

    def test_nothing_compatible_is_exit_1_with_reasons(
        self, run: Run, torch: Path, tmp_path: Path
    ) -> None:
        document = json.loads(torch.read_text())
        del document["variants"]["00000000"]
        path = tmp_path / "torch-2.8.0-variants.json"
        path.write_text(json.dumps(document))
        outcome = run("resolve", path)
        assert outcome.code == 1
        assert outcome.out.startswith(
            "No label fits this machine.\ncu126 does not fit: "
        )
        report = json.loads(run("resolve", path, "--json").out)
        assert (report["status"], report["data"]["selected"]) == ("findings", None)

    def test_the_file_may_be_standard_input(
        self, run: Run, torch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stdin = io.TextIOWrapper(io.BytesIO(torch.read_bytes()))
        monkeypatch.setattr(sys, "stdin", stdin)
        outcome = run("resolve", "-", *FORCED)
        assert outcome.out.splitlines()[0] == " stdin; variant_hash=cu129 ".center(
            80, "#"
        )

    def test_the_file_may_be_a_folder(
        self, run: Run, torch: Path, tmp_path: Path
    ) -> None:
        (tmp_path / torch.name).write_bytes(torch.read_bytes())
        (tmp_path / "torch-2.8.0-py3-none-any-cu129.whl").touch()
        assert (
            "torch==2.8.0; variant_hash=cu129" in run("resolve", tmp_path, *FORCED).out
        )

    def test_a_folder_without_metadata(self, run: Run, tmp_path: Path) -> None:
        outcome = run("resolve", tmp_path)
        assert outcome.code == 3
        assert "the directory has no file *-variants.json" in outcome.err

    def test_a_folder_with_several_files(self, run: Run, tmp_path: Path) -> None:
        for version in ("2.8.0", "2.9.1"):
            (tmp_path / f"torch-{version}-variants.json").touch()
        outcome = run("resolve", tmp_path)
        assert outcome.code == 2
        assert "'torch-2.8.0-variants.json', 'torch-2.9.1-variants.json'" in outcome.err

    def test_underscores_of_a_file_name_become_dashes(
        self, run: Run, torch: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "my_torch-1.0-variants.json"
        path.write_bytes(torch.read_bytes())
        assert "# my-torch==1.0; " in run("resolve", path, *FORCED).out

    def test_minor_version_compatibility_accepts_newer_builds(
        self, run: Run, torch: Path
    ) -> None:
        arguments = ("resolve", torch, "--cuda-driver", "12.2", "--sm-arch", "8.0")
        assert "variant_hash=00000000" in run(*arguments).out
        outcome = run(*arguments, "--minor-version-compatibility")
        assert "variant_hash=cu126" in outcome.out
        lines = run("properties", *arguments[2:], "--minor-version-compatibility").out
        assert "nvidia :: cuda_version_lower_bound :: 12.20" in lines

    def test_every_gpu_needs_code_for_all_gpus(
        self, run: Run, torch: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "machine.json"
        gpus = [
            {"index": 0, "compute_capability": "12.0"},
            {"index": 1, "compute_capability": "7.0"},
        ]
        path.write_text(json.dumps({"cuda_driver_version": "12.9", "gpus": gpus}))
        arguments = ("resolve", torch, "--environment", path)
        outcome = run(*arguments)
        assert "variant_hash=cu129" in outcome.out
        assert "may have no kernels for 7.0" in outcome.err
        outcome = run(*arguments, "--every-gpu")
        assert "variant_hash=00000000" in outcome.out
        assert outcome.err == (
            "warning: no GPU build fits this machine; --explain says why\n"
        )

    def test_the_explanation_is_not_offered_twice(self, run: Run, torch: Path) -> None:
        machine = ("--cuda-driver", "11.0", "--sm-arch", "7.5")
        outcome = run("resolve", torch, *machine, "--explain")
        assert outcome.err == "warning: no GPU build fits this machine\n"

    def test_a_shared_reason_is_printed_once(self, run: Run, torch: Path) -> None:
        lines = run("resolve", torch, "--explain").out.splitlines()
        assert len(lines) == len(set(lines))
        assert lines[-1].startswith("Next: ")

    def test_notes_go_to_stderr(self, run: Run, torch: Path) -> None:
        outcome = run("resolve", torch, "--cuda-driver", "16.0", "--sm-arch", "9.0")
        assert outcome.code == 0
        assert outcome.err == (
            "warning: variant properties cannot name the driver's CUDA 16.0: "
            "it counts as 15.20\n"
        )


def test_resolve_imports_nothing_that_it_does_not_use(fixtures: Path) -> None:
    """Each of these would take a tenth of the time of the command, or more."""
    path = fixtures / "variants-json" / "schema-0.2.0" / "torch-2.8.0-variants.json"
    code = (
        "import sys; from nvp.cli import main;"
        f"main(['resolve', '--cuda-driver=12.9', '--sm-arch=9.0', {str(path)!r}]);"
        "print(sorted(set(sys.modules) & set(sys.argv[1:])), file=sys.stderr)"
    )
    unused = ["asyncio", "httpx", "logging", "packaging.tags", "rich", "subprocess"]
    unused += ["nvidia_variant_provider.detection.cache", "zipfile"]
    done = subprocess.run(
        [sys.executable, "-c", code, *unused],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "[]\n"
