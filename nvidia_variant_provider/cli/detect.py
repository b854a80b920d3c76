"""``detect``: what is on this machine, and how it was found."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ..detection.cache import NO_CACHE, cache_file, clear
from ..errors import InputError
from ..machine import reasons
from ..machine.environment import Environment
from . import machine
from .result import Result, Table

__all__ = ["configure_parser", "execute"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "--no-cache", action="store_true", help="ask the driver, whatever is remembered"
    )
    parser.add_argument(
        "--clear-cache", action="store_true", help="forget what is remembered, then ask"
    )
    machine.add_options(parser)


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """``data`` is the snapshot of the machine."""
    if options.clear_cache:
        _clear_cache(environ)
    if options.no_cache:
        environ = {**environ, NO_CACHE: "1"}
    environment = machine.find_environment(options, environ)
    errors = machine.detection_errors(environment)
    return Result(
        exit_code=errors[0].exit_code if errors else 0,
        data=environment.to_dict(),
        text=_text(environment),
        errors=errors,
    )


def _clear_cache(environ: Mapping[str, str]) -> None:
    path = cache_file({**environ, NO_CACHE: ""})
    if path is None:
        return
    try:
        clear(path)
    except OSError as error:
        message = f"cannot be removed: {error.strerror}"
        raise InputError(message, path=path, hint="remove it yourself") from None


def _text(environment: Environment) -> list[str | Table]:
    text: list[str | Table] = [
        f"CUDA version of the driver: {environment.cuda_driver_version or 'none'}",
        f"Kernel driver:              {environment.kernel_driver_version or 'unknown'}",
        f"Source:                     {environment.source or 'none'}",
    ]
    if environment.gpus:
        rows = [
            (
                str(gpu.index),
                gpu.name or "unknown",
                str(gpu.compute_capability or "unknown"),
                reasons.explain(gpu.reason)[0] if gpu.reason else "",
            )
            for gpu in environment.gpus
        ]
        text.append(Table(("GPU", "Name", "Compute capability", "Problem"), rows))
    if environment.reason:
        sentence, step = reasons.explain(environment.reason)
        text += [f"{environment.reason}: {sentence}", f"Next step: {step}"]
    return text
