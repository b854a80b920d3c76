"""ND3xx: the libraries that GPU code is linked with."""

from __future__ import annotations

from ..model import Check

__all__ = ["LIBRARY_CHECKS"]

LIBRARY_CHECKS = (
    Check(
        code="ND301",
        title="a library that GPU code is linked with is found nowhere",
        meaning="The loader looks for a library in the RPATH of the file that needs "
        "it and of those that have loaded this file, in `LD_LIBRARY_PATH`, in the "
        "RUNPATH of the file, in `ld.so.cache` and in the default folders; in each "
        "folder it takes a copy for newer processors first (`glibc-hwcaps`). `doctor` "
        "follows these rules without loading anything, for all that a program loads, "
        "after what `LD_PRELOAD` names, and what torch and jax load first from the "
        "`nvidia-*` distributions. A library that a program opens by its name while it "
        "runs, as jax and tensorflow do, is linked with nothing and cannot be checked; "
        "ND304 compares what METADATA requires. With an interpreter of musl (Alpine "
        "Linux) nothing is checked: its loader has other rules, and NVIDIA's libraries "
        "are made for glibc. Most often such a distribution is missing, or one for "
        "another CUDA is installed. A library that the installed METADATA does not "
        "require is a warning where it serves a part of the build only, or is "
        "installed where a program that is imported before may find it. For another "
        "machine, only those libraries count that environments bring, since its system "
        "is not known.",
        seen=(
            "ImportError: libcudart.so.12: cannot open shared object file: No such "
            "file or directory",
            "OSError: libcublas.so.12: cannot open shared object file: No such "
            "file or directory",
            "ImportError: libcudnn.so.9: cannot open shared object file: No such "
            "file or directory",
            "ImportError: libc10_cuda.so: cannot open shared object file: No such "
            "file or directory",
            "Failed to load library libonnxruntime_providers_cuda.so",
            "ValueError: libcublas.so.*[0-9] not found in the system path",
        ),
        mend="Install what the command of the finding names. Where the library comes "
        "from a toolkit of the system, add its folder to `LD_LIBRARY_PATH`. Where it "
        "is installed, and the loader does not look there, import torch first, or call "
        "what the project has for it, such as `onnxruntime.preload_dlls()`.",
    ),
    Check(
        code="ND302",
        title="libraries of two CUDA majors for one purpose",
        meaning="Distributions such as `nvidia-cudnn-cu12` and `nvidia-cudnn-cu13` are "
        "installed in one environment. Several of them write the same files: the one "
        "installed later has overwritten the other, and to remove one removes files "
        "of both. Others stand side by side, and torch takes whichever it sees first. "
        "Where one process loads libraries of both CUDA majors, as an extension for "
        "CUDA 12 with a torch for CUDA 13, the message names them.",
        seen=(
            "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
            "undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
        ),
        mend="Keep programs for different CUDA majors in environments of their own. "
        "Remove what nothing requires any more, and install again what remains: "
        "`nvidia-variant-provider pip install --force-reinstall --no-deps NAME`.",
    ),
    Check(
        code="ND303",
        title="LD_LIBRARY_PATH puts another copy before the installed one",
        meaning="A folder of `LD_LIBRARY_PATH`, such as that of a toolkit, has a "
        "library that a distribution of the environment brings too, and the loader "
        "takes the former. The build was made and tested with the latter. An RPATH "
        "comes before `LD_LIBRARY_PATH`, and what torch loads first is not replaced "
        "either: only libraries are named for which the variable makes a difference.",
        seen=(
            "undefined symbol: cublasLtGetEnvironmentMode, version libcublasLt.so.12",
        ),
        mend="Remove the folder from `LD_LIBRARY_PATH`, or unset the variable: "
        "`env -u LD_LIBRARY_PATH python ...`.",
    ),
    Check(
        code="ND304",
        title="an NVIDIA distribution is not of the version that METADATA requires",
        meaning="A build was compiled and tested with one version of each library of "
        "CUDA, and its METADATA pins it. Another one is installed, or none: something "
        "that was installed later has replaced it, or it was installed without "
        "dependencies.",
        seen=(
            "undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
        ),
        mend="Install the version that is required, with the command of the finding. "
        "Where two projects require different versions, keep them in environments of "
        "their own.",
    ),
)
