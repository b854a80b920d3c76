"""ND4xx: the compilers and the assemblers that make GPU code on this machine."""

from __future__ import annotations

from ..model import Check

__all__ = ["TOOLCHAIN_CHECKS"]

TOOLCHAIN_CHECKS = (
    Check(
        code="ND403",
        title="Triton is not of the version that torch requires",
        meaning="Inductor, which compiles for `torch.compile`, calls functions of "
        "Triton that change from release to release. torch pins the one that it was "
        "made with.",
        seen="cannot import name 'triton_key' from 'triton.compiler.compiler'",
        mend="Install the version that torch requires, with the command of the "
        "finding.",
    ),
)
