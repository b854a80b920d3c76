"""The interpreter that packages are installed for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from nvidia_variant_provider.errors import UsageError, shown


def find_python(path: str | None, environ: Mapping[str, str] | None = None) -> str:
    """Find the interpreter at ``path``: a program, or the folder of an environment.

    :param path: ``None`` for the activated environment, or else the running
        interpreter.
    :param environ: the environment variables.
    :raises UsageError: there is no interpreter.
    """
    named, hint = shown(path), "give the path of one"
    if path is None:
        path = find_activated(environ or {})
        if path is None:
            return sys.executable
        named = f"{shown(path)}, which is activated,"
        hint = "activate another environment, or give --python"
    for name in ("", "bin/python", "Scripts/python.exe", "python.exe"):
        program = os.path.join(path, name) if name else path
        if os.path.isfile(program):
            return os.path.abspath(program)
    message = f"{named} is neither an interpreter nor an environment"
    raise UsageError(message, hint=hint)


def find_activated(environ: Mapping[str, str]) -> str | None:
    """Return the folder of the activated environment, unless this program is in it.

    That of conda counts for a tool alone: people who run this program from a virtual
    environment without activating it often have one of conda activated meanwhile. The
    base of conda is a Python of the system to them, and not an environment.
    """
    active = environ.get("VIRTUAL_ENV")
    if not active and environ.get("CONDA_DEFAULT_ENV") != "base":
        active = environ.get("CONDA_PREFIX") if is_tool_environment() else None
    if not active or os.path.realpath(active) == os.path.realpath(sys.prefix):
        return None
    return active


def is_tool_environment() -> bool:
    """Return whether pipx or ``uv tool`` made the environment of this program.

    Nobody imports anything from it but this program itself.
    """
    marks = ("pipx_metadata.json", "uv-receipt.toml")
    return any(os.path.isfile(os.path.join(sys.prefix, name)) for name in marks)
