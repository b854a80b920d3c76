"""The installed torch: its version and its CUDA, without running its code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nvidia_variant_provider.machine.environment import CudaVersion
from nvidia_variant_provider.strict_json import open_regular

from ...builds.backends import parse_backend
from ..distributions import Distribution
from ..requirements import Need

__all__ = ["TorchBuild", "find_torch"]

_VERSION_FILE = "torch/version.py"
_LONGEST = 64 * 1024
_CUDA = re.compile(
    r"^cuda\b[^=\n]*=\s*(?:None|['\"](?P<cuda>[0-9]{1,3}\.[0-9]{1,3})[^'\"]*['\"])",
    re.MULTILINE,
)
_RUNTIME = re.compile(r"cuda-toolkit|nvidia-cuda-runtime(-cu[0-9]+)?")
_PINNED = re.compile(r"==\s*([0-9]{1,3}\.[0-9]{1,3})")


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchBuild:
    """The installed torch.

    :param cuda: ``None`` for a build without CUDA, and where nobody knows.
    :param source: what says so: ``torch/version.py``, ``label``, ``METADATA`` or
        ``None``.
    """

    version: str
    cuda: CudaVersion | None
    source: str | None

    @property
    def is_known(self) -> bool:
        """Whether it is known which CUDA it is for, or that it is for none."""
        return self.source is not None

    def to_dict(self) -> dict[str, object]:
        """Return the build as it stands in the JSON report."""
        return {
            "version": self.version,
            "cuda": None if self.cuda is None else str(self.cuda),
            "source": self.source,
        }


def find_torch(torch: Distribution | None, needs: Iterable[Need]) -> TorchBuild | None:
    """Find out which CUDA the installed torch is for.

    :param needs: the requirements that hold in the environment.
    """
    if torch is None:
        return None
    text = _read(torch.locate(_VERSION_FILE))
    match = _CUDA.search(text)
    if match is not None:
        cuda = CudaVersion.parse(match["cuda"]) if match["cuda"] else None
        return TorchBuild(version=torch.version, cuda=cuda, source=_VERSION_FILE)
    backend = parse_backend(torch.version.partition("+")[2])
    if backend is not None:
        return TorchBuild(version=torch.version, cuda=backend.cuda, source="label")
    for need in needs:
        pinned = _PINNED.search(need.text)
        if need.user.name == "torch" and _RUNTIME.fullmatch(need.name) and pinned:
            cuda = CudaVersion.parse(pinned[1])
            return TorchBuild(version=torch.version, cuda=cuda, source="METADATA")
    return TorchBuild(version=torch.version, cuda=None, source=None)


def _read(path: str) -> str:
    try:
        with open_regular(path) as file:
            return file.read(_LONGEST).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
