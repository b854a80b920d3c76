"""The work that `validate` does once for all files, and its number of threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.containers import BINARIES, write_wheel
from support.paths import FIXTURES

from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.metadata import read_metadata
from nvidia_variant_provider.resolution import inputs
from nvp.cli import main
from nvp.gpu_code import inspection
from nvp.gpu_code.report import WheelReport
from nvp.lint import selection
from nvp.lint.runner import check_paths

FIXTURE = FIXTURES / "variants-json"
FILE = FIXTURE / "torch-2.8.0-variants.json"


def test_the_answer_of_a_machine_is_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    real = inputs.own_answer

    def counted(environment: Environment) -> inputs.Answer:
        asked.append(environment)
        return real(environment)

    monkeypatch.setattr(selection, "own_answer", counted)
    selection._answer.cache_clear()
    metadata = read_metadata(str(FILE))
    first = selection.find_shadowed(metadata)
    count = len(asked)
    assert count > 10
    assert selection.find_shadowed(metadata) == first
    assert len(asked) == count


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    plain = (BINARIES / "plain.so").read_bytes()
    info = "demo-1.0.dist-info"
    members = {
        "demo/a.so": plain,
        "demo/b.so": plain,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
    }
    return write_wheel(path, members)


@pytest.mark.parametrize("jobs", [1, 3])
def test_members_are_read_by_as_many_jobs(
    jobs: int,
    wheel: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    used: list[object] = []
    real = inspection.inspect_path

    def noted(source: str, **options: object) -> WheelReport:
        used.append(options["jobs"])
        return real(source, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(inspection, "inspect_path", noted)
    main(["validate", str(wheel), "--jobs", str(jobs), "--format", "json"])
    printed = json.loads(capsys.readouterr().out)["data"]["findings"]
    findings = [f.to_dict() for f in check_paths([wheel], jobs=jobs)]
    assert [f["code"] for f in printed] == [f["code"] for f in findings]
    assert used == [jobs, jobs]


@pytest.mark.parametrize("command", ["validate", "inspect"])
def test_no_job_is_a_usage_error(
    command: str, wheel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(wheel), "--jobs", "0"]) == 2
    assert "--jobs must be at least 1" in capsys.readouterr().err
