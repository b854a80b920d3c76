"""``abi_dependency``: the namespace that PEP 817 reserves for versions of dependencies.

A build for torch 2.9 has the property ``abi_dependency :: torch :: 2.9``. No provider
answers for the namespace: only an installer knows which versions it will install.
"""

from __future__ import annotations

import re

from ..errors import join, shown
from ..strict_json import as_object
from .fields import Fields
from .model import Features

__all__ = ["read_dependencies"]

_DEPENDENCY = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_RELEASE = re.compile(r"[0-9]+(?:\.[0-9]+){0,2}")


def read_dependencies(item: object, place: str, fields: Fields) -> Features | None:
    """Return ``{dependency: (version, ...)}``; ``None`` when a type is wrong.

    PEP 817: "the feature name MUST be the normalized name of the dependency, whereas
    the value MUST be a valid release segment of a public version identifier", and "It
    MUST contain up to three version components".
    """
    dependencies = fields.typed(as_object, item, place)
    if dependencies is None:
        return None
    refuse = fields.report.refuse
    features: dict[str, tuple[str, ...]] = {}
    for name, values in dependencies.items():
        where = join(place, name)
        if not _DEPENDENCY.fullmatch(name):
            message = f"{shown(name)} is not the normalized name of a project"
            hint = "use a-z, 0-9 and single hyphens between them"
            refuse("feature", place, message, hint)
        versions = fields.texts(values, where, None)
        if versions is None:
            continue
        if not versions:
            hint = "give a version, or remove the dependency"
            refuse("no-value", where, "no version is given", hint)
        for index, version in enumerate(versions):
            if not _RELEASE.fullmatch(version):
                message = f"{shown(version)} is not a release of one to three numbers"
                refuse("value", join(where, index), message, "write it as in 2.9")
        if len(set(versions)) < len(versions):
            refuse("repeated", where, "a version is given twice", "keep one of them")
        features[name] = versions
    return features if len(features) == len(dependencies) else None
