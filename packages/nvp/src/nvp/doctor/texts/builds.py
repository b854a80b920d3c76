"""ND2xx: the builds that are installed."""

from __future__ import annotations

from ..model import Check

__all__ = ["BUILD_CHECKS"]

_REPLACE = (
    "Let the provider choose a build for this machine: `nvidia-variant-provider pip "
    "install --upgrade --force-reinstall NAME`. `nvidia-variant-provider releases "
    "NAME` shows what there is to choose from."
)

BUILD_CHECKS = (
    Check(
        code="ND201",
        title="an installed build needs a driver of a newer CUDA major version",
        meaning="The build is linked with a CUDA runtime of a newer major version than "
        "the driver supports. A driver runs programs of its own CUDA major version and "
        "of older ones, and refuses newer ones before the first kernel.",
        seen=(
            "The NVIDIA driver on your system is too old (found version 12080).",
            "torch.cuda.is_available() is False",
            "CUDA driver version is insufficient for CUDA runtime version",
            "cudaErrorInsufficientDriver (35)",
        ),
        mend=f"Install a newer driver, if the GPU has one. {_REPLACE}",
    ),
    Check(
        code="ND202",
        title="an installed build has no code for a GPU",
        meaning="No library of the build that matters has machine code for the GPU, or "
        "PTX that the driver could compile for it. Importing works, and the first "
        "kernel fails. A small library next to the main one does not count: torch 2.8 "
        "has its linear algebra for compute capability 6.1, and nothing else.",
        seen=(
            "CUDA error: no kernel image is available for execution on the device",
            "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible "
            "with the current PyTorch installation.",
            "CUDA_ERROR_NO_BINARY_FOR_GPU (209)",
        ),
        mend=_REPLACE,
    ),
    Check(
        code="ND203",
        title="some of a build's own libraries have no code for a GPU",
        meaning="The main library of the build runs on the GPU, and another one does "
        "not. Whatever that other library does fails: in torch 2.11 to 2.14, functions "
        "of `torch.linalg` on compute capability 7.5.",
        seen=("CUDA error: no kernel image is available for execution on the device",),
        mend=f"Nothing, if you do not need that part. {_REPLACE}",
    ),
    Check(
        code="ND204",
        title="a build has only PTX for a GPU",
        meaning="The build has no machine code for the GPU. The driver compiles its "
        "PTX when it is first used, which can take minutes, and keeps the result in "
        "`~/.nv/ComputeCache`.",
        mend="Nothing needs to be done. Where programs start in fresh containers, keep "
        "the cache on a volume: `CUDA_CACHE_PATH` and `CUDA_CACHE_MAXSIZE` say where "
        "it is and how large it may become.",
    ),
    Check(
        code="ND205",
        title="a build has only PTX for a GPU, and the driver is older than it",
        meaning="The build has no machine code for the GPU, and its PTX is of a newer "
        "version than the compiler in the driver reads. Minor-version compatibility of "
        "CUDA does not cover PTX.",
        seen=(
            "the provided PTX was compiled with an unsupported toolchain",
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)",
        ),
        mend=f"Install the driver that the finding names, or a newer one. {_REPLACE}",
    ),
    Check(
        code="ND206",
        title="an installed variant does not fit the machine",
        meaning="The file `variant.json` of the installed wheel names properties that "
        "this machine does not support. The environment may have been made on another "
        "machine, or the driver may have changed.",
        mend=_REPLACE,
    ),
    Check(
        code="ND207",
        title="a CPU build is installed, although a GPU is there",
        meaning="The build has no GPU code, by its label (`+cpu`) or by its files. "
        "Installers choose such a build where they see no driver, such as while an "
        "image is built.",
        seen=(
            "AssertionError: Torch not compiled with CUDA enabled",
            "torch.cuda.is_available() is False",
            "An NVIDIA GPU may be present on this machine, but a CUDA-enabled "
            "jaxlib is not installed.",
        ),
        mend=_REPLACE,
    ),
)
