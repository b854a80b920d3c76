"""Read the values and providers of a document, and report its defects.

The module `document` walks over a document and reports every defect to a `Reporter`.
The reporter in this module raises the first defect that makes the document unreadable.
The linter has its own reporter, which collects all defects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from ..errors import InputError, join, shown
from ..strict_json import as_boolean, as_list, as_object, as_string
from .model import Features, Provider
from .versions import SchemaVersion

Value = TypeVar("Value")

_SOURCES = ("requires", "static-properties", "builtin")
_PLUGIN_USES = ("none", "build", "all")

_LONGEST = 255
"""The maximum length of a namespace or feature, which the reasons against a label
repeat. The longest published one has 25 characters."""

NAME = re.compile(rf"[a-z0-9_]{{1,{_LONGEST}}}")
"""PEP 825: namespaces and features match ``^[a-z0-9_]+$``."""

VALUE = re.compile(r"[a-z0-9_.]+")
"""PEP 825: values and labels match ``^[a-z0-9_.]+$``."""

Term: TypeAlias = Literal["label", "namespace", "feature", "value"]
"""The kinds of text in variant metadata."""

GRAMMARS: dict[Term, re.Pattern[str]] = {
    "label": VALUE,
    "namespace": NAME,
    "feature": NAME,
    "value": VALUE,
}
"""The regular expression that the whole text must match, for each kind of text."""

Kind: TypeAlias = Literal[
    "not-metadata",
    "unknown-schema",
    "missing-key",
    "wrong-type",
    "unknown-key",
    "not-one-source",
    "providers-differ",
    "undeclared-namespace",
    "null-rules",
    "feature-order",
    "misplaced-key",
    "label",
    "long-label",
    "namespace",
    "feature",
    "value",
    "unsorted",
    "repeated",
    "no-value",
    "endpoint",
    "requirement",
    "marker",
]
"""The kind of a defect. The linter has one rule for each kind except the first."""

Report: TypeAlias = Callable[[Kind, str, str, str], None]
"""A function that reports a defect: kind, place, message, hint."""

_DEPENDENCY = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_RELEASE = re.compile(r"[0-9]+(?:\.[0-9]+){0,2}")


def explain(text: str, term: Term) -> str:
    """Return the message about a text that does not match its grammar."""
    if GRAMMARS[term] is NAME and len(text) > _LONGEST:
        return f"{shown(text)} is longer than {_LONGEST} characters"
    allowed = "a-z, 0-9, _ and ." if GRAMMARS[term] is VALUE else "a-z, 0-9 and _"
    return f"{shown(text)} is not a {term}: use only {allowed}"


class Reporter:
    """A reporter that raises the first defect that makes a document unreadable."""

    thorough = False
    """Whether readers also look for acceptable defects whose detection is slow."""

    def refuse(self, kind: Kind, place: str, message: str, hint: str) -> None:  # noqa: ARG002
        """Report a defect that makes the document unreadable.

        :param place: the place in the document, such as ``variants.cu126.nvidia``.
        :param message: the problem.
        :param hint: the next step.
        """
        raise InputError(message, place=place or None, hint=hint) from None

    def tolerate(self, kind: Kind, place: str, message: str, hint: str) -> None:
        """Report a defect that leaves the document readable; see `refuse`."""

    def check_provider(self, provider: Provider, place: str) -> None:
        """Check a provider's texts for defects that `tolerate` ignores here."""


