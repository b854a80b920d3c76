"""The section ``[variant]`` of ``pyproject.toml``, and the positions of its parts.

variantlib reads the section when it builds a wheel, and takes the providers and the
priorities of ``variant.json`` from it. The section is therefore checked as metadata
without labels. ``build-requires``, which may replace ``requires``, is used only by the
build and does not become part of the metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nvidia_variant_provider.errors import InputError, join
from nvidia_variant_provider.machine.supported import NAMESPACE
from nvidia_variant_provider.metadata import versions
from nvidia_variant_provider.strict_toml import parse_toml

from .documents import PROVIDER_CHECKS, Scope, check_document
from .findings import Collector, Position, Problem, find_prefixes, positions_at

NAME = "pyproject.toml"
_SECTION = "variant"
_BUILD_REQUIRES = "build-requires"
_AT = re.compile(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)$")
_NOT_HERE = frozenset({"$schema", "variants"})
_HINT = "nvp inspect --suggest --pyproject WHEEL prints one"


def check_pyproject(data: bytes, path: str) -> Collector:
    """Check the bytes of a ``pyproject.toml``, and return the findings about it."""
    collector = Collector(path, document=data, locate=find_places)
    try:
        document = parse_toml(data)
    except InputError as error:
        collector.add("NV100", "", _AT.sub("", error.message), "correct the file")
        return collector
    section = document.get(_SECTION)
    if not isinstance(section, dict):
        message = f"there is no table [{_SECTION}], which variantlib reads"
        collector.add("NV107", "", message, _HINT)
        return collector
    for key in section.keys() & _NOT_HERE:
        message = f"{key} is not a key of the section"
        collector.add("NV109", join(_SECTION, key), message, "remove it")
    inside = Collector(path)
    check_document(_as_metadata(section), inside, Scope(whole_release=False))
    providers = section.get("providers")
    provider = providers.get(NAMESPACE) if isinstance(providers, dict) else None
    sources = {"requires", _BUILD_REQUIRES}
    # NV314 applies only to a provider with ``requires``, which installers install.
    if isinstance(provider, dict) and provider.keys() & sources == {"requires"}:
        PROVIDER_CHECKS.run(provider, inside)
    for code, problem in inside.problems:
        place = "" if problem.place == "top level" else problem.place
        place = f"{_SECTION}.{place}" if place else _SECTION
        collector.add_problem(code, Problem(place, problem.message, problem.hint))
    return collector


def _as_metadata(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that a null variant built with the section would have."""
    metadata = {k: v for k, v in section.items() if k not in _NOT_HERE}
    providers = metadata.get("providers")
    if isinstance(providers, dict):
        metadata["providers"] = {
            namespace: _without_build(provider)
            for namespace, provider in providers.items()
        }
    return {"$schema": versions.WRITTEN.url, **metadata, "variants": {"null": {}}}


def _without_build(provider: object) -> object:
    """Return a provider with ``requires`` in place of ``build-requires``.

    If the provider has another source, add ``builtin``: NV110 then reports two sources.
    """
    if not isinstance(provider, dict) or _BUILD_REQUIRES not in provider:
        return provider
    rest = {key: value for key, value in provider.items() if key != _BUILD_REQUIRES}
    other = rest.keys() & {"requires", "static-properties", "builtin"}
    return {
        "requires": provider[_BUILD_REQUIRES],
        **({"builtin": "one too many"} if other else {}),
        **rest,
    }


# Each repetition takes memory until the end of the match: 180 bytes for a comment.
_BLANKS = re.compile(r"(?:[ \t\r\n]+|#[^\n]*){1,1000}")
_QUOTED = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"' + r"|'[^'\n]*'"
_LONG = r'"""[^\\]*?(?:\\.[^\\]*?)*?"{3,5}(?!")' + r"|'''.*?'{3,5}(?!')"
_KEY = re.compile(rf"[ \t]*(?:[A-Za-z0-9_-]+|{_QUOTED})[ \t]*")
_SCALAR = re.compile(rf"{_LONG}|{_QUOTED}|[^,\]}}#\n]+", re.DOTALL)


def find_places(text: str, places: Iterable[str]) -> dict[str, Position]:
    """Return the positions of places in a TOML text, as `findings.find_positions` does.

    If the text is not TOML, every position is that of the syntax error.
    """
    wanted = list(places)
    try:
        parse_toml(text)
        offsets = {"": (0, 0)}
        is_on_the_way = find_prefixes(wanted)
        for place, key, value in _Walk(text).places():
            if is_on_the_way(place):
                offsets.setdefault(place, (key, value))
    except InputError as error:
        match = _AT.search(error.message)
        if match is None:
            return {}
        lines = text.split("\n")
        end = len(lines), len(lines[-1]) + 1
        at = (int(match[1]), int(match[2])) if match[1] else end
        return dict.fromkeys(wanted, Position(key=at, value=at))
    except (ValueError, RecursionError, TypeError):
        return {}
    return positions_at(text, wanted, offsets)


class _Walk:
    """A walk over a valid TOML text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def places(self) -> Iterator[tuple[str, int, int]]:
        """Yield each place with the offsets of its key and of its value."""
        text, table = self._text, ""
        counts: dict[str, int] = {}
        while self._skip() < len(text):
            start = self._at
            if text[start] != "[":
                yield from self._pair(table)
                continue
            is_array = text.startswith("[[", start)
            self._at += 1 + is_array
            keys = list(self._keys())
            self._at += 1 + is_array
            table = ""
            for number, key in enumerate(keys, 1):
                table = join(table, key)
                yield table, start, start
                if is_array and number == len(keys):
                    counts[table] = counts.get(table, -1) + 1
                # Keys after the header of an array of tables belong to its last table.
                if table in counts:
                    table = join(table, counts[table])
                    yield table, start, start

    def _skip(self) -> int:
        while match := _BLANKS.match(self._text, self._at):
            self._at = match.end()
        return self._at

    def _keys(self) -> Iterator[str]:
        """Yield the parts of a dotted key."""
        while match := _KEY.match(self._text, self._at):
            self._at = match.end()
            yield next(iter(parse_toml(f"{match[0]} = 0")))
            if self._text[self._at] != ".":
                return
            self._at += 1

    def _pair(self, table: str) -> Iterator[tuple[str, int, int]]:
        start, place = self._at, table
        places = [place := join(place, key) for key in self._keys()]
        self._at += 1  # the equals sign
        value = self._skip()
        for each in places:
            yield each, start, value
        yield from self._value(place)

    def _value(self, place: str) -> Iterator[tuple[str, int, int]]:
        text = self._text
        opening = text[self._at]
        if opening not in "[{":
            match = _SCALAR.match(text, self._at)
            self._at = match.end() if match else len(text)
            return
        self._at += 1
        index = 0
        while text[self._skip()] not in "]}":
            if opening == "{":
                yield from self._pair(place)
            else:
                item = join(place, index)
                yield item, self._at, self._at
                yield from self._value(item)
                index += 1
            if text[self._skip()] == ",":
                self._at += 1
        self._at += 1
