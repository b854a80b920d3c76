"""ND601 to ND603: code that ran on the GPUs, with ``--live``."""

from __future__ import annotations

from ..model import Check

__all__ = ["LIVE_CHECKS"]

LIVE_CHECKS = (
    Check(
        code="ND601",
        title="no CUDA context can be made",
        meaning="A program that wants to use a GPU first makes a context on it. The "
        "driver has refused that, has crashed, or has not replied in time. It is a "
        "warning where CUDA shows programs fewer GPUs than the driver lists.",
        seen=(
            "CUDA error: out of memory",
            "CUDA_ERROR_OUT_OF_MEMORY (2)",
            "CUDA-capable device(s) is/are busy or unavailable",
            "RuntimeError: No CUDA GPUs are available",
        ),
        mend="The hint of the finding says what to do for the error. `nvidia-smi` "
        "shows the programs that use the GPU; the kernel log has lines with `NVRM` or "
        "`Xid` where the driver or the GPU has a defect.",
    ),
    Check(
        code="ND602",
        title="the driver refuses a version of PTX",
        meaning="The compiler in the driver reads PTX up to the version of its own "
        "CUDA. `--live` gives it a small kernel in each version up to the newest one "
        "that is known, and the finding says from which version on it refuses. It is "
        "an error where an installed build has only such PTX for a GPU that is here. "
        "ND205 says the same on paper, from the version that the driver reports.",
        seen=(
            "the provided PTX was compiled with an unsupported toolchain",
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)",
        ),
        mend="A note needs nothing. For an error, install the driver that the finding "
        "names, or a build with machine code for the GPU.",
    ),
    Check(
        code="ND603",
        title="a kernel does not run",
        meaning="A context could be made, and something after it failed. This is a "
        "small kernel whose result is compared, as PTX of each version and as machine "
        "code; one piece of machine code of each installed library, which is loaded "
        "and not run; or torch: its import, a matrix product and a `torch.compile` of "
        "a few lines. A program that crashed or did not end in time counts as well.",
        seen=(
            "CUDA error: no kernel image is available for execution on the device",
            "torch.cuda.is_available() is False",
            "PTX JIT compiler library not found",
        ),
        mend="The message names what failed, and the hint a command. Findings of the "
        "other checks often name the cause: ND2xx for a build without code for the "
        "GPU, ND3xx for a missing library, ND4xx for the compilers of "
        "`torch.compile`. Where all kernels fail, look at the kernel log.",
    ),
)
