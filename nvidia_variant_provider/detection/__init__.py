"""Detect the driver and the GPUs of this machine, in child processes."""

from __future__ import annotations

import sys

from ..machine import reasons
from ..machine.environment import (
    Environment,
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
    """Return the facts about this machine; forced values replace detected ones.

    If both the CUDA version and the compute capability are forced, or if there is no
    trace of an NVIDIA driver, this function loads no native library and starts no
    process. A hang or a crash of a native library becomes a reason code and never ends
    the caller's process. The module `cache` stores the result.

    :param environ: environment variables.
    :raises OverrideError: a forced value is malformed.
    """
    cuda = forced_cuda_version(environ)
    capability = forced_compute_capability(environ)
    if cuda is not None and capability is not None:
        return _logged(apply_forced(Environment(), cuda, capability))
    # Report a malformed deadline on every machine, even if it is not used here.
    detection_timeout(environ)
    traces = find_traces(environ)
    if traces:
        environment = _detect_or_load(environ, traces)
    else:
        environment = Environment(reason=reasons.NO_DEVICE)
    return _logged(apply_forced(environment, cuda, capability))


def _detect_or_load(environ: Mapping[str, str], traces: Sequence[str]) -> Environment:
    from ..light import Logger
    from .cache import cache_file, cache_key, load, store

    logger = Logger(__name__)
    logger.info("traces of an NVIDIA driver: %s", ", ".join(traces))
    path = cache_file(environ)
    key = cache_key(environ, traces) if path else None
    if path is not None and key is not None:
        kept = load(path, key)
        if kept is not None:
            logger.info("using the cached result in %s", path)
            return kept
        logger.debug("%s has no cached result for this machine", path)
    from .probe import probe

    environment = probe(environ, traces)
    if path is not None and key is not None:
        store(path, key, environment)
    return environment


def _logged(environment: Environment) -> Environment:
    # Installers do not import `logging`, so skip building the message for them.
    if "logging" in sys.modules:
        from ..light import Logger

        gpus = ", ".join(map(str, environment.compute_capabilities)) or "none"
        Logger(__name__).info(
            "environment: CUDA %s, kernel driver %s, compute capabilities %s, "
            "source %s, reason %s",
            environment.cuda_driver_version or "none",
            environment.kernel_driver_version or "unknown",
            gpus,
            environment.source or "none",
            environment.reason or "none",
        )
    return environment
