"""What several verbs take: a release as their FILE, and the options that they share.

Options are named as pip does where pip has them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nvidia_variant_provider.errors import InputError, UsageError, shown

from .parsers import PROGRAM, one_of, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvidia_variant_provider.metadata import VariantsMetadata

_SHARED: Mapping[str, Mapping[str, Any]] = {
    "--all-lanes": {
        "action": "store_true",
        "help": "show drivers with GPUs that they do not support as well, marked",
    },
    "--assume": {
        "metavar": "NAMESPACE",
        "action": "append",
        "default": [],
        "help": "assume that all machines have what this namespace names, such as "
        "intel; hardware of other makers is absent otherwise",
    },
    "--every-gpu": {
        "action": "store_true",
        "help": "accept only builds with code for every GPU, not just for the newest "
        "one",
    },
    "--index-url": {
        "metavar": "URL",
        "help": "the index of a project (default: the one that pip is configured for)",
    },
    "--minor-version-compatibility": {
        "action": "store_true",
        "help": "accept builds for a newer minor version of the driver's CUDA major "
        "version as well, after all others",
    },
    "--no-range-metadata": {
        "action": "store_false",
        "dest": "range_metadata",
        "help": "read no METADATA out of parts of a wheel, which is verified only when "
        "the whole wheel arrives; installers then download wheels for it",
    },
    "--vendor-indexes": {
        "action": "store_true",
        "help": "read the indexes of makers as well, such as PyTorch's and vLLM's, for "
        "releases that do not run from your own indexes",
    },
}
"""The options that are the same for each verb that has them."""


def add_shared_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add options that are the same for each verb that has them."""
    for name in names:
        short = ["-i"] if name == "--index-url" else []
        parser.add_argument(*short, name, **_SHARED[name])


def add_index_options(
    parser: argparse.ArgumentParser, *, index: str, extra: str, python: str
) -> argparse._ArgumentGroup:
    """Add ``--index-url`` and what belongs to it.

    :param index: what the help says of ``--index-url``.
    :param extra: what it says of ``--extra-index-url``.
    :param python: what it says of ``--python``.
    :returns: the group of the options, for others of the verb.
    """
    group = parser.add_argument_group(
        "indexes (default: those that pip is configured for)"
    )
    group.add_argument("-i", "--index-url", metavar="URL", help=index)
    _add_list(group, "--extra-index-url", metavar="URL", text=extra)
    _add_list(
        group,
        "--trusted-host",
        metavar="HOST",
        text="as for pip: do not verify this host, and allow plain HTTP",
    )
    group.add_argument("--python", metavar="PATH", help=python)
    return group


def _add_list(
    group: argparse._ArgumentGroup, name: str, *, metavar: str, text: str
) -> None:
    group.add_argument(name, metavar=metavar, action="append", default=[], help=text)


def add_label_option(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``--label``, whose values `selection.options.parse_pins` parses.

    :param text: what the help says of it.
    """
    parser.add_argument(
        "--label", metavar="[PROJECT=]LABEL", action="append", default=[], help=text
    )


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add ``--jobs`` to a verb that reads the files in wheels."""
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=whole_number,
        default=min(4, os.cpu_count() or 1),
        help="read this many files at the same time (default: %(default)s)",
    )


def require_jobs(options: argparse.Namespace) -> int:
    """Return the value of ``--jobs``.

    :raises UsageError: it is not positive.
    """
    jobs: int = options.jobs
    if jobs < 1:
        raise UsageError("--jobs must be at least 1", hint=f"{jobs} was given")
    return jobs


def add_format(parser: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    """Add ``--format``, whose default is ``text``."""
    parser.add_argument(
        "--format",
        choices=formats,
        type=one_of(formats),
        default="text",
        help="the form of the output, where json means the same as --json (default: "
        "%(default)s)",
    )


def read_release(file: str, environ: Mapping[str, str]) -> VariantsMetadata:
    """Read the metadata of a release.

    :param file: a metadata file, a folder that holds exactly one, the URL of a file,
        or ``-`` for stdin.
    :param environ: environment variables, with those that pip connects by.
    :raises InputError: the metadata cannot be read, or is not valid.
    :raises UsageError: the folder holds several metadata files, the URL is of a kind
        that is not read, or the text is the name of a project.
    """
    refuse_project(file, "releases")
    from nvidia_variant_provider.metadata import read_metadata
    from nvidia_variant_provider.strict_json import read_bytes, read_stdin

    if file == "-":
        return read_metadata(read_stdin(), path="stdin")
    if "://" in file:
        body, path = _download(file, environ)
        return read_metadata(body, path=path)
    if os.path.isdir(file):
        file = _only_release(file)
    # read_metadata() takes a path that starts with "{" for a JSON text.
    return read_metadata(read_bytes(file), path=file)


def refuse_project(text: str, *command: str) -> None:
    """Refuse the name of a project where a file is meant.

    :param command: the words of the command that takes a project.
    :raises InputError: no file has that name, and projects have such names.
    """
    if os.path.lexists(text):
        return
    import re

    match = re.fullmatch(r"([A-Za-z0-9][\w-]*)(\[.*\])? *([=<>!~].*)?", text, re.ASCII)
    if match is not None:
        line = " ".join((PROGRAM, *command, match[1]))
        message = "there is no such file or folder"
        raise InputError(
            message, path=text, hint=f"for the project on an index: {line}"
        )


def _only_release(folder: str) -> str:
    """Return the path of the one metadata file of a folder."""
    from nvidia_variant_provider.metadata.document import SUFFIX
    from nvidia_variant_provider.strict_json import unreadable

    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except OSError as error:
        raise unreadable(error, folder) from None
    if not names:
        message = f"the folder has no file *{SUFFIX}"
        raise InputError(message, path=folder, hint="name the file itself")
    if len(names) > 1:
        listed = ", ".join(shown(name) for name in names[:5])
        more = ", ..." if len(names) > 5 else ""
        message = f"the folder has {len(names)} files *{SUFFIX}: {listed}{more}"
        raise UsageError(message, path=folder, hint="name one of the files")
    return os.path.join(folder, names[0])


def _download(url: str, environ: Mapping[str, str]) -> tuple[bytes, str]:
    """Return the file at a URL, and the URL in a form that names the release."""
    from nvidia_variant_provider.errors import redacted

    from ..index import connect

    if not url.startswith(("http://", "https://")):
        message = "only http and https URLs are read"
        raise UsageError(message, path=redacted(url), hint="download the file")
    with connect(environ) as client:
        body = client.read(url)
    # The name of the file, which names the release, ends before query and fragment.
    return body, redacted(url).partition("#")[0].partition("?")[0]


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
