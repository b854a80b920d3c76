"""Real lock files of six projects: `check` agrees with `releases` and `doctor`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.command import Run
from support.label_index import torch_records
from support.paths import ROOT
from support.stacks import Installed, make_environment, make_stack
from support.wheels import write_index

from nvidia_variant_provider.errors import ProviderError
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
)
from nvp import api
from nvp.checking.model import CannotRunError
from nvp.doctor.checks import agreement
from nvp.index.pip.settings import Indexes
from nvp.index.releases.machines import ProjectJudge
from nvp.knowledge.builds import PROJECTS
from nvp.matrix.cells import machine
from nvp.pins.reading import read_pins

PINS = ROOT / "fixtures" / "pins"
MACHINES = [
    machine(CudaVersion.parse(cuda), ComputeCapability.parse(capability))
    for cuda, capability in (
        *(("11.8", "7.0"), ("12.2", "7.5"), ("12.4", "8.0"), ("12.8", "7.0")),
        *(("12.9", "12.0"), ("13.0", "7.5"), ("13.0", "9.0"), ("13.2", "10.0")),
    )
]
LINUX = ["linux_x86_64"]


def verdicts(path: Path, environment: Environment) -> dict[str, tuple[str, str]]:
    """Return the version and the verdict of each pinned program of the table."""
    report = api.check(
        path,
        environment=environment,
        offline=True,
        platforms=LINUX,
        python_version="3.11",
    )
    return {
        item.pin.name: (str(item.pin.version), item.worst.verdict)
        for item in report.files[0].pins
        if item.pin.name in PROJECTS
    }


@pytest.mark.parametrize(
    "name",
    [
        "torch-xformers/uv.lock",
        pytest.param("torch-xformers/poetry.lock", marks=pytest.mark.slow),
        pytest.param("torch-xformers/pylock.toml", marks=pytest.mark.slow),
        pytest.param("torch-xformers/freeze.txt", marks=pytest.mark.slow),
        "vllm/uv.lock",
        "jax-cuda12/uv.lock",
        "tensorflow-cuda/requirements.txt",
        pytest.param("cupy-numba/uv.lock", marks=pytest.mark.slow),
        "onnxruntime-gpu/pdm.lock",
    ],
)
def test_the_verdicts_are_those_of_releases(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index has the table's releases of torch, and the pinned releases."""
    for variable in [x for x in os.environ if x.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    path = PINS / name
    pinned = verdicts(path, MACHINES[0])
    assert pinned
    for project, (version, _) in pinned.items():
        write_index(tmp_path, project, version)
    write_index(tmp_path, "torch", *(x for x in torch_records() if "+" not in x))
    judge = ProjectJudge(environ=os.environ, indexes=Indexes(url=str(tmp_path)))
    said = [verdicts(path, environment) for environment in MACHINES]
    for project, (version, _) in pinned.items():
        tables = judge.judge(project, None, MACHINES)
        expected = [
            next(x.verdict for x in table.releases if x.version == version)
            for table in tables
        ]
        assert [found[project][1] for found in said] == expected


FORMS = ["uv.lock", "poetry.lock", "pylock.toml", "requirements.txt", "freeze.txt"]


@pytest.mark.parametrize("environment", MACHINES[3:7])
def test_the_forms_of_one_project_agree(environment: Environment) -> None:
    found = [verdicts(PINS / "torch-xformers" / x, environment) for x in FORMS]
    assert all(item == found[0] for item in found)


def pairs_of_doctor(prefix: Path, *installed: Installed) -> set[tuple[str, str]]:
    """Return the pairs of projects with unmet requirements, by the checks of doctor."""
    stack = make_stack(prefix, *installed)
    findings = [
        *agreement.find_wrong_libraries(stack),
        *agreement.find_wrong_triton(stack),
        *agreement.find_wrong_companions(stack),
    ]
    return {
        (finding.message.split(" ", 1)[0], finding.message.rsplit(", and ", 1)[1])
        for finding in findings
        if "is not installed" not in finding.message
    }


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("torch", "2.13.0"),
        ("triton", "3.8.0"),
        ("nvidia-cudnn-cu13", "9.1.0.70"),
        ("torchvision", "0.28.0"),
        ("numpy", "1.0"),
        (None, ""),
    ],
)
def test_doctor_finds_the_same_disagreements(
    name: str | None, version: str, tmp_path: Path
) -> None:
    pins = read_pins(str(PINS / "torch-xformers" / "inspect.json")).pins
    installed = [
        Installed(
            name=pin.name,
            version=version if pin.name == name else str(pin.version),
            requires=pin.requires or (),
            files={f"{pin.name}/lib.so": b""},
        )
        for pin in pins
    ]
    expected = pairs_of_doctor(tmp_path / "env", *installed)
    report = api.check(
        python=str(tmp_path / "env"), environment=MACHINES[6], offline=True
    )
    found = {
        (item.pin.name, item.message.rsplit(", and ", 1)[1])
        for item in report.files[0].disagreements
    }
    assert found == expected
    assert bool(found) is (name not in ("torchvision", "numpy", None))


