"""Reading requirements files, the output of ``pip freeze``, and script metadata.

The grammar is implemented here, because pip's own parser takes a second to load, and
users of uv might not have pip:
https://pip.pypa.io/en/stable/reference/requirements-file-format/. A test compares the
result with pip's. Environment variables are not expanded.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.strict_json import is_opened

from ..metadata.requirements import explain_requirement, parse_requirement
from .documents import (
    check_name,
    file_name,
    parse_toml,
    sha256_of,
    version_of,
)
from .model import Edge, Pin, PinnedFile, PinnedWheel

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.version import Version

_DEEPEST = 20
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$")
_HASHES = re.compile(r"(?:--hash[= ][^\s'\"]+(?:\s+|$))+")
_HASH = re.compile(r"--hash[= ](\S+)")
_FOLLOWED = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
_EDITABLE = ("-e", "--editable")
_OPTION = re.compile(r"(--[a-z-]+|-[a-zA-Z])(?:=|\s+|(?<=^-[a-zA-Z])(?=\S))?(.*)")
_SCRIPT = re.compile(
    r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$"
)
"""The regular expression of PEP 723."""

_PATH = re.compile(r"[.~/\\]|[A-Za-z]:[/\\]|[^<>=!~;\[ ]+[/\\]")
"""Matches the beginning of a requirement that is a path."""

_HINT = "correct the line"

Read = Callable[[str], str]
"""Returns the text of a file."""


@dataclass(kw_only=True, slots=True)
class _Reading:
    """The contents read so far from a file and the files that it names.

    :param unpinned: requirements without a version, each with its pin (file and line).
    :param constraints: for each project, the pins in constraints files.
    :param outside: the files outside the directory of the first file, after links are
        followed. The author of the first file may name a secret file, such as
        /etc/shadow, so only pins are quoted of these files.
    """

    read: Read
    pins: list[Pin] = field(default_factory=list)
    unpinned: list[tuple[Requirement, Pin]] = field(default_factory=list)
    constraints: dict[str, list[Pin]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    outside: set[str] = field(default_factory=set)


def read_requirements(text: str, path: str, read: Read) -> PinnedFile:
    """Read the text of a requirements file.

    :param read: reads the files that the text names.
    :raises InputError: the file, or a file that it names, is not valid.
    """
    reading = _Reading(read=read)
    _read_text(text, path, reading, constrains=False, above=())
    return _finished(reading, path, "requirements.txt")


def read_script(text: str, path: str) -> PinnedFile | None:
    """Read the dependencies in a script (PEP 723).

    :returns: ``None`` if the script has no block of metadata.
    :raises InputError: the block is not valid.
    """
    blocks = [x for x in _SCRIPT.finditer(text) if x["type"] == "script"]
    if not blocks:
        return None
    if len(blocks) > 1:
        raise InputError("has several blocks of dependencies", hint="keep one")
    start = text.count("\n", 0, blocks[0].start("content")) + 1
    given = blocks[0]["content"].splitlines()
    document = parse_toml("\n".join(line[2:] for line in given))
    listed = document.get("dependencies", [])
    if not isinstance(listed, list):
        raise InputError("the dependencies are not a list", place="dependencies")
    reading = _Reading(read=lambda _: "")
    for item in listed:
        if not isinstance(item, str):
            raise InputError("a dependency is not a string", place="dependencies")
        found = (n for n, line in enumerate(given, start) if item in line)
        where = Pin(name="", version=None, path=path, line=next(found, None))
        _add(item, where, reading, constrains=False)
    requires = document.get("requires-python")
    python = requires if isinstance(requires, str) else None
    return _finished(reading, path, "script", requires_python=python)


def _finished(
    reading: _Reading, path: str, form: str, requires_python: str | None = None
) -> PinnedFile:
    pins, notes = list(reading.pins), list(reading.notes)
    settled = {(pin.name, pin.marker) for pin in pins}
    for requirement, place in reading.unpinned:
        if {(place.name, place.marker), (place.name, "")} & settled:
            continue  # Another line pins the project.
        fitting = [
            replace(pin, marker=_joined(place.marker, pin.marker))
            for pin in reading.constraints.get(place.name, ())
            if pin.version
            and requirement.specifier.contains(pin.version, prereleases=True)
        ]
        # Keep unpinned requirements too, although their builds are unknown.
        is_outside = place.path in reading.outside
        pins += fitting or ([] if is_outside else [place])
        settled.add((place.name, place.marker))
        if not fitting:
            where = f"{place.path}:{place.line}" if place.line else place.path
            said = shown(str(requirement).partition(";")[0].strip())[1:-1]
            said = "a requirement" if is_outside else said
            notes.append(f"{said} in {where} is not pinned")
    pinned = {pin.name for pin in pins}
    left = [name for name in reading.constraints if name not in pinned]
    if left:
        notes.append(
            f"{len(left)} constraints are on packages that no line asks for, such as "
            f"{left[0]}: they are not judged"
        )
    return PinnedFile(
        path=path,
        form=form,
        pins=tuple(pins),
        roots=tuple(Edge(number, pin.marker) for number, pin in enumerate(pins)),
        requires_python=requires_python,
        notes=tuple(notes),
    )


def _joined(*markers: str) -> str:
    return " and ".join(f"({marker})" for marker in markers if marker)


def root_of(path: str) -> str:
    """Return the directory of a file, or a pipe that the shell has opened itself.

    No other file is in the directory of such a pipe.
    """
    return os.path.realpath(path if is_opened(path) else os.path.dirname(path))


def is_outside(path: str, root: str) -> bool:
    """Return whether a file, after links are followed, is outside a directory."""
    here = os.path.join(os.path.realpath(path), "")
    return not here.startswith(os.path.join(root, ""))


def _read_text(
    text: str,
    path: str,
    reading: _Reading,
    *,
    constrains: bool,
    above: tuple[str, ...],
    root: str = "",
) -> None:
    here = os.path.realpath(path)
    root = root or root_of(path)
    if is_outside(path, root):
        reading.outside.add(path)
    is_inside = path not in reading.outside
    if here in above:
        raise InputError("names itself, through other files", path=path, hint=_HINT)
    if len(above) >= _DEEPEST:
        message = f"is named through more than {_DEEPEST} other files"
        raise InputError(message, path=path, hint="put them into one file")
    for number, line in _logical_lines(text.splitlines()):
        count = len(reading.notes)
        try:
            named = _read_line(line, path, number, reading, constrains=constrains)
            nested = named and _nested_file(named[0], path, reading)
            content = reading.read(nested) if nested else ""
        except InputError as error:
            other = InputError("is not a line of a requirements file")
            raise _at_line(error if is_inside else other, path, number) from None
        if not is_inside and reading.notes[count:]:
            reading.notes[count:] = [f"{path}:{number} is not judged"]
        if named and nested:
            _read_text(
                content,
                nested,
                reading,
                constrains=constrains or named[1],
                above=(*above, here),
                root=root,
            )


def _nested_file(name: str, path: str, reading: _Reading) -> str | None:
    """Return the path of a file that a line names; ``None`` if it is not read."""
    nested = os.path.join(os.path.dirname(path), name)
    if "://" in name or "${" in name:
        reading.notes.append(f"{shown(name)} is not read: it is not a local file")
    elif name.partition("[")[0].endswith(".toml"):
        reading.notes.append(f"{nested} is a lock file: check it by itself")
    else:
        return nested
    return None


def _at_line(error: InputError, path: str, line: int) -> InputError:
    if error.path is not None:
        return error
    return InputError(
        error.message,
        path=f"{path}:{line}",
        place=error.place,
        hint=error.hint or _HINT,
    )


def _logical_lines(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield logical lines with their numbers, joined and without comments as in pip."""
    first: int | None = None
    parts: list[str] = []
    for number, given in enumerate(lines, 1):
        comment = given.lstrip().startswith("#")
        if given.endswith("\\") and not comment:
            first = number if first is None else first
            parts.append(given.strip("\\"))
            continue
        # pip recognizes a comment in a joined line only after a space.
        parts.append(f" {given}" if comment else given)
        line = _COMMENT.sub("", "".join(parts)).strip()
        if line:
            yield (number if first is None else first), line
        first, parts = None, []
    if parts and (line := _COMMENT.sub("", "".join(parts)).strip()):
        yield first or len(lines), line


