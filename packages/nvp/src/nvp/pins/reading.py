"""Reading the pins of packages: those of a file in any form, and of an environment."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nvidia_variant_provider.errors import InputError, redacted
from nvidia_variant_provider.strict_json import (
    parse_json,
    read_bytes,
    read_stdin,
)

from ..signals import count_input
from .documents import parse_toml, version_of
from .model import Edge, Pin, PinnedFile, PinnedWheel

if TYPE_CHECKING:
    from ..doctor.distributions import Distribution

LIMIT = 16 * 1024 * 1024
"""Maximum size of a file in bytes. Lock files of large workspaces have about 8 MB."""

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks, which text files on Windows may have: PowerShell writes UTF-16."""

_BEGINNING = re.compile(r"^[^\S\n]*(?=[^\s#])", re.MULTILINE)
"""Matches the indentation of the first line that is neither empty nor a comment."""

_TOML = re.compile(r"\[\[?\s*[A-Za-z]|[A-Za-z_][A-Za-z_-]*\s*=\s*[^=\s]")
_NOT_READ = (
    "is neither a supported lock file nor a requirements file",
    "name a pylock.toml, uv.lock, poetry.lock, pdm.lock, Pipfile.lock, requirements "
    "file, script, or the output of pip freeze or pip inspect",
)


def read_pins(path: str) -> PinnedFile:
    """Read the pins of a file, without running or downloading anything.

    :param path: ``pylock.toml``, ``uv.lock``, ``poetry.lock``, ``pdm.lock``,
        ``Pipfile.lock``, a requirements file, a script (PEP 723), or the output of
        ``pip freeze``, ``pip inspect`` or ``pip list --format json``; ``-`` is stdin.
    :raises InputError: the file cannot be read, or is invalid.
    """
    try:
        if path == "-":
            # With this name, paths in the text are relative to the current directory.
            path = "stdin"
            text = _decode(read_stdin(limit=LIMIT), path)
        else:
            text = _read_text(path, given=True)
        count_input(path, len(text))
        file = _read(text, path)
        if file.notes and file.form != "requirements.txt" and _is_link(file.path):
            return replace(file, notes=(f"{file.path}: parts are not judged",))
    except InputError as error:
        if error.path is not None:
            raise
        if _is_link(path):
            raise InputError(_LINKED[0], path=path, hint=_LINKED[1]) from None
        hint = _HINT if error.hint in (None, _NOT_METADATA) else error.hint
        raise InputError(
            error.message, path=path, place=error.place, hint=hint
        ) from None
    # URLs of private indexes and repositories often contain a password.
    return replace(file, notes=tuple(map(redacted, file.notes)))


def _is_link(path: str) -> bool:
    """Return whether a file is a link to another directory.

    The link may be a stranger's, to a secret file: only pins are quoted of its target.
    A requirements file may also name such files, so its reader has the same rule.
    """
    from .requirements import is_outside, root_of

    return is_outside(path, root_of(path))


_LINKED = (
    "is not valid, and a link to another directory: its text is not quoted",
    "name the target of the link",
)
_HINT = "check the file, or make it again"
_NOT_METADATA = "this is not variant metadata"
"""The hint of `read_bytes` for a file that is too large, which `read_pins` replaces."""


def _read(text: str, path: str) -> PinnedFile:
    from .requirements import read_requirements, read_script

    start = text.lstrip()[:1]
    if start == "{" or (start == "[" and re.match(r"\s*\[\s*(\{\s*\"|\])", text)):
        from .json_forms import read_json_form

        return read_json_form(parse_json(text, limit=LIMIT), text, path)
    if "# /// script" in text and (script := read_script(text, path)) is not None:
        lock = f"{path}.lock"
        if os.path.isfile(lock):
            return read_pins(lock)
        return script
    name = os.path.basename(path)
    beginning = _BEGINNING.search(text)
    is_toml = beginning is not None and _TOML.match(text, beginning.end())
    if is_toml or name.endswith((".toml", ".lock")):
        return _read_toml(text, path)
    if name.endswith((".py", ".yaml", ".yml", ".json")):
        raise InputError(_NOT_READ[0], hint=_NOT_READ[1])
    return read_requirements(text, path, _read_text)


