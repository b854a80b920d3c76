"""Wheels from outside: their names, and a few files of their archive.

Bounded, whatever a file claims of itself: the list of members, the members that
are read, and the ways of compression.
"""

from __future__ import annotations

import io
import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import IO, Any

from ..errors import InputError, shown
from ..strict_json import open_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.tags import Tag

__all__ = [
    "LABEL",
    "WheelName",
    "open_wheel",
    "parse_requires",
    "parse_wheel_name",
    "read_dist_info",
]

LABEL = re.compile(r"[a-z0-9_.]+")
"""The form of a variant label."""

MAX_NAME = 255
"""Characters of a file name; file systems and indexes have no longer ones."""

MAX_MEMBER = 4 * 1024 * 1024
"""Bytes of a file of ``*.dist-info`` that is read."""

MAX_READ = 4 * 1024 * 1024
"""No archive is opened whose list of members has more bytes. The largest wheels
known have 16,000 members, which is 2 MiB."""

MAX_REQUIRES = 10_000
"""Requirements of a wheel; those with most, for their extras, have some 2,000."""

_CHUNK = 65536
_BROKEN = (
    EOFError,
    IndexError,
    MemoryError,
    # Offsets beyond what a file can have.
    OverflowError,
    # Encrypted, or compressed in a way that is not known.
    RuntimeError,
    # Members that overlap, names that are no text, and the like.
    ValueError,
    lzma.LZMAError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelName:
    """What the name of a wheel file says.

    :param name: the project, as in normalized file names (``my_project``).
    :param version: the release, normalized.
    :param label: the variant label; ``None`` for a non-variant wheel.
    :param build: the build tag as `packaging` sorts it, empty when there is none.
    :param tags: what it runs on.
    """

    name: str
    version: str
    label: str | None = None
    build: tuple[()] | tuple[int, str] = ()
    tags: frozenset[Tag] = frozenset()


def parse_wheel_name(file_name: str) -> WheelName:
    """``{name}-{version}(-{build})-{python}-{abi}-{platform}(-{label}).whl``.

    :raises InputError: any other form.
    """
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    if len(file_name) > MAX_NAME:
        message = f"a name of {len(file_name)} characters"
        raise InputError(message, path=shown(file_name), hint="rename the wheel")
    stem, extension = os.path.splitext(file_name)
    parts = stem.split("-")
    # PEP 825: "The Python tag component MUST NOT start with a digit"; a build
    # number does.
    has_build = len(parts) > 2 and parts[2][:1].isdigit()
    label = parts.pop() if len(parts) == 6 + has_build else None
    if label is not None and not LABEL.fullmatch(label):
        message = f"{shown(label)} is no label: a-z, 0-9, _ and . only"
        raise InputError(message, path=file_name, hint="rename the wheel")
    try:
        # packaging refuses labels.
        name, version, build, tags = parse_wheel_filename("-".join(parts) + extension)
    except InvalidWheelFilename:
        message = "not the name of a wheel"
        hint = "build the wheel with a standard name"
        raise InputError(message, path=file_name, hint=hint) from None
    return WheelName(
        name=name.replace("-", "_"),
        version=str(version).replace("-", "_"),
        label=label,
        build=build,
        tags=tags,
    )


@contextmanager
def open_wheel(source: str | IO[bytes]) -> Iterator[zipfile.ZipFile]:
    """The archive of a wheel, from a path or an open file, which stays open.

    :raises InputError: it is no readable archive, also when that shows later on.
    """
    try:
        with (
            open_regular(source) if isinstance(source, str) else nullcontext(source)
        ) as file:
            bounded: Any = _Bounded(file)
            with zipfile.ZipFile(bounded) as archive:
                yield archive
    except InputError:
        raise
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise InputError(message, hint="check the path") from None
    except _BROKEN as error:
        reason = str(error) or type(error).__name__
        message = f"not a readable archive: {shown(reason, 100)}"
        raise InputError(message, hint="build or upload the wheel again") from None


class _Bounded:
    """A file that refuses to read much at once.

    `zipfile` reads the whole list of members in one go, of the length that a record
    at the end claims; there are several such records, and ways to hide one.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = file.seek(0, io.SEEK_END)
        self.seek = file.seek
        self.tell = file.tell
        self.close = file.close

    def seekable(self) -> bool:
        """Can it be read from anywhere."""
        return True

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes, if they are not too many."""
        left = max(0, self._size - self._file.tell())
        if (left if size < 0 else min(size, left)) > MAX_READ:
            message = f"its list of members is larger than {MAX_READ >> 20} MiB"
            raise InputError(message, hint="this is no wheel")
        return self._file.read(size)


def read_dist_info(archive: zipfile.ZipFile, name: str) -> bytes | None:
    """The bytes of ``*.dist-info/NAME``; ``None`` when there is none.

    :raises InputError: there are several, or it is too large.
    """
    pattern = re.compile(rf"[^/]+\.dist-info/{re.escape(name)}")
    found = [m for m in archive.infolist() if pattern.fullmatch(m.filename)]
    if not found:
        return None
    if len(found) > 1:
        message = f"has {len(found)} files *.dist-info/{name}"
        raise InputError(message, hint="build the wheel again")
    (member,) = found
    # Of the others zipfile decompresses a whole piece at once, which may be a
    # million times as long; and no builder uses them.
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        message = f"{name} is compressed in a way that wheels are not"
        raise InputError(message, hint="build the wheel again")
    data = bytearray()
    with archive.open(member) as file:
        # Not the size that the header claims: what really comes out.
        while chunk := file.read(_CHUNK):
            data += chunk
            if len(data) > MAX_MEMBER:
                message = f"{name} is larger than {MAX_MEMBER >> 20} MiB"
                raise InputError(message, hint="this is no wheel")
    return bytes(data)


def parse_requires(metadata: bytes) -> tuple[str, ...]:
    """``Requires-Dist`` of the bytes of METADATA, as they stand.

    One more than `MAX_REQUIRES` at most.
    """
    headers = HeaderParser().parsestr(metadata.decode("utf-8", "replace"))
    found = headers.get_all("Requires-Dist", [])
    return tuple(map(str, found[: MAX_REQUIRES + 1]))