def _read_line(
    line: str, path: str, number: int, reading: _Reading, *, constrains: bool
) -> tuple[str, bool] | None:
    """Read a logical line, and add its contents to ``reading``.

    :returns: the file that the line names, and whether it contains constraints;
        otherwise ``None``.
    :raises InputError: the line is not valid.
    """
    if not line.startswith("-"):
        text, hashes = line, []
        if " -" in line:
            words = line.split(" ")
            start = next(n for n, word in enumerate(words) if word.startswith("-"))
            text, options = " ".join(words[:start]), " ".join(words[start:])
            hashes = _hashes(options)
        where = Pin(
            name="", version=None, path=path, line=number, hashes=sha256_of(hashes)
        )
        _add(text.strip(), where, reading, constrains=constrains)
        return None
    match = _OPTION.fullmatch(line)
    option, value = (match[1], match[2].strip()) if match else (line, "")
    value = next(iter(_words(value)), "")
    if option in _FOLLOWED:
        if not value:
            raise InputError(f"{option} names no file", hint=_HINT)
        return value, _FOLLOWED[option]
    if option in _EDITABLE and not constrains:
        name = re.search(r"[#&]egg=([A-Za-z0-9._-]+)", value)
        what = check_name(name[1], "") if name else shown(value)
        reading.notes.append(f"{what} is built from source: it is not judged")
    return None


