"""``resolve``: show which build of a release a machine gets, and why."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.supported import NAMESPACE
from nvidia_variant_provider.metadata import VariantsMetadata
from nvidia_variant_provider.resolution.resolver import Resolution

from ..api import resolve
from .arguments import (
    add_machine_options,
    add_options,
    detection_errors,
    find_environment,
    read_release,
)
from .build_text import block, rejected, uses_gpu
from .parsers import add_examples
from .render import Result, Table

NOTHING_COMPATIBLE = 1


_OPTIONS = """
file FILE
  {name}-{version}-variants.json, its URL, a directory with one, or - for stdin
--explain
  show why each other label was not chosen
--every-gpu
--minor-version-compatibility
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, _OPTIONS)
    add_machine_options(parser)
    add_examples(
        parser,
        "resolve torch-2.8.0-variants.json --explain",
        "resolve dist/ --cuda-driver 12.8 --sm-arch 9.0",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Select a build; ``data`` has ``selected``, ``compatible`` and ``rejected``."""
    metadata = read_release(options.file, environ)
    environment = find_environment(options, environ)
    resolution = resolve(
        metadata,
        environment=environment,
        every_gpu=options.every_gpu,
        minor_version_compatibility=options.minor_version_compatibility or None,
        environ=environ,
    )
    errors = detection_errors(environment)
    selected = 0 if resolution.selected else NOTHING_COMPATIBLE
    return Result(
        exit_code=errors[0].exit_code if errors else selected,
        data={
            "selected": resolution.selected,
            "compatible": list(resolution.compatible),
            # Only the JSON report needs reasons, which take long for many labels.
            "rejected": rejected(resolution) if options.json else {},
            "environment": environment.to_dict(),
        },
        text=_text(resolution, options),
        notes=[*resolution.notes, *_without_gpu(resolution, options)],
        errors=errors,
    )


def _without_gpu(resolution: Resolution, options: argparse.Namespace) -> list[str]:
    """Return a note if a machine with a driver gets a build that uses no GPU."""
    label, variants = resolution.selected, resolution.metadata.variants
    if label is None or resolution.environment.cuda_driver_version is None:
        return []
    if uses_gpu(label, resolution) or not any(
        NAMESPACE in v for v in variants.values()
    ):
        return []
    hint = "" if options.explain else "; --explain says why"
    return [f"no GPU build fits this machine{hint}"]


def _text(resolution: Resolution, options: argparse.Namespace) -> list[str | Table]:
    text: list[str | Table] = []
    selected, explain = resolution.selected, options.explain
    if selected is None:
        text.append("No label fits this machine.")
    else:
        text += block(_release(resolution.metadata, options.file), selected, resolution)
    if explain and selected is not None:
        text.append(f"Fits, best first: {', '.join(resolution.compatible)}")
    if explain or selected is None:
        for label, causes in resolution.rejected.items():
            # Features of an unsupported namespace share a sentence: print it once.
            sentences = dict.fromkeys(reason.sentence for reason in causes)
            text += [f"{label} does not fit: {sentence}" for sentence in sentences]
        if resolution.environment.reason:
            _, step = reasons.explain(resolution.environment.reason)
            text.append(f"Next: {step}")
    return text


def _release(metadata: VariantsMetadata, file: str) -> str:
    if metadata.name is None:
        return "stdin" if file == "-" else os.path.basename(file.rstrip("/"))
    # PEP 427 replaces "-" with "_" in the names of files.
    return f"{metadata.name.replace('_', '-')}=={metadata.version}"
