"""The kernel of the live proof is PTX that an assembler accepts."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.containers import BINARIES
from support.stacks import Installed, machine, make_stack

from nvidia_variant_provider.machine.environment import ComputeCapability
from nvp.doctor.live.proof import find_libraries, isa_versions, ptx_of
from nvp.gpu_code import compression
from nvp.knowledge.tables import gpu_models, parse_isa, toolkits

PTXAS = shutil.which("ptxas")


def test_each_known_version_of_ptx_is_there_once() -> None:
    versions = [parse_isa(version) for version in isa_versions()]
    assert versions == sorted(set(versions))
    emitted = {toolkit.ptx_isa for toolkit in toolkits().values()}
    # No toolkit emits 8.6, which drivers for CUDA 12.7 read.
    assert set(versions) == {*emitted, (8, 6)}


def test_the_target_is_never_newer_than_the_gpu() -> None:
    for capability in gpu_models():
        text = ptx_of("6.0", capability)
        (target,) = re.findall(r"^\.target sm_([0-9]+)$", text, re.MULTILINE)
        assert int(target) == min(50, int(capability.sm))


@pytest.mark.skipif(PTXAS is None, reason="needs ptxas of a CUDA toolkit")
def test_an_assembler_accepts_each_version_that_it_knows(tmp_path: Path) -> None:
    assert PTXAS is not None
    told = subprocess.run(
        [PTXAS, "--version"], capture_output=True, text=True, check=True
    )
    match = re.search(r"release ([0-9]+)\.([0-9]+)", told.stdout)
    assert match is not None
    newest = max(
        toolkit.ptx_isa
        for version, toolkit in toolkits().items()
        if version <= (int(match[1]), int(match[2]))
    )
    source = tmp_path / "kernel.ptx"
    for version in isa_versions():
        if parse_isa(version) <= newest:
            source.write_text(ptx_of(version, ComputeCapability(9, 0)))
            command = [PTXAS, "-arch=sm_90", str(source), "-o", str(tmp_path / "out")]
            subprocess.run(command, check=True)


def test_all_libraries_share_one_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "CHECKED", 3)
    code = (BINARIES / "concatenated.fatbin").read_bytes()
    demos = [
        Installed(name=f"demo{n}", files={f"demo{n}/x.fatbin": code}) for n in range(5)
    ]
    stack = make_stack(tmp_path, *demos, environment=machine("12.9", "8.0"))
    found = find_libraries(stack, ComputeCapability(8, 0), str(tmp_path))
    assert [item.target for item in found] == ["80", "80", "80", None, None]
