"""The command `check`, on files that pin builds of the table."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from support.command import Run
from support.html_page import Page
from support.paths import ROOT

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
)
from nvp import api
from nvp.builds.vendors import newest_in_table
from nvp.builds.verdicts import judge
from nvp.checking import suggesting
from nvp.checking.model import CheckedPin
from nvp.checking.text import text_lines
from nvp.cli.render import wrap_line
from nvp.knowledge.builds import build_records
from nvp.matrix.cells import machine

COMMAND = "check"
LINUX = ("--offline", "--platform", "linux_x86_64", "--python-version", "3.12")
NODES = ROOT / "fixtures" / "inventories" / "kubernetes-nodes.json"
NEW = ("--cuda-driver", "13.0", "--sm-arch", "9.0")
OLD = ("--cuda-driver", "12.8", "--sm-arch", "9.0")
MACHINES = [
    ("11.8", "7.0"),
    ("12.2", "7.5"),
    ("12.4", "8.0"),
    ("12.8", "7.0"),
    ("12.8", "12.0"),
    ("13.0", "7.5"),
    ("13.0", "9.0"),
    ("13.2", "10.0"),
]


def environment(cuda: str, capability: str) -> Environment:
    return machine(CudaVersion.parse(cuda), ComputeCapability.parse(capability))


def write(folder: Path, *lines: str, name: str = "requirements.txt") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("words", [(), ("--suggest",), ("--format", "html")])
def test_packages_are_not_compared_in_pairs(
    words: tuple[str, ...],
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many, compared, related = 300, [0], suggesting._related

    def differs(self: CheckedPin, other: object) -> bool:
        compared[0] += 1
        return self is other

    def counted(name: str) -> frozenset[str]:
        compared[0] += 1
        return related(name)

    monkeypatch.setattr(CheckedPin, "__eq__", differs)
    monkeypatch.setattr(suggesting, "_related", counted)
    monkeypatch.chdir(tmp_path)
    names = (f"nvidia-x{i}-cu13==13.0\ndemo{i}==1.0+cu130" for i in range(many))
    path = write(tmp_path, *names)
    assert run(path, *LINUX, *OLD, *words).code == 1
    assert compared[0] < 20 * many


def test_a_directory_may_be_an_environment(run: Run, tmp_path: Path) -> None:
    outcome = run(tmp_path)
    assert outcome.code == 2
    assert f"for an environment: --python {tmp_path}\n" in outcome.err


def test_a_gpu_project_without_a_pin_is_unknown(run: Run, tmp_path: Path) -> None:
    names = ("torch>=2", "cupy-cuda12x", "cupy-cuda13x; python_version < '3'", "numpy")
    path = write(tmp_path, *names)
    outcome = run(path, *LINUX, *OLD, "--json")
    found = outcome.data["requirements"]
    assert [(x["name"], x["version"], x["line"], x["verdict"]) for x in found] == [
        ("torch", None, 1, "unknown"),
        ("cupy-cuda12x", None, 2, "unknown"),
    ]
    assert (outcome.code, outcome.data["unknown"]) == (0, 2)
    assert any(note.startswith("numpy in") for note in outcome.data["notes"])
    assert run(path, *LINUX, *OLD, "--strict").code == 1
    write(tmp_path, "numpy")
    assert run(path, *LINUX, *OLD, "--strict").code == 0
    write(tmp_path, "cupy-cuda13x")
    assert run(path, *LINUX, *OLD).code == 1


def test_files_may_stand_behind_options(run: Run, tmp_path: Path) -> None:
    first, second = (
        write(tmp_path, "torch==2.9.1", name=x) for x in ("a.txt", "b.txt")
    )
    outcome = run(first, *NEW, "--json", second, *LINUX)
    assert [file["path"] for file in outcome.data["files"]] == [str(first), str(second)]


def test_a_machine_without_a_driver_is_none_that_could_not_be_asked(
    run: Run, tmp_path: Path
) -> None:
    fleet = []
    for reason in ("no-device", "timeout", "no-gpu"):
        driver = "12.8" if reason == "no-gpu" else None
        snapshot: dict[str, object] = {
            "cuda_driver_version": driver,
            "gpus": [],
            "reason": reason,
        }
        (tmp_path / f"{reason}.json").write_text(json.dumps(snapshot))
        fleet += ["--fleet", tmp_path / f"{reason}.json"]
    outcome = run(write(tmp_path, "torch==2.9.1"), *LINUX, *fleet)
    assert "no NVIDIA driver: no-device" in outcome.out
    assert "an unknown driver, compute capability unknown: timeout" in outcome.out
    assert "CUDA 12.8, no GPU: no-gpu" in outcome.out
    assert "unknown on B: the driver could not be asked" in outcome.out


def test_a_requirement_of_many_characters_is_cut(run: Run, tmp_path: Path) -> None:
    metadata = {"name": "torchvision", "version": "0.1"}
    metadata["requires_dist"] = [f"torch=={'1.' * 3000}0"]  # type: ignore[assignment]
    torch = {"name": "torch", "version": "2.9.1"}
    installed = [{"metadata": metadata}, {"metadata": torch}]
    document = json.dumps({"version": "1", "installed": installed})
    outcome = run(write(tmp_path, document, name="a.json"), *LINUX, *NEW)
    assert "torchvision 0.1 requires" in outcome.out
    assert len(outcome.out) < 1000


def test_what_cannot_run_is_said_with_its_reason(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "torch==2.13.0", "requests==2.32.0", "numpy==2.3.0")
    outcome = run(path, *LINUX, *OLD, "--json")
    assert outcome.code == 1
    (found,) = outcome.data["requirements"]
    assert (found["name"], found["version"], found["line"]) == ("torch", "2.13.0", 1)
    assert (found["verdict"], found["evidence"]) == ("cannot", "table")
    assert "needs a driver for CUDA 13" in found["reasons"][0]
    assert outcome.data["unknown"] == 0
    assert run(path, *LINUX, *NEW).code == 0


def test_the_report_follows_its_schema(
    run: Run, tmp_path: Path, report_schema: Draft202012Validator
) -> None:
    path = write(tmp_path, "torch==2.13.0", "torchvision==0.28.0", "flash-attn==2.8.3")
    old = write(tmp_path, "torch==2.9.1", name="old.txt")
    for words in (
        (path, *OLD, "--suggest"),
        (path, "--fleet", NODES),
        (old, path, "--diff", *OLD),
    ):
        report = json.loads(run(*words, *LINUX, "--json").out)
        report_schema.validate(report)


def test_a_machine_without_a_driver(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "torch==2.9.1", "torch-scatter==2.1.2+pt28cpu")
    outcome = run(path, *LINUX, "--no-gpu", "--json")
    verdicts = {x["name"]: x["verdict"] for x in outcome.data["requirements"]}
    assert verdicts == {"torch": "cannot", "torch-scatter": "cpu"}


def test_unknown_fails_only_with_strict(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "flash-attn==2.8.3")
    assert run(path, *LINUX, *NEW).code == 0
    outcome = run(path, *LINUX, *NEW, "--strict", "--json")
    assert (outcome.code, outcome.data["unknown"]) == (1, 1)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["torch==2.9.1", "torchvision==0.24.0"], "torchvision 0.24.0 requires torch"),
        (["onnxruntime==1.23.0", "onnxruntime-gpu==1.23.0"], "files of the same names"),
        (
            ["nvidia-cublas-cu12==12.8.4.1", "nvidia-cublas-cu11==11.11.3.6"],
            "are one library for two CUDA majors",
        ),
        (
            ["torch==2.8.0+cu128", "flash-attn==2.8.3+cu11torch2.8"],
            "is for CUDA 11, and torch",
        ),
        (["cupy-cuda12x==13.6.0", "cupy==13.6.0"], "files of the same names"),
        (["torch==2.8.0+cu128", "flash-attn==2.8.3+cu12torch2.7"], "requires torch"),
    ],
)
def test_what_does_not_belong_together(
    lines: list[str], said: str, run: Run, tmp_path: Path
) -> None:
    outcome = run(write(tmp_path, *lines), *LINUX, *NEW, "--json")
    assert any(said in x["message"] for x in outcome.data["disagreements"])
    errors = [x for x in outcome.data["disagreements"] if x["severity"] == "error"]
    assert outcome.code == (1 if errors else 0)


def test_what_belongs_together_is_no_disagreement(run: Run, tmp_path: Path) -> None:
    lines = ["torch==2.9.1", "torchvision==0.24.1", "bitsandbytes==0.48.2"]
    lines += ["nvidia-cublas-cu12==12.8.4.1", "nvidia-cudnn-cu12==9.10.2.21"]
    lines += ["jax-cuda12-plugin==0.8.0", "jax-cuda12-pjrt==0.8.0"]
    outcome = run(write(tmp_path, *lines), *LINUX, *NEW, "--json")
    assert outcome.data["disagreements"] == []


@pytest.mark.parametrize(("cuda", "capability"), MACHINES)
def test_the_verdicts_are_those_of_the_judge(cuda: str, capability: str) -> None:
    """Each release of the table, one file each: the judge of `releases` decides."""
    here = environment(cuda, capability)
    for project in ("torch", "cupy-cuda12x", "onnxruntime-gpu"):
        rows = [x for x in build_records()[project] if x.platform == "linux_x86_64"]
        for row in rows[::7]:
            version = f"{row.version}+{row.label}" if row.label else row.version
            path = write(Path.cwd(), f"{project}=={version}")
            report = api.check(
                path, environment=here, platforms=["linux_x86_64"], offline=True
            )
            (found,) = report.files[0].pins
            expected = judge(row.needs, here, near=found.known.near)
            assert found.worst.verdict == expected.verdict
            if expected.verdict == "cannot":
                assert found.worst.reasons == expected.reasons


def test_a_fleet_has_a_column_for_each_group(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "torch==2.9.1")
    outcome = run(path, *LINUX, "--fleet", NODES, "--json")
    verdicts = {
        x["name"]: x["verdict"] for x in outcome.data["requirements"][0]["machines"]
    }
    assert verdicts["h100-a"] == "runs"
    assert verdicts["half-a-label"] == "unknown"
    text = run(path, *LINUX, "--fleet", NODES).out
    assert fits(text.splitlines(), 80)
    assert "half-a-label" in text


def fits(lines: list[str], width: int) -> bool:
    """Return whether all lines fit, except those with a long word or command."""
    long = [x for x in lines if len(x) > width and not x.startswith("  #   nvp ")]
    return all(len(max(line.split(), key=len)) > width - 10 for line in long)


def test_the_text_fits_narrow_terminals(tmp_path: Path) -> None:
    lines = ["torch==2.13.0", "torchvision==0.28.0", "vllm==0.22.1"]
    path = write(tmp_path, *lines)
    report = api.check(
        path, environment=environment("12.8", "7.0"), offline=True, suggest=True
    )
    for width in (40, 60, 80):
        lines = text_lines(report, width=width)
        wrapped = [x for line in lines for x in wrap_line(line, width, hang="    ")]
        assert fits(wrapped, width)


def test_suggestions_move_what_belongs_together(run: Run, tmp_path: Path) -> None:
    lines = ["torch==2.13.0", "torchvision==0.28.0", "torchaudio==2.11.0"]
    path = write(tmp_path, *lines, "nvidia-cublas==13.1.0.3", "numpy==2.3.0")
    outcome = run(path, *LINUX, *OLD, "--suggest", "--json")
    (found,) = outcome.data["suggestions"]
    again = [line for line in found["lines"] if not line.startswith("#")]
    assert {line.partition("==")[0] for line in again} == {
        *("torch", "torchvision", "torchaudio"),
    }
    assert any("remove the pins of nvidia-cublas" in line for line in found["lines"])
    assert "torch==2.10.0" in found["lines"]
    pasted = write(tmp_path, *found["lines"], name="pasted.txt")
    assert run(pasted, *LINUX, *OLD).code == 0


def test_a_suggested_command_is_for_the_machine_that_is_named(
    run: Run, tmp_path: Path
) -> None:
    path = write(tmp_path, "torch==2.15.0")
    words = (*LINUX, "--offline", "--suggest")
    for target in (("--cuda-driver", "12.8", "--sm-arch", "8.0"), ("--fleet", NODES)):
        lines = run(path, *words, *target).out.splitlines()
        for line in [line for line in lines if "nvp pip" in line]:
            assert line.startswith("  #   nvp pip download --index-url https://")
            assert " torch --platform " in line
            assert "--cuda-driver 12" in line
            assert "--sm-arch " in line
    detected = environment("12.8", "8.0").replace(source="nvml")
    report = api.check(path, environment=detected, offline=True, suggest=True)
    (found,) = report.suggestions
    assert found.lines[-1].startswith("#   nvp pip install --index-url https://")
    assert found.lines[-1].endswith("/cu126 torch")


def test_a_suggestion_is_the_newest_that_runs(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "torch==2.15.0")
    for cuda, capability in MACHINES:
        here = environment(cuda, capability)
        words = ("--cuda-driver", cuda, "--sm-arch", capability)
        outcome = run(path, *LINUX, *words, "--suggest", "--json")
        if outcome.code == 0:
            assert outcome.data["suggestions"] == []
            continue
        newest = newest_in_table("torch", here, "linux_x86_64")
        (found,) = outcome.data["suggestions"]
        assert [x for x in found["lines"] if x[0] != "#"] == [f"torch=={newest}"]


def test_a_sibling_for_an_older_cuda_is_suggested(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "cupy-cuda13x==13.6.0")
    outcome = run(path, *LINUX, *OLD, "--suggest", "--json")
    (found,) = outcome.data["suggestions"]
    assert found["lines"][0] == "cupy-cuda12x==13.6.0"


class TestDiff:
    def test_a_loss_fails(self, run: Run, tmp_path: Path) -> None:
        old = write(tmp_path, "torch==2.9.1", name="old.txt")
        new = write(tmp_path, "torch==2.13.0", name="new.txt")
        outcome = run(old, new, "--diff", *LINUX, *OLD, "--json")
        assert outcome.code == 1
        (change,) = outcome.data["changes"]
        assert (change["change"], change["before"], change["after"]) == (
            *("lost", "runs", "cannot"),
        )
        assert run(new, old, "--diff", *LINUX, *OLD).code == 0
        assert run(old, new, "--diff", *LINUX, *NEW).code == 0

    def test_every_driver_counts_where_there_is_no_gpu(
        self, run: Run, tmp_path: Path
    ) -> None:
        old = write(tmp_path, "torch==2.9.1", name="old.txt")
        new = write(tmp_path, "torch==2.13.0", name="new.txt")
        outcome = run(old, new, "--diff", *LINUX)
        assert outcome.code == 1
        assert "12.0-12.9" in outcome.out

    def test_what_never_ran_is_not_lost(self, run: Run, tmp_path: Path) -> None:
        old = write(tmp_path, "torch==2.12.0", name="old.txt")
        new = write(tmp_path, "torch==2.13.0", name="new.txt")
        outcome = run(old, new, "--diff", *LINUX, *OLD)
        first, *_ = outcome.out.splitlines()
        assert (outcome.code, first) == (0, "No machine loses anything.")


def test_documents_name_the_line_of_the_pin(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "requests==2.32.0", "torch==2.13.0")
    annotations = run(path, *LINUX, *OLD, "--format", "github").out
    assert f"file={path},line=2".replace(":", "%3A") in annotations
    log = json.loads(run(path, *LINUX, *OLD, "--format", "sarif").out)
    (result,) = log["runs"][0]["results"]
    assert result["ruleId"] == "NC101"
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region["startLine"] == 2


def test_the_page_has_a_row_for_each_build(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "torch==2.13.0", "torchvision==0.28.0")
    outcome = run(path, *LINUX, "--fleet", NODES, "--format", "html")
    page = Page(outcome.out)
    assert "torch 2.13.0" in page.text
    assert "viewport" in outcome.out
    assert outcome.out.isascii()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["missing.txt"], 3),
        (["a.txt", "--diff"], 2),
        (["-", "-"], 2),
        (["a.txt", "--fleet", "b.json", "--no-gpu"], 2),
        (["a.txt", "--extra", "gpu"], 2),
        (["a.txt", "b.txt", "--diff", "--format", "sarif"], 2),
    ],
)
def test_wrong_words_end_in_one_line(words: list[str], code: int, run: Run) -> None:
    write(Path.cwd(), "torch==2.9.1", name="a.txt")
    outcome = run(*words)
    assert outcome.code == code
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows reserves the colon in names")
def test_the_name_of_a_file_is_no_annotation(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull request could name a file so that ``nvp check *.txt`` annotates code."""
    monkeypatch.chdir(tmp_path)
    names = ["::error file=app.py,line=1::a.txt", "::notice file=b.py::b.txt"]
    for name in names:
        Path(name).write_text("torch==2.9.1\n")
    outcome = run(*names, *LINUX, *NEW)
    assert r"\u003a:error file=app.py" in outcome.out
    lines = (outcome.out + outcome.err).splitlines()
    assert not [line for line in lines if line.lstrip().startswith("::")]
