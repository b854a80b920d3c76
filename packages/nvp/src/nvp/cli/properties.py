"""``properties``: list the variant properties that this machine supports."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from nvidia_variant_provider.errors import DetectionError
from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import minor_version_compatibility
from nvidia_variant_provider.machine.supported import (
    NAMESPACE,
    VariantProperty,
    all_features,
    left_out,
    supported_features,
)

from .arguments import (
    add_machine_options,
    add_options,
    detection_errors,
    find_environment,
)
from .parsers import add_examples
from .render import Result

_OPTIONS = """
--all
  list every property that a wheel may declare
--minor-version-compatibility
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, _OPTIONS)
    add_machine_options(parser)
    add_examples(parser, "properties", "properties --cuda-driver 12.9 --sm-arch 9.0")


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Return the namespace and its features as ``data``, values best first."""
    notes: list[str] = []
    errors: list[DetectionError] = []
    if options.all:
        features = all_features()
    else:
        environment = find_environment(options, environ)
        features, notes = supported_features(
            environment,
            minor_version_compatibility=options.minor_version_compatibility
            or minor_version_compatibility(environ),
        )
        notes += left_out(environment)
        errors = detection_errors(environment)
        if environment.reason and not errors:
            # No GPU is not an error, but empty output needs an explanation.
            sentence, step = reasons.explain(environment.reason)
            notes = [*notes, f"{environment.reason}: {sentence}; {step}"]
    return Result(
        exit_code=errors[0].exit_code if errors else 0,
        data={
            "namespace": NAMESPACE,
            "features": [
                {
                    "name": feature.name,
                    "values": feature.values,
                    "multi_value": feature.multi_value,
                }
                for feature in features
            ],
        },
        text=[
            str(VariantProperty(NAMESPACE, feature.name, value))
            for feature in features
            for value in feature.values
        ],
        verbatim=True,
        notes=notes,
        errors=errors,
    )
