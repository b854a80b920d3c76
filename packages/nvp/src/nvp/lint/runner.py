"""``validate``: from files, wheels, folders and pages to sorted findings."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator

from nvidia_variant_provider.errors import InputError, UsageError, redacted
from nvidia_variant_provider.strict_json import read_bytes, read_stdin

from .documents import check_text
from .files import JOBS, Reading, UncheckedFiles, Watch, nobody_watches
from .findings import Collector, Finding
from .indexes import Connect, check_folder, check_page, check_wheel_path
from .rules import RULES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient

__all__ = ["check_paths", "selected"]

logger = logging.getLogger(__name__)


def check_paths(
    paths: Iterable[str | os.PathLike[str]],
    *,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    jobs: int = JOBS,
    watch: Watch = nobody_watches,
    connect: Connect | None = None,
    hashes: bool = True,
    unchecked: UncheckedFiles | None = None,
) -> list[Finding]:
    """Return the findings about all ``paths``, sorted by path, code and place.

    :param paths: metadata files, wheels, folders, URLs of pages of an index, or ``-``
        for a metadata file on standard input. A path that cannot be read is a finding.
    :param select: prefixes of codes to keep; an empty collection keeps all.
    :param ignore: prefixes of codes to leave out.
    :param jobs: how many members of a wheel are read at the same time.
    :param watch: shows how far the reading of one wheel is.
    :param connect: makes the client that reads URLs; without it, URLs are read
        without the settings of a pip.
    :param hashes: read wheels of a page from start to end, to compare their sha256
        with that of the page; otherwise only the parts that other rules need.
    :param unchecked: takes what was not checked, and why.
    :raises UsageError: no rule has a prefix.
    """
    for prefix in (*select, *ignore):
        if not prefix or not any(code.startswith(prefix) for code in RULES):
            hint = "use a code such as NV301, or a prefix such as NV3"
            raise UsageError(f"there is no rule {prefix!r}", hint=hint)
    # Reading all libraries of a wheel takes a while, and only these rules need it.
    content = any(selected(c, select, ignore) for c in RULES if c.startswith("NV5"))
    reading = Reading(
        content=content,
        hashes=hashes and selected("NV417", select, ignore),
        jobs=jobs,
        watch=watch,
        unchecked=UncheckedFiles() if unchecked is None else unchecked,
    )
    kept: set[Finding] = set()
    for item in paths:
        path = os.fspath(item)
        name = _name(path)
        logger.info("checking %s", name)
        before = len(kept)
        findings = _check(path, reading, connect or _connect_without_pip)
        kept.update(f for f in findings if selected(f.code, select, ignore))
        count = len(kept) - before
        logger.info("%s: %d finding%s", name, count, "" if count == 1 else "s")
    return sorted(kept, key=lambda f: (f.path, f.code, f.place, f.message))


def selected(code: str, select: Collection[str], ignore: Collection[str]) -> bool:
    """Return whether a rule is kept. The longer of two prefixes that match counts."""
    chosen = max((len(p) for p in select if code.startswith(p)), default=-1)
    left_out = max((len(p) for p in ignore if code.startswith(p)), default=-1)
    return chosen > left_out if select else left_out < 0


def _name(path: str) -> str:
    """Return what a path is called in logs and findings, without secrets of a URL."""
    if "://" in path:
        return redacted(path)
    return "stdin" if path == "-" else path or "''"


def _is_url(path: str) -> bool:
    return path.startswith(("http://", "https://"))


def _check(path: str, reading: Reading, connect: Connect) -> Iterator[Finding]:
    if _is_url(path):
        yield from check_page(path, connect, reading)
        return
    name = _name(path)
    collector = Collector(name)
    try:
        if os.path.isdir(path):
            yield from check_folder(path, reading)
        elif path.endswith(".whl"):
            yield from check_wheel_path(path, reading)
        else:
            data = read_stdin() if path == "-" else read_bytes(path)
            collector = Collector(name, document=data)
            check_text(data, collector)
    except InputError as error:
        collector.add_error("NV100", error)
    yield from collector.findings


def _connect_without_pip() -> BlockingClient:
    from ..index.http.blocking import BlockingClient

    return BlockingClient()