class Fields:
    """Getters that report a defect of a value and then return ``None``.

    With a reporter that raises, no getter returns ``None`` for a defect.
    """

    def __init__(self, report: Reporter) -> None:
        self.report = report

    def typed(
        self, getter: Callable[[object, str], Value], value: object, place: str
    ) -> Value | None:
        """Return ``value`` if it has the type that ``getter`` requires.

        :param getter: a function of `strict_json` such as `as_object`.
        """
        try:
            return getter(value, place)
        except InputError as error:
            self._refuse_type(error)
            return None

    def _refuse_type(self, error: InputError) -> None:
        place = error.place or "top level"
        self.report.refuse("wrong-type", place, error.message, "correct the type")

    def optional_text(
        self, fields: Mapping[str, Any], key: str, place: str
    ) -> str | None:
        """Return the text under ``key``; ``None`` if the key is missing."""
        if key not in fields:
            return None
        where = join(place, key)
        if fields[key] is None:
            message = "expected a string, found null"
            self.report.tolerate("wrong-type", where, message, "remove the key")
            return None
        return self.typed(as_string, fields[key], where)

    def section(
        self, fields: Mapping[str, Any], key: str, place: str
    ) -> Mapping[str, Any] | None:
        """Return the object under ``key``, or an empty one if the key is missing."""
        if key not in fields:
            return {}
        return self.typed(as_object, fields[key], join(place, key))

    def required_section(
        self, fields: Mapping[str, Any], key: str, example: str
    ) -> Mapping[str, Any] | None:
        """Return the object under a required key at the top level."""
        if key not in fields:
            message, hint = f"{key} is missing", f"add an object such as {example}"
            self.report.refuse("missing-key", "top level", message, hint)
            return None
        return self.typed(as_object, fields[key], key)

    def refuse_unknown_keys(
        self,
        fields: Mapping[str, Any],
        known: frozenset[str],
        schema: SchemaVersion,
        place: str,
    ) -> None:
        """Report the keys that the version does not define."""
        report = self.report.refuse if schema.strict else self.report.tolerate
        for key in fields:
            if key not in known:
                message = f"version {schema} has no such key"
                hint = f"remove it; the known keys are {', '.join(sorted(known))}"
                report("unknown-key", join(place, key), message, hint)

    def check_text(self, text: str, term: Term, place: str, hint: str) -> None:
        """Report a text that does not match its grammar."""
        if not GRAMMARS[term].fullmatch(text):
            self.report.refuse(term, place, explain(text, term), hint)

    def texts(
        self, value: object, place: str, term: Term | None
    ) -> tuple[str, ...] | None:
        """Return the texts in a list; ``None`` if an item has the wrong type.

        :param term: the kind of the texts: each text must match the grammar of this
            kind, and none may be repeated. ``None`` accepts any texts.
        """
        if term is not None:
            quick = _valid_texts(value, GRAMMARS[term])
            if quick is not None:
                return quick
        items = self.typed(as_list, value, place)
        if items is None:
            return None
        texts: dict[str, None] = {}
        listed: list[str] = []
        for index, item in enumerate(items):
            where = join(place, index)
            text = self.typed(as_string, item, where)
            if text is None:
                continue
            listed.append(text)
            if term is None:
                continue
            self.check_text(text, term, where, f"correct the {term}")
            if text in texts:
                message = f"{shown(text)} is given twice"
                self.report.refuse("repeated", where, message, "keep one of them")
            texts[text] = None
        return tuple(listed) if len(listed) == len(items) else None

    def features(
        self, item: object, place: str, *, if_empty: Report | None
    ) -> Features | None:
        """Return ``{feature: (value, ...)}``; ``None`` if a type is wrong.

        :param if_empty: reports a feature without values; ``None`` to accept it.
        """
        try:
            fields = as_object(item, place)
        except InputError as error:
            self._refuse_type(error)
            return None
        features: dict[str, tuple[str, ...]] = {}
        for feature, values in fields.items():
            self.check_text(feature, "feature", place, "rename the feature")
            where = join(place, feature)
            texts = self.texts(values, where, "value")
            if texts is None:
                continue
            if not texts and if_empty is not None:
                hint = "give a value, or remove the feature"
                if_empty("no-value", where, "no value is given", hint)
            features[feature] = texts
        return features if len(features) == len(fields) else None


def valid_features(item: object) -> Features | None:
    """Return the result of `Fields.features`; ``None`` if there may be a defect.

    This function is faster than the method, because it does not build the paths for
    error messages. Readers call it for every namespace of every label.
    """
    if type(item) is not dict:
        return None
    features: dict[str, tuple[str, ...]] = {}
    for feature, values in item.items():
        texts = _valid_texts(values, VALUE)
        if not texts or type(feature) is not str or not NAME.fullmatch(feature):
            return None
        features[feature] = texts
    return features


def _valid_texts(value: object, grammar: re.Pattern[str]) -> tuple[str, ...] | None:
    """Return the result of `Fields.texts`; ``None`` if there may be a defect."""
    if type(value) is not list:
        return None
    matches = grammar.fullmatch
    for item in value:
        if type(item) is not str or not matches(item):
            return None
    return tuple(value) if len(set(value)) == len(value) else None


def read_dependencies(item: object, place: str, fields: Fields) -> Features | None:
    """Return the properties of ``abi_dependency`` of one label.

    PEP 817 reserves this namespace for versions of dependencies: a build for torch 2.9
    has the property ``abi_dependency :: torch :: 2.9``. The namespace has no provider,
    because only an installer knows the versions that it will install.

    The result is ``{dependency: (version, ...)}``, or ``None`` if a type is wrong.
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


class ProviderReader:
    """A reader for the providers of one document, which reports their defects.

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
        """Return the provider of a namespace; ``None`` if ``item`` is not an object."""
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
        """Return ``feature-order``, which must list each static feature once."""
        where = join(place, "feature-order")
        order = self._read_texts(fields, "feature-order", place)
        unreadable = static is None and bool(fields.get("static-properties"))
        if order is None or unreadable or not (order or self._schema.one_source):
            return ()
        # A missing or empty order can be read; only the linter requires an order.
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
        """Report a provider with no source of supported values, or with several."""
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
        """Return the provider with the values that 0.0.x stores in another section."""
        answer: Features | None = None
        known = self._schema.provider_keys
        if "plugin-use" in known and fields.get("plugin-use", "all") != "all":
            # Version 0.0.2: installers do not query such a plugin. The supported values
            # are those in default-priorities.property.
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
