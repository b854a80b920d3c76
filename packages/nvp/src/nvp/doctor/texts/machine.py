"""ND1xx: the driver of the machine."""

from __future__ import annotations

from ..model import Check

__all__ = ["MACHINE_CHECKS"]

MACHINE_CHECKS = (
    Check(
        code="ND101",
        title="a driver is there that could not be asked",
        meaning="The machine has an NVIDIA device or driver, and the driver's library "
        "returned an error, crashed or did not reply in time. The finding has the "
        "reason code of `detect`.",
        seen=(
            "RuntimeError: CUDA driver initialization failed, you might not have a "
            "CUDA gpu.",
            "RuntimeError: Unexpected error from cudaGetDeviceCount().",
            "torch.cuda.is_available() is False",
            "CUDA unknown error - this may be due to an incorrectly set up environment",
            "Failed to initialize NVML: Driver/library version mismatch",
            "Failed to initialize NVML: Unknown Error",
            "Failed to initialize NVML: Insufficient Permissions",
            "Unable to determine the device handle for GPU: GPU is lost. Reboot "
            "the system to recover this GPU",
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)",
            "CUDA_ERROR_MPS_CONNECTION_FAILED (805)",
            "CUDA_ERROR_UNKNOWN (999)",
        ),
        mend="The hint of the finding says what to do for its reason. "
        "`nvidia-variant-provider detect --no-cache` asks the driver again.",
    ),
    Check(
        code="ND102",
        title="a container without the capability compute or utility",
        meaning="The NVIDIA container toolkit mounts only those libraries of the "
        "driver that `NVIDIA_DRIVER_CAPABILITIES` names: libcuda with `compute`, NVML "
        "and nvidia-smi with `utility`.",
        seen=(
            "libcuda.so.1: cannot open shared object file: No such file or directory",
            "libnvidia-ml.so.1: cannot open shared object file: No such file or "
            "directory",
            "torch.cuda.is_available() is False",
            "RuntimeError: Found no NVIDIA driver on your system.",
        ),
        mend="Start the container with both, as the command of the finding does. An "
        "image sets them by `ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility`.",
    ),
    Check(
        code="ND103",
        title="a stub of libcuda stands where programs find it",
        meaning="CUDA toolkits have a `libcuda.so` in a folder `stubs`, so that "
        "programs can be linked on machines without a driver. All of its functions "
        "fail. It is found first when that folder is in `LD_LIBRARY_PATH`, or when "
        "an image has linked or copied it as `libcuda.so.1`.",
        seen=(
            "CUDA_ERROR_STUB_LIBRARY (34)",
            "CUDA driver is a stub library",
            "the CUDA driver that the application has loaded is a stub library",
        ),
        mend="Remove the folder from `LD_LIBRARY_PATH`, or the file from the image.",
    ),
    Check(
        code="ND104",
        title="libraries of cuda-compat that a GPU does not support",
        meaning="The package cuda-compat has the user-mode part of a newer driver. It "
        "works on data-centre GPUs only, and only on certain older kernel drivers.",
        seen=(
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804)",
            "forward compatibility was attempted on non supported HW",
        ),
        mend="Remove its folder from `LD_LIBRARY_PATH` and install a driver that is "
        "new enough, or choose builds for the driver that is there.",
    ),
)
