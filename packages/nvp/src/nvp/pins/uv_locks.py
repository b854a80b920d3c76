"""Reading the ``uv.lock`` of a project, a workspace or a script.

The file is a graph: it has the dependencies of each package, and the requirements of
the projects themselves, always and for each of their extras and groups. If extras
conflict, markers contain names such as ``extra-7-project-cu128``, which `targets`
evaluates. https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from nvidia_variant_provider.errors import InputError, join, shown
from nvidia_variant_provider.strict_json import as_object, as_string, as_strings

from .documents import (
    by_name,
    find_lines,
    lists_at,
    origin_of,
    read_name,
    read_wheel,
    tables_at,
    text_at,
    unversioned,
    version_of,
)
from .model import Choice, Edge, Pin, PinnedFile

_LISTS: tuple[tuple[str, Literal["extra", "group"]], ...] = (
    ("optional-dependencies", "extra"),
    ("dev-dependencies", "group"),
)
_ORIGINS = ("git", "url", "path", "directory", "editable", "virtual")


def read_uv(
    document: Mapping[str, Any], text: str, path: str, settings: Mapping[str, Any]
) -> PinnedFile:
    """Read the document of a ``uv.lock``.

    :param settings: the ``pyproject.toml`` next to the lock file.
    :raises InputError: the document is invalid.
    """
    if document.get("version") != 1:
        message = f"version {shown(document.get('version'))} of uv.lock is not known"
        raise InputError(message, place="version", hint="make it again with uv")
    tables = list(tables_at(document, "package"))
    graph = _Graph(tables)
    lines = find_lines(text, "package", len(tables))
    manifest = as_object(document.get("manifest", {}), "manifest")
    members = set(as_strings(manifest.get("members", []), "manifest.members"))
    pins = [
        _read_package(graph, number, path, lines[number], members)
        for number in range(len(tables))
    ]
    roots = list(_roots(graph, pins, manifest))
    if not any(pin.is_project for pin in pins) and not manifest:
        wanted = {edge.pin for pin in pins for edge in pin.edges}
        roots = [Edge(n) for n in range(len(pins)) if n not in wanted] or [
            Edge(n) for n in range(len(pins))
        ]
    choices = dict.fromkeys(root.choice for root in roots if root.choice is not None)
    conflicts = list(_conflicts(document))
    for conflict in conflicts:
        choices |= dict.fromkeys(sorted(conflict))
    return PinnedFile(
        path=path,
        form="uv.lock",
        pins=tuple(pins),
        roots=tuple(roots),
        choices=tuple(choices),
        defaults=frozenset(x for x in _defaults(settings) if x in choices),
        conflicts=tuple(conflicts),
        requires_python=text_at(document, "requires-python", ""),
        environments=as_strings(
            document.get("supported-markers", []), "supported-markers"
        ),
        notes=tuple(unversioned(pins)),
    )


class _Graph:
    """The packages of the document, and the edges between them."""

    def __init__(self, tables: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self.tables = tables
        self.names = [read_name(table, place) for place, table in tables]
        self.numbers = by_name(self.names)

    def edges(
        self,
        items: Iterator[tuple[str, Mapping[str, Any]]],
        *,
        choice: Choice | None = None,
        extra: str = "",
    ) -> Iterator[Edge]:
        """Yield the edges of a list of dependencies.

        An item has a version and a source only if several packages have its name.
        """
        for place, item in items:
            named = self.numbers.get(read_name(item, place), [])
            marker = text_at(item, "marker", place) or ""
            extras = as_strings(item.get("extra", []), join(place, "extra"))
            for number in named:
                table = self.tables[number][1]
                if len(named) == 1 or all(
                    item.get(key, own := table.get(key)) == own
                    for key in ("version", "source")
                ):
                    yield Edge(number, marker, choice, extra, extras)


def _read_package(
    graph: _Graph, number: int, path: str, line: int | None, members: set[str]
) -> Pin:
    place, table = graph.tables[number]
    source = as_object(table.get("source", {}), join(place, "source"))
    local = [source.get(key) for key in ("virtual", "editable", "directory")]
    edges = [*graph.edges(iter(tables_at(table, "dependencies", place)))]
    for extra, where, items in lists_at(table, "optional-dependencies", place):
        edges += graph.edges(_tables(items, where), extra=extra)
    version = text_at(table, "version", place)
    wheels = (
        read_wheel(item, where, "filename", "url", "path")
        for where, item in tables_at(table, "wheels", place)
    )
    return Pin(
        name=graph.names[number],
        version=None if version is None else version_of(version),
        wheels=tuple(wheel for wheel in wheels if wheel is not None),
        has_sdist="sdist" in table or "git" in source or any(local),
        requires=tuple(_requires(table, place)),
        index=text_at(source, "registry", place),
        origin=origin_of(source, join(place, "source"), *_ORIGINS),
        path=path,
        line=line,
        edges=tuple(edges),
        is_project="." in local or graph.names[number] in members,
    )


def _requires(table: Mapping[str, Any], place: str) -> Iterator[str]:
    for where, item in tables_at(table, "dependencies", place):
        extras = as_strings(item.get("extra", []), join(where, "extra"))
        marker = text_at(item, "marker", where) or ""
        text = read_name(item, where) + (f"[{','.join(extras)}]" if extras else "")
        yield f"{text} ; {marker}" if marker and "extra" not in marker else text


def _roots(
    graph: _Graph, pins: Sequence[Pin], manifest: Mapping[str, Any]
) -> Iterator[Edge]:
    """Yield the edges from the projects, and from the manifest that a script has."""
    for number, pin in enumerate(pins):
        if not pin.is_project:
            continue
        place, table = graph.tables[number]
        yield Edge(number)
        for key, kind in _LISTS:
            for name, where, items in lists_at(table, key, place):
                choice = Choice(kind, name)
                yield from graph.edges(_tables(items, where), choice=choice)
    place = "manifest"
    yield from graph.edges(iter(tables_at(manifest, "requirements", place)))
    for name, where, items in lists_at(manifest, "dependency-groups", place):
        group = Choice("group", name)
        yield from graph.edges(_tables(items, where), choice=group)


def _tables(items: list[Any], place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, item in enumerate(items):
        where = join(place, number)
        yield where, as_object(item, where)


def _conflicts(document: Mapping[str, Any]) -> Iterator[frozenset[Choice]]:
    raw = document.get("conflicts", [])
    for number, item in enumerate(raw if isinstance(raw, list) else []):
        place = join("conflicts", number)
        found = set()
        for where, choice in _tables(item if isinstance(item, list) else [], place):
            for kind in ("extra", "group"):
                if kind in choice:
                    name = as_string(choice[kind], join(where, kind))
                    found.add(Choice(kind, name))
        yield frozenset(found)


def _defaults(settings: Mapping[str, Any]) -> list[Choice]:
    """Return the default groups of uv: the configured groups, otherwise ``dev``."""
    tool = settings.get("tool")
    uv = tool.get("uv") if isinstance(tool, dict) else None
    groups = uv.get("default-groups", ["dev"]) if isinstance(uv, dict) else ["dev"]
    if groups == "all":
        own = settings.get("dependency-groups")
        groups = list(own) if isinstance(own, dict) else []
    names = groups if isinstance(groups, list) else []
    return [Choice("group", name) for name in names if isinstance(name, str)]
