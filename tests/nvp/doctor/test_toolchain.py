"""ND401, ND402 and ND404 to ND406, with fakes of the programs of CUDA."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.stacks import Installed, machine, make_stack, run_checks
from support.toolchains import (
    GET_PTXAS,
    NVCC_BANNER,
    banner,
    needs_programs,
    program,
    torch_for,
    triton,
)

from nvidia_variant_provider.machine.environment import Environment
from nvp.doctor.model import Finding

pytestmark = needs_programs

H100 = machine("13.4", "9.0")
GB10 = machine("13.4", "12.1")
NEW = banner("13.4")
OLD = banner("12.8")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A stack.

    :param programs: the output of each program, by its path under ``tools``.
    :param environ: variables; ``{tools}`` stands for that directory.
    """

    installed: tuple[Installed, ...]
    environment: Environment = H100
    programs: Mapping[str, bytes] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    everything: bool = True
    mode: int = 0o755

    def check(self, tmp_path: Path) -> list[Finding]:
        tools = tmp_path / "tools"
        for name, data in self.programs.items():
            (tools / name).parent.mkdir(parents=True, exist_ok=True)
            (tools / name).write_bytes(data)
            (tools / name).chmod(0o755)
        environ = {k: v.format(tools=tools) for k, v in self.environ.items()}
        stack = make_stack(
            tmp_path / "env",
            *self.installed,
            environment=self.environment,
            environ=environ,
        )
        for distribution in stack.distributions.values():
            for item in distribution.files:
                if "/bin/" in item.path:
                    os.chmod(distribution.locate(item.path), self.mode)
        return run_checks(dataclasses.replace(stack, everything=self.everything))


def nvcc(version: str) -> dict[str, bytes]:
    return {"bin/nvcc": program(NVCC_BANNER.format(version))}


HOME = {"CUDA_HOME": "{tools}"}
TORCH = torch_for("13.2")
PLAIN = {"TRITON_PTXAS_PATH": "{tools}/ptxas"}
BLACKWELL = {"TRITON_PTXAS_BLACKWELL_PATH": "{tools}/ptxas"}
NVRTC = Installed(name="nvidia-cuda-nvrtc-cu12", version="12.8.93")

TRIGGERS = {
    "ND401": Case(installed=(triton(OLD),), environment=GB10),
    "ND402": Case(
        installed=(triton(OLD, NEW),),
        environment=GB10,
        programs={"ptxas": program(OLD)},
        environ=BLACKWELL,
    ),
    "ND404": Case(installed=(TORCH,), programs=nvcc("12.9"), environ=HOME),
    "ND405": Case(
        installed=(TORCH,),
        environment=machine("13.0", "9.0"),
        programs=nvcc("13.2"),
        environ={**HOME, "TORCH_CUDA_ARCH_LIST": "8.0+PTX"},
    ),
    "ND406": Case(installed=(TORCH,), environ={"TORCH_CUDA_ARCH_LIST": "8.0;8.6"}),
}
NEAR_MISSES = {
    "ND401": Case(installed=(triton(OLD, NEW),), environment=GB10),
    "ND402": Case(
        installed=(triton(OLD, NEW),),
        environment=GB10,
        programs={"ptxas": program(OLD)},
        environ=PLAIN,
    ),
    "ND404": Case(installed=(TORCH,), programs=nvcc("13.0"), environ=HOME),
    "ND405": Case(
        installed=(TORCH,),
        environment=machine("13.2", "9.0"),
        programs=nvcc("13.2"),
        environ={**HOME, "TORCH_CUDA_ARCH_LIST": "8.0+PTX"},
    ),
    "ND406": Case(installed=(TORCH,), environ={"TORCH_CUDA_ARCH_LIST": "8.0+PTX"}),
}


@pytest.mark.parametrize("code", TRIGGERS)
def test_a_trigger_is_the_only_finding(code: str, tmp_path: Path) -> None:
    (finding,) = TRIGGERS[code].check(tmp_path)
    assert finding.code == code
    assert finding.hint


