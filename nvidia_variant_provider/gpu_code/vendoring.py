"""Which libraries of a wheel are the project's own, and which were copied into it."""

from __future__ import annotations

import re

__all__ = ["is_vendored"]

_NAMES = (
    "cublas|cublaslt|cudart|cudnn[a-z_]*|cufft|cufftw|cufile|cupti|curand|cusolver|"
    "cusolvermg|cusparse|cusparselt|cutensor|nccl|npp[a-z]*|nvblas|nvfatbin|nvjitlink|"
    "nvjpeg|nvrtc|nvrtc-builtins|nvshmem[a-z_]*|nvtoolsext|nvvm"
)
_NVIDIA = re.compile(rf"lib(?:{_NAMES})[-.].*|(?:{_NAMES})(?:32|64)?_[0-9]+.*\.dll")
"""``libcublas.so.12``, ``libcublas-1a2b.so.12``, ``cublas64_12.dll``."""


def is_vendored(path: str, project: str = "") -> bool:
    """Was a library copied into the wheel from elsewhere.

    Tools that repair wheels put what a library is linked with into ``NAME.libs/`` or
    ``.dylibs/``. NVIDIA's libraries are known by their names, wherever they are.

    :param path: in the wheel, with ``/``.
    :param project: the name of its project: what NVIDIA's own wheels hold is theirs.
    """
    if project.lower().startswith("nvidia"):
        return False
    *folders, name = path.lower().split("/")
    for folder in folders:
        if folder == ".dylibs":
            return True
        if folder.endswith(".libs"):
            # A repair moves the project's own library there as well.
            stem = _letters(folder.removesuffix(".libs"))
            return not _letters(name).startswith((f"lib{stem}", stem))
    return folders[:1] == ["nvidia"] or _NVIDIA.fullmatch(name) is not None


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))
