"""The options that say for which machine a verb answers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from ..api import detect, read_environment
from ..errors import DetectionError, OverrideError
from ..machine import reasons
from ..machine.environment import Environment
from ..machine.overrides import (
    CUDA_DRIVER_VERSION,
    MINOR_VERSION_COMPATIBILITY,
    SM_ARCH,
    apply_forced,
    forced_compute_capability,
    forced_cuda_version,
)

__all__ = [
    "add_compatibility_option",
    "add_every_gpu_option",
    "add_options",
    "detection_errors",
    "find_environment",
    "find_later",
    "with_compatibility",
]

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


def add_compatibility_option(parser: argparse.ArgumentParser) -> None:
    """``--minor-version-compatibility``, for verbs whose answer it changes."""
    parser.add_argument(
        "--minor-version-compatibility",
        action="store_true",
        help="builds for a newer minor of the driver's CUDA major fit too, after "
        "all others",
    )


def add_every_gpu_option(parser: argparse.ArgumentParser) -> None:
    """``--every-gpu``, for verbs that choose a build."""
    parser.add_argument(
        "--every-gpu",
        action="store_true",
        help="only builds that have code for each GPU, not just for the highest",
    )


def detection_errors(environment: Environment) -> list[DetectionError]:
    """The error of a machine that could not be asked, or nothing."""
    reason = environment.reason
    if not reasons.is_failure(reason):
        return []
    sentence, step = reasons.explain(reason)
    return [DetectionError(f"{reason}: {sentence}", hint=step)]


def with_compatibility(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> Mapping[str, str]:
    """``environ``, opted in when the option is given."""
    if not options.minor_version_compatibility:
        return environ
    return {**environ, MINOR_VERSION_COMPATIBILITY: "1"}


def find_later(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> Callable[[], Environment]:
    """`find_environment` once it is called; what is given is checked at once.

    For verbs that may not need a machine at all, and then ask no driver.
    """
    given = (options.cuda_driver, options.sm_arch, options.environment)
    forced = (environ.get(CUDA_DRIVER_VERSION), environ.get(SM_ARCH))
    if any(item is not None for item in given) or any(forced):
        found = find_environment(options, environ)
        return lambda: found
    # For the verbs that wait for installers; the others start without it.
    from threading import Lock

    lock, known = Lock(), list[Environment]()

    def find_once() -> Environment:
        with lock:
            if not known:
                known.append(find_environment(options, environ))
            return known[0]

    return find_once


def find_environment(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> Environment:
    """The machine that the options name; the flags go before all others.

    Beside a snapshot the ``NV_VARIANT_PROVIDER_FORCE_*`` variables do not count.
    """
    flags = {
        CUDA_DRIVER_VERSION: options.cuda_driver,
        SM_ARCH: options.sm_arch,
    }
    given = {name: text for name, text in flags.items() if text is not None}
    for name, text in given.items():
        if not text:  # as from a shell variable that is not set
            raise OverrideError("is empty", path=_FLAGS[name], hint="give a value")
    try:
        if options.environment is None:
            return detect({**environ, **given})
        cuda, capability = forced_cuda_version(given), forced_compute_capability(given)
        return apply_forced(read_environment(options.environment), cuda, capability)
    except OverrideError as error:
        if error.path in given:
            error.path = _FLAGS[error.path]
            error.hint = (error.hint or "").removesuffix(", or unset it")
        raise
