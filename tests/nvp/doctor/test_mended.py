"""What ``doctor`` says to do is done, by pip on a small index, and the finding goes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from support.processes import (
    Environment,
    clean_environ,
    make_environment,
    provider,
)
from support.stacks import machine, run_checks
from support.wheels import stub_wheel, write_page

from nvp.doctor.distributions import find_distributions
from nvp.doctor.installation import find_installation
from nvp.doctor.model import Finding, Stack, commands_of
from nvp.doctor.software import CodeReader

EXTENSION = "py3-none-manylinux_2_17_x86_64"

INDEX: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "torch": [("2.6.0", ()), ("2.8.0", ())],
    "torchvision": [("0.21.0", ("torch==2.6.0",)), ("0.23.0", ("torch==2.8.0",))],
    "torchaudio": [("2.6.0", ("torch==2.6.0",)), ("2.8.0", ("torch==2.8.0",))],
    "jax": [
        (
            "0.10.2",
            (
                "jaxlib==0.10.2",
                "jax-cuda12-plugin[with-cuda]==0.10.2; extra == 'cuda12'",
            ),
        )
    ],
    "jaxlib": [("0.10.1", ()), ("0.10.2", ())],
    "jax-cuda12-plugin": [("0.10.1", ()), ("0.10.2", ())],
    "tensorflow": [
        ("2.20.0", ("nvidia-cudnn-cu12>=9.3; extra == 'and-cuda'",)),
    ],
    "nvidia-cudnn-cu12": [("8.9.7.29", ()), ("9.10.2.21", ())],
}

CASES = {
    "a companion": ("ND305", ["torch==2.8.0", "torchvision==0.21.0"]),
    "two companions": (
        "ND305",
        ["torch==2.8.0", "torchvision==0.21.0", "torchaudio==2.6.0"],
    ),
    "jax and an older jaxlib": ("ND305", ["jax==0.10.2", "jaxlib==0.10.1"]),
    "jax without a plug-in": ("ND208", ["jax==0.10.2", "jaxlib==0.10.2"]),
    "jax and an older plug-in": (
        "ND208",
        ["jax==0.10.2", "jaxlib==0.10.2", "jax-cuda12-plugin==0.10.1"],
    ),
    "tensorflow alone": ("ND307", ["tensorflow==2.20.0"]),
    "tensorflow with an old cuDNN": (
        "ND307",
        ["tensorflow==2.20.0", "nvidia-cudnn-cu12==8.9.7.29"],
    ),
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    for project, releases in INDEX.items():
        for version, requires in releases:
            extras = {"jax": ["cuda12"], "tensorflow": ["and-cuda"]}.get(project, [])
            extras += ["with-cuda"] if project.endswith("plugin") else []
            files = {f"{project.replace('-', '_')}/_C.so": b"\x7fELF"}
            stub_wheel(
                folder / project,
                project,
                version,
                tag=EXTENSION,
                requires=requires,
                extras=extras,
                members=files,
            )
        write_page(folder / project)
    return folder


def check(environment: Environment) -> list[Finding]:
    installation = find_installation(str(environment.folder), {})
    return run_checks(
        Stack(
            environment=machine("12.8", "8.0"),
            installation=installation,
            distributions=find_distributions(installation.folders),
            reader=CodeReader(None),
            machine_options=["--cuda-driver", "12.8", "--sm-arch", "8.0"],
            is_here=False,
        )
    )


_QUICK = "two companions"


@pytest.mark.parametrize(
    "case",
    [pytest.param(x, marks=[pytest.mark.slow] if x != _QUICK else []) for x in CASES],
)
def test_the_commands_mend(case: str, index: Path, tmp_path: Path) -> None:
    code, installed = CASES[case]
    made = make_environment(tmp_path / "env")
    environ = clean_environ(tmp_path, {"PIP_INDEX_URL": index.as_uri()})

    def install(*words: str) -> None:
        done = provider("pip", "--python", made.folder, *words, environ=environ)
        assert done.code == 0, done.err

    machine_words = ("--cuda-driver", "12.8", "--sm-arch", "8.0")
    install("install", "--no-deps", *machine_words, *installed)
    findings = [finding for finding in check(made) if finding.code == code]
    assert findings
    for command in commands_of(findings):
        words = shlex.split(command)
        assert words[:4] == ["nvp", "pip", "--python", str(made.folder)]
        install(*words[4:])
    assert [finding.code for finding in check(made) if finding.code == code] == []
