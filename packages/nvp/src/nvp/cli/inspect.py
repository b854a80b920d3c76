"""``inspect``: the GPU code inside wheels and libraries."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from threading import Thread

from nvidia_variant_provider.errors import (
    InputError,
    ProviderError,
    UsageError,
    redacted,
    shown,
)

from ..signals import reading
from .arguments import add_options, require_positive
from .parsers import add_examples
from .render import Result, Table, progress_bar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..gpu_code.describe import Suggestion
    from ..gpu_code.inspection import Progress
    from ..gpu_code.report import WheelReport

_PROJECT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


_OPTIONS = """
paths PATH...
  wheel or its URL; library, DLL, archive, cubin, fatbin or PTX file; directory of them,
  each wheel on its own; or name of an installed distribution
--suggest
  print the variant.json that the build should carry; the command that adds it goes to
  stderr
--relaxed
  with --suggest, use the lower bound of minor-version compatibility, without PTX that
  its drivers refuse
--pyproject
  with --suggest, print the section of pyproject.toml that variantlib reads
--jobs
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, _OPTIONS)
    add_examples(
        parser,
        "inspect dist/torch-2.8.0-cp312-cp312-linux_x86_64.whl",
        "inspect torch --jobs 8",
        "inspect --suggest --relaxed demo-1.0-py3-none-any.whl",
    )


def execute(
    options: argparse.Namespace,
    environ: Mapping[str, str],
) -> Result:
    """Inspect each path; ``data`` has the list ``files``.

    Defects in a file are notes, because `validate` is the command that fails for them.
    The result has an error for an unreadable file, and still describes other files.
    """
    require_positive(options, "jobs")
    for name in ("relaxed", "pyproject"):
        if getattr(options, name) and not options.suggest:
            message = f"--{name} is about a suggestion"
            raise UsageError(message, hint="give --suggest too")
    text: list[str | Table] = []
    asides: list[str] = []
    files: list[Mapping[str, object]] = []
    notes: list[str] = []
    errors: list[ProviderError] = []
    for path in _expanded(options.paths):
        try:
            with reading(redacted(path)):
                report = _inspect(path, options.jobs, environ)
            if options.suggest:
                _require_complete(report)
        except ProviderError as error:
            errors.append(error)
            notes.append(str(error))
            continue
        from ..gpu_code.describe import as_data
        from ..metadata.checking import to_text

        data = as_data(report)
        files.append(data)
        notes += _notes(report)
        if options.suggest:
            suggestion = _suggest(report, relaxed=options.relaxed)
            data["suggestion"] = suggestion and suggestion.to_dict()
            if suggestion:
                document = to_text(suggestion.metadata)
                document = suggestion.pyproject if options.pyproject else document
                text += document.splitlines()
            asides += _aside(
                report,
                suggestion,
                relaxed=options.relaxed,
                pyproject=options.pyproject,
            )
        else:
            text += [""] if text else []
            text += _text(report)
    if not files:
        # Leave out the notes, which would print the errors again as warnings.
        return Result(exit_code=errors[0].exit_code, errors=errors)
    return Result(
        exit_code=max((error.exit_code for error in errors), default=0),
        data={"files": files},
        text=text,
        notes=notes,
        asides=asides,
        errors=errors,
        # Programs read JSON documents, so do not wrap them.
        verbatim=options.suggest,
    )


def _expanded(paths: Sequence[str]) -> Iterator[str]:
    """Yield ``paths``, with the wheels in a directory instead of the directory.

    Each wheel is judged separately, because a release has wheels for different GPUs.
    """
    for path in paths:
        wheels = []
        with contextlib.suppress(OSError, ValueError):
            wheels = [n for n in sorted(os.listdir(path)) if n.endswith(".whl")]
        yield from (os.path.join(path, name) for name in wheels)
        if not wheels:
            yield path


def _inspect(path: str, jobs: int, environ: Mapping[str, str]) -> WheelReport:
    from ..gpu_code.inspection import inspect_path

    # Import `describe` in a thread while a file is decompressed. With Python's default
    # interval, decompression would wait up to 5 ms for the import at every piece.
    sys.setswitchinterval(0.0005)
    Thread(target=import_module, args=("nvp.gpu_code.describe",)).start()
    if path == "-":
        message = "standard input is not read"
        raise UsageError(message, path=path, hint="name a wheel or a library")
    with progress_bar(redacted(path)) as progress:
        if path.startswith(("http://", "https://")):
            return _inspect_url(path, environ, progress)
        if not os.path.exists(path) and _PROJECT.fullmatch(path):
            return _inspect_installed(path, jobs, progress)
        return _readable(inspect_path(path, jobs=jobs, progress=progress))