class TestChoices:
    def test_each_machine_needs_one(self, run: Run) -> None:
        path = PINS / "conflicting-extras" / "uv.lock"
        words = ("check", path, "--offline", "--platform", "linux_x86_64")
        for machine_options, wanted in (
            (("--cuda-driver", "12.8", "--sm-arch", "9.0"), ["--extra torch-cu12"]),
            (("--no-gpu",), ["--extra cpu"]),
            (
                ("--cuda-driver", "13.0", "--sm-arch", "9.0"),
                ["--extra torch-cu12", "--extra torch-cu13"],
            ),
        ):
            outcome = run(*words, *machine_options, "--json")
            (here,) = outcome.data["machines"]
            assert here["choices"] == {str(path): wanted}
            assert outcome.code == 0

    def test_a_choice_that_is_selected_counts(self, run: Run) -> None:
        path = PINS / "conflicting-extras" / "uv.lock"
        words = ("check", path, "--offline", "--platform", "linux_x86_64")
        old = ("--cuda-driver", "12.8", "--sm-arch", "9.0")
        assert run(*words, *old, "--extra", "torch-cu13").code == 1
        assert run(*words, *old, "--extra", "torch-cu12").code == 0
        outcome = run(*words, *old, "--extra", "rocm")
        assert (outcome.code, outcome.out) == (2, "")

    @pytest.mark.parametrize("form", ["poetry.lock", "pdm.lock", "pylock.toml"])
    def test_extras_for_two_cuda_versions_exclude_each_other(
        self, form: str, run: Run
    ) -> None:
        path = PINS / "extras-and-groups" / form
        words = ("--offline", "--platform", "linux_x86_64", "--json")
        old = ("--cuda-driver", "12.8", "--sm-arch", "9.0")
        outcome = run("check", path, *words, *old)
        assert outcome.code == 0
        assert outcome.data["disagreements"] == []
        assert outcome.data["machines"][0]["choices"] == {str(path): ["--extra cu12"]}

    def test_an_extra_that_a_workspace_excludes_is_not_judged(self, run: Run) -> None:
        path = PINS / "workspace" / "uv.lock"
        words = ("--offline", "--platform", "linux_x86_64", "--json")
        new = ("--cuda-driver", "13.0", "--sm-arch", "9.0")
        outcome = run("check", path, *words, *new)
        # server asks for core[gpu], which conflicts with core[cpu].
        assert outcome.data["disagreements"] == []
        assert outcome.code == 0


class TestInstalled:
    def install(self, folder: Path, *installed: Installed) -> Path:
        return make_environment(folder, *installed)

    def test_the_error_has_the_sentence_and_the_command(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        demo = Installed(name="engine", version="1.0", requires=["torch==2.13.0"])
        torch = Installed(name="torch", version="2.13.0")
        packages = self.install(tmp_path, demo, torch)
        monkeypatch.syspath_prepend(str(packages))
        with pytest.raises(CannotRunError) as caught:
            api.check_installed("engine", environment=MACHINES[3], raise_for="cannot")
        assert isinstance(caught.value, ProviderError)
        assert "torch 2.13.0 cannot run here: it needs a driver" in caught.value.message
        assert "install --upgrade --force-reinstall" in str(caught.value)
        records = api.check_installed("engine", environment=MACHINES[6])
        verdicts = {record.pin.title: record.worst.verdict for record in records}
        assert verdicts == {"engine 1.0": "runs", "torch 2.13.0": "runs"}

    def test_only_what_the_project_requires_counts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        torch = Installed(name="torch", version="2.13.0")
        packages = self.install(tmp_path, Installed(name="other"), torch)
        monkeypatch.syspath_prepend(str(packages))
        here: Sequence[object] = api.check_installed(
            "other", environment=MACHINES[3], raise_for="unknown"
        )
        assert here == ()
        with pytest.raises(ProviderError, match="is not installed here"):
            api.check_installed("missing", environment=MACHINES[3])
