"""The nvcc that builds extensions of torch, and the installed NVRTC."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from nvidia_variant_provider.machine.environment import CudaVersion

from ..distributions import Distribution
from .programs import Place

__all__ = ["Nvrtc", "find_nvcc", "find_nvrtc"]

_NVCC = "nvcc.exe" if sys.platform == "win32" else "nvcc"
_NVRTC = re.compile(r"nvidia-cuda-nvrtc(-cu[0-9]+)?")
_DEFAULT = ("usr", "local", "cuda")


@dataclass(frozen=True, kw_only=True, slots=True)
class Nvrtc:
    """An installed NVRTC, which compiles CUDA C++ while a program runs.

    :param cuda: ``None`` where its version does not say it.
    """

    distribution: Distribution
    cuda: CudaVersion | None

    def fits(self, cuda: CudaVersion) -> bool:
        """Return whether it is of the same major version as a build."""
        return self.cuda is not None and self.cuda.major == cuda.major

    def to_dict(self) -> dict[str, object]:
        """Return NVRTC as it stands in the JSON report."""
        return {
            "distribution": self.distribution.name,
            "version": self.distribution.version,
            "cuda": None if self.cuda is None else str(self.cuda),
        }


def find_nvcc(environ: Mapping[str, str], root: str) -> Iterator[Place]:
    """Yield where each nvcc is that a build may use.

    torch takes the one in ``CUDA_HOME`` or ``CUDA_PATH``, then the one on ``PATH``,
    then that of /usr/local/cuda, and the first of these is what this yields first.
    CMake looks on ``PATH`` first.

    :param root: the root folder of the system.
    """
    places: dict[str, str] = {}
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if folder := environ.get(variable):
            places.setdefault(os.path.join(folder, "bin", _NVCC), variable)
    path = shutil.which(_NVCC, path=environ.get("PATH", ""))
    if path is not None:
        places.setdefault(path, "PATH")
    default = os.path.join(root, *_DEFAULT, "bin", _NVCC)
    if not places and os.path.exists(default):
        places[default] = "/usr/local/cuda"
    for place, named_by in places.items():
        yield Place(place, named_by)


def find_nvrtc(distributions: Mapping[str, Distribution]) -> Iterator[Nvrtc]:
    """Yield the installed NVRTC of each CUDA major version."""
    for distribution in distributions.values():
        if _NVRTC.fullmatch(distribution.name):
            cuda = _cuda(distribution.version)
            yield Nvrtc(distribution=distribution, cuda=cuda)


def _cuda(version: str) -> CudaVersion | None:
    """Return (12, 8) for the version 12.8.93."""
    try:
        release = Version(version).release
    except InvalidVersion:
        return None
    return CudaVersion(*release[:2]) if len(release) > 1 else None
