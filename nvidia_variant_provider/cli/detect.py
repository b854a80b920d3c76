"""``detect``: what is on this machine, and how it was found."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ..detection import reasons
from ..environment import Environment
from . import machine
from .result import Result, Table

__all__ = ["configure_parser", "execute"]

DETECTION_FAILED = 4


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    machine.add_options(parser)


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """``data`` is the snapshot of the machine."""
    environment = machine.find_environment(options, environ)
    failed = reasons.is_failure(environment.reason)
    return Result(
        exit_code=DETECTION_FAILED if failed else 0,
        data=environment.to_dict(),
        text=_text(environment),
    )


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