def _words(text: str) -> list[str]:
    """Split options as a shell does.

    :raises InputError: a quotation mark is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError:
        raise InputError("a quotation mark is left open", hint=_HINT) from None


def _hashes(options: str) -> list[str]:
    if _HASHES.fullmatch(options):
        return _HASH.findall(options)
    return _HASH.findall(" ".join(_words(options)))


def _add(text: str, where: Pin, reading: _Reading, *, constrains: bool) -> None:
    """Add a requirement to ``reading`` as a pin, as a constraint or to the notes.

    :param where: a pin without a name, with the line and hashes of the requirement.
    """
    bare = re.split(r"\s;|#", text)[0].strip()
    requirement = parse_requirement(text)
    if requirement is None:
        if "://" not in bare and not _PATH.match(bare) and not bare.endswith(".whl"):
            reason = explain_requirement(text) or "it is too long"
            message = f"{shown(text)} is not a requirement: {reason}"
            raise InputError(message, hint=_HINT)
        marker = text.rpartition(" ;")[2].strip() if " ;" in text else ""
        wheel = _at_url(bare, replace(where, marker=marker))
        if wheel is None:
            message = f"{shown(bare)} is built from source: it is not judged"
            reading.notes.append(message)
            return
        pin = wheel
    else:
        name = check_name(requirement.name, "")
        marker = str(requirement.marker or "")
        pin = replace(where, name=name, marker=marker)
        if requirement.url is not None:
            pin = _at_url(requirement.url, pin) or replace(
                pin, origin=requirement.url, has_sdist=True
            )
        elif (version := _pinned_version(requirement)) is not None:
            pin = replace(pin, version=version)
        else:
            if not constrains:
                reading.unpinned.append((requirement, pin))
            return
    if pin.version is None and pin.path in reading.outside:
        reading.notes.append(f"{pin.name} has no version")
    elif constrains:
        reading.constraints.setdefault(pin.name, []).append(pin)
    else:
        reading.pins.append(pin)


def _at_url(url: str, pin: Pin) -> Pin | None:
    """Return the pin of a wheel at a URL or a path; ``None`` for other files."""
    address, _, fragment = url.partition("#")
    name = file_name(address)
    parts = name.split("-")
    if not name.endswith(".whl") or len(parts) < 5:
        return None
    hashes = sha256_of(fragment.split("&")) | pin.hashes
    digest = next(iter(hashes), None) if len(hashes) == 1 else None
    return replace(
        pin,
        name=pin.name or check_name(parts[0], ""),
        version=version_of(parts[1].replace("_", "-")),
        wheels=(PinnedWheel(filename=name, url=address, sha256=digest),),
        hashes=hashes,
        origin=address,
    )


def _pinned_version(requirement: Requirement) -> Version | None:
    """Return the version after ``==`` or ``===``, if any."""
    for specifier in requirement.specifier:
        exact = specifier.operator in ("==", "===")
        if exact and not specifier.version.endswith(".*"):
            return version_of(specifier.version)
    return None
