"""``pip``: the options of the command, reports, signals and exit codes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from support.builds import gpu_build, metadata
from support.processes import (
    PIPS,
    Environment,
    Pip,
    installed_labels,
    make_environment,
    provider,
)
from support.range_server import Answer, serve_answers
from support.wheels import publish, stub_wheel, write_page

NEWEST = PIPS[-1]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_pins(pip: Pip, index: str, tmp_path: Path) -> None:
    """PEP 825 forbids selecting a variant that does not fit."""
    target = tmp_path / "it"
    words = ("install", "-i", index, "--no-deps", "--upgrade", "--target", target)
    done = pip(*words, "--label", "plain", "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == {"torch": "2.8.0 plain"}
    assert "warning" not in done.err
    done = pip(*words, "torch==2.7.0", "--label=Torch=cu130")
    assert done.code == 1, done.text
    assert installed_labels(target) == {"torch": "2.8.0 plain"}
    message = (
        "warning: torch==2.8.0: cu130 does not fit this machine: it needs a driver"
    )
    assert message in done.err


@pytest.mark.parametrize(
    "words",
    [["--label=torch=cu1"], pytest.param(["--label", "cu999"], marks=pytest.mark.slow)],
)
def test_a_pinned_label_that_the_project_does_not_have(
    words: list[str], pip: Pip, index: str, tmp_path: Path
) -> None:
    target = tmp_path / "it"
    done = pip("install", "-i", index, "--target", target, *words, "torch")
    assert done.code == 1, done.text
    label = words[-1].rpartition("=")[2]
    assert f"warning: no release of torch has the label {label}" in done.err
    assert "it has cu126, cu130, null, plain" in done.err
    assert not target.exists()


@pytest.mark.slow
def test_a_pinned_label_that_nothing_has(pip: Pip, index: str) -> None:
    words = ("install", "-i", index, "--dry-run", "--no-deps", "torch")
    done = pip(*words, "--label", "unheard")
    assert done.code == 1, done.text
    assert done.err.splitlines()[-1] == (
        "error: no project that you name has the label unheard, so pip was not "
        "started: torch has cu126, cu130, null, plain; for a dependency, give --label "
        "PROJECT=unheard"
    )
    assert "Would install" not in done.text
    done = pip(*words, "--label", "cu126", "--no-variants")
    assert (done.code, done.out) == (2, "")
    assert "--label and --no-variants contradict each other" in done.err


@pytest.mark.slow
def test_a_pinned_label_that_a_dependency_may_have(
    pip: Pip, index: str, tmp_path: Path
) -> None:
    """The page of the dependency is read when pip requests the page."""
    stub_wheel(tmp_path, "app", "1.0", requires=["torch"])
    words = ("install", "-i", index, "--dry-run", "--find-links", tmp_path, "app")
    done = pip(*words, "--label", "plain")
    assert done.code == 0, done.text
    done = pip(*words, "--label", "unheard")
    assert done.code == 1, done.text
    assert "error: nothing that pip looked at has the label unheard; " in done.err


def test_the_reasons_why_no_build_fits(pip: Pip, tmp_path: Path) -> None:
    only = metadata({"cu130": gpu_build("13.0", "80_real")})
    publish(tmp_path / "index", only, "torch", "2.8.0")
    (tmp_path / "index" / "torch" / "torch-2.8.0-py3-none-any.whl").unlink()
    write_page(tmp_path / "index" / "torch")
    done = pip("install", "--dry-run", "-i", tmp_path / "index", "torch")
    assert done.code == 1
    first, *others = done.err.partition("torch==2.8.0 ")[2].splitlines()
    assert first.startswith("has no build for this machine (driver for CUDA 12.9")
    assert others[0].startswith("  cu130 does not fit: it needs a driver for CUDA 13.0")
    assert others[1] == (
        "  what would change it: a driver for CUDA 13.0 or newer gets cu130"
    )


@pytest.mark.slow
def test_json_option_of_a_pip_command(pip: Pip, index: str) -> None:
    done = pip("index", "versions", "--json", "-i", index, "torch")
    assert json.loads(done.out)["name"] == "torch"
    done = pip("--json", "index", "versions", "-i", index, "torch")
    assert json.loads(done.out)["command"] == "pip"


def test_no_variants(pip: Pip, index: str, tmp_path: Path) -> None:
    target = tmp_path / "it"
    done = pip("install", "-i", index, "--target", target, "--no-variants", "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == {"torch": "2.8.0 None"}
    assert index in done.out


@pytest.mark.slow
def test_minor_version_compatibility(pip: Pip, index: str) -> None:
    machine = ("--cuda-driver", "13.0", "--sm-arch", "12.0")
    older = ("--cuda-driver", "12.1", "--sm-arch", "8.0")
    words = ("install", "-i", index, "--dry-run", "--no-deps", "--json", "torch")
    found = []
    for options in (machine, older, (*older, "--minor-version-compatibility")):
        done = pip(*words, *options, forced=False)
        assert done.code == 0, done.text
        data = json.loads(done.out)["data"]
        assert data["installed"][0]["name"] == "torch"
        found.append(data["installed"][0]["label"])
        assert data["chosen"][0]["compatible"][0] == found[-1]
    assert found[:2] == ["cu130", "plain"]
    assert "cu126" in json.loads(done.out)["data"]["chosen"][0]["compatible"]


def test_json_report(
    pip: Pip, index: str, tmp_path: Path, report_schema: Draft202012Validator
) -> None:
    done = pip("install", "-i", index, "--target", tmp_path / "it", "--json", "torch")
    assert done.code == 0, done.text
    report = json.loads(done.out)
    report["data"]["installed"].sort(key=lambda item: item["name"])
    report_schema.validate(report)
    assert (report["command"], report["status"]) == ("pip", "ok")
    data = report["data"]
    (chosen,) = data.pop("chosen")
    assert {reason["feature"] for reason in chosen.pop("rejected")["cu130"]} == {
        "cuda_version_lower_bound"
    }
    assert chosen == {
        "name": "torch",
        "version": "2.8.0",
        "label": "cu126",
        "compatible": ["cu126", "plain", "null"],
    }
    assert data.pop("environment")["cuda_driver_version"] == "12.9"
    assert data == {
        "status": 0,
        "dry_run": False,
        "installed": [
            {"name": "runtime", "version": "12.6", "label": None},
            {"name": "torch", "version": "2.8.0", "label": "cu126"},
        ],
        "stale": [],
        "builds": [],
        "kept": [],
        "elsewhere": [],
        "notes": [],
        "warnings": [],
    }
    # The output of pip itself is on stderr.
    assert "Successfully installed" in done.err


@pytest.mark.slow
def test_another_variant_is_installed_already(
    fresh: Callable[[str], Environment],
    environ: dict[str, str],
    index: str,
    tmp_path: Path,
) -> None:
    environment = fresh(NEWEST)
    pip = Pip(environment.python, environ)
    done = pip("install", "-i", index, "--label", "plain", "torch")
    assert done.code == 0, done.text

    done = pip("install", "-i", index, "--upgrade", "torch")
    assert done.code == 0, done.text
    assert environment.labels() == {"torch": "2.8.0 plain"}
    assert (
        "torch==2.8.0 stays installed as variant plain, but variant cu126" in done.err
    )
    (advice,) = (line for line in done.err.splitlines() if "--force-reinstall" in line)

    # A requirements file also names the project.
    file = tmp_path / "requirements.txt"
    file.write_text("torch\n")
    done = pip("install", "-i", index, "--upgrade", "-r", file)
    assert advice.partition(";")[0] in done.err

    words = advice.rpartition("nvp pip ")[2].split()
    done = pip(*words, "-i", index)
    assert done.code == 0, done.text
    assert environment.labels() == {"torch": "2.8.0 cu126"}

    # The dependency is missing, which pip reports; the build itself fits.
    done = pip("check")
    assert done.code == 1
    assert "runtime" in done.out
    assert done.err == ""
    done = pip("check", "--cuda-driver=12.1", "--sm-arch=8.0", forced=False)
    assert done.code == 1
    assert "torch 2.8.0 is installed as variant cu126, which does not fit" in done.err


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["install", "--no-such-option"], 2),
        pytest.param(["install", "no-such-project"], 1, marks=pytest.mark.slow),
        pytest.param(["no-such-command"], 1, marks=pytest.mark.slow),
        (["--version"], 0),
        pytest.param(["list", "--format=json"], 0, marks=pytest.mark.slow),
    ],
)
def test_the_status_is_that_of_pip(
    words: list[str], status: int, pip: Pip, index: str
) -> None:
    pip.environ["PIP_INDEX_URL"] = index
    alone = subprocess.run(
        [str(pip.python), "-m", "pip", *words],
        env=pip.environ,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert alone.returncode == status
    done = pip(*words)
    assert done.code == status
    if status != 1 or words[0] != "install":
        assert done.out == alone.stdout


@pytest.mark.skipif(os.name == "nt", reason="the signals are those of POSIX")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_leaves_no_files(
    number: signal.Signals, pip: Pip, tmp_path: Path
) -> None:
    page = b'<!DOCTYPE html><a href="big-1.0-py3-none-any.whl">big</a>'
    folder = tmp_path / "temporary"
    folder.mkdir()
    pip.environ["TMPDIR"] = str(folder)
    answers = {
        "/big/": Answer(body=page, kind="text/html"),
        "/big/big-1.0-py3-none-any.whl": Answer(body=b"x" * 10_000, fault="drip"),
    }
    with serve_answers(answers) as server:
        command = [sys.executable, "-m", "nvp", "pip"]
        command += ["--python", str(pip.python), "install", "-i", server.url, "big"]
        with subprocess.Popen(
            [*command, "--target", str(tmp_path / "it")],
            env=pip.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        ) as process:
            server.requests.wait_for(".whl")
            if number == signal.SIGINT:
                # A terminal sends the signal to all programs in the foreground.
                os.killpg(process.pid, number)
            else:
                process.terminate()
            _, said = process.communicate(timeout=60)
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    assert process.returncode not in (0, -number)
    assert "Traceback" not in said
    # pip itself leaves files if it is terminated.
    assert list(folder.glob("nvidia*")) == []
    assert number == signal.SIGTERM or list(folder.iterdir()) == []
    assert not (tmp_path / "it").exists()


@pytest.mark.slow
def test_an_environment_without_pip(
    environ: dict[str, str], index: str, tmp_path: Path
) -> None:
    bare = make_environment(tmp_path / "bare")
    done = Pip(bare.python, environ)("install", "-i", index, "torch")
    assert done.code == 0, done.text
    assert bare.labels() == {"torch": "2.8.0 cu126", "runtime": "12.6 None"}
    # The directory of the environment is accepted too, and its packages count.
    done = provider(
        *("pip", "check", "--python", bare.folder),
        *("--cuda-driver=12.1", "--sm-arch=8.0"),
        environ=environ,
    )
    assert "torch 2.8.0 is installed as variant cu126, which does not fit" in done.err


def test_the_reasons_why_no_gpu_build_fits(
    pip: Pip, index: str, tmp_path: Path
) -> None:
    target = tmp_path / "it"
    done = pip(
        *("install", "-i", index, "--target", target, "torch"),
        *("--cuda-driver", "11.8", "--sm-arch", "8.0"),
        forced=False,
    )
    assert done.code == 0, done.text
    assert installed_labels(target) == {"torch": "2.8.0 null"}
    lines = done.err.splitlines()
    assert lines[0] == (
        "torch==2.8.0 comes without GPU support on this machine (driver for CUDA "
        "11.8, compute capability 8.0):"
    )
    assert sum("does not fit" in line for line in lines) == 3
    assert lines[-1] == (
        "  what would change it: a driver for CUDA 12.0 or newer gets plain"
    )
