"""Which distribution brings a library of CUDA."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from .distributions import Distribution
from .libraries import is_of_torch
from .requirements import Need
from .stack import Stack

__all__ = ["cuda_of_name", "find_bringer", "need_of", "project_for", "purpose_of"]

_STEM = re.compile(r"lib([a-z0-9-]+(?:_[a-z]+)*?)(?:[-.][0-9a-f]{8,})?\.so.*")

_PURPOSES: Mapping[str, str] = {
    "cudart": "cuda-runtime",
    "cublas": "cublas",
    "cublaslt": "cublas",
    "nvblas": "cublas",
    "nvrtc": "cuda-nvrtc",
    "nvrtc-builtins": "cuda-nvrtc",
    "cupti": "cuda-cupti",
    "cufft": "cufft",
    "cufftw": "cufft",
    "curand": "curand",
    "cusolver": "cusolver",
    "cusolvermg": "cusolver",
    "cusparse": "cusparse",
    "cusparselt": "cusparselt",
    "nccl": "nccl",
    "nvshmem_host": "nvshmem",
    "nvjitlink": "nvjitlink",
    "cufile": "cufile",
    "cufile_rdma": "cufile",
    "nvtoolsext": "nvtx",
    "nvjpeg": "nvjpeg",
    "nvfatbin": "nvfatbin",
}
"""The name of the distribution ``nvidia-...`` by the name of the library."""

_OF_NO_CUDA = frozenset({"cudnn", "cusparselt", "nccl", "nvshmem"})
"""These have a release for each CUDA major. Since CUDA 13, the others have their own
version, and no CUDA in the name."""

_DISTRIBUTED = frozenset({*_PURPOSES.values(), *_OF_NO_CUDA, "npp"})
_NAME = re.compile(r"nvidia-(?P<purpose>[a-z0-9-]+?)(?:-cu(?P<cuda>[0-9]{2}))?")
_LAYOUT = re.compile(r"nvidia/cu([0-9]{2})/")


def purpose_of(name: str) -> str | None:
    """Return what a library is for, such as ``cublas`` for ``libcublasLt.so.13``."""
    match = _STEM.fullmatch(name.lower())
    if match is None:
        return None
    if match[1].startswith("cudnn"):
        return "cudnn"
    return "npp" if match[1].startswith("npp") else _PURPOSES.get(match[1])


def cuda_of_name(distribution: Distribution) -> tuple[str, int] | None:
    """Return what one of NVIDIA's distributions is for, and for which CUDA major.

    :returns: ``None`` for a distribution that brings no library of CUDA.
    """
    match = _NAME.fullmatch(distribution.name)
    if match is None or match["purpose"] not in _DISTRIBUTED:
        return None
    if match["cuda"]:
        return match["purpose"], int(match["cuda"])
    for item in distribution.files:
        if layout := _LAYOUT.match(item.path):
            return match["purpose"], int(layout[1])
    return None


def find_bringer(stack: Stack, name: str) -> tuple[Distribution, str] | None:
    """Return the installed distribution that has a library, and the file's folder.

    Only the distributions of NVIDIA count, which bring libraries for others, and only
    files that are there.
    """
    for distribution, recorded in stack.brought.get(name, ()):
        path = distribution.locate(recorded)
        if os.path.isfile(path):
            return distribution, os.path.dirname(path)
    return None


def need_of(stack: Stack, name: str, user: Distribution) -> Need | None:
    """Return the requirement by which a distribution gets a library.

    :param name: the library, such as ``libcublas.so.13``.
    :param user: the distribution that is linked with it.
    """
    purpose = purpose_of(name)
    if purpose is None:
        return None
    pattern = re.compile(rf"nvidia-{purpose}(?:-cu[0-9]+)?")
    # torch requires nvidia-cublas by way of cuda-toolkit. What nobody has asked for of
    # its extras does not count.
    users = {user.name, *stack.needed_names.get(user.name, ())}
    fitting = [
        (place, need)
        for name in users
        for place, need in stack.needs_of_libraries.get(name, ())
        if pattern.fullmatch(need.name)
    ]
    return min(fitting, key=lambda pair: pair[0])[1] if fitting else None


def project_for(
    stack: Stack, name: str, user: Distribution, cuda: int | None
) -> str | None:
    """Return the project that has a library.

    :param user: the distribution that is linked with it.
    :param cuda: the CUDA major that the library is for; ``None`` where only what the
        distribution needs says it.
    :returns: ``None`` where nobody knows it.
    """
    if is_of_torch(name):
        return "torch"
    purpose = purpose_of(name)
    if cuda is None:
        needs = stack.needs_of(user)
        version = None if needs is None else needs.cuda
        cuda = None if version is None else version.major
    if purpose is None or cuda is None:
        return None
    if cuda < 13 or purpose in _OF_NO_CUDA:
        return f"nvidia-{purpose}-cu{cuda}"
    return f"nvidia-{purpose}"
