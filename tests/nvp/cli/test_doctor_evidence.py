"""`doctor --workload`, `--receipt`, `--against`, and `diff` of two receipts."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.command import Outcome, Run
from support.stacks import Installed, make_environment

PYTHON = shlex.quote(sys.executable)
PASSES = f"{PYTHON} -c pass"
FAILS = f"{PYTHON} -c 'raise SystemExit(5)'"
BREAKS = f"{PYTHON} -c 'print(\"Graph break in user code at a.py:3\")'"
TORCH = Installed(name="torch", version="2.15.0", files={"torch.py": b""})


@pytest.fixture
def env(tmp_path: Path) -> Path:
    prefix = tmp_path / "env"
    make_environment(prefix, TORCH)
    return prefix


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def codes(outcome: Outcome) -> list[str]:
    """The findings about workloads and receipts; this machine may have an nvcc."""
    found = [item["code"] for item in outcome.data["checks"]]
    return [code for code in found if code.startswith(("ND6", "ND7"))]


def test_workloads_in_the_report(
    run: Run, env: Path, report_schema: Draft202012Validator
) -> None:
    outcome = run(
        *("doctor", "--python", env, "--workload", PASSES, "--workload", FAILS),
        *("--workload", BREAKS, "--json"),
    )
    assert outcome.code == 1
    report_schema.validate(json.loads(outcome.out))
    names = [item["outcome"] for item in outcome.data["workloads"]]
    assert names == ["passed", "failed", "passed"]
    assert codes(outcome) == ["ND604", "ND605"]
    assert outcome.data["receipt"] is None


def test_a_broken_graph_is_a_warning(run: Run, env: Path) -> None:
    outcome = run("doctor", "--python", env, "--workload", BREAKS)
    assert outcome.code == 0
    assert "ND605 warning: " in outcome.out
    assert "Workload:    " in outcome.out


def test_a_receipt_in_both_forms(
    run: Run,
    env: Path,
    tmp_path: Path,
    receipt_schema: Draft202012Validator,
    report_schema: Draft202012Validator,
) -> None:
    data, page = tmp_path / "r.json", tmp_path / "r.md"
    outcome = run(
        *(
            "doctor",
            "--python",
            env,
            "--workload",
            PASSES,
            "--reason",
            "torch=it compiles",
        ),
        *("--receipt", data, "--receipt", page, "--json"),
    )
    assert outcome.code == 0
    report_schema.validate(json.loads(outcome.out))
    receipt = read(data)
    receipt_schema.validate(receipt)
    assert receipt == outcome.data["receipt"]
    assert receipt["distributions"][0]["reason"] == "it compiles"
    assert "| torch | 2.15.0 |" in page.read_text()


def test_against_a_receipt(run: Run, env: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert (
        run("doctor", "--python", env, "--workload", PASSES, "--receipt", path).code
        == 0
    )
    outcome = run("doctor", "--python", env, "--against", path, "--json")
    assert outcome.code == 0
    assert codes(outcome) == []
    assert [item["command"] for item in outcome.data["workloads"]] == [PASSES]
    # A newer torch, for which a workload fails, and a new receipt over the old one.
    make_environment(env, Installed(name="torch", version="2.16.0", recorded=False))
    old = env / "lib/python3.11/site-packages/torch-2.15.0.dist-info"
    old.rename(old.with_name("gone"))
    receipt = read(path)
    receipt["workloads"][0]["command"] = FAILS
    path.write_text(json.dumps(receipt))
    outcome = run(
        "doctor", "--python", env, "--against", path, "--receipt", path, "--json"
    )
    assert outcome.code == 1
    assert codes(outcome) == ["ND604", "ND701", "ND701"]
    assert read(path)["distributions"][0]["version"] == "2.16.0"
    assert read(path)["findings"] == []


@pytest.mark.parametrize(
    ("name", "version", "hint"),
    [
        ("torch", "2.14.0", "install torch==2.14.0, or write a new receipt"),
        (
            "torch",
            "2.15.0",
            "install --force-reinstall --no-deps torch==2.15.0, or write a new receipt",
        ),
        ("torch", "1 --index-url=http://x", "install what the receipt names, "),
        ("--index-url=http://x", "1", "install what the receipt names, "),
        (None, "", "uninstall --yes torch, or write a new receipt"),
    ],
)
def test_the_command_that_brings_a_distribution_back(
    name: str | None, version: str, hint: str, run: Run, env: Path
) -> None:
    path = env.parent / "r.json"
    assert run("doctor", "--python", env, "--receipt", path).code == 0
    receipt = read(path)
    (torch,) = receipt["distributions"]
    receipt["distributions"] = [] if name is None else [torch]
    torch |= {"name": name, "version": version, "record": "sha256:0"}
    path.write_text(json.dumps(receipt))
    outcome = run("doctor", "--python", env, "--against", path, "--json")
    hints = [item["hint"] for item in outcome.data["checks"]]
    assert any(hint in item for item in hints)
    assert not any("--index-url" in item for item in hints)


def test_against_for_another_machine(run: Run, env: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert (
        run("doctor", "--python", env, "--workload", PASSES, "--receipt", path).code
        == 0
    )
    outcome = run(
        *("doctor", "--python", env, "--against", path, "--cuda-driver", "12.8"),
        *("--sm-arch", "9.0", "--json"),
    )
    assert outcome.data["workloads"] == []
    assert codes(outcome) == ["ND701", "ND701"]
    assert "the workloads of the receipt were not run" in outcome.err


def test_the_deadline_of_the_receipt_counts(
    run: Run, env: Path, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    words = ("doctor", "--python", env, "--workload", PASSES, "--deadline", "77.5")
    assert run(*words, "--receipt", path).code == 0
    again = run("doctor", "--python", env, "--against", path, "--json")
    assert again.data["workloads"][0]["deadline"] == 77.5
    given = run(
        "doctor", "--python", env, "--against", path, "--deadline", "88", "--json"
    )
    assert given.data["workloads"][0]["deadline"] == 88


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workload", ""), "is not a command"),
        (("--workload", "a 'b"), "no closing quotation"),
        (("--workload", "a " + "b" * 40_000), "is longer than 32,768 characters"),
        (("--deadline", "5"), "--deadline: there is no workload"),
        (("--deadline", "0", "--workload", "x"), "is not a number of seconds"),
        (("--deadline", "nan", "--workload", "x"), "is not a number of seconds"),
        (("--deadline", "1e99", "--workload", "x"), "is not a number of seconds"),
        (("--reason", "x"), "there is no receipt that would have it"),
        (("--receipt", "r.txt"), "the name has no known ending"),
        (("--workload", "x", "--sm-arch", "9.0"), "the options name another machine"),
        (("--receipt", "r.json", "--reason", "nope=x"), "is neither a distribution"),
    ],
)
def test_a_wrong_command_line(
    run: Run, env: Path, words: tuple[str, ...], message: str
) -> None:
    outcome = run("doctor", "--python", env, *words)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") <= 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"receipt_version": 9}', "# Receipt"])
def test_against_what_is_no_receipt(
    run: Run, env: Path, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    outcome = run("doctor", "--python", env, "--against", path, "--json")
    assert outcome.code == 3
    (error,) = json.loads(outcome.out)["errors"]
    assert error["path"] == str(path)


def test_a_receipt_that_cannot_be_written_loses_nothing(
    run: Run, env: Path, tmp_path: Path
) -> None:
    # The workload itself removes the directory of the receipt.
    folder = tmp_path / "out"
    folder.mkdir()
    source = f"import os; os.rmdir({str(folder)!r})"
    workload = f"{PYTHON} -c {shlex.quote(source)}"
    kept = tmp_path / "kept.json"
    outcome = run(
        *("doctor", "--python", env, "--workload", workload, "--json"),
        *("--receipt", folder / "r.json", "--receipt", kept),
    )
    assert outcome.code == 3
    assert outcome.data["workloads"][0]["outcome"] == "passed"
    (error,) = json.loads(outcome.out)["errors"]
    assert error["path"] == str(folder / "r.json")
    assert read(kept)["workloads"][0]["outcome"] == "passed"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGQUIT"])  # Ctrl-\ sends SIGQUIT
def test_the_end_of_doctor_is_the_end_of_its_workload(
    name: str, env: Path, tmp_path: Path
) -> None:
    pid, number = tmp_path / "pid", getattr(signal, name, signal.SIGTERM)
    source = (
        "import os, time\n"
        f"open({str(pid)!r}, 'w').write(str(os.getpid()))\n"
        f"os.kill(os.getppid(), {int(number)})\n"
        "time.sleep(600)\n"
    )
    words = ["doctor", "--python", str(env), "--workload"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "nvp", *words),
            f"{PYTHON} -c {shlex.quote(source)}",
        ],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 128 + number
    assert b"Traceback" not in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.skipif(sys.platform == "win32", reason="ptxas is a script here")
def test_the_end_of_doctor_is_the_end_of_a_ptxas(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"#!/bin/sh\necho $$ > {pid}\nkill -TERM $PPID\nexec sleep 600\n"
    path = "triton/backends/nvidia/bin/ptxas"
    triton = Installed(name="triton", files={path: script.encode()})
    packages = make_environment(tmp_path / "env", triton)
    (packages / path).chmod(0o755)
    words = ["-m", "nvp", "doctor", "--python"]
    done = subprocess.run(
        [sys.executable, *words, str(tmp_path / "env")],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


class TestDiff:
    @pytest.fixture
    def receipts(self, run: Run, env: Path, tmp_path: Path) -> tuple[Path, Path]:
        old, new = tmp_path / "old.json", tmp_path / "new.json"
        assert (
            run("doctor", "--python", env, "--workload", PASSES, "--receipt", old).code
            == 0
        )
        receipt = read(old)
        receipt["distributions"][0]["version"] = "2.16.0"
        new.write_text(json.dumps(receipt))
        return old, new

    def test_a_changed_version(
        self,
        run: Run,
        receipts: tuple[Path, Path],
        report_schema: Draft202012Validator,
    ) -> None:
        outcome = run("diff", *receipts, "--json")
        assert outcome.code == 0
        report_schema.validate(json.loads(outcome.out))
        changed = [x for x in outcome.data["receipt_facts"] if x["change"] != "same"]
        assert [(fact["kind"], fact["name"]) for fact in changed] == [
            ("distribution", "torch")
        ]

    def test_a_lost_workload(self, run: Run, receipts: tuple[Path, Path]) -> None:
        receipt = read(receipts[1])
        receipt["workloads"] = []
        receipts[1].write_text(json.dumps(receipt))
        outcome = run("diff", *receipts, "--format", "markdown")
        assert outcome.code == 1
        assert "| lost | workload |" in outcome.out

    def test_a_receipt_and_a_release(
        self, run: Run, receipts: tuple[Path, Path], torch: Path
    ) -> None:
        for pair in ((receipts[0], torch), (torch, receipts[0])):
            outcome = run("diff", *pair)
            assert outcome.code == 2
            assert "is no receipt, and the other file is one" in outcome.err

    def test_a_damaged_receipt(self, run: Run, receipts: tuple[Path, Path]) -> None:
        receipts[1].write_text('{"receipt_version": 1')
        assert run("diff", *receipts).code == 3

    def test_an_option_for_releases(
        self, run: Run, receipts: tuple[Path, Path]
    ) -> None:
        outcome = run("diff", *receipts, "--assume", "intel")
        assert outcome.code == 2
        assert "--assume has no effect on receipts" in outcome.err
