"""The release that a verb gets as its FILE, and the options that are about it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from nvidia_variant_provider.errors import InputError, UsageError, shown
from nvidia_variant_provider.metadata import VariantsMetadata, read_metadata
from nvidia_variant_provider.metadata.document import SUFFIX
from nvidia_variant_provider.strict_json import read_bytes, read_stdin, unreadable

__all__ = ["check_assumed", "names_project", "read_release", "refuse_for_projects"]


def read_release(file: str, environ: Mapping[str, str]) -> VariantsMetadata:
    """Read the metadata of a release.

    :param file: a metadata file, a folder that holds exactly one, the URL of a file,
        or ``-`` for stdin.
    :param environ: environment variables, with those that pip connects by.
    :raises InputError: the metadata cannot be read, or is not valid.
    :raises UsageError: the folder holds several metadata files, or the URL is of a
        kind that is not read.
    """
    if file == "-":
        return read_metadata(read_stdin(), path="stdin")
    if "://" in file:
        return _read_url(file, environ)
    if not os.path.isdir(file):
        return _read_file(file)
    try:
        names = sorted(name for name in os.listdir(file) if name.endswith(SUFFIX))
    except OSError as error:
        raise unreadable(error, file) from None
    if not names:
        message = f"the folder has no file *{SUFFIX}"
        raise InputError(message, path=file, hint="name the file itself")
    if len(names) > 1:
        listed = ", ".join(shown(name) for name in names[:5])
        more = ", ..." if len(names) > 5 else ""
        message = f"the folder has {len(names)} files *{SUFFIX}: {listed}{more}"
        raise UsageError(message, path=file, hint="name one of the files")
    return _read_file(os.path.join(file, names[0]))


def _read_file(path: str) -> VariantsMetadata:
    # read_metadata() takes a path that starts with "{" for a JSON text.
    return read_metadata(read_bytes(path), path=path)


def _read_url(url: str, environ: Mapping[str, str]) -> VariantsMetadata:
    from nvidia_variant_provider.errors import redacted

    from ..index import connect

    if not url.startswith(("http://", "https://")):
        message = "only http and https URLs are read"
        raise UsageError(message, path=redacted(url), hint="download the file")
    with connect(environ) as client:
        body = client.read(url)
    # The name of the file, which names the release, ends before query and fragment.
    bare = redacted(url).partition("#")[0].partition("?")[0]
    return read_metadata(body, path=bare)


def names_project(text: str, options: argparse.Namespace) -> bool:
    """Return whether an argument is a project on an index, and not a file."""
    return options.index_url is not None or ("==" in text and not os.path.exists(text))


def refuse_for_projects(options: argparse.Namespace) -> None:
    """Refuse options that mean nothing for a project on an index.

    :raises UsageError: one of them was given.
    """
    if options.assume:
        message = "ordinary wheels name no hardware of other makers"
        raise UsageError(message, path="--assume", hint="leave it out")


def check_assumed(options: argparse.Namespace, *releases: VariantsMetadata) -> None:
    """Refuse a namespace of ``--assume`` that no release has.

    :raises UsageError: it would change nothing.
    """
    known = {name for metadata in releases for name in metadata.namespaces}
    for name in options.assume:
        if name not in known:
            message = f"no label uses the namespace {shown(name)}"
            hint = f"there are {', '.join(sorted(known))}" if known else "leave it out"
            raise UsageError(message, path="--assume", hint=hint)