def _read_toml(text: str, path: str) -> PinnedFile:
    from .toml_locks import ReadLock, read_pdm, read_poetry, read_pylock
    from .uv_locks import read_uv

    document = parse_toml(text)
    metadata = document.get("metadata")
    keys = metadata.keys() if isinstance(metadata, dict) else ()
    read: ReadLock
    if "packages" in document or "lock-version" in document:
        read = read_pylock
    elif "lock_version" in keys:
        read = read_pdm
    elif "content-hash" in keys or "python-versions" in keys:
        read = read_poetry
    elif "version" in document:
        read = read_uv
    elif "project" in document or "tool" in document:
        message = "is a project, which pins nothing"
        raise InputError(message, hint="name its lock file")
    else:
        raise InputError(_NOT_READ[0], hint=_NOT_READ[1])
    return read(document, text, path, _settings(path))


def _settings(path: str) -> Mapping[str, Any]:
    """Return the ``pyproject.toml`` next to a lock file; empty if unreadable."""
    beside = os.path.join(os.path.dirname(path), "pyproject.toml")
    try:
        return parse_toml(read_bytes(beside).decode())
    except (InputError, UnicodeDecodeError):
        return {}


def _read_text(path: str, *, given: bool = False) -> str:
    try:
        return _decode(read_bytes(path, limit=LIMIT, given=given), path)
    except InputError as error:
        if error.hint != _NOT_METADATA:
            raise
        raise InputError(error.message, path=path, hint=_NOT_READ[1]) from None


def _decode(data: bytes, path: str) -> str:
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        message = f"not {encoding.upper()}: byte {error.start}"
        raise InputError(message, path=path, hint="save it as UTF-8") from None
    if "\0" in text:
        raise InputError("has NUL bytes", path=path, hint="this is not a text file")
    return text


def pins_of_environment(python: str | None, environ: Mapping[str, str]) -> PinnedFile:
    """Return the pins of the installed packages, without running their code.

    :param python: an interpreter, or the directory of an environment; by default the
        activated environment, else the running interpreter.
    :param environ: the environment variables, which name the activated environment.
    :raises UsageError: no environment is found.
    """
    from ..doctor.distributions import find_distributions
    from ..doctor.installation import find_installation

    installation = find_installation(python, environ)
    pins, notes = [], []
    for item in find_distributions(installation.folders).values():
        pin = pin_of(item)
        pins.append(pin)
        if pin.version is None:
            notes.append(f"{item.name}: its version cannot be read")
        notes += [f"{item.name}: {defect}" for defect in item.defects]
    plain = (installation.version or "").removesuffix("t")
    return PinnedFile(
        path=installation.prefix,
        form="environment",
        pins=tuple(pins),
        roots=tuple(map(Edge, range(len(pins)))),
        requires_python=f"=={plain}.*" if plain else None,
        notes=tuple(notes),
    )


def pin_of(distribution: Distribution) -> Pin:
    """Return an installed distribution as a pin, with a reconstructed wheel name."""
    version = distribution.version
    tags = [line.split("-") for line in _tags(distribution.read("WHEEL") or b"")]
    wheels: tuple[PinnedWheel, ...] = ()
    if tags:
        # Wheel names join the interpreters, the ABIs and the platforms with dots.
        parts = [".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True)]
        stem = f"{distribution.name.replace('-', '_')}-{version}"
        wheels = (PinnedWheel(filename="-".join([stem, *parts]) + ".whl"),)
    return Pin(
        name=distribution.name,
        version=version_of(version),
        wheels=wheels,
        requires=tuple(text for _, text in distribution.requires),
        origin=distribution.origin_url or None,
        path=distribution.folder,
    )


def _tags(wheel: bytes) -> list[str]:
    found = re.findall(rb"(?m)^Tag: *([^\s-]+-[^\s-]+-[^\s-]+)", wheel)
    return [tag.decode("ascii", "replace") for tag in found]
