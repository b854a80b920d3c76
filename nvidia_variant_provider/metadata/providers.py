"""Reading one provider of a metadata document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import join, shown
from ..strict_json import as_boolean, as_object
from .fields import Fields, Kind, Reporter
from .model import Features, Provider
from .versions import SchemaVersion

_SOURCES = ("requires", "static-properties", "builtin")
_PLUGIN_USES = ("none", "build", "all")


class ProviderReader:
    """Reads the providers of one document.

    :param schema: the version of the document.
    :param statics: the section ``static-properties`` of version 0.0.3.
    :param priorities: the section ``default-priorities.property``.
    """

    def __init__(
        self,
        report: Reporter,
        schema: SchemaVersion,
        statics: Mapping[str, Features],
        priorities: Mapping[str, Features],
    ) -> None:
        self._report = report
        self._fields = Fields(report)
        self._schema = schema
        self._statics = statics
        self._priorities = priorities

    def read(self, item: object, namespace: str) -> Provider | None:
        """Return the provider of a namespace; ``None`` if it is not an object."""
        place = join("providers", namespace)
        fields = self._fields.typed(as_object, item, place)
        if fields is None:
            return None
        schema = self._schema
        self._fields.refuse_unknown_keys(fields, schema.provider_keys, schema, place)
        static = None
        if "static-properties" in fields:
            static = self._fields.features(
                fields["static-properties"],
                join(place, "static-properties"),
                if_empty=self._report.tolerate,
            )
        self._check_plugin_use(fields, place)
        self._read_boolean(fields, "install-time", place, default=True)
        provider = Provider(
            requires=self._read_texts(fields, "requires", place) or (),
            plugin_api=self._fields.optional_text(fields, "plugin-api", place),
            optional=self._read_boolean(fields, "optional", place, default=False),
            enable_if=self._fields.optional_text(fields, "enable-if", place),
            builtin=self._fields.optional_text(fields, "builtin", place),
            static_properties=static,
            feature_order=self._read_order(fields, place, static),
        )
        if schema.one_source:
            self._check_sources(fields, place)
        self._report.check_provider(provider, place)
        return self._with_answer(provider, fields, namespace)

    def _read_texts(
        self, fields: Mapping[str, Any], key: str, place: str
    ) -> tuple[str, ...] | None:
        return self._fields.texts(fields.get(key, []), join(place, key), None)

    def _read_boolean(
        self, fields: Mapping[str, Any], key: str, place: str, *, default: bool
    ) -> bool:
        value = fields.get(key, default)
        read = self._fields.typed(as_boolean, value, join(place, key))
        return default if read is None else read

    def _read_order(
        self, fields: Mapping[str, Any], place: str, static: Features | None
    ) -> tuple[str, ...]:
        """Return ``feature-order``, which lists each static feature once."""
        where = join(place, "feature-order")
        order = self._read_texts(fields, "feature-order", place)
        unreadable = static is None and bool(fields.get("static-properties"))
        if order is None or unreadable or not (order or self._schema.one_source):
            return ()
        # Reading accepts a missing or empty order; only the linter requires one.
        report = self._report.refuse if order else self._report.tolerate
        given = "feature-order" in fields
        if given and not static:
            message = "feature-order orders static-properties, and there are none"
            report("misplaced-key", where, message, "remove feature-order")
        elif static and (given or len(static) > 1) and sorted(order) != sorted(static):
            message = "feature-order has to list each feature of static-properties once"
            hint = "list the features, the most important first"
            report("feature-order", where, message, hint)
        return order

    def _check_plugin_use(self, fields: Mapping[str, Any], place: str) -> None:
        use = fields.get("plugin-use", "all")
        if use not in _PLUGIN_USES:
            message = f"{shown(use)} is none of {', '.join(_PLUGIN_USES)}"
            kind: Kind = "value" if isinstance(use, str) else "wrong-type"
            where = join(place, "plugin-use")
            self._report.refuse(kind, where, message, "use one of these")

    def _check_sources(self, fields: Mapping[str, Any], place: str) -> None:
        """Report a provider that does not have exactly one source of its answer."""
        given = [key for key in _SOURCES if key in fields]
        if len(given) != 1 or not fields[given[0]]:
            what = " and ".join(given) if given else "none of them"
            if len(given) == 1:
                what = f"an empty {given[0]}"
            sources = ", ".join(_SOURCES)
            message = f"a provider needs exactly one of {sources}; this has {what}"
            hint = "keep the one that the answer comes from"
            self._report.tolerate("not-one-source", place, message, hint)
        if "plugin-api" in fields and not fields.get("requires"):
            message = "plugin-api needs requires: nothing installs the plugin"
            where = join(place, "plugin-api")
            self._report.tolerate("misplaced-key", where, message, "remove plugin-api")

    def _with_answer(
        self, provider: Provider, fields: Mapping[str, Any], namespace: str
    ) -> Provider:
        """Return the provider with the answer that versions 0.0.x keep elsewhere."""
        answer: Features | None = None
        known = self._schema.provider_keys
        if "plugin-use" in known and fields.get("plugin-use", "all") != "all":
            # Version 0.0.2: such a plugin is not asked when installing. The supported
            # values are those that default-priorities.property lists.
            answer = self._priorities.get(namespace, {})
        elif "install-time" in known and not fields.get("install-time", True):
            # PEP 817: "For ahead-of-time providers, they MUST use the static
            # metadata embedded in the wheel instead."
            answer = self._statics.get(namespace, {})
        if answer is None:
            return provider
        return provider.replace(
            builtin=None, static_properties=answer, feature_order=()
        )
