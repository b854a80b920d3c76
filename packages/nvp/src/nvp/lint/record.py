"""NV420: whether the RECORD of a wheel matches its archive."""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from nvidia_variant_provider.errors import listed, shown

from ..signals import map_in_threads
from .findings import Checks, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from zipfile import ZipFile

    from ..gpu_code.zip_members import Member, Source

_MAX_NAMED = 3
"""The maximum number of files in a message."""

_UNHASHED = (".dist-info/RECORD", ".dist-info/RECORD.jws", ".dist-info/RECORD.p7s")
"""The suffixes of files that need no hash in RECORD and may be missing from it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """The differences between a RECORD and its archive.

    :param missing: whether the archive has no RECORD.
    :param unlisted: the files in the archive that RECORD does not list.
    :param absent: the files that RECORD lists but the archive lacks.
    :param stale: the files whose size or hash differs from RECORD.
    """

    missing: bool = False
    unlisted: Sequence[str] = ()
    absent: Sequence[str] = ()
    stale: Sequence[str] = ()


RECORD_CHECKS: Checks[Differences] = Checks()


def compare_record(
    source: str | IO[bytes], jobs: int, *, whole: bool
) -> Differences | None:
    """Compare RECORD with the files of an archive.

    :param jobs: the number of files that are hashed in parallel.
    :param whole: whether to hash all files; otherwise only the files next to RECORD,
        which are a few kilobytes at most.
    :returns: ``None`` if the RECORD cannot be read.
    :raises InputError: the archive cannot be read.
    """
    # Import late, because importing the archive reader takes a while.
    from ..gpu_code.zip_members import Source, list_members
    from ..wheels.archive import read_dist_info

    record: bytes | None = None

    def read(archive: ZipFile) -> None:
        nonlocal record
        record = read_dist_info(archive, "RECORD")

    members, _ = list_members(source, read)
    if record is None:
        return Differences(missing=True)
    rows = _rows(record)
    if rows is None:
        return None
    names = {member.name for member in members}
    listed_members = [member for member in members if member.name in rows]
    if not whole:
        listed_members = [m for m in listed_members if ".dist-info/" in m.name]
    shared = Source(source)

    def check(member: Member) -> bool:
        return _fits(member, shared, *rows[member.name])

    try:
        fits = map_in_threads(max(1, jobs), check, listed_members, shared.close)
    finally:
        shared.close()
    return Differences(
        unlisted=sorted(n for n in names - rows.keys() if not n.endswith(_UNHASHED)),
        absent=sorted(n for n in rows.keys() - names if not n.endswith(_UNHASHED)),
        stale=[m.name for m, fit in zip(listed_members, fits, strict=True) if not fit],
    )


def _rows(record: bytes) -> dict[str, tuple[str, str]] | None:
    """Return ``{path: (hash, size)}`` of a RECORD; ``None`` if it is malformed."""
    try:
        lines = record.decode("utf-8").splitlines()
        rows = [row for row in csv.reader(lines) if row]
    except (UnicodeDecodeError, csv.Error):
        return None
    return {row[0]: ((*row, "", "")[1], (*row, "", "")[2]) for row in rows}


def _fits(member: Member, source: Source, digest: str, size: str) -> bool:
    """Return whether a file has the size and the hash that RECORD gives."""
    if size.isdecimal() and size != str(member.size):
        return False
    name, _, expected = digest.partition("=")
    if name not in ("sha256", "sha384", "sha512"):
        return True
    actual = hashlib.new(name)
    from ..gpu_code.report import BrokenError

    try:
        for piece in member.pieces(source):
            actual.update(piece)
    except BrokenError:
        return True  # NV512 and NV411 report the damage.
    encoded = base64.urlsafe_b64encode(actual.digest()).decode().rstrip("=")
    return encoded == expected.rstrip("=")


@RECORD_CHECKS.rule("NV420")
def check_nv420(found: Differences) -> Iterator[Problem]:
    """Report a RECORD that does not match the archive."""
    hint = "build the wheel again, or let a tool such as wheel pack write RECORD"
    if found.missing:
        yield Problem("RECORD", "there is no *.dist-info/RECORD", hint)
    for paths, what in (
        (found.unlisted, "it does not list"),
        (found.absent, "it lists files that are not in the wheel:"),
        (found.stale, "it gives another hash or size of"),
    ):
        if paths:
            names = listed([shown(path, 100) for path in paths], _MAX_NAMED)
            yield Problem("RECORD", f"{what} {names}", hint)
