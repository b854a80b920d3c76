"""NV314: the provider of ``nvidia`` as uv recognises it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nvidia_variant_provider.errors import join
from nvidia_variant_provider.machine.supported import NAMESPACE
from nvidia_variant_provider.metadata.model import PLUGIN_API, REQUIRES

from ..metadata.requirements import parse_requirement
from .collector import Checks, Problem

__all__ = ["PROVIDER_CHECKS"]

PROVIDER_CHECKS: Checks[Mapping[str, Any]] = Checks()

_PLACE = join("providers", NAMESPACE)
_USE = f'use ["{REQUIRES}"]'


@PROVIDER_CHECKS.rule("NV314")
def check_nv314(provider: Mapping[str, Any]) -> Iterator[Problem]:
    """Report the first thing that makes uv 0.13.8 ignore its own NVIDIA provider.

    Measured: uv wants the exact ``plugin-api`` and one plain requirement that admits
    version 0.0.1.
    """
    if provider.get("optional") is True:
        place = join(_PLACE, "optional")
        yield Problem(place, "an optional provider is off by default", "remove the key")
    elif provider.get("plugin-api") != PLUGIN_API:
        yield Problem(
            join(_PLACE, "plugin-api"),
            "uv recognises its NVIDIA provider by one exact text only",
            f"use {PLUGIN_API}",
        )
    else:
        defect = _requirement_defect(provider.get("requires"))
        if defect is not None:
            yield Problem(join(_PLACE, "requires"), defect, _USE)


def _requirement_defect(requires: object) -> str | None:
    from packaging.utils import canonicalize_name

    if not isinstance(requires, list) or len(requires) != 1:
        return "uv wants exactly one requirement"
    requirement = parse_requirement(str(requires[0]))
    if requirement is None:
        return None  # NV210 reports a malformed requirement.
    unusual = requirement.marker or requirement.extras or requirement.url
    if canonicalize_name(requirement.name) != "nvidia-variant-provider" or unusual:
        return "uv wants nvidia-variant-provider without a marker, an extra or a URL"
    if not requirement.specifier.contains("0.0.1", prereleases=True):
        return "uv counts its provider as version 0.0.1, which the requirement excludes"
    return None
