"""The provider's public Python API: detect this machine, and find labels that fit it.

The functions read environment variables and the user's ``variants.toml``, unless an
argument replaces them, and never print. All errors are `ProviderError`: its attributes
``message``, ``path``, ``place`` and ``hint`` describe the problem, its location and the
next step; ``exit_code`` is the command line's exit code. `nvp.api` has more functions.
"""

from __future__ import annotations

import os

from . import detection
from .light import Logger
from .machine.environment import Environment
from .machine.environment import (
    minor_version_compatibility as read_minor_version_compatibility,
)
from .metadata import VariantsMetadata, read_metadata
from .resolution.inputs import Priorities, load_priorities
from .resolution.resolver import Resolution, resolve_metadata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any, TypeAlias

__all__ = ["Environment", "Release", "Resolution", "detect", "metadata_of", "resolve"]

Release: TypeAlias = (
    "str | bytes | os.PathLike[str] | Mapping[str, Any] | VariantsMetadata"
)
"""The variant metadata of a release, in one of these forms:

- a path: an `os.PathLike`, or a `str` that does not start with ``{``;
- a JSON text: `bytes`, or a `str` whose first character other than white space is
  ``{``; so a path that starts with ``{`` must be given as a `pathlib.Path`;
- a parsed document: a mapping, as `json.loads` returns it;
- the `VariantsMetadata` that `metadata_of` returned.
"""

_logger = Logger("nvidia_variant_provider.api")


def detect(environ: Mapping[str, str] | None = None) -> Environment:
    """Return the driver and the GPUs of this machine.

    Values forced by environment variables replace those of the driver. Facts read from
    the driver are cached for up to a day.

    :param environ: environment variables, by default those of the process. Settings
        begin with ``NV_VARIANT_PROVIDER_``; the driver's libraries use other variables.
    :raises OverrideError: a forced value is malformed.
    """
    return detection.detect(os.environ if environ is None else environ)


def metadata_of(release: Release) -> VariantsMetadata:
    """Return the parsed metadata of a release.

    :raises InputError: the metadata cannot be read, or is not valid.
    """
    if isinstance(release, VariantsMetadata):
        return release
    return read_metadata(release)


def resolve(
    variants_json: Release,
    *,
    environment: Environment | None = None,
    supported: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    every_gpu: bool = False,
    enable_optional: bool | Collection[str] = False,
    minor_version_compatibility: bool | None = None,
    priorities: Priorities | None = None,
    environ: Mapping[str, str] | None = None,
) -> Resolution:
    """Order the labels of a release for a machine, as PEP 825 defines.

    :param variants_json: the metadata of the release; see `Release`.
    :param environment: the machine; by default this one, as `detect` returns it.
    :param supported: the supported values in other namespaces, as
        ``{namespace: {feature: [value, ...]}}``, best value first. These values replace
        those of the namespace's plugin, but static properties in the metadata take
        precedence.
    :param every_gpu: keep only labels with a supported ``sm_arch`` value for every
        GPU.
    :param enable_optional: the namespaces of optional providers to enable, or ``True``
        for all of them.
    :param minor_version_compatibility: accept builds that run only by CUDA's
        minor-version compatibility; ``None`` takes the setting from ``environ``.
    :param priorities: the priorities to use instead of those in ``variants.toml``.
    :param environ: environment variables for `detect` and for the opt-in to
        minor-version compatibility, by default those of the process.
    :return: ``selected`` is the best label or ``None``, ``compatible`` has all labels
        that fit, best first, and ``rejected`` has the reasons for each other label.
    :raises InputError: the metadata or ``variants.toml`` is not valid.
    :raises OverrideError: a forced value is malformed.
    """
    environ = os.environ if environ is None else environ
    if minor_version_compatibility is None:
        minor_version_compatibility = read_minor_version_compatibility(environ)
    metadata = metadata_of(variants_json)
    resolution = resolve_metadata(
        metadata,
        detect(environ) if environment is None else environment,
        supported=supported,
        every_gpu=every_gpu,
        enable_optional=enable_optional,
        minor_version_compatibility=minor_version_compatibility,
        priorities=load_priorities() if priorities is None else priorities,
    )
    _logger.info(
        "%s %s: %d of %d labels fit, the best is %s",
        metadata.name or "a release without a name",
        metadata.version or "",
        len(resolution.compatible),
        len(metadata.variants),
        resolution.selected,
    )
    if _logger.logs_debug():  # building the reasons is slow: skip it if possible
        for label, reasons in resolution.rejected.items():
            causes = "; ".join(reason.sentence for reason in reasons)
            _logger.debug("%s does not fit: %s", label, causes)
    return resolution
