"""The schema versions of variant metadata, and how to tell them apart.

Source: the schema files of the wheel-variants project, PEP 817, 825 and 850,
and variantlib 0.0.1 to 0.2.2; read on 2026-11-20.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InputError, shown
from ..strict_json import as_object, as_string

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LATEST", "SchemaVersion", "find_version"]

_TOP_LEVEL = frozenset({"$schema", "default-priorities", "variants"})
_OLD_PRIORITIES = frozenset({"namespace", "feature", "property"})


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaVersion:
    """What one version of the format knows.

    ``strict`` versions reject keys they do not know; PEP 817 has tools ignore
    them. ``old_null`` versions spell the null label ``00000000`` as well.
    """

    number: tuple[int, int, int]
    keys: frozenset[str]
    priority_keys: frozenset[str]
    provider_keys: frozenset[str]
    strict: bool
    old_null: bool = False

    def __str__(self) -> str:
        return ".".join(map(str, self.number))


_UNVERSIONED = SchemaVersion(
    number=(0, 0, 1),
    keys=_TOP_LEVEL | {"providers"},
    priority_keys=_OLD_PRIORITIES,
    provider_keys=frozenset({"enable-if", "plugin-api", "requires", "optional"}),
    strict=False,
    old_null=True,
)
_V0_0_2 = SchemaVersion(
    number=(0, 0, 2),
    keys=_UNVERSIONED.keys,
    priority_keys=_OLD_PRIORITIES,
    provider_keys=_UNVERSIONED.provider_keys | {"plugin-use"},
    strict=False,
    old_null=True,
)
_V0_0_3 = SchemaVersion(
    number=(0, 0, 3),
    keys=_UNVERSIONED.keys | {"static-properties"},
    priority_keys=_OLD_PRIORITIES,
    provider_keys=_UNVERSIONED.provider_keys | {"install-time"},
    strict=False,
    old_null=True,
)
_V0_1_0 = SchemaVersion(
    number=(0, 1, 0),
    keys=_TOP_LEVEL,
    priority_keys=_OLD_PRIORITIES,
    provider_keys=frozenset(),
    strict=True,
)
_V0_1_1 = SchemaVersion(
    number=(0, 1, 1),
    keys=_TOP_LEVEL,
    priority_keys=frozenset({"namespace"}),
    provider_keys=frozenset(),
    strict=True,
)
_V0_2_0 = SchemaVersion(
    number=(0, 2, 0),
    keys=_TOP_LEVEL | {"providers"},
    priority_keys=frozenset({"namespace"}),
    provider_keys=frozenset(
        {
            "builtin",
            "feature-order",
            "optional",
            "plugin-api",
            "requires",
            "static-properties",
        }
    ),
    strict=True,
)

LATEST = _V0_2_0
_KNOWN = {
    version.number: version
    for version in (_UNVERSIONED, _V0_0_2, _V0_0_3, _V0_1_0, _V0_1_1, _V0_2_0)
}

_UNVERSIONED_URL = re.compile(r"https?://[^/]+/?")
_VERSIONED_URL = re.compile(
    r"https?://\S+/v([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})\.json"
)


def find_version(document: Mapping[str, Any]) -> SchemaVersion:
    """The version of a document: by its ``$schema``, without one by its shape.

    PEP 825: "Tools MUST reject metadata with a major version number that they
    do not support", and they "SHOULD accept metadata with a newer minor version
    number than the latest supported".

    :raises InputError: not a schema URL, or an unknown major version.
    """
    if "$schema" not in document:
        return _by_shape(document)
    url = as_string(document["$schema"], "$schema")
    if _UNVERSIONED_URL.fullmatch(url):
        return _UNVERSIONED
    match = _VERSIONED_URL.fullmatch(url)
    if match is None:
        raise InputError(
            f"{shown(url)} is no schema of variant metadata",
            place="$schema",
            hint="known are versions 0.0.1 to 0.2.0",
        )
    major, minor, patch = (int(part) for part in match.groups())
    if major > LATEST.number[0]:
        raise InputError(
            f"version {major}.{minor}.{patch} has an unknown major version",
            place="$schema",
            hint="a newer nvidia-variant-provider may read it",
        )
    number = (major, minor, patch)
    if number in _KNOWN:
        return _KNOWN[number]
    # An unknown one between two known is read as the older of the two; one that
    # is newer than all may have keys that are not known here.
    older = max((known for known in _KNOWN if known < number), default=None)
    if older is None:
        return _UNVERSIONED
    base = _KNOWN[older]
    return SchemaVersion(
        number=number,
        keys=base.keys,
        priority_keys=base.priority_keys,
        provider_keys=base.provider_keys,
        strict=False,
        old_null=base.old_null,
    )


def _by_shape(document: Mapping[str, Any]) -> SchemaVersion:
    if "static-properties" in document:
        return _V0_0_3
    if "providers" not in document:
        priorities = as_object(
            document.get("default-priorities", {}), "default-priorities"
        )
        return _V0_1_0 if len(priorities) > 1 else _V0_1_1
    providers = as_object(document["providers"], "providers").values()
    keys = {key for item in providers if isinstance(item, dict) for key in item}
    if "plugin-use" in keys:
        return _V0_0_2
    if "install-time" in keys:
        return _V0_0_3
    if "enable-if" in keys:
        return _UNVERSIONED
    return _V0_2_0 if keys <= _V0_2_0.provider_keys else _UNVERSIONED
