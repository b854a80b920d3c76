"""Reading ``pylock.toml``, ``poetry.lock`` and ``pdm.lock``.

All three record for each package when it is installed, so only `PinnedFile.roots` are
needed. Lock files of Poetry before 2.0 record only the optional packages that an extra
requires directly, so their dependencies are read as a graph.

`packaging.pylock` implements
https://packaging.python.org/en/latest/specifications/pylock-toml/; Poetry and PDM
publish no specification.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from nvidia_variant_provider.errors import InputError, join, shown
from nvidia_variant_provider.strict_json import as_object, as_string, as_strings

from ..wheels.archive import expands_too_far, parse_wheel_name
from .documents import (
    AGAIN,
    by_name,
    file_name,
    find_lines,
    lists_at,
    origin_of,
    read_name,
    read_wheel,
    sha256_of,
    tables_at,
    text_at,
    unversioned,
    version_of,
)
from .model import Choice, Edge, Pin, PinnedFile, PinnedWheel

Settings: TypeAlias = Mapping[str, Any]
"""The ``pyproject.toml`` next to the lock file; empty if there is none."""

_PLAIN = re.compile(r"[0-9][A-Za-z0-9.!+_-]*(\.\*)?")


def read_pylock(
    document: Mapping[str, Any], text: str, path: str, _: Settings
) -> PinnedFile:
    """Read the document of a ``pylock.toml``.

    :raises InputError: the document is not valid.
    """
    from packaging.pylock import Pylock, PylockValidationError

    tables = list(tables_at(document, "packages"))
    names = [list(_unlabeled(table, place)) for place, table in tables]
    try:
        lock = Pylock.from_dict(document)
    except (PylockValidationError, RecursionError) as error:
        place = getattr(error, "context", None)
        reason = getattr(error, "message", None) or "nested too deeply"
        raise InputError(shown(reason, 120)[1:-1], place=place, hint=AGAIN) from None
    lines = find_lines(text, "packages", len(tables))
    pins, roots = [], []
    for number, package in enumerate(lock.packages):
        wheels = [
            PinnedWheel(
                filename=name,
                url=wheel.path or wheel.url,
                sha256=next(iter(sha256_of([f"sha256:{_digest(wheel)}"])), None),
                size=wheel.size,
            )
            for wheel, name in zip(package.wheels or (), names[number], strict=True)
        ]
        origin = None
        if package.archive is not None:
            origin = package.archive.path or package.archive.url
            if origin and (name := file_name(origin)).endswith(".whl"):
                digest = sha256_of([f"sha256:{_digest(package.archive)}"])
                wheels.append(
                    PinnedWheel(
                        filename=name, url=origin, sha256=next(iter(digest), None)
                    )
                )
        elif (source := package.vcs or package.directory) is not None:
            origin = source.path or getattr(source, "url", None)
        place, table = tables[number]
        pins.append(
            Pin(
                name=str(package.name),
                version=package.version or _version_in(wheels),
                wheels=tuple(wheels),
                has_sdist=package.sdist is not None or (bool(origin) and not wheels),
                requires=tuple(
                    read_name(item, where)
                    for where, item in tables_at(table, "dependencies", place)
                    if "name" in item
                )
                or None,
                index=package.index,
                origin=origin,
                path=path,
                line=lines[number],
                marker=str(package.marker or ""),
            )
        )
        roots.append(Edge(number, str(package.marker or "")))
    groups = [*(lock.dependency_groups or ()), *(lock.default_groups or ())]
    choices = [Choice("extra", str(name)) for name in lock.extras or ()]
    choices += [Choice("group", str(name)) for name in groups]
    return PinnedFile(
        path=path,
        form="pylock.toml",
        pins=tuple(pins),
        roots=tuple(roots),
        choices=tuple(dict.fromkeys(choices)),
        defaults=frozenset(Choice("group", x) for x in lock.default_groups or ()),
        requires_python=str(lock.requires_python or "") or None,
        environments=tuple(map(str, lock.environments or ())),
        notes=tuple(unversioned(pins)),
    )


def _unlabeled(table: Mapping[str, Any], place: str) -> Iterator[str]:
    """Yield the names of the wheels, and remove variant labels from ``table``.

    `packaging` does not support the variant labels of PEP 825.
    """
    for _, item in tables_at(table, "wheels", place):
        given = item.get("name") or item.get("path") or item.get("url")
        name = file_name(given) if isinstance(given, str) else ""
        # `packaging` computes all tags of a name.
        if expands_too_far("-".join(re.split("[?#]", name)[0].split("-")[2:])):
            raise InputError("a wheel names too many tags", place=place, hint=AGAIN)
        if name.count("-") > 4 and isinstance(item, dict):
            try:
                label = parse_wheel_name(name).label
            except InputError:
                label = None
            if label is not None:
                item["name"] = name.removesuffix(f"-{label}.whl") + ".whl"
        yield name


def _digest(file: Any) -> object:
    return file.hashes.get("sha256")


def _version_in(wheels: Sequence[PinnedWheel]) -> Any:
    return version_of(wheels[0].filename.split("-")[1]) if wheels else None


def read_poetry(
    document: Mapping[str, Any], text: str, path: str, settings: Settings
) -> PinnedFile:
    """Read the document of a ``poetry.lock``.

    :raises InputError: the document is not valid.
    """
    tables = list(tables_at(document, "package"))
    lines = find_lines(text, "package", len(tables))
    metadata = as_object(document.get("metadata", {}), "metadata")
    older = as_object(metadata.get("files", {}), "metadata.files")
    pins: list[Pin] = []
    roots: list[Edge] = []
    has_groups = any("groups" in table for _, table in tables)
    for number, (place, table) in enumerate(tables):
        pin = _poetry_package(table, place, older)
        pins.append(replace(pin, path=path, line=lines[number]))
        if has_groups or table.get("optional") is not True:
            roots += _poetry_roots(number, table, place)
    extras = {
        name: as_strings(items, where)
        for name, where, items in lists_at(document, "extras")
    }
    if not has_groups:
        numbers = by_name(pin.name for pin in pins)
        for name, projects in extras.items():
            for project in projects:
                found = numbers.get(
                    re.split(r"[\s\[(<>=;]", project, maxsplit=1)[0].lower(), ()
                )
                roots += (Edge(n, "", Choice("extra", name)) for n in found)
        pins = [replace(pin, edges=tuple(_poetry_edges(pin, numbers))) for pin in pins]
    choices = [Choice("extra", name) for name in extras]
    groups = dict.fromkeys(root.choice for root in roots if root.choice)
    groups = {x: None for x in groups if x.kind == "group"}
    tool = _at(settings, "tool", "poetry", "group")
    optional = {
        name
        for name, group in tool.items()
        if isinstance(group, dict) and group.get("optional") is True
    }
    return PinnedFile(
        path=path,
        form="poetry.lock",
        pins=tuple(pins),
        roots=tuple(roots),
        choices=(*choices, *groups),
        defaults=frozenset(x for x in groups if x.name not in optional),
        requires_python=_specifier(text_at(metadata, "python-versions", "metadata")),
        notes=tuple(unversioned(pins)),
    )


def _poetry_package(
    table: Mapping[str, Any], place: str, older: Mapping[str, Any]
) -> Pin:
    name = read_name(table, place)
    if "files" not in table and name in older:
        table = {**table, "files": older[name]}
    version = as_string(table.get("version"), join(place, "version"))
    files = [
        read_wheel(item, where, "url", "file")
        for where, item in tables_at(table, "files", place)
    ]
    source = as_object(table.get("source", {}), join(place, "source"))
    url = text_at(source, "url", join(place, "source"))
    of_index = source.get("type") == "legacy"
    if url is not None and not of_index and url.endswith(".whl"):
        files = [replace(item, url=url) for item in files if item is not None]
    return Pin(
        name=name,
        version=version_of(version),
        wheels=tuple(item for item in files if item is not None),
        has_sdist=None in files or (url is not None and not of_index),
        requires=tuple(_poetry_requires(table, place)),
        index=url if of_index else None,
        origin=None if of_index else url,
    )


def _poetry_roots(number: int, table: Mapping[str, Any], place: str) -> Iterator[Edge]:
    old = ["main"] if table.get("category") in (None, "main") else ["dev"]
    groups = as_strings(table.get("groups", old), join(place, "groups"))
    markers = table.get("markers", "")
    for group in groups:
        marker = markers.get(group, "") if isinstance(markers, dict) else markers
        text = as_string(marker, join(place, "markers"))
        yield Edge(number, text, None if group == "main" else Choice("group", group))


def _poetry_requires(table: Mapping[str, Any], place: str) -> Iterator[str]:
    """Yield PEP 508 requirements; limits that PEP 508 cannot express are omitted."""
    here = join(place, "dependencies")
    for name, value in as_object(table.get("dependencies", {}), here).items():
        for item in value if isinstance(value, list) else [value]:
            given = item if isinstance(item, dict) else {"version": item}
            version, marker = given.get("version"), given.get("markers")
            extras = given.get("extras")
            asked = ",".join(map(str, extras)) if isinstance(extras, list) else ""
            text = name + (f"[{asked}]" if asked else "") + _specifier_of(version)
            if isinstance(marker, str) and marker:
                yield f"{text} ; {marker}"
            elif given.get("optional") is not True:
                yield text


def _specifier_of(version: object) -> str:
    text = version.strip() if isinstance(version, str) else "*"
    if _PLAIN.fullmatch(text):
        return f"=={text}"
    return "" if text == "*" or re.search(r"[\^|]|~(?!=)", text) else text


def _specifier(text: str | None) -> str | None:
    """Return a Python specifier; ``None`` if it is ``*`` or has operators of Poetry."""
    return None if text is None or re.search(r"[\^|]|~(?!=)|^\*$", text) else text


def _poetry_edges(pin: Pin, numbers: Mapping[str, Sequence[int]]) -> Iterator[Edge]:
    for text in pin.requires or ():
        head, _, marker = text.partition(" ; ")
        name = re.split(r"[\[<>=!~ ]", head)[0].lower().replace("_", "-")
        if "extra" not in marker:
            yield from (Edge(number, marker) for number in numbers.get(name, ()))


def read_pdm(
    document: Mapping[str, Any], text: str, path: str, settings: Settings
) -> PinnedFile:
    """Read the document of a ``pdm.lock``.

    PDM records extras as groups, so ``pyproject.toml`` is needed to distinguish them.

    :raises InputError: the document is not valid.
    """
    tables = list(tables_at(document, "package"))
    lines = find_lines(text, "package", len(tables))
    metadata = as_object(document.get("metadata", {}), "metadata")
    extras = _at(settings, "project", "optional-dependencies")

    def choice_of(group: str) -> Choice | None:
        kind = "extra" if group in extras else "group"
        return None if group == "default" else Choice(kind, group)  # type: ignore[arg-type]

    # PDM adds a second entry for a package that is required with extras: join the two.
    first: dict[tuple[object, ...], int] = {}
    pins: list[Pin] = []
    requires: list[list[str]] = []
    roots: list[Edge] = []
    for (place, table), line in zip(tables, lines, strict=True):
        pin = replace(_pdm_package(table, place), path=path, line=line)
        key = pin.name, pin.version, pin.origin, pin.marker
        number = first.setdefault(key, len(pins))
        if number == len(pins):
            pins.append(pin)
            requires.append([])
        elif not pins[number].wheels and pin.wheels:
            pins[number] = replace(pins[number], wheels=pin.wheels)
        requires[number] += pin.requires or ()
        groups = as_strings(table.get("groups", ["default"]), join(place, "groups"))
        roots += [Edge(number, pin.marker, choice_of(group)) for group in groups]
    groups = as_strings(metadata.get("groups", []), "metadata.groups")
    choices = tuple(filter(None, map(choice_of, groups)))
    targets = [
        as_string(table["requires_python"], join(place, "requires_python"))
        for place, table in tables_at(metadata, "targets", "metadata")
        if "requires_python" in table
    ]
    return PinnedFile(
        path=path,
        form="pdm.lock",
        pins=tuple(
            replace(pin, requires=tuple(own))
            for pin, own in zip(pins, requires, strict=True)
        ),
        roots=tuple(roots),
        choices=choices,
        defaults=frozenset(x for x in choices if settings and x.kind == "group"),
        requires_python=targets[0] if len(targets) == 1 else None,
        notes=tuple(unversioned(pins)),
    )


def _pdm_package(table: Mapping[str, Any], place: str) -> Pin:
    files = [
        read_wheel(item, where, "url", "file")
        for where, item in tables_at(table, "files", place)
    ]
    version = text_at(table, "version", place)
    origin = origin_of(table, place, "git", "url", "path")
    return Pin(
        name=read_name(table, place),
        version=None if version is None else version_of(version),
        wheels=tuple(item for item in files if item is not None),
        has_sdist=None in files or (origin is not None and ".whl" not in origin),
        requires=as_strings(table.get("dependencies", []), join(place, "dependencies")),
        origin=origin,
        marker=text_at(table, "marker", place) or "",
    )


def _at(settings: Settings, *keys: str) -> Mapping[str, Any]:
    """Return a table of ``pyproject.toml``, or an empty table if it is missing."""
    value: object = settings
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


ReadLock: TypeAlias = Callable[[Mapping[str, Any], str, str, Settings], PinnedFile]
"""Reads a lock file, given its parsed document, its text, its path and `Settings`."""