@pytest.mark.parametrize("code", NEAR_MISSES)
def test_a_near_miss_is_not_reported(code: str, tmp_path: Path) -> None:
    assert NEAR_MISSES[code].check(tmp_path) == []


@pytest.mark.parametrize(
    ("choice", "capability", "count"),
    [
        # CUDA 12.8 has no targets 12.1 and 10.3; CUDA 11.8 has 9.0, but not 9.0a.
        ("3.5", "12.1", 1),
        ("3.6", "12.1", 0),
        ("3.6", "9.0", 1),
        ("3.6", "8.9", 0),
        ("3.9", "9.0", 0),
        ("3.9", "8.9", 0),
        ("long", "9.0", 0),
        ("thor", "11.0", 1),
        ("unknown", "12.1", 0),
        ("unknown", "9.0", 1),
        ("damaged", "9.0", 1),
        # Python parses both, although it has no stack for 1,350 calls.
        ("branches", "9.0", 0),
        ("conditions", "9.0", 0),
    ],
)
def test_triton_itself_says_which_ptxas_it_uses(
    choice: str, capability: str, count: int, tmp_path: Path
) -> None:
    newer = None if choice == "3.5" else NEW
    installed = triton(banner("11.8"), newer, choice=GET_PTXAS[choice])
    case = Case(installed=(installed,), environment=machine("13.4", capability))
    findings = case.check(tmp_path)
    assert [finding.code for finding in findings] == ["ND401"] * count


def test_the_finding_says_what_to_set(tmp_path: Path) -> None:
    (finding,) = TRIGGERS["ND401"].check(tmp_path)
    assert finding.message == (
        "triton 3.9.0 assembles for compute capability 12.1 with the ptxas of CUDA "
        "12.8, which does not know it"
    )
    assert finding.hint.startswith(
        "set TRITON_PTXAS_PATH to the ptxas of CUDA 12.9 or newer: nvp pip"
    )
    install, export = finding.commands
    assert install.names == ("nvidia-cuda-nvcc>=13.0",)
    assert str(export).endswith("/site-packages/nvidia/cu13/bin/ptxas")


def test_a_ptxas_that_may_not_be_run(tmp_path: Path) -> None:
    (finding,) = Case(installed=(triton(NEW),), mode=0o644).check(tmp_path)
    assert finding.code == "ND401"
    assert finding.hint == f"chmod +x {finding.path}"


def test_a_gpu_that_cuda_13_does_not_know_any_more(tmp_path: Path) -> None:
    installed = triton(NEW)
    case = Case(installed=(installed,), environment=machine("13.0", "7.0"))
    (finding,) = case.check(tmp_path)
    assert "the ptxas of CUDA 12.9 or older" in finding.hint


