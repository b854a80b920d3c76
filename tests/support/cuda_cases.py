"""Wheels from whose files NV506 must find the CUDA version of the build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from support.containers import container, entry, library
from support.gpu_wheels import PLAIN, PLAIN_SO, Wheel, one

__all__ = ["CUDA_CASES", "STATIC", "Case"]

STATIC = {
    "demo/lib.so": library("80_real")
    + b"CUDA driver version is insufficient for CUDA runtime version\0"
    + b"cuStreamWaitEvent_ptsz\0cuKernelSetCacheConfig\0"
}
"""A library that is linked with a CUDA runtime of CUDA 12 statically."""

CUDA_13 = entry(arch=80, version=(1, 8))
"""Machine code in a form that no CUDA 12 writes."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A wheel that triggers a rule, and similar wheels that do not.

    :param says: texts that the message or the hint must contain.
    :param near: the wheels that do not trigger the rule.
    :param others: other rules that the wheel triggers.
    """

    trigger: Wheel
    says: Sequence[str]
    near: Sequence[Wheel]
    others: frozenset[str] = field(default=frozenset())


CUDA_CASES = {
    "NV506": Case(
        trigger=Wheel(libraries=PLAIN_SO, lower="12.9", sm=PLAIN[:3]),
        says=["libcudart.so.13", "12.9"],
        near=[Wheel(libraries=PLAIN_SO, lower="13.0", sm=PLAIN[:3])],
    ),
    "NV506-metadata": Case(
        trigger=Wheel(
            libraries=one("80_real"),
            sm=["80_real"],
            lower=None,
            requires=["nvidia-cuda-runtime-cu12==12.8.90; sys_platform == 'linux'"],
        ),
        says=["nvidia-cuda-runtime-cu12", "12.0"],
        near=[
            Wheel(
                libraries=one("80_real"),
                sm=["80_real"],
                lower="12.0",
                requires=["cuda-toolkit==13.*; extra == 'cuda13'", "nvidia-nccl-cu12"],
            )
        ],
    ),
    "NV506-static runtime": Case(
        trigger=Wheel(libraries=STATIC, sm=["80_real"], lower="11.8"),
        says=["demo/lib.so contains the runtime of CUDA 12", "declare 12.0"],
        near=[Wheel(libraries=STATIC, sm=["80_real"], lower="12.0")],
    ),
    "NV506-PTX that is not declared": Case(
        trigger=Wheel(
            libraries=one("80_real", "90_virtual", isa=(8, 7)),
            sm=["80_real"],
            lower="11.8",
        ),
        says=["PTX ISA 8.7 is from CUDA 12.8", "declare 12.0 or higher"],
        near=[
            Wheel(
                libraries=one("80_real", "90_virtual", isa=(8, 7)),
                sm=["80_real"],
                lower="12.0",
            )
        ],
    ),
    "NV506-newest machine code": Case(
        trigger=Wheel(
            libraries=one("80_real", "100_real"), sm=["80_real"], lower="11.4"
        ),
        says=["CUDA 12.8 is the first to emit code for 100"],
        others=frozenset({"NV502"}),
        near=[
            Wheel(
                libraries={
                    "demo/l_cuda118.so": library("80_real"),
                    "demo/l_cuda130.so": library("80_real", "100_real"),
                },
                sm=["80_real", "100_real"],
                lower="11.8",
            )
        ],
    ),
    "NV506-form of the machine code": Case(
        trigger=Wheel(
            libraries={"demo/lib.so": library() + container(CUDA_13)},
            sm=["80_real"],
            lower="12.8",
        ),
        says=["the machine code of demo/lib.so is from CUDA 13.0 or newer"],
        near=[
            Wheel(
                libraries={"demo/lib.so": library() + container(CUDA_13)},
                sm=["80_real"],
            )
        ],
    ),
}
