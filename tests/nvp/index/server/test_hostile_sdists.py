"""``upgrade --index --pages`` reads source distributions of strangers within limits."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from simple_repository import model

from nvidia_variant_provider.errors import InputError
from nvp import api
from nvp.index.server.static_files import read_file

INFO = "kern-1.0/PKG-INFO"
BLANK = bytes(1 << 20)
GIB = 1 << 30


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    item = tarfile.TarInfo(name)
    item.size, item.type, item.linkname = size, kind, INFO
    return item.tobuf(tarfile.GNU_FORMAT)


def large(name: str, kind: bytes = tarfile.REGTYPE) -> Iterator[bytes]:
    yield header(name, 3 * GIB, kind)
    for _ in range(3 * GIB // len(BLANK)):
        yield BLANK
    yield header(INFO)


def many() -> Iterator[bytes]:
    for _ in range(300):
        yield header("kern-1.0/x") * 1024


def write_gzip(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a gzip file; equal pieces are compressed once."""
    known: dict[bytes, bytes] = {}
    with path.open("wb") as file:
        file.write(b"\x1f\x8b\x08" + bytes(6) + b"\3")
        for piece in pieces:
            if piece not in known:
                engine = zlib.compressobj(9, zlib.DEFLATED, -15)
                known[piece] = engine.compress(piece) + engine.flush(zlib.Z_FULL_FLUSH)
            file.write(known[piece])
        file.write(b"\3\0" + bytes(8))


BOMBS = {
    "member": (large("kern-1.0/big"), "more than 2 GiB"),
    "pax": (large("pax", tarfile.XHDTYPE), "a header is too large"),
    "name": (large("long", tarfile.GNUTYPE_LONGNAME), "a header is too large"),
    "members": (many(), "more than 100000 members"),
    "link": ([header(INFO, 0, tarfile.LNKTYPE)], "PKG-INFO is not a regular file"),
    "symlink": ([header(INFO, 0, tarfile.SYMTYPE)], "PKG-INFO is not a regular file"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_an_archive_is_read_within_limits(name: str, tmp_path: Path) -> None:
    pieces, message = BOMBS[name]
    path = tmp_path / "kern-1.0.tar.gz"
    write_gzip(path, pieces)
    (file,) = api.write_index(tmp_path).files
    assert message in file.problems[0].message
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_decompress_everything_are_refused(
    method: int, tmp_path: Path
) -> None:
    path = tmp_path / "kern-1.0.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(INFO, BLANK)
    entry = model.File(filename=path.name, url=path.name, hashes={})
    with pytest.raises(InputError, match="a method that wheels do not use"):
        read_file(str(path), None, entry)
