"""The command line, run in the process of the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["CUDA", "FORCED", "SM", "Outcome", "Run"]

CUDA = "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"
SM = "NV_VARIANT_PROVIDER_FORCE_SM_ARCH"

FORCED = ("--cuda-driver", "12.9", "--sm-arch", "7.5")
"""Options for the machine of the tutorial."""


class Outcome(NamedTuple):
    """Exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The ``data`` of the report that ``--json`` printed."""
        return json.loads(self.out)["data"]


Run = Callable[..., Outcome]
