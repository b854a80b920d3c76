"""Finding out what this machine has: overrides, presence check, child probe."""

from __future__ import annotations

from ..machine import reasons
from ..machine.environment import Environment
from ..machine.overrides import (
    apply_forced,
    detection_timeout,
    forced_compute_capability,
    forced_cuda_version,
)
from .presence import find_traces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["detect"]


def detect(environ: Mapping[str, str]) -> Environment:
    """The facts about this machine, forced values first.

    With both values forced, or where nothing hints at an NVIDIA driver, no
    native library is touched and no process is started. A hang or crash of a
    native library becomes a reason code, never the caller's. What was found is
    remembered for a while, see `cache`.

    :param environ: environment variables.
    :raises OverrideError: a forced value is malformed.
    """
    cuda = forced_cuda_version(environ)
    capability = forced_compute_capability(environ)
    if cuda is not None and capability is not None:
        return apply_forced(Environment(), cuda, capability)
    detection_timeout(environ)  # a malformed one is said whether it matters or not
    traces = find_traces(environ)
    if not traces:
        found = Environment(reason=reasons.NO_DEVICE)
    else:
        found = _probe_or_remember(environ, traces)
    return apply_forced(found, cuda, capability)


def _probe_or_remember(
    environ: Mapping[str, str], traces: Sequence[str]
) -> Environment:
    from .cache import cache_file, cache_key, load, store

    path = cache_file(environ)
    key = cache_key(environ, traces) if path else None
    if path is not None and key is not None:
        found = load(path, key)
        if found is not None:
            return found
    from .probe import probe

    found = probe(environ, traces)
    if path is not None and key is not None:
        store(path, key, found)
    return found
