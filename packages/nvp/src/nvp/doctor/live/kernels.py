"""The kernel of the live proof, as PTX of each version.

There is no machine code in this package: the driver's own linker makes it from the PTX
(``cuLink...``), for exactly the GPU that is there, whatever GPU that is. Cubins of a
toolkit would be binaries that nobody can review, for those GPUs only that the toolkit
knew, and a driver runs those of its own CUDA major version and of older ones only. That
machine code from toolkits loads is shown by the cubins of the libraries installed.
"""

from __future__ import annotations

from nvidia_variant_provider.machine.environment import ComputeCapability

from ...knowledge.tables import toolkits

__all__ = ["isa_versions", "ptx_of"]

_OLDEST_TARGET = 50
"""Each version of PTX from 4.0 on has the target sm_50, and every GPU since runs it."""

_PTX = """\
.version {isa}
.target sm_{target}
.address_size 64

.visible .entry nvp_probe(
    .param .u64 numbers,
    .param .u32 factor
)
{{
    .reg .b32 %r<7>;
    .reg .b64 %rd<5>;

    ld.param.u64 %rd1, [numbers];
    ld.param.u32 %r1, [factor];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    mad.lo.s32 %r6, %r5, %r1, 7;
    mul.wide.s32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r6;
    ret;
}}
"""
"""Thread ``i`` of all blocks writes ``i * factor + 7`` to ``numbers[i]``."""


def isa_versions() -> tuple[str, ...]:
    """Return the versions of PTX that the known toolkits emit, ascending."""
    versions = sorted({toolkit.ptx_isa for toolkit in toolkits().values()})
    return tuple(f"{major}.{minor}" for major, minor in versions)


def ptx_of(isa: str, capability: ComputeCapability) -> str:
    """Return the kernel in a version of PTX, for a GPU or for those before it."""
    return _PTX.format(isa=isa, target=min(_OLDEST_TARGET, int(capability.sm)))
