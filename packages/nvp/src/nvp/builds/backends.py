"""Backends: what a local version label or the folder of an index says of a build.

Indexes such as PyTorch's name the builds of a release by a local version label
(``2.10.0+cu128``) or by a folder (``.../cu128/``). Only labels whose meaning is the
same everywhere are read; any other label says nothing, and a build is never judged
by it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from nvidia_variant_provider.machine.environment import CudaVersion

BackendKind: TypeAlias = Literal["cuda", "cpu", "rocm", "xpu"]

_CUDA = re.compile(r"cu([0-9]{1,2})([0-9])")
_ROCM = re.compile(r"rocm[0-9]{1,2}(?:\.[0-9]{1,3}){0,2}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """What a build was made for.

    :param label: the label as it was written, such as ``cu128``.
    :param cuda: the CUDA toolkit of a ``cuda`` build, otherwise ``None``.
    """

    label: str
    kind: BackendKind
    cuda: CudaVersion | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether the build is for hardware that is not NVIDIA's."""
        return self.kind in ("rocm", "xpu")


def parse_backend(label: str | None) -> Backend | None:
    """Read a local version label or the name of an index folder.

    :param label: such as ``cu128``, ``cpu``, ``xpu`` or ``rocm7.2``, without the ``+``.
    :returns: ``None`` for every other label, such as ``pt28cu126``, ``cpu.cxx11.abi``,
        ``cu`` or ``computecanada``.
    """
    if not label:
        return None
    text = label.lower()
    if text in ("cpu", "xpu"):
        return Backend(label=label, kind="cpu" if text == "cpu" else "xpu")
    if _ROCM.fullmatch(text):
        return Backend(label=label, kind="rocm")
    match = _CUDA.fullmatch(text)
    if match is None:
        return None
    # The last digit is the minor: cu92 is CUDA 9.2, cu118 is 11.8 and cu130 is 13.0.
    # CUDA has never had a minor above 9.
    return Backend(
        label=label, kind="cuda", cuda=CudaVersion(int(match[1]), int(match[2]))
    )
