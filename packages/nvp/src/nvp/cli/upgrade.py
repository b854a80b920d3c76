"""``upgrade``: rewrite variant metadata in the current schema version."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nvidia_variant_provider.errors import UsageError
from nvidia_variant_provider.metadata import versions

from ..signals import count_input
from .arguments import add_options, choice, refuse_project
from .parsers import PROGRAM, add_examples
from .render import Result

if TYPE_CHECKING:
    from ..index.server.static_pages import StaticIndex
    from ..upgrading.releases import UpgradedFile

FINDINGS = 1


_OPTIONS = """
path FILE
  {name}-{version}-variants.json, or - for stdin; with --index, a directory
-o, --output OUT
  write to this file, atomically (default: stdout)
--to
  schema version to write (default: %(default)s)
--index
  upgrade all metadata files of a directory in place, and write missing ones from its
  wheels
--pages
  with --index, also write HTML and JSON pages and METADATA files, for a web server that
  serves the directory or its directories of projects
--for-uv
  name the provider of nvidia in the one form that uv recognizes (NV314)
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, _OPTIONS, to=choice(str(versions.WRITTEN)))
    add_examples(
        parser,
        "upgrade torch-2.8.0-variants.json --output new.json",
        "upgrade demo-1.0-variants.json --for-uv",
        "upgrade --index dist/",
        "upgrade --index --pages index/",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:  # noqa: ARG001
    """Return each file with its changes, and the document if it is not written."""
    from .. import api

    refuse_project(options.path, "pip", "install", "--upgrade")
    if options.index:
        if options.output is not None:
            message = "--index writes each file in its place"
            raise UsageError(message, path="--output", hint="leave --output out")
        if options.pages:
            return _write_pages(options.path, for_uv=options.for_uv)
        files = api.upgrade_index(options.path, for_uv=options.for_uv)
        text = [f"{file.path}: {_describe(file)}" for file in files]
        return _result(files, text, written=options.path)
    if options.pages:
        raise UsageError("--pages is for a whole index", hint="add --index")
    if os.path.isdir(options.path):
        hint = "name a file in the directory, or add --index"
        raise UsageError("this is a directory", path=options.path, hint=hint)
    return _upgrade_file(options.path, options.output, for_uv=options.for_uv)


def _write_pages(folder: str, *, for_uv: bool) -> Result:
    from .. import api

    index = api.write_index(folder, for_uv=for_uv)
    if any(file.problems for file in index.files):
        told = [(file.path, remark) for file in index.files for remark in file.problems]
        lines = [
            # Omit a file name at the start of a problem: the path ends with it.
            f"{path}: {str(remark).removeprefix(f'{os.path.basename(path)}: ')}"
            for path, remark in told
        ]
        result = _result(index.files, [], index=index)
        return result.replace(notes=[*lines, f"{folder}: nothing was written"])
    text = [f"{file.path}: {_describe(file)}" for file in index.files]
    text += [
        f"{page.path}: {page.change}, {page.files} file{'' if page.files == 1 else 's'}"
        for page in index.pages
    ]
    return _result(index.files, text, index=index, written=folder)


def _upgrade_file(path: str, output: str | None, *, for_uv: bool) -> Result:
    from pathlib import Path

    from nvidia_variant_provider.strict_json import read_stdin

    from .. import api
    from ..files import replace_file

    if path == "-":
        file = api.upgrade(read_stdin(), name="stdin", for_uv=for_uv)
    else:
        count_input(path)
        file = api.upgrade(Path(path), name=path, for_uv=for_uv)
    if file.text is None:
        return _result([file], [])
    if output is None:
        return _result([file], file.text.splitlines(), file.document)
    replace_file(output, file.text)
    return _result([file], [f"{output}: {_describe(file)}"], written=output)


def _describe(file: UpgradedFile) -> str:
    if file.text is None:
        return "not written"
    if file.old_version is None:
        return f"made from the wheels, in version {file.new_version}"
    if not file.changed:
        return f"already in version {file.new_version}"
    if file.old_version == file.new_version:
        return f"rewritten in version {file.new_version}"
    return f"from version {file.old_version} to {file.new_version}"


def _sentences(file: UpgradedFile) -> list[str]:
    remarks = (*file.problems, *file.losses, *file.notes)
    sentences = [f"{file.path}: {remark}" for remark in remarks]
    if file.problems:
        sentences.append(f"{file.path}: nothing was written")
    return sentences


def _result(
    files: Sequence[UpgradedFile],
    text: list[str],
    document: dict[str, Any] | None = None,
    index: StaticIndex | None = None,
    written: str | None = None,
) -> Result:
    findings = any(file.losses or file.problems for file in files)
    data = {"files": [file.to_dict() for file in files], "document": document}
    notes = [sentence for file in files for sentence in _sentences(file)]
    if index is not None:
        data["pages"] = [page.to_dict() for page in index.pages]
        notes += map(str, index.notes)
    following = None
    if text and written is not None and not any(file.problems for file in files):
        following = shlex.join([PROGRAM, "validate", written])
    return Result(
        exit_code=FINDINGS if findings else 0,
        data=data,
        text=text,
        notes=notes,
        following=following,
    )