def _inspect_url(
    url: str, environ: Mapping[str, str], progress: Progress | None
) -> WheelReport:
    """Inspect a wheel on a server, reading only members that may have GPU code."""
    from ..gpu_code.inspection import inspect_path
    from ..index import connect

    with connect(environ) as client, io.BufferedReader(client.open(url)) as wheel:
        report = inspect_path(wheel, name=redacted(url), progress=progress)
        return _readable(report)


def _inspect_installed(name: str, jobs: int, progress: Progress | None) -> WheelReport:
    from ..gpu_code.inspection import inspect_distribution

    try:
        return inspect_distribution(name, jobs=jobs, progress=progress)
    except InputError as error:
        error.message = f"there is no such file, and {error.message}"
        error.path = name
        raise


def _readable(report: WheelReport) -> WheelReport:
    """Return ``report``, or raise `InputError` for an unreadable or unknown file."""
    for defect in report.defects:
        if not defect.path and not report.members:
            hint = "build or download it again"
            raise InputError(defect.message, path=report.path, hint=hint)
    found = report.libraries or report.defects
    if not found and (report.kind == "file" or not report.members):
        message = "it is neither a wheel nor a library, and has no GPU code"
        if report.kind != "file":
            message = "there are no files in it"
        hint = "name a wheel, a library or a directory with libraries"
        raise InputError(message, path=report.path, hint=hint)
    return report


def _require_complete(report: WheelReport) -> None:
    """Raise `InputError` for a wheel that could be read only in part.

    Users run the suggested command unchanged, so it must cover the whole wheel.
    """
    if report.complete:
        return
    own = [defect for item in report.own for defect in item.defects]
    first, *others = (*report.defects, *own)
    more = f", and {len(others)} more" if others else ""
    parts = (first.path, first.place, first.message)
    message = f"cannot suggest anything: {': '.join(filter(None, parts))}{more}"
    hint = "build the wheel again, or leave out --suggest to see what could be read"
    raise InputError(message, path=report.path, hint=hint)


def _suggest(report: WheelReport, *, relaxed: bool) -> Suggestion | None:
    from ..gpu_code.claims import find_claim
    from ..gpu_code.describe import suggest

    return suggest(find_claim(report), report.path, report.kind, relaxed=relaxed)


def _aside(
    report: WheelReport,
    suggestion: Suggestion | None,
    *,
    relaxed: bool,
    pyproject: bool,
) -> list[str]:
    """Return how to use the suggested metadata, or why there is no suggestion."""
    from ..gpu_code.claims import find_claim
    from ..gpu_code.describe import cost_lines, how_to_add

    claim = find_claim(report)
    if suggestion is not None:
        return [*cost_lines(claim), *how_to_add(suggestion, pyproject=not pyproject)]
    bound = claim.relaxed
    if relaxed and _suggest(report, relaxed=False) and bound.version is None:
        return [f"{report.path}: there is no looser bound: {bound.reason}"]
    return [f"{report.path}: it has no GPU code of its own that properties could name"]


def _text(report: WheelReport) -> list[str | Table]:
    from ..gpu_code.claims import find_claim, find_gpus
    from ..gpu_code.describe import (
        claim_lines,
        gpu_rows,
        legend,
        library_rows,
        summary,
    )

    text: list[str | Table] = [summary(report)]
    for title, libraries in (
        ("", report.own),
        ("Copied into it from elsewhere (these do not count):", report.vendored),
        ("For its tests (these do not count):", report.tests),
    ):
        if rows := library_rows(libraries):
            text += [
                "",
                *([title] if title else []),
                Table(header=rows[0], rows=rows[1:]),
            ]
    if any(item.has_gpu_code for item in report.own):
        text += ["", *claim_lines(find_claim(report))]
    gpus = find_gpus(report)
    if rows := gpu_rows(gpus):
        text += ["", Table(header=rows[0], rows=rows[1:]), "", *legend(gpus)]
    return text


def _notes(report: WheelReport) -> list[str]:
    from ..gpu_code.compression import has_zstd
    from ..gpu_code.files import MAX_DEFECTS

    defects = report.all_defects
    notes = [
        ": ".join(p for p in (report.path, d.path, d.place, d.message) if p)
        for d in defects[: MAX_DEFECTS + 1]
    ]
    if unlisted := len(defects) - len(notes):
        notes.append(f"{report.path}: {unlisted} more defects")
    if unchecked := sum(item.unchecked for item in report.libraries):
        why = "they could not be decompressed"
        if not has_zstd():
            why = "to find out, pip install zstandard"
        pieces = "piece" if unchecked == 1 else "pieces"
        notes.append(
            f"{shown(report.path, 200)[1:-1]}: {unchecked} {pieces} of machine code "
            f"may be empty; {why}"
        )
    return notes
