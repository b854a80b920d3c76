"""ND4xx: the compilers and the assemblers that make GPU code on this machine."""

from __future__ import annotations

from ..model import Check

__all__ = ["TOOLCHAIN_CHECKS"]

TOOLCHAIN_CHECKS = (
    Check(
        code="ND401",
        title="the ptxas that Triton uses does not know a GPU",
        meaning="Triton compiles to PTX, and the program ptxas that it brings makes "
        "machine code of it. That program is older than the GPU, or it does not run at "
        "all. Since release 3.6 Triton brings two of them, and its own code says which "
        "one is for which GPU: `ptxas-blackwell` is for compute capability 10.0 and "
        "newer in 3.6 and 3.7, and for 9.0 and newer in 3.9.",
        seen=(
            "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
            "triton.runtime.errors.PTXASError: PTXAS error",
            "RuntimeError: Cannot find ptxas",
        ),
        mend="Install a newer Triton with the torch that requires it, or let the "
        "variable that the finding names point at the ptxas of a newer CUDA. A "
        "variable for the other ptxas has no effect on this GPU.",
    ),
    Check(
        code="ND402",
        title="TRITON_PTXAS_PATH or TRITON_PTXAS_BLACKWELL_PATH is wrong",
        meaning="The variable names a file that does not exist, that is no ptxas, or "
        "that does not know a GPU for which Triton uses it. Triton silently takes its "
        "own ptxas instead of a file that does not exist, and fails with one that the "
        "system does not run.",
        seen=(
            "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
            "RuntimeError: Cannot find ptxas",
        ),
        mend="Unset the variable, unless Triton's own ptxas does not know the GPU. "
        "Otherwise let it point at the ptxas that the finding asks for.",
    ),
    Check(
        code="ND403",
        title="Triton is not of the version that torch requires",
        meaning="Inductor, which compiles for `torch.compile`, calls functions of "
        "Triton that change from release to release. torch pins the one that it was "
        "made with.",
        seen=(
            "ImportError: cannot import name 'triton_key' from "
            "'triton.compiler.compiler'",
        ),
        mend="Install the version that torch requires, with the command of the "
        "finding.",
    ),
    Check(
        code="ND404",
        title="nvcc or NVRTC is of another CUDA than torch",
        meaning="Extensions of torch are built with the nvcc in `CUDA_HOME` or "
        "`CUDA_PATH`, with the one on `PATH`, or with that of /usr/local/cuda, in this "
        "order. It is of another CUDA major version than torch. Within one major "
        "version, all minor versions fit. The same holds for NVRTC, the compiler that "
        "torch loads while it runs.",
        seen=(
            "The detected CUDA version (12.8) mismatches the version that was used "
            "to compile PyTorch (13.2).",
        ),
        mend="Install a CUDA toolkit of the major version of torch, and set "
        "`CUDA_HOME` to its folder; or install a build of torch for the toolkit that "
        "is there.",
    ),
    Check(
        code="ND405",
        title="what this toolchain compiles is newer than the driver",
        meaning="A driver compiles PTX of the versions that it knows, and loads "
        "machine code of its own CUDA major version and of older ones. Triton makes "
        "machine code, and an extension of torch has machine code for the GPUs in "
        "`TORCH_CUDA_ARCH_LIST`. NVRTC and nvcc make PTX for a GPU that they do not "
        "know, and nvcc makes PTX where no GPU is named. The finding is an error where "
        "a GPU gets nothing else, a warning where the nvcc is of a newer major "
        "version, and otherwise a note.",
        seen=(
            "the provided PTX was compiled with an unsupported toolchain",
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)",
            "Triton Error [CUDA]: device kernel image is invalid",
        ),
        mend="Install the driver that the finding names, or compile with a CUDA that "
        "the driver knows.",
    ),
    Check(
        code="ND406",
        title="TORCH_CUDA_ARCH_LIST leaves out a GPU",
        meaning="The variable says for which GPUs extensions of torch are compiled: "
        "`8.0;9.0+PTX` has machine code for both, and PTX of 9.0 that newer GPUs can "
        "use. No entry of the value is for a GPU of this machine, or torch refuses an "
        "entry.",
        seen=(
            "CUDA error: no kernel image is available for execution on the device",
            "ValueError: Unknown CUDA arch (9,0) or GPU not supported",
        ),
        mend="Add the compute capability, or unset the variable: torch then compiles "
        "for the GPUs that it sees.",
    ),
)
