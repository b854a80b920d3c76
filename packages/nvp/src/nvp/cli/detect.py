"""``detect``: show the driver and the GPUs of this machine."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping

from nvidia_variant_provider.detection.cache import NO_CACHE, cache_file, clear
from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import Environment

from .arguments import (
    add_machine_options,
    add_options,
    detection_errors,
    find_environment,
    words_of,
)
from .parsers import PROGRAM, add_examples
from .render import Result, Table

_OPTIONS = """
--no-cache
  query the driver instead of reading the cache
--clear-cache
  empty the cache, then query the driver
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, _OPTIONS)
    add_machine_options(parser)
    add_examples(parser, "detect", "detect --json > machine.json")


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Return the snapshot of the machine as ``data``."""
    if options.clear_cache:
        _clear_cache(environ)
    if options.no_cache:
        environ = {**environ, NO_CACHE: "1"}
    environment = find_environment(options, environ)
    errors = detection_errors(environment)
    return Result(
        exit_code=errors[0].exit_code if errors else 0,
        data=environment.to_dict(),
        text=_text(environment),
        errors=errors,
        following=_following(options, environment),
    )


def _following(options: argparse.Namespace, environment: Environment) -> str:
    """Return the next step: see what runs, or fix why the driver is unknown."""
    if environment.reason:
        return reasons.explain(environment.reason)[1]
    return shlex.join([PROGRAM, "releases", "torch", *words_of(options)])


def _clear_cache(environ: Mapping[str, str]) -> None:
    path = cache_file({**environ, NO_CACHE: ""})
    if path is None:
        return
    try:
        clear(path)
    except OSError as error:
        message = f"cannot be removed: {error.strerror}"
        raise InputError(message, path=path, hint="remove the file yourself") from None


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
        text.append(
            Table(header=("GPU", "Name", "Compute capability", "Problem"), rows=rows)
        )
    if environment.reason:
        text.append(f"{environment.reason}: {reasons.explain(environment.reason)[0]}")
    return text
