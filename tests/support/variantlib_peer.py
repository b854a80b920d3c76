"""Functions with type hints that call variantlib, which has no type hints."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support.outcomes import REFUSED
from variantlib.api import (  # type: ignore[import-untyped]
    get_variants_by_priority,
    validate_variant,
)
from variantlib.configuration import (  # type: ignore[import-untyped]
    get_configuration_files,
)
from variantlib.errors import (  # type: ignore[import-untyped]
    PluginError,
    ValidationError,
)
from variantlib.models.provider import (  # type: ignore[import-untyped]
    ProviderConfig,
    VariantFeatureConfig,
)
from variantlib.models.variant import (  # type: ignore[import-untyped]
    VariantDescription,
    VariantProperty,
)
from variantlib.plugins.loader import (  # type: ignore[import-untyped]
    VARIANT_PROVIDER_CACHE_TABLE,
    BasePluginLoader,
    DictPluginLoader,
    PluginLoader,
)
from variantlib.pyproject_toml import (  # type: ignore[import-untyped]
    VariantPyProjectToml,
)
from variantlib.resolver.lib import (  # type: ignore[import-untyped]
    sort_and_filter_supported_variants,
)
from variantlib.utils import (  # type: ignore[import-untyped]
    aggregate_feature_priorities,
    aggregate_namespace_priorities,
    aggregate_property_priorities,
)
from variantlib.variants_json import VariantsJson  # type: ignore[import-untyped]

from nvidia_variant_provider.machine.supported import (
    VariantFeatureConfig as OurFeatureConfig,
)
from nvidia_variant_provider.metadata.model import Properties

__all__ = [
    "Config",
    "by_priority",
    "configs_of_document",
    "configs_of_endpoint",
    "isolate",
    "order",
    "refused_properties",
    "refuses_pyproject",
    "run_command",
    "validated",
    "variantlib_outcome",
]

Config: TypeAlias = tuple[str, list[str], bool]
"""Name, values and ``multi_value`` of a feature."""

Supported: TypeAlias = Mapping[str, Mapping[str, Sequence[str]]]


def isolate(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make ``folder`` the current directory, and hide the user's ``variants.toml``.

    variantlib reads only the first file that exists, so an empty file in the current
    directory hides the files of the Python environment, the user and the site.
    """
    (folder / "variants.toml").write_text("", encoding="utf-8")
    patch.chdir(folder)
    _forget()


def _forget() -> None:
    """Empty variantlib's caches, whose keys lack the directory and the variables."""
    get_configuration_files.cache_clear()
    VARIANT_PROVIDER_CACHE_TABLE.clear()


def refused_properties(document: Mapping[str, Any], label: str) -> set[str]:
    """Return the properties of a label that variantlib refuses to build.

    These are properties that the catalog of the plugin lacks, and features with
    several values of which the catalog allows one.
    """
    _forget()
    release = VariantsJson(document)
    result = validate_variant(release.variants[label], release)
    refused = [*result.invalid_properties, *result.multi_value_violations]
    return {item.to_str() for item in refused}


def run_command(*arguments: str) -> str:
    """Run the command ``variantlib`` of this Python; return its output."""
    scripts = sysconfig.get_path("scripts")
    command = shutil.which("variantlib", path=scripts)
    assert command, f"variantlib is not in {scripts}"
    done = subprocess.run(
        [command, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_priority(
    document: Mapping[str, Any],
    *,
    ask_again: bool = True,
    enable_optional: bool | list[str] = False,
) -> list[str]:
    """Return the labels that fit, best first; variantlib adds a missing ``null``.

    :param ask_again: whether to run the plugins again, because the machine has changed.
    """
    if ask_again:
        _forget()
    descriptions = get_variants_by_priority(
        variants_json=document, enable_optional_plugins=enable_optional
    )
    return [description.label for description in descriptions]


def variantlib_outcome(document: Mapping[str, Any]) -> str | None:
    """Return the selected label, or ``None`` if variantlib had to add ``null``."""
    try:
        label = by_priority(document)[0]
    except (PluginError, ValidationError):
        return REFUSED
    except RuntimeError as error:
        if "Builtin providers are not supported" not in str(error):
            raise
        return REFUSED
    return label if label in document["variants"] else None


def configs_of_endpoint(plugin_api: str, *, supported: bool) -> list[Config]:
    """Return the answer of an endpoint to variantlib, without metadata."""
    _forget()
    with DictPluginLoader({"nvidia": plugin_api}) as loader:
        return _configs(loader, supported=supported)


def configs_of_document(
    document: Mapping[str, Any], *, supported: bool
) -> list[Config]:
    """Return the answer of the provider of a document to variantlib."""
    _forget()
    with PluginLoader(VariantsJson(document), include_aot_plugins=True) as loader:
        return _configs(loader, supported=supported)


def _configs(loader: BasePluginLoader, *, supported: bool) -> list[Config]:
    answers = loader.get_supported_configs() if supported else loader.get_all_configs()
    if "nvidia" not in answers:
        return []
    return [(x.name, x.values, x.multi_value) for x in answers["nvidia"].configs]


def order(
    variants: Mapping[str, Properties],
    *,
    namespaces: Sequence[Sequence[str]],
    supported: Supported,
    feature_priorities: Sequence[Mapping[str, Sequence[str]]] = (),
    property_priorities: Sequence[Supported] = (),
) -> list[str]:
    """Filter and order labels with variantlib.

    Each kind of priorities is a sequence: those of the user, then of the metadata.
    """
    ordered = sort_and_filter_supported_variants(
        [
            VariantDescription.from_dict(properties, label)
            for label, properties in variants.items()
        ],
        [
            VariantProperty(namespace, feature, value)
            for namespace, features in supported.items()
            for feature, values in features.items()
            for value in values
        ],
        namespace_priorities=aggregate_namespace_priorities(*map(list, namespaces)),
        feature_priorities=aggregate_feature_priorities(*feature_priorities),
        property_priorities=aggregate_property_priorities(*property_priorities),
        filter_values=True,
    )
    return [description.label for description in ordered]


def validated(configs: Sequence[OurFeatureConfig]) -> list[Config]:
    """Let variantlib validate types, grammar and repetition of ``configs``."""
    peers = [
        VariantFeatureConfig(
            name=item.name, values=item.values, multi_value=item.multi_value
        )
        for item in configs
    ]
    if peers:
        ProviderConfig(namespace="nvidia", configs=peers)
    return [(peer.name, peer.values, peer.multi_value) for peer in peers]


def refuses_pyproject(path: Path) -> bool:
    """Return whether variantlib raises an exception for a ``pyproject.toml``."""
    try:
        VariantPyProjectToml.from_path(path)
    except Exception:  # noqa: BLE001  # any of its exceptions
        return True
    return False
