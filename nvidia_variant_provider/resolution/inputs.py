"""Find the inputs for ordering labels: supported values, and the user's priorities.

PEP 850 defines three sources of supported values: static properties in the metadata, an
installed provider plugin, and a list from the user in place of a plugin. This package
provides the values of its own namespace.

Priorities come from ``variants.toml``, in variantlib 0.2.2's format and locations.
Other tools read the same file, so users state their priorities once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import lru_cache
from typing import Any

from ..errors import ConfigurationError, InputError, MissingExtraError, join, shown
from ..light import EMPTY, Frozen
from ..machine.environment import Environment
from ..machine.supported import NAMESPACE, supported_features
from ..metadata.model import Features, Provider, VariantsMetadata
from ..strict_json import (
    as_object,
    as_strings,
    open_regular,
    read_stream,
    unreadable,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FILE_NAME = "variants.toml"
_KEYS = ("namespace_priorities", "feature_priorities", "property_priorities")

ENTRY_POINT_GROUP = "variant_plugins"
"""The entry points of this group are provider plugins; their names are namespaces."""

_LONGEST_MARKER = 1000
"""The maximum length of a marker in characters. Published ones have up to 80."""

_LINUX = {"os_name": "posix", "platform_system": "Linux", "sys_platform": "linux"}
"""The marker variables that a Mac uses for a machine with an NVIDIA driver."""


class Answer(Frozen):
    """The supported values in one namespace, as its provider returns them.

    :param features: ``{feature: (value, ...)}``; both levels are ordered, best first.
    :param why_not: a clause that explains a missing answer, or ``None``.
    :param notes: sentences about facts that the answer leaves out.
    :param own: whether this package computed the answer from the environment.
    """

    features: Mapping[str, tuple[str, ...]] = EMPTY
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
    """Return the answer for each namespace that a label of ``metadata`` uses.

    :param supported: supported values from the user, which replace those of plugins.
    :param enable_optional: the optional namespaces to enable, or ``True`` for all.
    """
    given = supported or {}
    used = {space for properties in metadata.variants.values() for space in properties}
    answers: dict[str, Answer] = {}
    plugins: list[str] = []
    for namespace in (used & metadata.schema.reserved) - given.keys():
        # PEP 817, on abi_dependency: "Tools that do not implement this feature MUST
        # treat the variants using it as incompatible".
        unknown = "only an installer knows the versions of dependencies (PEP 817)"
        answers[namespace] = Answer(why_not=unknown)
    for namespace in metadata.namespaces:
        if namespace not in used or namespace in answers:
            continue
        provider = metadata.providers.get(namespace, Provider())
        enabled = (
            enable_optional
            if isinstance(enable_optional, bool)
            else namespace in enable_optional
        )
        if why_not := _why_not_asked(provider, environment, enabled=enabled):
            answers[namespace] = Answer(why_not=why_not)
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
        answers.update(ask_plugins(plugins))
    return answers


def _why_not_asked(
    provider: Provider, environment: Environment, *, enabled: bool
) -> str | None:
    """Return why ``provider`` must not be queried for this machine, or ``None``."""
    if provider.optional and not enabled:
        # PEP 817: "the installer MUST NOT query said provider by default,
        # and instead assume that its properties are incompatible".
        return "its provider is optional and was not enabled"
    if not provider.enable_if:
        return None
    # PEP 817: "It MUST NOT use any providers whose markers do not match".
    holds = _holds_here(provider.enable_if, environment)
    if holds is None:
        return f"its marker cannot be read ({shown(provider.enable_if)})"
    return None if holds else f"its provider does not apply here ({provider.enable_if})"


def own_answer(
    environment: Environment, *, minor_version_compatibility: bool = False
) -> Answer:
    """Return this package's answer for its own namespace."""
    features, notes = supported_features(
        environment, minor_version_compatibility=minor_version_compatibility
    )
    return Answer(
        features={feature.name: tuple(feature.values) for feature in features},
        notes=tuple(notes),
        own=True,
    )


def ask_plugins(namespaces: Sequence[str]) -> dict[str, Answer]:
    """Return the answer of each namespace's plugin, or why it is missing.

    Plugins are third-party code. An exception becomes the ``why_not`` of the answer,
    and output goes to stderr, because stdout may carry a report.
    """
    # importlib.metadata is slow to import; only documents with other providers need it.
    from importlib.metadata import entry_points

    installed: dict[str, list[EntryPoint]] = {}
    try:
        for point in entry_points(group=ENTRY_POINT_GROUP):
            installed.setdefault(point.name, []).append(point)
    except (TypeError, ValueError) as error:  # one project's entry points are broken
        text = f"the entry points of the installed projects: {error}"
        unread = Answer(
            why_not=f"its plugin cannot be found in {shown(text, 150)[1:-1]}"
        )
        return dict.fromkeys(namespaces, unread)
    return {name: _ask(installed.get(name, [])) for name in namespaces}


