"""The provider of ``nvidia`` as uv recognises it.

uv runs no plugins. It has an NVIDIA provider of its own, which it uses only where the
metadata names the plugin in one exact way; otherwise every machine gets the CPU build.
"""

from __future__ import annotations

from dataclasses import replace

from nvidia_variant_provider.errors import join
from nvidia_variant_provider.machine.supported import NAMESPACE
from nvidia_variant_provider.metadata.model import PLUGIN_API, REQUIRES, Provider

from ..metadata.requirements import parse_requirement
from .remarks import Remark, Upgrade

__all__ = ["UNKNOWN_TO_UV", "is_known_to_uv", "rewrite_for_uv"]

_PLACE = join("providers", NAMESPACE)

UNKNOWN_TO_UV = Remark(
    place=_PLACE,
    message="uv 0.13.8 does not know the provider by these names, so that its users "
    "get the CPU build",
    hint="write the names that it knows with --for-uv",
)
"""The note about a provider that uv ignores."""


def is_known_to_uv(provider: Provider) -> bool:
    """Return whether uv 0.13.8 takes this for the provider that it has built in.

    The conditions were measured: one plain requirement that admits version 0.0.1, and
    the exact ``plugin-api``.
    """
    if len(provider.requires) != 1:
        return False
    item = parse_requirement(provider.requires[0])
    return (
        item is not None
        and provider.plugin_api == PLUGIN_API
        and item.name == "nvidia-variant-provider"
        and not (item.marker or item.extras or item.url)
        and item.specifier.contains("0.0.1")
    )


def rewrite_for_uv(outcome: Upgrade) -> Upgrade:
    """Return the outcome with the requirement and the plugin that uv recognises.

    Static properties stay as they are, since uv needs no plugin for them.
    """
    metadata = outcome.metadata
    old = metadata.providers.get(NAMESPACE) if metadata is not None else None
    if metadata is None or old is None or not old.requires:
        return outcome
    notes = [note for note in outcome.notes if note != UNKNOWN_TO_UV]
    if old.optional:
        message = "an optional provider is off unless the user enables it"
        place = join(_PLACE, "optional")
        notes.append(Remark(place=place, message=message, hint="remove the key"))
    if is_known_to_uv(old):
        return replace(outcome, notes=tuple(notes))
    before = ", ".join(old.requires)
    after = REQUIRES
    if old.plugin_api != PLUGIN_API:
        before += f" with {old.plugin_api or 'no plugin-api'}"
        after += f" with {PLUGIN_API}"
    message = f"{before} is replaced by {after}, which uv 0.13.8 recognises"
    hint = "build the wheels with that as well"
    notes.append(Remark(place=_PLACE, message=message, hint=hint))
    new = old.replace(requires=(REQUIRES,), plugin_api=PLUGIN_API)
    providers = {**metadata.providers, NAMESPACE: new}
    return replace(
        outcome, metadata=metadata.replace(providers=providers), notes=tuple(notes)
    )
