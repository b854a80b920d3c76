"""``validate``: check metadata, wheels and whole index folders."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from nvidia_variant_provider.errors import UsageError

from .parsers import add_examples, add_format, add_jobs, require_jobs
from .progress import census_bar, progress_bar
from .result import Result

__all__ = ["configure_parser", "execute"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..census.listing import Project
    from ..census.model import Outcome
    from ..census.running import Tally
    from ..lint.findings import Finding
    from ..lint.runner import CheckIndex
    from .progress import CensusBar

_FORMATS = ("text", "json", "sarif", "github")


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="a *-variants.json, or - for stdin; a wheel; a folder with both or "
        "with a folder for each project; or the URL of a project page or of an index",
    )
    parser.add_argument(
        "--select",
        metavar="CODE",
        action="append",
        default=[],
        help="check only these rules, such as NV301, or families, such as NV3; "
        "separate several by commas",
    )
    parser.add_argument(
        "--ignore",
        metavar="CODE",
        action="append",
        default=[],
        help="leave out these rules or families",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with code 1 for warnings as well"
    )
    parser.add_argument(
        "--no-hash",
        action="store_true",
        help="do not compare the sha256 of wheels on a page, which takes reading all "
        "of each wheel; read only the parts that other rules need",
    )
    parser.add_argument(
        "--store",
        metavar="STORE",
        help="check an index with what this file has of its wheels, as census records "
        "it; wheels that it lacks are read and recorded, in processes or by a cluster",
    )
    workers = parser.add_mutually_exclusive_group()
    add_jobs(workers)
    workers.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="with --store: let the workers of a Dask cluster read; the address is "
        "that of its scheduler, such as tcp://10.0.0.1:8786",
    )
    add_format(parser, _FORMATS)
    add_examples(
        parser,
        "validate dist/",
        "validate https://index.example/simple --store s.sqlite",
        "validate dist/ --select NV1,NV2 --format github",
    )


def execute(
    options: argparse.Namespace,
    environ: Mapping[str, str],
) -> Result:
    """Check the paths; ``data`` has ``findings``, sorted, and ``unchecked``."""
    from ..findings import fails
    from ..index.connection import connect
    from ..lint.output import as_github, as_text
    from ..lint.runner import check_paths
    from ..lint.sarif import as_sarif
    from ..lint.unchecked import UncheckedFiles

    unchecked = UncheckedFiles()
    with _stored_index(options, environ) as check_index:
        findings = check_paths(
            options.paths,
            select=_codes(options.select),
            ignore=_codes(options.ignore),
            jobs=require_jobs(options),
            watch=progress_bar,
            connect=lambda: connect(environ),
            hashes=not options.no_hash,
            unchecked=unchecked,
            check_index=check_index,
        )
    formats: dict[str, Callable[[Sequence[Finding]], list[str]]] = {
        "text": partial(as_text, unchecked=unchecked.all),
        "github": as_github,
        "sarif": as_sarif,
    }
    render = formats.get(options.format)
    return Result(
        exit_code=1 if fails(findings, strict=options.strict) else 0,
        data={
            "findings": [finding.to_dict() for finding in findings],
            "unchecked": [item.to_dict() for item in unchecked.all],
        },
        text=render(findings) if render else [],
        verbatim=options.format != "text",
        as_json=render is None,
    )


@contextlib.contextmanager
def _stored_index(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> Iterator[CheckIndex | None]:
    """Provide what checks an index with a store, if one is given.

    :raises UsageError: there is an option for it, but no store; or a path is no index.
    """
    if options.store is None:
        if options.dask is not None:
            hint = "give --store as well, which keeps what the workers read"
            raise UsageError("--dask is for --store", hint=hint)
        yield None
        return
    from ..census.checking import StoredIndex, require_indexes

    require_indexes(options.paths)
    with census_bar() as bar:
        yield StoredIndex(
            store=options.store,
            environ=environ,
            jobs=require_jobs(options),
            dask=options.dask,
            observer=_Observer(bar),
        ).check


class _Observer:
    """Shows on a terminal how far the reading of an index is."""

    def __init__(self, bar: CensusBar | None) -> None:
        self._bar = bar

    def listed(self, project: Project, tally: Tally) -> None:
        """Show how many wheels there are."""
        del project
        self._update(tally)

    def finished(self, outcome: Outcome, tally: Tally) -> None:
        """Show how many wheels were read. What is wrong with them is a finding."""
        del outcome
        self._update(tally)

    def _update(self, tally: Tally) -> None:
        if self._bar is not None:
            done = tally.known + tally.read
            self._bar.update(done, tally.expected, tally.bytes_read)


def _codes(words: list[str]) -> list[str]:
    return [code.strip().upper() for word in words for code in word.split(",")]
