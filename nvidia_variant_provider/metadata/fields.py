"""Reading typed values and lists of texts out of a document, with reported defects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import InputError, join, shown
from ..strict_json import as_list, as_object, as_string
from .defects import Report, Reporter
from .grammar import GRAMMARS, NAME, VALUE, Term, explain
from .model import Features
from .versions import SchemaVersion

__all__ = ["Fields", "valid_features"]

Value = TypeVar("Value")


class Fields:
    """Getters that report a defect and return ``None`` when a value has one.

    With a reporter that raises, none of them returns ``None`` for a defect.
    """

    def __init__(self, report: Reporter) -> None:
        self.report = report

    def typed(
        self, getter: Callable[[object, str], Value], value: object, place: str
    ) -> Value | None:
        """Return ``value`` if it has the type that ``getter`` wants.

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
        """Return the text of a key; ``None`` when there is none."""
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
        """Return the object of a key, empty when the key is not there."""
        if key not in fields:
            return {}
        return self.typed(as_object, fields[key], join(place, key))

    def required_section(
        self, fields: Mapping[str, Any], key: str
    ) -> Mapping[str, Any] | None:
        """Return the object of a key at the top level that must be there."""
        if key not in fields:
            message = f"{key} is missing"
            self.report.refuse("missing-key", "top level", message, f"add {key}")
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
        """Return a list of texts; ``None`` when something in it has the wrong type.

        :param term: what the texts are, so that each matches its grammar and stands
            once; ``None`` for a list of any texts.
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
        """Return ``{feature: (value, ...)}``; ``None`` when a type is wrong.

        :param if_empty: how to report a feature without values; ``None`` allows one.
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
    """Return what `Fields.features` returns, or ``None`` when there may be a defect.

    This is quicker, since it makes no place. Reading calls it for every namespace of
    every label.
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
    """Return what `Fields.texts` returns, or ``None`` when there may be a defect."""
    if type(value) is not list:
        return None
    matches = grammar.fullmatch
    for item in value:
        if type(item) is not str or not matches(item):
            return None
    return tuple(value) if len(set(value)) == len(value) else None
