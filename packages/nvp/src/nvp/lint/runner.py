"""``validate``: checks files, wheels, directories and pages, and sorts the findings."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from nvidia_variant_provider.errors import InputError, UsageError, redacted
from nvidia_variant_provider.metadata.document import SUFFIX
from nvidia_variant_provider.strict_json import read_bytes, read_stdin

from .. import signals
from ..directories import list_names
from ..index.http.urls import IndexFile, is_http, local_file
from ..wheels.archive import parse_wheel_name
from .documents import check_text
from .files import JOBS, Reading, UncheckedFiles, Watch, nobody_watches
from .findings import RULES, Collector, Finding
from .release import check_files
from .wheel import check_wheel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient

_IN_LABEL = re.compile(r'variants\.(?:"([^"]+)"|([^.\[]+))')

logger = logging.getLogger(__name__)

Connect = Callable[[], "BlockingClient"]
"""A function that returns the client for reading pages."""


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

    The arguments without a description are as in `nvp.api.validate`.

    :param paths: as in `nvp.api.validate`, or ``-`` for metadata on standard input.
    :param connect: returns the client that reads URLs; without it, URLs are read
        without pip's settings.
    :raises UsageError: a prefix matches no rule.
    """
    for prefix in (*select, *(choice.partition(":")[0] for choice in ignore)):
        if not prefix or not any(code.startswith(prefix) for code in RULES):
            hint = "use a code such as NV301, or a prefix such as NV3"
            raise UsageError(f"there is no rule {prefix!r}", hint=hint)
    # Reading all libraries of a wheel is slow, and only the NV5 rules need them.
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
        kept.update(f for f in findings if _is_kept(f, select, ignore))
        count = len(kept) - before
        logger.info("%s: %d finding%s", name, count, "" if count == 1 else "s")
    return sorted(kept, key=lambda f: (f.path, f.code, f.place, f.message))


def _is_kept(
    finding: Finding, select: Collection[str], ignore: Collection[str]
) -> bool:
    """Return whether to report a finding; ``CODE:LABEL`` ignores it for that label."""
    choices = [choice.partition(":") for choice in ignore]
    left_out = [
        prefix
        for prefix, colon, pattern in choices
        if not colon or fnmatchcase(_label_of(finding), pattern)
    ]
    return selected(finding.code, select, left_out)


def _label_of(finding: Finding) -> str:
    """Return the label that a finding is about, or an empty string."""
    match = _IN_LABEL.match(finding.place)
    if match is not None:
        return match[1] or match[2]
    try:
        return parse_wheel_name(os.path.basename(finding.path)).label or ""
    except InputError:
        return ""


def selected(code: str, select: Collection[str], ignore: Collection[str]) -> bool:
    """Return whether a rule is applied. The longest matching prefix decides."""
    chosen = max((len(p) for p in select if code.startswith(p)), default=-1)
    left_out = max((len(p) for p in ignore if code.startswith(p)), default=-1)
    return chosen > left_out if select else left_out < 0


def check_wheel_path(path: str, reading: Reading) -> list[Finding]:
    """Check one wheel by itself: its name, ``variant.json``, METADATA and code."""
    try:
        name = parse_wheel_name(os.path.basename(path))
    except InputError as error:
        collector = Collector(_name(path))
        collector.add_error("NV411", error)
        return collector.findings
    return check_wheel(local_file(path), name, reading).findings


def check_folder(path: str, reading: Reading) -> Iterator[Finding]:
    """Check the files of a directory, as an index page would list them.

    A directory without wheels and metadata is the root of an index if a subdirectory
    has wheels or metadata. Then each of these subdirectories is checked. An unreadable
    subdirectory is a finding, and the other subdirectories are still checked.

    :raises InputError: the directory cannot be read.
    """
    names = list_names(path)
    if any(map(_is_checked, names)):
        yield from check_files(path, _files_in(path, names), reading)
        return
    is_root = False
    for name in names:
        folder = os.path.join(path, name)
        if not os.path.isdir(folder):
            continue
        try:
            entries = list_names(folder)
        except InputError as error:
            is_root = True
            yield from _unreadable(folder, error)
            continue
        # Skip unrelated directories, and projects without wheels.
        if any(map(_is_checked, entries)):
            is_root = True
            logger.info("checking the project %s", name)
            yield from check_files(folder, _files_in(folder, entries), reading)
    if not is_root:
        yield from check_files(path, [], reading)


def check_page(url: str, connect: Connect, reading: Reading) -> Iterator[Finding]:
    """Check the files that a project page lists, or every project of an index.

    The pages of an index are read one by one. A project whose page cannot be read is a
    finding, and the other projects are still checked.

    :param url: a project page or the root page of an index.
    :param connect: returns the client that reads the pages and the files.
    :param reading: the options for reading wheels, without a client.
    """
    path = redacted(url)
    logger.debug("reading the page %s", path)
    with connect() as client:
        reading = replace(reading, client=client)
        try:
            root = client.read_page(url)
        except InputError as error:
            yield from _unreadable(path, error)
            return
        if not root.projects or any(_is_checked(file.name) for file in root.files):
            yield from check_files(path, root.files, reading)
            return
        for address, page in client.read_pages(root.projects, at_once=1):
            place = redacted(address)
            if isinstance(page, InputError):
                yield from _unreadable(place, page)
            else:
                yield from check_files(place, page.files, reading, may_be_empty=True)


def _is_checked(name: str) -> bool:
    return name.endswith((SUFFIX, ".whl"))


def _files_in(folder: str, names: list[str]) -> list[IndexFile]:
    return [local_file(os.path.join(folder, name)) for name in names]


def _unreadable(path: str, error: InputError) -> list[Finding]:
    collector = Collector(path)
    collector.add_error("NV100", error)
    return collector.findings


def _name(path: str) -> str:
    """Return a path as shown in logs and findings, without the secrets of a URL."""
    if "/" in path:
        return redacted(path)
    return "stdin" if path == "-" else path or "''"


def _check(path: str, reading: Reading, connect: Connect) -> Iterator[Finding]:
    if is_http(path):
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
            data = read_stdin() if path == "-" else read_bytes(path, given=True)
            with signals.reading(name):
                if path.endswith(".toml"):
                    from .pyproject import check_pyproject

                    collector = check_pyproject(data, name)
                else:
                    collector = Collector(name, document=data)
                    check_text(data, collector)
    except InputError as error:
        collector.add_error("NV100", error)
    yield from collector.findings


def _connect_without_pip() -> BlockingClient:
    from ..index.http.blocking import BlockingClient

    return BlockingClient()
