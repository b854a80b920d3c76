"""Reason codes of detection, with a sentence and a next step for each.

The codes are stable, because scripts compare them. The codes in ``MISSING`` mean that
the machine has no usable GPU, which is a complete result. Every other code means that a
driver or a GPU could not be queried; the command line then exits with 4.
"""

from __future__ import annotations

NO_DEVICE = "no-device"
NO_GPU = "no-gpu"
NO_NVML = "no-nvml"
NO_BINDINGS = "no-bindings"
NO_USER_DRIVER = "no-user-driver"
PROBE_FAILED = "probe-failed"
COMPAT_NOT_SUPPORTED = "compat-not-supported"
MPS_UNREACHABLE = "mps-unreachable"
NOT_READY = "not-ready"
INSUFFICIENT_POWER = "insufficient-power"
RESET_REQUIRED = "reset-required"
DRIVER_NOT_LOADED = "driver-not-loaded"
DRIVER_MISMATCH = "driver-mismatch"
NO_PERMISSION = "no-permission"
GPU_LOST = "gpu-lost"
NOT_SUPPORTED = "not-supported"
TIMEOUT = "timeout"
CRASHED = "crashed"
UNKNOWN_ERROR = "unknown-error"
NOT_GIVEN = "not-given"

MISSING = frozenset({NO_DEVICE, NO_GPU})

_SENTENCES = {
    NO_DEVICE: (
        "no NVIDIA device or driver was found",
        "nothing to do if this machine has no NVIDIA GPU; in a container, start it "
        "with its GPUs",
    ),
    NO_GPU: (
        "the driver works, but shows no GPU",
        "in a container or a virtual machine, pass the GPUs through",
    ),
    NO_NVML: (
        "there is an NVIDIA device, but libnvidia-ml.so.1 cannot be loaded",
        "install the driver's libraries; in a container, give it the capability "
        "'utility' (NVIDIA_DRIVER_CAPABILITIES)",
    ),
    NO_BINDINGS: (
        "the Python package nvidia-ml-py cannot be imported",
        "install it: pip install nvidia-ml-py",
    ),
    PROBE_FAILED: (
        "the process that queries the driver could not be started",
        "check whether this Python can start another one: python -I -S -c pass",
    ),
    NO_USER_DRIVER: (
        "the kernel driver is installed, but the user-mode driver (libcuda) is missing",
        "install the driver's compute libraries; in a container, give it the "
        "capability 'compute' (NVIDIA_DRIVER_CAPABILITIES)",
    ),
    DRIVER_NOT_LOADED: (
        "the NVIDIA kernel driver is not loaded",
        "load it (modprobe nvidia), or reboot after installing it",
    ),
    DRIVER_MISMATCH: (
        "the driver's libraries and the loaded kernel driver have different versions",
        "reboot, or reload the kernel module",
    ),
    NO_PERMISSION: (
        "the driver refused access to its devices",
        "check the permissions of /dev/nvidia*, and the container's device rules",
    ),
    GPU_LOST: (
        "the GPU has fallen off the bus or is otherwise inaccessible",
        "read the kernel log (dmesg | grep Xid); reset the GPU or reboot",
    ),
    COMPAT_NOT_SUPPORTED: (
        "the cuda-compat libraries in use do not support this GPU",
        "remove them from the loader path; they work on data-center GPUs only",
    ),
    MPS_UNREACHABLE: (
        "the CUDA MPS server cannot be reached",
        "start nvidia-cuda-mps-control, or unset CUDA_MPS_PIPE_DIRECTORY",
    ),
    NOT_READY: (
        "the system is not ready for CUDA yet",
        "on NVSwitch machines, start nvidia-fabricmanager of the driver's version",
    ),
    INSUFFICIENT_POWER: (
        "the GPU's external power is not connected properly",
        "check its power cables",
    ),
    RESET_REQUIRED: (
        "the GPU needs a reset",
        "reset it (nvidia-smi --gpu-reset), or reboot",
    ),
    NOT_SUPPORTED: (
        "the driver does not support this query on this device",
        "force the values: --cuda-driver and --sm-arch",
    ),
    TIMEOUT: (
        "the driver did not reply in time",
        "check whether nvidia-smi works; set NV_VARIANT_PROVIDER_DETECT_TIMEOUT to "
        "more seconds",
    ),
    CRASHED: (
        "the driver's library crashed during the query",
        "check whether nvidia-smi works; reinstall the driver",
    ),
    NOT_GIVEN: (
        "the inventory does not contain it",
        "give both values: --cuda-driver and --sm-arch",
    ),
    UNKNOWN_ERROR: (
        "the driver returned an unknown error",
        "check what nvidia-smi says; restart a container that has lost its devices, as "
        "after a reload of the daemon",
    ),
}


def explain(code: str) -> tuple[str, str]:
    """Return ``(sentence, next step)`` for a reason code, even for an unknown one."""
    return _SENTENCES.get(code, (f"reason {code}", "check what nvidia-smi says"))
