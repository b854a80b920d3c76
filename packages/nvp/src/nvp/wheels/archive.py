"""Reading a few files out of a wheel that may be damaged or hostile.

All amounts are bounded, whatever a file claims about itself: the list of members, the
members that are read, and the compression methods.
"""

from __future__ import annotations

import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from email.parser import HeaderParser
from typing import IO, Any

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.strict_json import open_regular

MAX_MEMBER = 4 * 1024 * 1024
"""The most bytes that are read of a file of ``*.dist-info``."""

MAX_READ = 4 * 1024 * 1024
"""The most bytes of a list of members. The largest wheels that are known have 16,000
members, whose list takes 2 MiB."""

MAX_REQUIRES = 10_000
"""The most requirements of a wheel. Wheels with many extras have some 2,000."""

_CHUNK = 65536
_BROKEN = (
    EOFError,
    IndexError,
    MemoryError,
    # An offset is larger than the size of any file.
    OverflowError,
    # A member is encrypted, or compressed with an unknown method.
    RuntimeError,
    # Members overlap, a name is not text, and similar damage.
    ValueError,
    lzma.LZMAError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""The exceptions of `zipfile` for damaged archives."""


@contextmanager
def open_wheel(source: str | IO[bytes]) -> Iterator[zipfile.ZipFile]:
    """Open the archive of a wheel.

    :param source: a path, or an open file, which stays open.
    :raises InputError: the archive cannot be read. This may show only later, inside
        the ``with`` block.
    """
    with (
        explained(),
        open_regular(source)
        if isinstance(source, str)
        else nullcontext(source) as file,
    ):
        bounded: Any = _Bounded(file)
        with zipfile.ZipFile(bounded) as archive:
            yield archive


@contextmanager
def explained() -> Iterator[None]:
    """Make an `InputError` of whatever `zipfile` raises for an archive.

    :raises InputError: the block has raised such an exception.
    """
    try:
        yield
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

    `zipfile` reads the whole list of members in one call. It takes the length from a
    record at the end of the file. There are several such records, and ways to hide
    one, so that checking the record itself would not be safe.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = file.seek(0, io.SEEK_END)
        self.seek = file.seek
        self.tell = file.tell
        self.close = file.close

    def seekable(self) -> bool:
        """Return that the file can be read from anywhere."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return at most ``size`` bytes.

        :raises InputError: these are more bytes than any list of members has.
        """
        left = max(0, self._size - self._file.tell())
        if (left if size < 0 else min(size, left)) > MAX_READ:
            message = f"its list of members is larger than {MAX_READ >> 20} MiB"
            raise InputError(message, hint="this is not a wheel")
        return self._file.read(size)


def read_dist_info(archive: zipfile.ZipFile, name: str) -> bytes | None:
    """Return the bytes of ``*.dist-info/NAME``; ``None`` when there is no such file.

    :raises InputError: there are several such files, or the file is too large.
    """
    pattern = re.compile(rf"[^/]+\.dist-info/{re.escape(name)}")
    members = [m for m in archive.infolist() if pattern.fullmatch(m.filename)]
    if not members:
        return None
    if len(members) > 1:
        message = f"has {len(members)} files *.dist-info/{name}"
        raise InputError(message, hint="build the wheel again")
    (member,) = members
    # zipfile decompresses a whole chunk of the other methods at once, which may become
    # a million times as long. No builder uses these methods.
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        message = f"{name} is compressed with a method that wheels do not use"
        raise InputError(message, hint="build the wheel again")
    data = bytearray()
    with archive.open(member) as file:
        # The header may claim any size, so what is decompressed is counted.
        while chunk := file.read(_CHUNK):
            data += chunk
            if len(data) > MAX_MEMBER:
                message = f"{name} is larger than {MAX_MEMBER >> 20} MiB"
                raise InputError(message, hint="this is not a wheel")
    return bytes(data)


def parse_requires(metadata: bytes) -> tuple[str, ...]:
    """Return the texts of ``Requires-Dist`` in METADATA.

    The result has at most one text more than `MAX_REQUIRES`, so that a caller can tell
    that there are too many.
    """
    headers = HeaderParser().parsestr(metadata.decode("utf-8", "replace"))
    requires = headers.get_all("Requires-Dist", [])
    return tuple(map(str, requires[: MAX_REQUIRES + 1]))