def _ask(points: Sequence[EntryPoint]) -> Answer:
    endpoints = {point.value: point for point in points}
    if not endpoints:
        return Answer(why_not="no provider plugin for it is installed")
    if len(endpoints) > 1:
        # PEP 817: attempting to load multiple plugins for one namespace "MUST
        # result in a fatal error". Instead of failing, ignore the namespace.
        names = ", ".join(sorted(endpoints))
        return Answer(why_not=f"several installed plugins claim it: {names}")
    (point,) = endpoints.values()
    try:
        with redirect_stdout(sys.stderr):
            features = _features(point)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a plugin may raise anything
        text = f"{type(error).__name__}: {error}"
        return Answer(why_not=f"its plugin {point.value} failed with {shown(text)}")
    return Answer(features=features)


def _features(point: EntryPoint) -> Mapping[str, tuple[str, ...]]:
    """Return the features and values that a plugin supports.

    :raises TypeError: the plugin returned something other than named lists of strings.
    """
    plugin = point.load()
    # An endpoint is a module or a class (PEP 817). The first plugins were classes with
    # instance methods, so make an instance, which has the class methods too.
    if isinstance(plugin, type):
        plugin = plugin()
    features = {}
    for config in plugin.get_supported_configs():
        if isinstance(config.values, str):
            raise TypeError("the values of a feature are a string, not a list")
        values = tuple(config.values)
        if not isinstance(config.name, str) or not all(
            isinstance(value, str) for value in values
        ):
            raise TypeError("the name or a value of a feature is not a string")
        features[config.name] = values
    return features


def _ordered(provider: Provider) -> Mapping[str, tuple[str, ...]]:
    static = provider.static_properties or {}
    return {name: static[name] for name in provider.feature_order or static}


def _holds_here(text: str, environment: Environment) -> bool | None:
    """Return whether an environment marker holds; ``None`` if it cannot be read."""
    # Macs have no NVIDIA driver. On a Mac, an environment with a driver describes
    # another machine, most likely one with Linux.
    elsewhere = sys.platform == "darwin" and environment.cuda_driver_version is not None
    return marker_holds(text, _LINUX if elsewhere else None)


def marker_holds(text: str, platform: Mapping[str, str] | None = None) -> bool | None:
    """Return whether an environment marker holds.

    ``None`` means that the marker is invalid or too long, or compares incompatible
    values.

    :param platform: marker variables to use instead of the values of this machine.
    """
    from packaging.markers import default_environment

    if len(text) > _LONGEST_MARKER:
        return None
    variables = {**default_environment(), **(platform or {})}
    return _holds(text, tuple(variables.items()))


# A release is resolved for many machines, and each time for thousands of providers.
@lru_cache(maxsize=2**15)
def _holds(text: str, variables: tuple[tuple[str, str], ...]) -> bool | None:
    from packaging.markers import Marker

    try:
        return Marker(text).evaluate(dict(variables))
    except (ValueError, KeyError, RecursionError):
        # Before packaging 26.3, an undefined variable such as `extras` is a KeyError.
        return None


class Priorities(Frozen):
    """The user's priorities; they come before the priorities in the metadata."""

    namespaces: tuple[str, ...] = ()
    features: Mapping[str, Sequence[str]] = EMPTY
    properties: Mapping[str, Mapping[str, Sequence[str]]] = EMPTY


def _folders() -> Iterator[tuple[str, bool]]:
    """Yield the directories of ``variants.toml``; the first file is read.

    They are the current directory, which may be shared with other users, the Python
    environment, and the configuration directories of the user and of the site.

    :returns: each directory, and whether it may be shared.
    """
    with suppress(OSError):  # the current directory may have been removed
        yield os.getcwd(), True
    yield sys.prefix, False
    import platformdirs  # late, because the import takes longer than reading a file

    own = platformdirs.user_config_dir("variantlib", appauthor=False, roaming=True)
    yield own, False
    yield platformdirs.site_config_dir("variantlib", appauthor=False), False


def load_priorities() -> Priorities:
    """Read the user's priorities, which are empty without a file.

    :raises ConfigurationError: the file cannot be read or is not valid.
    """
    for folder, is_shared in _folders():
        path = os.path.join(folder, FILE_NAME)
        if os.path.isfile(path) and (found := _read(path, is_shared)) is not None:
            return found
    return Priorities()


def _is_trusted(path: str, opened: os.stat_result) -> bool:
    """Return whether no user but this one and root can have written a file.

    All users can create files and links in a current directory such as ``/tmp``.
    """
    if sys.platform == "win32":
        return True
    owners = {opened.st_uid, os.lstat(path).st_uid}
    return owners <= {0, os.geteuid()} and not opened.st_mode & 0o002


def _read(path: str, is_shared: bool) -> Priorities | None:
    """Read a file; return ``None`` for one that is not trusted.

    :param is_shared: whether other users may have put the file there, at any moment.
    """
    hint = "correct the file or remove it"
    try:
        from ..strict_toml import parse_toml
    except ImportError:
        raise MissingExtraError(
            "reading this file needs tomli on Python 3.10",
            path=path,
            hint="pip install tomli",
        ) from None
    try:
        try:
            with open_regular(path) as file:
                if is_shared and not _is_trusted(path, os.fstat(file.fileno())):
                    return None
                data = read_stream(file, path)
        except OSError as error:
            with suppress(OSError):
                if is_shared and not _is_trusted(path, os.stat(path)):
                    return None
            raise unreadable(error, path) from None
        return _priorities(parse_toml(data))
    except InputError as error:
        raise ConfigurationError(
            error.message, path=path, place=error.place, hint=error.hint or hint
        ) from None


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
