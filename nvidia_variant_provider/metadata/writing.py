"""Writing variant metadata: version 0.2.0 of the format, always the same bytes.

The form is variantlib's: four spaces, sorted keys, ASCII; with a line end.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from typing import Any

from ..errors import InputError, join, shown
from . import versions
from .model import NULL_LABELS, Provider, VariantsMetadata

__all__ = ["find_defects", "replace_file", "to_dict", "to_text"]

# What variantlib 0.2.2 takes; uv 0.13.8 takes more.
_REQUIREMENT = re.compile(r"[\S ]+")
_PLUGIN_API = re.compile(r"[\w.]+(\s*:\s*[\w.]+)?")


def to_text(metadata: VariantsMetadata) -> str:
    """The JSON text of `to_dict`; equal metadata gives equal text."""
    return json.dumps(to_dict(metadata), indent=4, sort_keys=True) + "\n"


def to_dict(metadata: VariantsMetadata) -> dict[str, Any]:
    """The document in version 0.2.0.

    :raises InputError: that version cannot say all of it; see `find_defects`.
    """
    for defect in find_defects(metadata):
        raise defect
    return {
        "$schema": versions.WRITTEN.url,
        "default-priorities": {"namespace": list(metadata.namespaces)},
        "providers": {
            namespace: _provider(provider)
            for namespace, provider in metadata.providers.items()
        },
        "variants": {
            label: {
                namespace: {
                    # PEP 825: "The third level values are sets of feature values,
                    # converted to lists and sorted lexically."
                    feature: sorted(values)
                    for feature, values in features.items()
                }
                for namespace, features in properties.items()
            }
            for label, properties in metadata.variants.items()
        },
    }


def _provider(provider: Provider) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if provider.requires:
        fields["requires"] = list(provider.requires)
    if provider.plugin_api is not None:
        fields["plugin-api"] = provider.plugin_api
    if provider.optional:
        fields["optional"] = True
    if provider.builtin is not None:
        fields["builtin"] = provider.builtin
    if provider.static_properties:
        static = provider.static_properties
        fields["static-properties"] = {name: list(v) for name, v in static.items()}
        # JSON objects have no order. With one feature there is nothing to order.
        if provider.feature_order or len(static) > 1:
            fields["feature-order"] = list(provider.feature_order or static)
    return fields


def find_defects(metadata: VariantsMetadata) -> list[InputError]:
    """What keeps ``metadata`` from being written in version 0.2.0.

    Things that this version has no place for, and what variantlib 0.2.2 or
    uv 0.13.8 refuse.
    """
    if metadata.schema.number != versions.WRITTEN.number:
        message = f"it is of version {metadata.schema}, not {versions.WRITTEN}"
        return [InputError(message, place="$schema", hint="upgrade it first")]
    defects = []
    place = "default-priorities"
    for key, priorities in (
        ("feature", metadata.feature_priorities),
        ("property", metadata.property_priorities),
    ):
        if priorities:
            message = f"version {versions.WRITTEN} has no such key"
            hint = "upgrade the metadata first"
            defects.append(InputError(message, place=join(place, key), hint=hint))
    if not metadata.namespaces:
        # PEP 825: "it MUST NOT be empty"
        hint = "list the namespaces that the labels use"
        where = join(place, "namespace")
        defects.append(InputError("no namespace is given", place=where, hint=hint))
    for namespace in metadata.namespaces:
        where = join("providers", namespace)
        if namespace in metadata.providers:
            defects += _provider_defects(metadata.providers[namespace], where)
            continue
        message = f"the namespace has no provider; version {versions.WRITTEN} needs one"
        hint = "say where the answer comes from: requires or static-properties"
        defects.append(InputError(message, place=where, hint=hint))
    for namespace in metadata.providers:
        if namespace not in metadata.namespaces:
            message = "the namespace is not in default-priorities.namespace"
            where = join("providers", namespace)
            defects.append(InputError(message, place=where, hint="add it there"))
    for label, properties in metadata.variants.items():
        if (label == NULL_LABELS[0]) == bool(properties):
            message = "null, and no other label, is the one without properties"
            where = join("variants", label)
            defects.append(InputError(message, place=where, hint="rename the label"))
    return defects


def _provider_defects(provider: Provider, place: str) -> list[InputError]:
    defects = []
    sources = {
        "requires": bool(provider.requires),
        "static-properties": provider.static_properties is not None,
        "builtin": provider.builtin is not None,
    }
    given = [name for name, has in sources.items() if has]
    if len(given) != 1:
        message = f"{' and '.join(given) or 'nothing'} says where the answer comes from"
        hint = f"give exactly one of {', '.join(sources)}"
        defects.append(InputError(message, place=place, hint=hint))
    if provider.static_properties is not None and not all(
        (provider.static_properties, *provider.static_properties.values())
    ):
        where = join(place, "static-properties")
        hint = "list the supported values"
        defects.append(InputError("no value is given", place=where, hint=hint))
    for index, text in enumerate(provider.requires):
        if not _REQUIREMENT.fullmatch(text):
            where = join(join(place, "requires"), index)
            message = f"{shown(text)} is no requirement"
            defects.append(InputError(message, place=where, hint="correct it"))
    if provider.plugin_api is not None:
        where = join(place, "plugin-api")
        if not _PLUGIN_API.fullmatch(provider.plugin_api):
            message = f"{shown(provider.plugin_api)} is not of the form module:object"
            defects.append(InputError(message, place=where, hint="correct it"))
        elif not provider.requires:
            message = "it goes with requires only"
            defects.append(InputError(message, place=where, hint="remove it"))
    if provider.enable_if is not None:
        message = f"version {versions.WRITTEN} has no such key"
        where = join(place, "enable-if")
        hint = "upgrade the metadata first"
        defects.append(InputError(message, place=where, hint=hint))
    return defects


def replace_file(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` so that a reader sees all of the old file or all of the new.

    A link stays one: the file that it names is replaced. Permissions stay.

    :raises InputError: it cannot be written; the old file is as it was.
    """
    name = str(path)
    try:
        target = os.path.realpath(path)
        folder, base = os.path.split(target)
        part = os.path.join(folder, f".{base}.{os.getpid()}.part")
        if os.path.exists(target) and not os.path.isfile(target):
            message = "cannot be written: not a regular file"
            raise InputError(message, path=name, hint="name another")
        try:
            # A name of its own, so that no other file is lost.
            with open(part, "x", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(target, part)
            os.replace(part, target)
        except BaseException as error:
            if not isinstance(error, FileExistsError):
                with contextlib.suppress(OSError):
                    os.unlink(part)
            raise
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        # A path with a NUL byte is a ValueError, which has no strerror.
        reason = getattr(error, "strerror", None) or str(error)
        message = f"cannot be written: {reason}"
        raise InputError(message, path=name, hint="check the path") from None
