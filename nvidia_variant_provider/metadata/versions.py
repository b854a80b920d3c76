"""The versions of the metadata format, and how to find the version of a document.

No other module contains version numbers. Add a new version of the format to `KNOWN`,
set `WRITTEN` when this package should write the version, and add it to
`READ_BY_CLIENTS` when released clients read it.

Sources: the schema files of the wheel-variants project, PEP 817, 825 and 850, and
variantlib 0.0.1 to 0.2.2; read on 2026-11-20.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..errors import InputError, shown
from ..light import Frozen
from ..strict_json import as_object, as_string

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOST = "https://variants-schema.wheelnext.dev"
_TOP_LEVEL = frozenset({"$schema", "default-priorities", "variants"})
_OLD_PRIORITIES = frozenset({"namespace", "feature", "property"})


class SchemaVersion(Frozen):
    """The rules of one version of the format.

    :param url: the ``$schema`` of its documents.
    :param keys: the keys at the top level.
    :param priority_keys: the keys of ``default-priorities``.
    :param provider_keys: the keys of a provider.
    :param strict: whether readers reject undefined keys; PEP 817 requires tools to
        ignore them.
    :param one_source: whether a provider must have exactly one source of its values.
    :param old_null: whether ``00000000`` is also a null label.
    :param reserved: namespaces that labels may use without a provider.
    :param label_limit: the maximum length of a label in characters, or ``None``.
    """

    number: tuple[int, int, int]
    url: str
    keys: frozenset[str]
    priority_keys: frozenset[str]
    provider_keys: frozenset[str]
    strict: bool
    one_source: bool = False
    old_null: bool = False
    reserved: frozenset[str] = frozenset()
    label_limit: int | None = None

    def __str__(self) -> str:
        return ".".join(map(str, self.number))


_V0_0_1 = SchemaVersion(
    number=(0, 0, 1),
    url=f"{_HOST}/",
    keys=_TOP_LEVEL | {"providers"},
    priority_keys=_OLD_PRIORITIES,
    provider_keys=frozenset({"enable-if", "plugin-api", "requires", "optional"}),
    strict=False,
    old_null=True,
    label_limit=8,
)
_V0_0_2 = _V0_0_1.replace(
    number=(0, 0, 2),
    url=f"{_HOST}/v0.0.2.json",
    provider_keys=_V0_0_1.provider_keys | {"plugin-use"},
    label_limit=16,
)
_V0_0_3 = _V0_0_2.replace(
    number=(0, 0, 3),
    url=f"{_HOST}/v0.0.3.json",
    keys=_V0_0_1.keys | {"static-properties"},
    provider_keys=_V0_0_1.provider_keys | {"install-time"},
    reserved=frozenset({"abi_dependency"}),
)
_V0_1_0 = SchemaVersion(
    number=(0, 1, 0),
    url=f"{_HOST}/peps/825/v0.1.0.json",
    keys=_TOP_LEVEL,
    priority_keys=_OLD_PRIORITIES,
    provider_keys=frozenset(),
    strict=True,
    label_limit=16,
)
_V0_1_1 = _V0_1_0.replace(
    number=(0, 1, 1),
    url=f"{_HOST}/peps/825/v0.1.1.json",
    priority_keys=frozenset({"namespace"}),
    label_limit=None,
)
_V0_2_0 = _V0_1_1.replace(
    number=(0, 2, 0),
    url=f"{_HOST}/v0.2.0.json",
    keys=_TOP_LEVEL | {"providers"},
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
    one_source=True,
)

KNOWN = (_V0_0_1, _V0_0_2, _V0_0_3, _V0_1_0, _V0_1_1, _V0_2_0)
"""Every version that this package reads, oldest first."""

WRITTEN = _V0_2_0
"""The version that this package writes."""

READ_BY_CLIENTS = (_V0_2_0,)
"""The versions from which released clients select labels, oldest first (tested)."""

FIRST_IN_WHEELS = _V0_1_0
"""The oldest version that uv 0.13.8 accepts in a ``variant.json`` (tested)."""

CLIENTS = "uv 0.13.8 and variantlib 0.2.2"
"""The clients with which `READ_BY_CLIENTS` was tested."""

_UNVERSIONED_URL = re.compile(r"https?://[^/]+/?")
_VERSIONED_URL = re.compile(
    r"https?://\S+/v([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})\.json"
)


def is_read_by_clients(version: SchemaVersion) -> bool:
    """Return whether released clients select labels from metadata of this version.

    PEP 825 lets clients read a minor version that is newer than those they support.
    """
    numbers = [read.number for read in READ_BY_CLIENTS]
    return version.number in numbers or version.number > max(numbers)


def find_version(document: Mapping[str, Any]) -> SchemaVersion:
    """Return the version of a document, from ``$schema`` or else from its shape.

    PEP 825: "Tools MUST reject metadata with a major version number that they
    do not support", and they "SHOULD accept metadata with a newer minor version
    number than the latest supported".

    :raises InputError: ``$schema`` is not a known URL, or its major version is
        unknown.
    """
    if "$schema" not in document:
        return _find_by_shape(document)
    url = as_string(document["$schema"], "$schema")
    if _UNVERSIONED_URL.fullmatch(url):
        return KNOWN[0]
    match = _VERSIONED_URL.fullmatch(url)
    if match is None:
        raise InputError(
            f"{shown(url)} is not a schema of variant metadata",
            place="$schema",
            hint=f"use {WRITTEN.url}; versions {KNOWN[0]} to {KNOWN[-1]} are known",
        )
    major, minor, patch = (int(part) for part in match.groups())
    number = (major, minor, patch)
    if major > KNOWN[-1].number[0]:
        raise InputError(
            f"version {major}.{minor}.{patch} has an unknown major version",
            place="$schema",
            hint=f"use {WRITTEN.url}, or a newer nvidia-variant-provider",
        )
    # An unknown version is read like the newest known version before it. The unknown
    # version may define new keys, so unknown keys are not rejected.
    older = [known for known in KNOWN if known.number <= number]
    nearest = older[-1] if older else KNOWN[0]
    if nearest.number == number or not older:
        return nearest
    return nearest.replace(number=number, url=url, strict=False, label_limit=None)


def _find_by_shape(document: Mapping[str, Any]) -> SchemaVersion:
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
        return _V0_0_1
    # Choose the oldest version that requires one source per provider and has all keys.
    for version in KNOWN:
        if version.one_source and keys <= version.provider_keys:
            return version
    return _V0_0_1
