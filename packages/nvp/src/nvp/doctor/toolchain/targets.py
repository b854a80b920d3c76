"""Which GPUs a release of CUDA compiles for, and which driver its PTX needs."""

from __future__ import annotations

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion

from ...gpu_code.units import ptx_toolkit
from ...knowledge.tables import gpu_models, toolkits

__all__ = ["compiles_for", "driver_for_ptx", "is_older_than"]


def compiles_for(
    cuda: CudaVersion, capability: ComputeCapability, suffix: str = ""
) -> bool | None:
    """Return whether a release of CUDA makes machine code for exactly one GPU.

    :param suffix: ``a`` for the target that has the features of this GPU alone.
    :returns: ``None`` where the tables know neither the release nor the GPU.
    """
    toolkit = toolkits().get(cuda)
    if toolkit is not None:
        return f"{capability.sm}{suffix}" in toolkit.targets
    model = gpu_models().get(capability)
    if model is None:
        return None
    last = model.last_toolkit
    return model.first_toolkit <= cuda and (last is None or cuda <= last)


def is_older_than(cuda: CudaVersion, capability: ComputeCapability) -> bool:
    """Return whether a release of CUDA came before a GPU.

    It then makes PTX of an older target, which the driver compiles for the GPU.
    """
    model = gpu_models().get(capability)
    return model is not None and cuda < model.first_toolkit


def driver_for_ptx(cuda: CudaVersion) -> CudaVersion:
    """Return the oldest driver that reads the PTX of a release of CUDA.

    CUDA 12.6 has the PTX version of 12.5, so that a driver for 12.5 reads it.
    """
    toolkit = toolkits().get(cuda)
    if toolkit is None:
        return cuda
    return ptx_toolkit(toolkit.ptx_isa) or cuda
