"""Read variant metadata of every schema version into one model.

One walk over the document serves reading and linting of all versions: it reads each key
that any version defines, and the version decides which keys are rejected. Each error
has its place, such as ``variants.cu126.nvidia.sm_arch[2]``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ..errors import InputError, join, shown
from ..light import Frozen
from ..strict_json import as_object, parse_json, read_bytes
from . import versions
from .fields import (
    NAME,
    VALUE,
    Fields,
    Kind,
    ProviderReader,
    Reporter,
    explain,
    read_dependencies,
    valid_features,
)
from .model import NULL_LABELS, Features, Properties, Provider, VariantsMetadata
from .versions import SchemaVersion, find_version

SUFFIX = "-variants.json"
"""The end of the name of every metadata file."""

# PEP 825: neither the name nor the version contains a dash.
_FORM = re.compile(r"(?P<name>[^-/]+)-(?P<version>[^-/]+)" + re.escape(SUFFIX))

_PRIORITIES = "default-priorities"

UNDECLARED = f"the namespace is not in {_PRIORITIES}.namespace"
"""The message about a namespace that is used but not declared."""


class MetadataName(Frozen):
    """The parts of the name of a metadata file.

    :param name: the project, as the file spells it.
    :param version: the release, as the file spells it.
    """

    name: str
    version: str

    def normalized(self) -> MetadataName | None:
        """Return the name in the spelling of wheel names.

        ``None`` means that the version is invalid.
        """
        from packaging.utils import canonicalize_name
        from packaging.version import Version

        try:
            version = str(Version(self.version.replace("_", "-")))
        except ValueError:
            return None
        return MetadataName(
            name=canonicalize_name(self.name).replace("-", "_"),
            version=version.replace("-", "_"),
        )


def metadata_name(name: str, version: str) -> str:
    """Return the name of the metadata file of a release.

    :param name: the project as in the names of its wheels.
    :param version: the release as in the names of its wheels.
    """
    return f"{name}-{version}{SUFFIX}"


def parse_metadata_name(file_name: str) -> MetadataName | None:
    """Return the parts of a file name; ``None`` if the file is not a metadata file."""
    match = _FORM.fullmatch(file_name)
    if match is None:
        return None
    return MetadataName(name=match["name"], version=match["version"])


def read_metadata(
    source: str | bytes | os.PathLike[str] | Mapping[str, Any],
    *,
    path: str | None = None,
) -> VariantsMetadata:
    """Return the metadata of a file, a JSON text, or a parsed document.

    :param source: a path, a JSON text or a document; a string that starts with ``{``
        is a JSON text, any other string is a path.
    :param path: the name to use in messages for a text or a document.
    :raises InputError: the source cannot be read, or is not valid.
    """
    if isinstance(source, Mapping):
        return read_parsed(source, path=path)
    if isinstance(source, bytes) or (
        isinstance(source, str) and source.lstrip().startswith("{")
    ):
        return read_parsed(parse_json(source, path), path=path)
    path = str(source)
    return read_parsed(parse_json(read_bytes(source, given=True), path), path=path)


def read_parsed(document: object, *, path: str | None = None) -> VariantsMetadata:
    """Read the metadata from a value that `parse_json` returned, of any JSON type.

    Unlike this function, `read_metadata` would treat a string as a path.

    :param path: the name to use in messages; it may name the project and the release.
    :raises InputError: the document is not valid.
    """
    release = parse_metadata_name(os.path.basename(path)) if path else None
    name, version = (release.name, release.version) if release else (None, None)
    try:
        return metadata_from_dict(document, name=name, version=version)
    except InputError as error:
        error.path = error.path or path
        raise


def metadata_from_dict(
    document: object, *, name: str | None = None, version: str | None = None
) -> VariantsMetadata:
    """Return the metadata of a parsed document.

    :param name: the project, if known.
    :param version: the release, if it is known.
    :raises InputError: the first defect of the document, with its place.
    """
    return read_document(document, Reporter(), name=name, version=version)


def read_document(
    document: object,
    report: Reporter,
    *,
    name: str | None = None,
    version: str | None = None,
) -> VariantsMetadata:
    """Return the readable part of a document, and report its defects.

    :param name: the project, if it is known.
    :param version: the release, if it is known.
    """
    return _DocumentReader(report).read(document, name, version)


class _DocumentReader:
    """A reader for the sections of one document, which reports their defects."""

    def __init__(self, report: Reporter) -> None:
        self._report = report
        self._fields = Fields(report)

    def read(
        self, document: object, name: str | None, version: str | None
    ) -> VariantsMetadata:
        fields = self._fields.typed(as_object, document, "")
        if fields is None:
            return VariantsMetadata(schema=versions.WRITTEN, namespaces=(), variants={})
        if "cuda_driver_version" in fields or "schema_version" in fields:
            hint = "a snapshot of a machine goes with --environment"
            message = "this is not variant metadata"
            self._report.refuse("not-metadata", "", message, hint)
        schema = self._find_schema(fields)
        self._fields.refuse_unknown_keys(fields, schema.keys, schema, "")
        priorities = self._fields.required_section(
            fields, _PRIORITIES, '{"namespace": ["nvidia"]}'
        )
        namespaces = None
        if priorities is not None:
            self._fields.refuse_unknown_keys(
                priorities, schema.priority_keys, schema, _PRIORITIES
            )
            namespaces = self._read_namespaces(priorities)
        feature_priorities = self._read_feature_priorities(priorities or {})
        property_priorities = self._read_named_features(
            priorities or {}, "property", _PRIORITIES
        )
        statics = self._read_named_features(fields, "static-properties", "")
        providers = self._read_providers(fields, schema, statics, property_priorities)
        if namespaces is not None and "providers" in schema.keys:
            self._compare_providers(fields, namespaces, schema)
        return VariantsMetadata(
            name=name,
            version=version,
            schema=schema,
            namespaces=namespaces or (),
            providers=providers,
            feature_priorities=feature_priorities,
            property_priorities=property_priorities,
            variants=self._read_variants(fields, schema, namespaces),
        )

    def _find_schema(self, fields: Mapping[str, Any]) -> SchemaVersion:
        try:
            return find_version(fields)
        except InputError as error:
            schema = fields.get("$schema")
            if "$schema" not in fields:
                pass  # A section has the wrong type, which its reader reports later.
            elif isinstance(schema, str):
                self._report.refuse(
                    "unknown-schema", "$schema", error.message, error.hint or ""
                )
            else:
                hint = f"use {versions.WRITTEN.url}"
                self._report.refuse("wrong-type", "$schema", error.message, hint)
        return versions.WRITTEN

    def _read_namespaces(self, priorities: Mapping[str, Any]) -> tuple[str, ...] | None:
        hint = "list all namespaces, the most important first"
        if "namespace" not in priorities:
            message = "namespace is missing"
            self._report.refuse("missing-key", _PRIORITIES, message, hint)
            return None
        place = join(_PRIORITIES, "namespace")
        namespaces = self._fields.texts(priorities["namespace"], place, "namespace")
        if namespaces == ():
            # PEP 825: "it MUST NOT be empty".
            message = "no namespace is listed"
            self._report.tolerate("missing-key", place, message, hint)
        return namespaces

    def _read_feature_priorities(self, priorities: Mapping[str, Any]) -> Features:
        place = join(_PRIORITIES, "feature")
        section = self._fields.section(priorities, "feature", _PRIORITIES)
        features: dict[str, tuple[str, ...]] = {}
        for namespace, items in (section or {}).items():
            self._check_namespace(namespace, place)
            names = self._fields.texts(items, join(place, namespace), "feature")
            if names is not None:
                features[namespace] = names
        return features

    def _read_named_features(
        self, fields: Mapping[str, Any], key: str, place: str
    ) -> dict[str, Features]:
        """Return the section ``key`` as ``{namespace: {feature: (value, ...)}}``."""
        where = join(place, key)
        named: dict[str, Features] = {}
        for namespace, items in (
            self._fields.section(fields, key, place) or {}
        ).items():
            self._check_namespace(namespace, where)
            features = self._fields.features(
                items, join(where, namespace), if_empty=None
            )
            if features is not None:
                named[namespace] = features
        return named

    def _read_providers(
        self,
        fields: Mapping[str, Any],
        schema: SchemaVersion,
        statics: Mapping[str, Features],
        priorities: Mapping[str, Features],
    ) -> dict[str, Provider]:
        reader = ProviderReader(self._report, schema, statics, priorities)
        providers: dict[str, Provider] = {}
        section = self._fields.section(fields, "providers", "") or {}
        for namespace, item in section.items():
            self._check_namespace(namespace, "providers")
            provider = reader.read(item, namespace)
            if provider is not None:
                providers[namespace] = provider
        return providers

    def _compare_providers(
        self,
        fields: Mapping[str, Any],
        namespaces: tuple[str, ...],
        schema: SchemaVersion,
    ) -> None:
        """Report namespaces without a provider, and providers of undeclared ones."""
        tolerate = self._report.tolerate
        if "providers" not in fields:
            hint = "say where the answer for each namespace comes from"
            tolerate("missing-key", "top level", "providers is missing", hint)
            return
        if not isinstance(fields["providers"], Mapping):
            return
        named = set(fields["providers"])
        # PEP 817: "it MUST NOT be listed in providers metadata".
        for name in sorted(named & schema.reserved):
            message = f"{name} is reserved, and no provider answers for it"
            tolerate(
                "providers-differ",
                join("providers", name),
                message,
                "remove the provider; labels may use the namespace without one",
            )
        named |= schema.reserved & set(namespaces)
        for name in sorted(named - set(namespaces) - schema.reserved):
            hint = "add it there, or remove the provider"
            place = join("providers", name)
            tolerate("providers-differ", place, UNDECLARED, hint)
        for name in sorted(set(namespaces) - named):
            message = f"{shown(name)} has no entry in providers"
            hint = "add its provider, or remove the namespace"
            place = join(_PRIORITIES, "namespace")
            tolerate("providers-differ", place, message, hint)

    def _read_variants(
        self,
        fields: Mapping[str, Any],
        schema: SchemaVersion,
        namespaces: tuple[str, ...] | None,
    ) -> dict[str, Properties]:
        example = '{"cu129": {"nvidia": {"sm_arch": ["90_real"]}}}'
        section = self._fields.required_section(fields, "variants", example) or {}
        declared = None
        if namespaces is not None:
            declared = schema.reserved.union(namespaces)
        nulls = NULL_LABELS if schema.old_null else NULL_LABELS[:1]
        variants: dict[str, Properties] = {}
        for label, item in section.items():
            if not VALUE.fullmatch(label):
                hint = "rename the label and its wheels"
                message = explain(label, "label")
                self._report.refuse("label", "variants", message, hint)
            elif schema.label_limit is not None and len(label) > schema.label_limit:
                message = (
                    f"the label has {len(label)} characters; version {schema} allows "
                    f"{schema.label_limit}"
                )
                hint = "shorten the label, or upgrade the file"
                place = join("variants", label)
                self._report.tolerate("long-label", place, message, hint)
            properties = self._read_label(label, item, declared, nulls, schema.reserved)
            if properties is not None:
                variants[label] = properties
        return variants

    def _read_label(
        self,
        label: str,
        item: object,
        declared: frozenset[str] | None,
        nulls: tuple[str, ...],
        reserved: frozenset[str],
    ) -> Properties | None:
        place = join("variants", label)
        fields = self._fields.typed(as_object, item, place)
        if fields is None:
            return None
        thorough = self._report.thorough
        properties: dict[str, Features] = {}
        for namespace, items in fields.items():
            # PEP 825: "This list MUST contain all namespaces used in variant
            # properties". Namespaces in the list have already been checked.
            if thorough or declared is None or namespace not in declared:
                self._check_use(namespace, declared, place)
            features: Features | None = None
            if namespace in reserved:
                where = join(place, namespace)
                features = read_dependencies(items, where, self._fields)
                self._check_features(features, where)
            elif not thorough:
                features = valid_features(items)
            if not features and namespace not in reserved:
                features = self._read_features(items, join(place, namespace))
            if features is not None:
                properties[namespace] = features
        # PEP 825: "The label null is reserved and always corresponds to the variant
        # with zero properties".
        is_null = label in nulls
        if is_null and fields:
            message = f"the label {label} stands for no properties at all"
            self._report.refuse("null-rules", place, message, "rename the label")
        elif not is_null and not fields:
            message = "only the null variant has no properties"
            hint = f"rename the label to {nulls[0]}"
            self._report.refuse("null-rules", place, message, hint)
        return properties if len(properties) == len(fields) else None

    def _check_use(
        self, namespace: str, declared: frozenset[str] | None, place: str
    ) -> None:
        """Report a namespace of a label that is invalid, or not in ``declared``."""
        self._check_namespace(namespace, place)
        if declared is not None and namespace not in declared:
            kind: Kind = "undeclared-namespace"
            hint = "add it there, with its provider"
            self._report.refuse(kind, join(place, namespace), UNDECLARED, hint)

    def _read_features(self, items: object, place: str) -> Features | None:
        """Return the features of one namespace of a label."""
        features = self._fields.features(items, place, if_empty=self._report.refuse)
        self._check_features(features, place)
        return features

    def _check_features(self, features: Features | None, place: str) -> None:
        """Report a namespace without features, and values not in lexical order."""
        if features is not None and not features:
            hint = "remove the namespace"
            self._report.refuse("null-rules", place, "no feature is given", hint)
        if self._report.thorough:
            self._check_order(features or {}, place)

    def _check_order(self, features: Features, place: str) -> None:
        for feature, values in features.items():
            # PEP 825: values are "converted to lists and sorted lexically".
            if list(values) != sorted(values):
                message = "the values are not in lexical order"
                where = join(place, feature)
                self._report.tolerate("unsorted", where, message, "sort them")

    def _check_namespace(self, text: str, place: str) -> None:
        if not NAME.fullmatch(text):
            hint = "rename the namespace"
            self._fields.check_text(text, "namespace", place, hint)
