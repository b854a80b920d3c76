"""The options that say for which machine a verb answers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ..api import detect, read_environment
from ..detection import reasons
from ..environment import Environment
from ..errors import OverrideError
from ..overrides import (
    CUDA_DRIVER_VERSION,
    SM_ARCH,
    apply_forced,
    forced_compute_capability,
    forced_cuda_version,
)

__all__ = ["add_options", "failure_note", "find_environment"]

_FLAGS = {CUDA_DRIVER_VERSION: "--cuda-driver", SM_ARCH: "--sm-arch"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--cuda-driver``, ``--sm-arch`` and ``--environment``."""
    group = parser.add_argument_group("another machine")
    group.add_argument(
        "--cuda-driver",
        metavar="VERSION",
        help="act as if the driver were for this CUDA version, as 12.9",
    )
    group.add_argument(
        "--sm-arch",
        metavar="MAJOR.MINOR",
        help="act as if the GPU had this compute capability, as 9.0",
    )
    group.add_argument(
        "--environment",
        metavar="FILE",
        help="act as the machine of a snapshot, made with: detect --json",
    )


def find_environment(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> Environment:
    """The machine that the options name; the flags go before all others.

    With a snapshot the ``NV_VARIANT_PROVIDER_FORCE_*`` variables do not count.
    """
    flags = {
        CUDA_DRIVER_VERSION: options.cuda_driver,
        SM_ARCH: options.sm_arch,
    }
    given = {name: text for name, text in flags.items() if text is not None}
    try:
        if options.environment is None:
            return detect({**environ, **given})
        cuda, capability = forced_cuda_version(given), forced_compute_capability(given)
        return apply_forced(read_environment(options.environment), cuda, capability)
    except OverrideError as error:
        if error.path in given:
            error.path = _FLAGS[error.path]
        raise


def failure_note(environment: Environment) -> list[str]:
    """One line when something is there that could not be asked, else nothing."""
    reason = environment.reason
    if reason is None or not reasons.is_failure(reason):
        return []
    sentence, step = reasons.explain(reason)
    return [f"{reason}: {sentence}; {step}"]
