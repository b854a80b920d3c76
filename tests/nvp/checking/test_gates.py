"""The hook for pre-commit and the action, which run `check` for others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.paths import ROOT

NODES = ROOT / "fixtures" / "inventories" / "kubernetes-nodes.json"

pytestmark = pytest.mark.skipif(
    not (shutil.which("bash") and shutil.which("git")), reason="needs bash and git"
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a repository with a last commit after which the machines lose torch."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@a.example"]
    subprocess.run([*git, "init", "-q"], cwd=folder, check=True)
    for version in ("2.9.1", "2.13.0"):
        (folder / "requirements.txt").write_text(f"torch=={version}\n")
        subprocess.run([*git, "add", "."], cwd=folder, check=True)
        subprocess.run([*git, "commit", "-qm", version], cwd=folder, check=True)
    return folder


def run_action(repository: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the last step of the action, with the `nvp` of the tests."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step = action["runs"]["steps"][-1]
    temp = repository.parent / "temp"
    program = temp / "nvp" / "bin" / "nvp"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nvp "$@"\n')
    program.chmod(0o755)
    given = {name: text.get("default", "") for name, text in action["inputs"].items()}
    given |= inputs
    environ = {
        **os.environ,
        "RUNNER_TEMP": str(temp),
        **{
            name: given[re.sub(r".*inputs\.(\w+).*", r"\1", text)]
            for name, text in step["env"].items()
        },
    }
    # GitHub runs the steps of bash with these options.
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(
        words, cwd=repository, env=environ, capture_output=True, text=True, check=False
    )


def test_the_action_runs_no_module_of_the_checkout(tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    script = action["runs"]["steps"][0]["run"]
    (line,) = [x for x in script.splitlines() if x.startswith("python3")]
    (tmp_path / "venv.py").write_text("raise SystemExit('not the real one')")
    done = subprocess.run(
        ["bash", "-euc", f"{line} --help"],
        cwd=tmp_path,
        env={**os.environ, "RUNNER_TEMP": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "virtual environment" in done.stdout.lower()


LINUX = "--offline --platform linux_x86_64 --python-version 3.12"


def test_the_action_annotates_what_cannot_run(repository: Path) -> None:
    (repository / "fine.txt").write_text("numpy==2.3.4\n")
    done = run_action(
        repository,
        files="fine.txt\nrequirements.txt\n",  # in YAML, after: files: |
        fleet=str(NODES),
        arguments=LINUX,
    )
    assert done.returncode == 1, done.stderr
    assert "::error file=requirements.txt,line=1" in done.stdout


@pytest.mark.parametrize(("base", "code"), [("HEAD~1", 1), ("HEAD", 0)])
def test_the_action_fails_for_a_loss(base: str, code: int, repository: Path) -> None:
    done = run_action(
        repository,
        files="requirements.txt",
        fleet=str(NODES),
        base=base,
        arguments=LINUX,
    )
    assert done.returncode == code, done.stderr
    assert ("lost: torch 2.9.1" in done.stdout) is bool(code)


@pytest.mark.parametrize(
    ("name", "matches"),
    [
        *((x, True) for x in ("uv.lock", "a/poetry.lock", "pdm.lock", "Pipfile.lock")),
        *((x, True) for x in ("pylock.toml", "pylock.gpu.toml", "requirements-a.txt")),
        *((x, False) for x in ("Cargo.lock", "pyproject.toml", "notes.txt")),
    ],
)
def test_the_hook_takes_what_check_reads(name: str, matches: bool) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (hook,) = [each for each in hooks if each["id"] == "check-lock-files"]
    assert bool(re.search(hook["files"], name)) is matches
    assert hook["entry"].split()[:2] == ["nvp", "check"]
