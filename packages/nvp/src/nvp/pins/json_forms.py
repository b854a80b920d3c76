"""Reading ``Pipfile.lock`` and the JSON output of ``pip inspect`` and ``pip list``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nvidia_variant_provider.errors import InputError, join
from nvidia_variant_provider.strict_json import (
    as_list,
    as_object,
    as_string,
    as_strings,
)

from .documents import (
    check_name,
    file_name,
    origin_of,
    read_name,
    sha256_of,
    text_at,
    unversioned,
    version_of,
)
from .model import Choice, Edge, Pin, PinnedFile, PinnedWheel

_KEY = re.compile(r'^[ \t]*"([^"]+)":[ \t]*\{', re.MULTILINE)
_NAME = re.compile(r'"name":[ \t]*"([^"]+)"')


def read_json_form(document: object, text: str, path: str) -> PinnedFile:
    """Read a ``Pipfile.lock``, or JSON output of pip.

    :raises InputError: the form is unknown, or the document is not valid.
    """
    if isinstance(document, list):
        return _read_installed(document, {}, text, path, "pip list")
    table = as_object(document, "")
    for key, form in (("installed", "pip inspect"), ("install", "pip report")):
        if key in table:
            items = as_list(table[key], key)
            environment = as_object(table.get("environment", {}), "environment")
            return _read_installed(items, environment, text, path, form)
    if "_meta" in table and "default" in table:
        return _read_pipfile(table, text, path)
    message = "is neither a Pipfile.lock nor the output of pip inspect"
    raise InputError(message, hint="name a lock file or a requirements file")


def _read_pipfile(document: Mapping[str, Any], text: str, path: str) -> PinnedFile:
    meta = as_object(document["_meta"], "_meta")
    urls = {}
    for number, item in enumerate(as_list(meta.get("sources", []), "_meta.sources")):
        place = join("_meta.sources", number)
        source = as_object(item, place)
        url = as_string(source.get("url"), join(place, "url"))
        urls[text_at(source, "name", place) or url] = url
    pins: list[Pin] = []
    roots: list[Edge] = []
    choices = []
    lines = _pipfile_lines(text)
    for category, items in document.items():
        if category == "_meta":
            continue
        # pipenv always installs "default"; all other categories are optional.
        choice = None if category == "default" else Choice("group", category)
        choices += [choice] if choice else []
        for name, item in as_object(items, category).items():
            place = join(category, name)
            pin = _pipfile_pin(name, as_object(item, place), place, urls)
            roots.append(Edge(len(pins), pin[1], choice))
            line = lines.get((category, name))
            pins.append(replace(pin[0], path=path, line=line))
    requires = as_object(meta.get("requires", {}), "_meta.requires")
    python = text_at(requires, "python_version", "_meta.requires")
    return PinnedFile(
        path=path,
        form="Pipfile.lock",
        pins=tuple(pins),
        roots=tuple(roots),
        choices=tuple(choices),
        requires_python=f"=={python}.*" if python else None,
        notes=tuple(unversioned(pins)),
    )


def _pipfile_pin(
    name: str, item: Mapping[str, Any], place: str, urls: Mapping[str, str]
) -> tuple[Pin, str]:
    version = text_at(item, "version", place)
    origin = origin_of(item, place, "git", "file", "path")
    wheels: tuple[PinnedWheel, ...] = ()
    found = None if version is None else version_of(version.lstrip("="))
    if origin and (file := file_name(origin.partition("#")[0])).endswith(".whl"):
        wheels = (PinnedWheel(filename=file, url=origin.partition("#")[0]),)
        found = found or version_of(file.split("-")[1] if "-" in file else "")
    pin = Pin(
        name=check_name(name, place),
        version=found,
        wheels=wheels,
        hashes=sha256_of(as_strings(item.get("hashes", []), join(place, "hashes"))),
        index=urls.get(text_at(item, "index", place) or ""),
        origin=origin,
    )
    return pin, text_at(item, "markers", place) or ""


def _pipfile_lines(text: str) -> dict[tuple[str, str], int]:
    """Return the line number of each package, keyed by category and name."""
    lines: dict[tuple[str, str], int] = {}
    category, outer = "", None
    line, at = 1, 0
    for match in _KEY.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        indent = len(match[0]) - len(match[0].lstrip())
        outer = indent if outer is None else outer
        if indent == outer:
            category = match[1]
        else:
            lines.setdefault((category, match[1]), line)
    return lines


def _read_installed(
    items: list[Any],
    environment: Mapping[str, Any],
    text: str,
    path: str,
    form: str,
) -> PinnedFile:
    lines = _named_lines(text)
    pins = []
    for number, item in enumerate(items):
        place = f"[{number}]"
        pin = _installed_pin(as_object(item, place), place)
        pins.append(replace(pin, path=path, line=lines.get(pin.name)))
    python = text_at(environment, "python_version", "environment")
    return PinnedFile(
        path=path,
        form=form,
        pins=tuple(pins),
        roots=tuple(map(Edge, range(len(pins)))),
        requires_python=f"=={python}.*" if python else None,
        platform=_platform(environment),
        notes=tuple(unversioned(pins)),
    )


def _installed_pin(item: Mapping[str, Any], place: str) -> Pin:
    """Return the pin of an installed package; ``pip list`` shows only its version."""
    key = join(place, "metadata")
    metadata = as_object(item.get("metadata", item), key)
    origin = item.get("direct_url") or item.get("download_info") or {}
    where = as_object(origin, join(place, "direct_url"))
    url = text_at(where, "url", place)
    requires = metadata.get("requires_dist")
    wheels: tuple[PinnedWheel, ...] = ()
    if url is not None and (name := file_name(url)).endswith(".whl"):
        wheels = (PinnedWheel(filename=name, url=url),)
    of_index = item.get("is_direct") is False or url is None
    return Pin(
        name=read_name(metadata, key),
        version=version_of(as_string(metadata.get("version"), key)),
        wheels=wheels,
        requires=None
        if "metadata" not in item
        else as_strings(requires or [], join(key, "requires_dist")),
        origin=None if of_index else url,
    )


def _platform(environment: Mapping[str, Any]) -> str | None:
    system = environment.get("sys_platform")
    machine = str(environment.get("platform_machine", "")).lower()
    if system == "linux" and machine in ("x86_64", "aarch64"):
        return f"linux_{machine}"
    return "win_amd64" if (system, machine) == ("win32", "amd64") else None


def _named_lines(text: str) -> dict[str, int]:
    """Return the number of the first line that names each package."""
    lines: dict[str, int] = {}
    line, at = 1, 0
    for match in _NAME.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        lines.setdefault(re.sub("[-_.]+", "-", match[1]).lower(), line)
    return lines
