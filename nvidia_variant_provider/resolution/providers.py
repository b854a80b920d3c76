"""The answer for each namespace of a document: what the machine supports.

PEP 850: it comes from static properties in the metadata, from a provider
plugin, or from a list that the user gives in place of one.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import shown
from ..machine.environment import Environment
from ..machine.supported import NAMESPACE, supported_features
from ..metadata.model import Provider, VariantsMetadata

__all__ = ["ENTRY_POINT_GROUP", "Answer", "find_answers", "own_answer"]

ENTRY_POINT_GROUP = "variant_plugins"

_LINUX = {"os_name": "posix", "platform_system": "Linux", "sys_platform": "linux"}
"""What markers see of a machine with an NVIDIA driver, when they run on a Mac."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What is supported in one namespace.

    :param features: ``{feature: (value, ...)}``, both ordered, best first.
    :param why_not: a sentence, when the namespace has no answer at all.
    :param notes: sentences about what the answer had to leave out.
    :param own: it is this package's, about the environment at hand.
    """

    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    why_not: str | None = None
    notes: tuple[str, ...] = ()
    own: bool = False


def find_answers(
    metadata: VariantsMetadata,
    environment: Environment,
    *,
    supported: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    enable_optional: bool | Collection[str] = False,
    minor_version_compatibility: bool = False,
) -> dict[str, Answer]:
    """The answers for all namespaces that labels of ``metadata`` use.

    :param supported: answers that the user gives in place of asking a plugin.
    :param enable_optional: the optional providers to ask, or all of them.
    """
    given = supported or {}
    used = {space for properties in metadata.variants.values() for space in properties}
    answers: dict[str, Answer] = {}
    plugins: list[str] = []
    for namespace in metadata.namespaces:
        if namespace not in used:
            continue
        provider = metadata.providers.get(namespace, Provider())
        enabled = (
            enable_optional
            if isinstance(enable_optional, bool)
            else namespace in enable_optional
        )
        if provider.optional and not enabled:
            # PEP 817: "the installer MUST NOT query said provider by default,
            # and instead assume that its properties are incompatible".
            answers[namespace] = Answer(
                why_not="its provider is optional and was not enabled"
            )
        elif provider.enable_if and not (
            holds := _marker_holds(provider.enable_if, environment)
        ):
            # PEP 817: "It MUST NOT use any providers whose markers do not match".
            answers[namespace] = Answer(
                why_not=f"its provider is not for this platform ({provider.enable_if})"
                if holds is not None
                else f"its marker cannot be read ({shown(provider.enable_if)})"
            )
        elif provider.static_properties is not None:
            answers[namespace] = Answer(features=_ordered(provider))
        elif namespace in given:
            answers[namespace] = Answer(
                features={name: tuple(v) for name, v in given[namespace].items()}
            )
        elif namespace == NAMESPACE:
            answers[namespace] = own_answer(
                environment, minor_version_compatibility=minor_version_compatibility
            )
        elif provider.builtin is not None:
            answers[namespace] = Answer(
                why_not=f"its provider is built into installers ({provider.builtin})"
            )
        else:
            plugins.append(namespace)
    if plugins:
        from .plugins import ask_plugins

        answers.update(ask_plugins(plugins))
    return answers


def own_answer(
    environment: Environment, *, minor_version_compatibility: bool = False
) -> Answer:
    """The answer of this package for its namespace."""
    features, notes = supported_features(
        environment, minor_version_compatibility=minor_version_compatibility
    )
    return Answer(
        features={feature.name: tuple(feature.values) for feature in features},
        notes=tuple(notes),
        own=True,
    )


def _ordered(provider: Provider) -> Mapping[str, tuple[str, ...]]:
    static = provider.static_properties or {}
    return {name: static[name] for name in provider.feature_order or static}


def _marker_holds(text: str, environment: Environment) -> bool | None:
    """Does an environment marker hold here? ``None``: it cannot be read."""
    from ..metadata.requirements import marker_holds

    # A machine with an NVIDIA driver is no Mac: there it is another one's answer,
    # forced or from a snapshot, that is asked for.
    elsewhere = sys.platform == "darwin" and environment.cuda_driver_version is not None
    return marker_holds(text, _LINUX if elsewhere else None)
