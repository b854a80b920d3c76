"""The user's priorities, from the file ``variants.toml`` of variantlib.

Format and places are those of variantlib 0.2.2: other tools read the same file, so that
users state their priorities once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..errors import ConfigurationError, InputError, MissingExtraError, join
from ..light import EMPTY, Frozen
from ..metadata.model import Features
from ..strict_json import as_object, as_strings, read_bytes

FILE_NAME = "variants.toml"
_KEYS = ("namespace_priorities", "feature_priorities", "property_priorities")


class Priorities(Frozen):
    """What the user prefers; each list goes before the list of the metadata."""

    namespaces: tuple[str, ...] = ()
    features: Mapping[str, Sequence[str]] = EMPTY
    properties: Mapping[str, Mapping[str, Sequence[str]]] = EMPTY


def candidate_files() -> list[str]:
    """Return the places of the file, of which the first that exists is read.

    They are the working folder, the Python environment, and the configuration folders
    of the user and of the site.
    """
    folders = [sys.prefix]
    with suppress(OSError):  # raised if the working folder has been removed
        folders.insert(0, os.getcwd())
    files = [os.path.join(folder, FILE_NAME) for folder in folders]
    if any(map(os.path.isfile, files)):
        return files
    import platformdirs

    folders += [
        platformdirs.user_config_dir("variantlib", appauthor=False, roaming=True),
        platformdirs.site_config_dir("variantlib", appauthor=False),
    ]
    return [os.path.join(folder, FILE_NAME) for folder in folders]


def load_priorities() -> Priorities:
    """Read the user's priorities; without a file they are empty.

    :raises ConfigurationError: the file cannot be read or is not valid.
    """
    for path in candidate_files():
        if os.path.isfile(path):
            return _read(path)
    return Priorities()


def _read(path: str) -> Priorities:
    loads = _toml_loads(path)
    try:
        return _priorities(loads(read_bytes(path).decode("utf-8")))
    except InputError as error:
        raise ConfigurationError(
            error.message, path=path, place=error.place, hint=error.hint
        ) from None
    except (ValueError, RecursionError) as error:
        # TOMLDecodeError and UnicodeDecodeError are both ValueErrors.
        message = f"not TOML: {str(error).splitlines()[0]}"
        hint = "correct the file or remove it"
        raise ConfigurationError(message, path=path, hint=hint) from None


def _toml_loads(path: str) -> Callable[[str], dict[str, Any]]:
    try:
        if sys.version_info >= (3, 11):
            from tomllib import loads
        else:
            from tomli import loads
    except ImportError:
        raise MissingExtraError(
            "reading this file needs tomli on Python 3.10",
            path=path,
            hint="pip install tomli",
        ) from None
    reader: Callable[[str], dict[str, Any]] = loads
    return reader


def _priorities(document: Mapping[str, Any]) -> Priorities:
    for key in document:
        if key not in _KEYS:
            hint = f"the known keys are {', '.join(_KEYS)}"
            raise InputError("unknown key", place=join("", key), hint=hint)
    namespaces, features, properties = _KEYS
    return Priorities(
        namespaces=as_strings(document.get(namespaces, []), namespaces),
        features=_lists(document.get(features, {}), features),
        properties={
            namespace: _lists(items, join(properties, namespace))
            for namespace, items in as_object(
                document.get(properties, {}), properties
            ).items()
        },
    )


def _lists(value: object, place: str) -> Features:
    items = as_object(value, place).items()
    return {key: as_strings(item, join(place, key)) for key, item in items}
