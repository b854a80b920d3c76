"""Finding out what this machine has: overrides, presence check, child probe."""

from __future__ import annotations

from ..environment import Environment
from ..overrides import (
    apply_forced,
    forced_compute_capability,
    forced_cuda_version,
)
from . import reasons
from .presence import find_traces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["detect"]


def detect(environ: Mapping[str, str]) -> Environment:
    """The facts about this machine, forced values first.

    With both values forced, or where nothing hints at an NVIDIA driver, no
    native library is touched and no process is started. A hang or crash of a
    native library becomes a reason code, never the caller's.

    :param environ: environment variables.
    :raises OverrideError: a forced value is malformed.
    """
    cuda = forced_cuda_version(environ)
    capability = forced_compute_capability(environ)
    if cuda is not None and capability is not None:
        return apply_forced(Environment(), cuda, capability)
    if not find_traces(environ):
        found = Environment(reason=reasons.NO_DEVICE)
    else:
        from .probe import probe

        found = probe(environ)
    return apply_forced(found, cuda, capability)
