"""The difference between a project's own libraries and those copied into its wheel."""

from __future__ import annotations

import re

__all__ = ["is_vendored"]

_NAMES = (
    "cublas|cublaslt|cudart|cudnn[a-z_]*|cufft|cufftw|cufile|cupti|curand|cusolver|"
    "cusolvermg|cusparse|cusparselt|cutensor|nccl|npp[a-z]*|nvblas|nvfatbin|nvjitlink|"
    "nvjpeg|nvrtc|nvrtc-builtins|nvshmem[a-z_]*|nvtoolsext|nvvm"
)
_NVIDIA = re.compile(rf"lib(?:{_NAMES})[-.].*|(?:{_NAMES})(?:32|64)?_[0-9]+.*\.dll")
"""Such as ``libcublas.so.12``, ``libcublas-1a2b.so.12`` and ``cublas64_12.dll``."""


def is_vendored(path: str, project: str = "") -> bool:
    """Return whether a library was copied into the wheel from elsewhere.

    Tools that repair wheels copy what a library is linked with into ``NAME.libs/`` or
    ``.dylibs/``. NVIDIA's libraries are recognized by their names, in any folder.

    :param path: where the library is in the wheel, with ``/``.
    :param project: the project of the wheel; the libraries in NVIDIA's own wheels are
        not copies.
    """
    if project.lower().startswith("nvidia"):
        return False
    *folders, name = path.lower().split("/")
    for folder in folders:
        if folder == ".dylibs":
            return True
        if folder.endswith(".libs"):
            # This folder may hold the project's own library, which a repair can move.
            stem = _letters(folder.removesuffix(".libs"))
            return not _letters(name).startswith((f"lib{stem}", stem))
    return folders[:1] == ["nvidia"] or _NVIDIA.fullmatch(name) is not None


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))
