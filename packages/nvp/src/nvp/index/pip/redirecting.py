"""The arguments and variables by which pip uses the local index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..http.urls import is_http
from ..server.callers import with_token
from ..server.local_index import LocalIndex
from .command import PipCommand
from .requirements_files import Places, rewrite

if TYPE_CHECKING:
    from .locking import LockCopies

__all__ = ["is_given", "redirect", "remote_files"]

# The options that tell pip where to look; they are replaced.
_PLACES = {"index_url", "extra_index_urls", "find_links", "no_index", "proxy"}
_FILES = {
    "requirements": "PIP_REQUIREMENT",
    "constraints": "PIP_CONSTRAINT",
    "build_constraints": "PIP_BUILD_CONSTRAINT",
}
_LOCAL = "127.0.0.1,localhost"


def remote_files(command: PipCommand) -> list[str]:
    """Return the URLs of requirements and constraints files on the command line."""
    return [
        value
        for option, _, *values in command.words
        if option in _FILES
        for value in values
        if is_http(value)
    ]


def is_given(command: PipCommand, environ: Mapping[str, str], option: str) -> bool:
    """Return whether the command line or a variable sets an option, not a file."""
    on_line = any(word[0] == option for word in command.words)
    return on_line or bool(environ.get(f"PIP_{option.upper()}"))


def redirect(
    command: PipCommand,
    environ: Mapping[str, str],
    local_index: LocalIndex,
    folder: Path,
    copied: dict[str, str],
    *,
    copies: LockCopies | None,
) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and variables by which pip uses the local index.

    :param copied: gets the path of each requirements file that is copied, and of the
        copy.
    :param copies: makes the copies of lock files.
    """
    credentials = command.credentials
    indexes = [local_index.add_index(u, credentials.get(u)) for u in command.indexes]
    links = [local_index.add_links(u, credentials.get(u)) for u in command.find_links]
    places = Places(
        index=local_index.add_index,
        links=local_index.add_links,
        environ=environ,
        copied=copied.__setitem__,
    )

    def replaced_file(text: str) -> str:
        copy = copies.add(text) if copies is not None else None
        return copy or rewrite(text, folder, places)

    arguments: list[str] = []
    for option, spelled, *values in command.words:
        if option in _FILES:
            arguments += [spelled, *map(replaced_file, values)]
        elif option not in _PLACES:
            arguments += [spelled, *values]
    if command.options["no_index"]:
        arguments.append("--no-index")
    isolated = command.options["isolated_mode"]
    replaced = {
        "index-url": indexes[:1],
        # Repeat the main index: an empty value would let pip's configured extra
        # indexes through.
        "extra-index-url": indexes[1:]
        or (indexes if command.options["extra_index_urls"] else []),
        "find-links": links,
    }
    variables = _proxies(command, environ)
    if local_index.token is not None:
        variables |= with_token(environ, local_index.token)
    for option, values in replaced.items():
        # Prefer variables: they override configuration files, and other users of this
        # machine can read arguments. pip splits the values of variables at spaces.
        plain = [v for v in values if not (isolated or any(map(str.isspace, v)))]
        if plain:
            variables[f"PIP_{option.replace('-', '_').upper()}"] = " ".join(plain)
        for value in values:
            if value not in plain:
                arguments += [f"--{option}", value]
    for option, variable in () if isolated else _FILES.items():
        if files := _configured(command, option):
            variables[variable] = " ".join(map(replaced_file, files))
    return arguments, variables


def _configured(command: PipCommand, option: str) -> list[str]:
    """Return the values of an option that are not from the command line.

    pip appends the values of the command line to those of its configuration.
    """
    values = command.options.get(option) or []
    given = sum(word[0] == option for word in command.words)
    return list(values[: len(values) - given])


def _proxies(command: PipCommand, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which pip uses its proxy, but not for the local index."""
    variables = {}
    for name in ("NO_PROXY", "no_proxy"):
        others = environ.get(name)
        variables[name] = f"{others},{_LOCAL}" if others else _LOCAL
    if proxy := command.options["proxy"]:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            variables[name] = proxy
        variables["PIP_PROXY"] = ""
    return variables
