"""Fakes of the programs of CUDA, and distributions that contain them."""

from __future__ import annotations

import os
import shlex

import pytest

from .stacks import Installed

__all__ = [
    "GET_PTXAS",
    "NVCC_BANNER",
    "banner",
    "needs_programs",
    "program",
    "torch_for",
    "triton",
]

needs_programs = pytest.mark.skipif(
    os.name != "posix", reason="the programs are scripts for /bin/sh"
)

NVCC_BANNER = """\
nvcc: NVIDIA (R) Cuda compiler driver
Cuda compilation tools, release {0}, V{0}.88
"""

GET_PTXAS = {
    "3.5": "def get_ptxas(arch: int):\n    return knobs.nvidia.ptxas\n",
    "3.6": """
def get_ptxas(arch: int) -> knobs.NvidiaTool:
    return knobs.nvidia.ptxas_blackwell if arch >= 100 else knobs.nvidia.ptxas
""",
    "3.9": """
def get_ptxas(arch: int) -> knobs.NvidiaTool:
    "Choose."
    if arch < 90:
        return knobs.nvidia.ptxas
    return knobs.nvidia.ptxas_blackwell
""",
    "thor": """
def get_ptxas(arch: int) -> knobs.NvidiaTool:
    if arch == 110:
        return knobs.nvidia.ptxas_thor
    return knobs.nvidia.ptxas_blackwell if arch >= 100 else knobs.nvidia.ptxas
""",
    "long": """
import os

def get_ptxas(
    arch: int,
) -> knobs.NvidiaTool:
    if arch < 90:
        return knobs.nvidia.ptxas

    # The newer one.
    return knobs.nvidia.ptxas_blackwell


@cache
def get_ptxas_version(arch: int = 80):
    return get_ptxas(arch).version
""",
    "unknown": "def get_ptxas(arch):\n    return find(arch)\n",
    "damaged": "def get_ptxas(arch:\n",
    "branches": "def get_ptxas(a):\n"
    + " if a<1:0\n"
    + " elif a<0:0\n" * 1350
    + " else:\n  return x.ptxas_blackwell\n",
    "conditions": "def get_ptxas(a):\n return "
    + "x.a if a<0 else " * 980
    + "x.ptxas_blackwell\n",
}
"""The code by which releases of Triton choose a ``ptxas``; ``thor`` was proposed for
3.7."""


def banner(version: str) -> str:
    """Return the output of the ptxas of a CUDA version."""
    return (
        "ptxas: NVIDIA (R) Ptx optimizing assembler\n"
        f"Cuda compilation tools, release {version}, V{version}.86\n"
    )


def program(output: str) -> bytes:
    """Return a script that prints a text."""
    return f"#!/bin/sh\nprintf %s {shlex.quote(output)}\n".encode()


def triton(
    plain: str, newer: str | None = None, *, choice: str = GET_PTXAS["3.9"]
) -> Installed:
    """Return Triton with programs that print these texts."""
    files = {
        "triton/backends/nvidia/bin/ptxas": program(plain),
        "triton/backends/nvidia/compiler.py": choice.encode(),
    }
    if newer is not None:
        files["triton/backends/nvidia/bin/ptxas-blackwell"] = program(newer)
    else:
        files["triton/backends/nvidia/compiler.py"] = GET_PTXAS["3.5"].encode()
    return Installed(name="triton", version="3.9.0", files=files)


def torch_for(cuda: str) -> Installed:
    """Return torch without libraries."""
    text = f"__version__ = '2.15.0'\ncuda: Optional[str] = '{cuda}'\nhip = None\n"
    files = {"torch/version.py": text.encode()}
    return Installed(name="torch", version="2.15.0", files=files)