BROKEN = {
    "garbage": (program("ptxas? \x1b[31m never heard of it"), "instead of its version"),
    "silent": (program(""), "it prints nothing instead of its version"),
    "failing": (b"#!/bin/sh\nexit 3\n", "it prints nothing instead of its version"),
    "foreign": (b"\x7fELF" + bytes(60), "it is not a program for this machine"),
    "interpreter": (b"#!/no/such/shell\n", "it cannot be run: No such file"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_ptxas_is_one_line(kind: str, tmp_path: Path) -> None:
    data, text = BROKEN[kind]
    files = {"triton/backends/nvidia/bin/ptxas": data}
    installed = Installed(name="triton", version="3.9.0", files=files)
    (finding,) = Case(installed=(installed,)).check(tmp_path / "bundled")
    assert finding.code == "ND401"
    assert text in finding.message
    assert "\n" not in finding.message + finding.hint
    assert finding.message.isprintable()
    named = Case(installed=(triton(NEW),), programs={"ptxas": data}, environ=PLAIN)
    (finding,) = named.check(tmp_path / "named")
    assert finding.code == "ND402"
    assert text in finding.message
    falls_back = kind in ("garbage", "silent", "failing")
    assert ("uses its own of CUDA 13.4 instead" in finding.message) == falls_back


@pytest.mark.parametrize("path", ["/no/such/ptxas", "/", "nul\0byte"])
def test_a_variable_that_names_no_program(path: str, tmp_path: Path) -> None:
    case = Case(installed=(triton(NEW),), environ={"TRITON_PTXAS_PATH": path})
    (finding,) = case.check(tmp_path)
    assert finding.code == "ND402"


def test_a_variable_may_name_a_program_on_path(tmp_path: Path) -> None:
    environ = {"TRITON_PTXAS_PATH": "ptxas", "PATH": "/no/such/folder:{tools}"}
    case = Case(
        installed=(triton(NEW),),
        environment=GB10,
        programs={"ptxas": program(OLD)},
        environ=environ,
    )
    (finding,) = case.check(tmp_path)
    assert "names the ptxas of CUDA 12.8" in finding.message
    assert finding.path == str(tmp_path / "tools/ptxas")


def test_a_ptxas_for_another_machine_may_be_right_there(tmp_path: Path) -> None:
    files = {"triton/backends/nvidia/bin/ptxas": BROKEN["foreign"][0]}
    stack = make_stack(
        tmp_path, Installed(name="triton", files=files), environment=H100
    )
    os.chmod(stack.distributions["triton"].locate(*files), 0o755)
    assert [f.code for f in run_checks(stack)] == ["ND401"]
    elsewhere = replace(stack, is_here=False)
    assert run_checks(elsewhere) == []
    sentences = elsewhere.toolchain.unknown()
    assert "are those of this system" in sentences[0]
    assert "not a program for this machine" in sentences[1]


def test_the_ptxas_of_torch_is_used_where_it_has_one(tmp_path: Path) -> None:
    torch = replace(TORCH, files={**TORCH.files, "torch/bin/ptxas": program(OLD)})
    case = Case(installed=(torch, triton(NEW)), environment=machine("13.4", "10.3"))
    (finding,) = [f for f in case.check(tmp_path) if f.code == "ND401"]
    assert finding.distribution == "torch"
    assert "the ptxas of CUDA 12.8 that torch 2.15.0 brings" in finding.message
    assert str(finding.path).endswith("torch/bin/ptxas")


@pytest.mark.parametrize("kind", ["foreign", "interpreter"])
def test_a_broken_ptxas_of_torch_is_that_of_torch(kind: str, tmp_path: Path) -> None:
    files = {**TORCH.files, "torch/bin/ptxas": BROKEN[kind][0]}
    torch = replace(TORCH, files=files)
    case = Case(installed=(torch, triton(NEW)), environment=machine("13.4", "10.3"))
    (finding,) = [f for f in case.check(tmp_path) if f.code == "ND401"]
    assert finding.message.startswith("the ptxas of torch 2.15.0 does not work: ")
    assert finding.distribution == "torch"
    assert finding.hint.endswith("--force-reinstall --no-deps torch==2.15.0")


def test_a_bare_name_is_not_run_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(installed=(triton(NEW),), environ={"TRITON_PTXAS_PATH": "ptxas"})
    (tmp_path / "ptxas").write_bytes(program(OLD))
    (tmp_path / "ptxas").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    (finding,) = case.check(tmp_path)
    assert finding.code == "ND402"
    assert "there is no such file" in finding.message


def test_machine_code_of_a_newer_major_version(tmp_path: Path) -> None:
    for driver, codes in (("12.9", ["ND405"]), ("13.0", [])):
        environment = machine(driver, "9.0")
        case = Case(installed=(triton(NEW),), environment=environment)
        findings = case.check(tmp_path / driver)
        assert [finding.code for finding in findings] == codes


def test_how_bad_a_newer_nvcc_is(tmp_path: Path) -> None:
    """A newer nvcc is an error if a GPU has only PTX, and otherwise a note."""
    cases = [
        ("13.2", "13.0", {}, "note"),
        ("13.2", "13.0", {"TORCH_CUDA_ARCH_LIST": "9.0"}, "note"),
        ("13.2", "13.0", {"TORCH_CUDA_ARCH_LIST": "8.0+PTX"}, "error"),
        ("13.0", "12.9", {}, "warning"),
    ]
    for number, (cuda, driver, variables, severity) in enumerate(cases):
        case = Case(
            installed=(torch_for(cuda),),
            environment=machine(driver, "9.0"),
            programs=nvcc(cuda),
            environ={**HOME, **variables},
        )
        (finding,) = case.check(tmp_path / str(number))
        assert (finding.code, finding.severity) == ("ND405", severity)


def test_nvrtc_makes_ptx_for_a_gpu_that_it_does_not_know(tmp_path: Path) -> None:
    for driver, codes in (("12.6", ["ND405"]), ("12.8", [])):
        environment = machine(driver, "12.1")
        case = Case(installed=(NVRTC, torch_for("12.8")), environment=environment)
        findings = case.check(tmp_path / driver)
        assert [finding.code for finding in findings] == codes


def test_the_nvrtc_of_another_cuda(tmp_path: Path) -> None:
    (finding,) = Case(installed=(TORCH, NVRTC)).check(tmp_path / "a")
    assert (finding.code, finding.distribution) == ("ND404", NVRTC.name)
    both = (TORCH, NVRTC, Installed(name="nvidia-cuda-nvrtc", version="13.2.86"))
    assert Case(installed=both).check(tmp_path / "b") == []
    required = replace(TORCH, requires=[f"{NVRTC.name}==13.*"])
    (finding,) = Case(installed=(required, NVRTC)).check(tmp_path / "c")
    assert finding.code == "ND304"


def test_cuda_home_comes_before_path(tmp_path: Path) -> None:
    programs = {**nvcc("13.2"), "old/nvcc": program(NVCC_BANNER.format("12.4"))}
    environ = {"CUDA_HOME": "{tools}", "PATH": "{tools}/old"}
    case = Case(installed=(TORCH,), programs=programs, environ=environ)
    (finding,) = case.check(tmp_path)
    assert finding.code == "ND404"
    assert finding.message == (
        "the nvcc of PATH is of CUDA 12.4, and torch 2.15.0 is for CUDA 13.2"
    )


def test_entries_that_torch_refuses_are_named(tmp_path: Path) -> None:
    case = Case(installed=(TORCH,), environ={"TORCH_CUDA_ARCH_LIST": "8.0; 9,0"})
    (finding,) = case.check(tmp_path)
    assert finding.code == "ND406"
    assert "'', '9,0'" in finding.message


@pytest.mark.skipif(sys.platform != "linux", reason="looks at files of this system")
def test_without_torch_nothing_is_built(tmp_path: Path) -> None:
    case = Case(
        installed=(),
        programs=nvcc("99.0"),
        environ={**HOME, "TORCH_CUDA_ARCH_LIST": "x"},
    )
    assert case.check(tmp_path) == []


def test_ptx_does_not_help_a_gpu_that_is_too_old(tmp_path: Path) -> None:
    nvrtc = Installed(name="nvidia-cuda-nvrtc", version="13.2.86")
    case = Case(installed=(nvrtc, TORCH), environment=machine("13.0", "7.0"))
    assert case.check(tmp_path) == []


@pytest.mark.parametrize(
    ("origin", "is_found"),
    [
        (None, False),
        (
            {"url": "https://x.example/demo-1.0-py3-none-any.whl", "archive_info": {}},
            False,
        ),
        ({"url": "https://x.example/demo-1.0.tar.gz", "archive_info": {}}, True),
        ({"url": "file:///src/demo", "dir_info": {"editable": True}}, True),
        ({"url": "https://x.example/demo", "vcs_info": {"vcs": "git"}}, True),
    ],
)
def test_nvcc_counts_where_something_is_built_here(
    origin: dict[str, object] | None, is_found: bool, tmp_path: Path
) -> None:
    files = {}
    if origin is not None:
        files["demo-1.0.dist-info/direct_url.json"] = json.dumps(origin).encode()
    case = Case(
        installed=(TORCH, Installed(files=files)),
        programs=nvcc("12.9"),
        environ=HOME,
        everything=False,
    )
    assert [finding.code for finding in case.check(tmp_path)] == ["ND404"] * is_found
