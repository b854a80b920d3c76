"""The outcome of a release on a machine: a label, no label, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.uv_installer import InstallError, UvIndex

from nvidia_variant_provider.errors import InputError, OverrideError
from nvidia_variant_provider.resolution.inputs import Priorities
from nvp import api

__all__ = ["REFUSED", "our_outcome", "uv_outcome"]

REFUSED = "REFUSED"
"""The outcome if metadata or machine is refused. No label has capital letters."""


def our_outcome(
    metadata: Mapping[str, Any], variables: Mapping[str, str]
) -> str | None:
    """Return the label that `api.resolve` selects without preferences of the user."""
    try:
        resolution = api.resolve(metadata, priorities=Priorities(), environ=variables)
    except (InputError, OverrideError):
        return REFUSED
    return resolution.selected


def uv_outcome(
    index: UvIndex, metadata: Mapping[str, Any], variables: Mapping[str, str]
) -> str | None:
    """Return the label that uv installs, or ``None`` for the non-variant wheel."""
    try:
        (label,) = index.install([index.publish(metadata)], variables)
    except InstallError as error:
        # The metadata does not cause any other failure, so raise the failure.
        refused = "Failed to parse variant metadata" in str(error)
        return REFUSED if refused else str(error)
    return label
