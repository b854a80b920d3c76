"""``upgrade --index --pages`` reads directories of strangers within limits."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from simple_repository import model
from support.documents import document, nvidia
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import InputError
from nvp import api
from nvp.directories import Root
from nvp.index.server import static_files
from nvp.index.server.static_files import read_file
from nvp.signals import map_in_threads

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


def pax(data: bytes) -> bytes:
    """A pax header with few bytes, for which tarfile takes hours or gigabytes."""
    return header("pax", len(data), tarfile.XHDTYPE) + data + bytes(-len(data) % 512)


def negative() -> Iterator[bytes]:
    item = tarfile.TarInfo("kern-1.0/back")
    item.size = -1024
    yield header("kern-1.0/x")
    yield item.tobuf(tarfile.GNU_FORMAT)


def holes() -> Iterator[bytes]:
    yield pax(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n")
    yield header("kern-1.0/sparse", 512) + b"999999999\n" + b"1\n" * 251
    yield from (b"1\n" * 512,) * 1_000_000


BOMBS = {
    "digits": ([pax(b"9" * (4 * 1024**2 - 512))], "a header is too large"),
    "negative": (negative(), "more than 2 GiB"),
    "holes": (holes(), "not a readable archive"),
    "member": (large("kern-1.0/big"), "more than 2 GiB"),
    "pax": (large("pax", tarfile.XHDTYPE), "a header is too large"),
    "name": (large("long", tarfile.GNUTYPE_LONGNAME), "a header is too large"),
    "members": (many(), "more than 1000 members"),
    "link": ([header(INFO, 0, tarfile.LNKTYPE)], "PKG-INFO is not a regular file"),
    "symlink": ([header(INFO, 0, tarfile.SYMTYPE)], "PKG-INFO is not a regular file"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_an_archive_is_read_within_limits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_files, "_MOST_MEMBERS", 1000)
    pieces, message = BOMBS[name]
    path = tmp_path / "kern-1.0.tar.gz"
    write_gzip(path, pieces)
    (file,) = api.write_index(tmp_path).files
    assert message in file.problems[0].message
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("top", ["kern-1.0", "./kern-1.0", f"{'long' * 40}-1.0"])
def test_the_names_of_members_are_read_in_each_form(
    form: int, top: str, tmp_path: Path
) -> None:
    path = tmp_path / "kern-1.0.tar.gz"
    source = tmp_path / "é"
    source.write_text("Requires-Python: >=3.9\n")
    os.utime(source, (1.5, 1.5))  # needs a pax header
    with tarfile.open(path, "w:gz", format=form) as archive:
        archive.add(tmp_path, top, recursive=False)
        for name in ("x" * 200, "é/PKG-INFO", "PKG-INFO"):
            archive.add(source, f"{top}/{name}")
    entry = model.File(filename=path.name, url=path.name, hashes={})
    with path.open("rb") as file:
        read, _ = read_file(Root(str(tmp_path)), file, None, entry)
    assert read.requires_python == ">=3.9"


def test_files_behind_links_do_not_change(tmp_path: Path) -> None:
    own, index = tmp_path / ".bashrc", tmp_path / "index"
    own.write_text("own\n")
    given = nvidia("12.6", sm=["75_real"])
    one = document({"cu126": given})
    wheel = stub_wheel(index / "kern", "kern", "1.0", "cu126", variant_json=one)
    api.write_index(index)
    page = index / "kern" / "index.json"
    shown = json.loads(page.read_text())
    for file in shown["files"]:
        # The METADATA that the file behind the link must have to be replaced.
        file |= {"size": 1, "core-metadata": {"sha256": digest(own)}}
    page.write_text(json.dumps(shown))
    links = [*index.rglob("*.metadata"), *index.rglob("*-variants.json")]
    for link in links:
        link.unlink()
        link.symlink_to(own)
    files = api.write_index(index).files
    assert str(files).count("a link to a file outside of the index") == 2
    assert len(links) == 2
    assert own.read_text() == "own\n"
    assert wheel.exists()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_decompress_everything_are_refused(
    method: int, tmp_path: Path
) -> None:
    path = tmp_path / "kern-1.0.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(INFO, BLANK)
    entry = model.File(filename=path.name, url=path.name, hashes={})
    method_error = pytest.raises(InputError, match="a method that wheels do not use")
    with method_error, path.open("rb") as file:
        read_file(Root(str(tmp_path)), file, None, entry)


@pytest.mark.skipif(sys.platform != "linux", reason="any bytes are names on Linux")
def test_the_name_of_a_directory_may_not_be_utf_8(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    stub_wheel(Path(os.fsdecode(folder)), "kern", "1.0")
    api.write_index(tmp_path)
    page = (tmp_path / "kern" / "index.html").read_bytes()
    assert b'"../%FF/kern-1.0-py3-none-any.whl#' in page


@pytest.mark.parametrize("name", ["digest", "member", "members"])
def test_a_thread_ends_after_an_error_in_another_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kern-1.0.tar.gz"
    member = [header("kern-1.0/x", 8 << 20), *[BLANK] * 8, header(INFO)]
    write_gzip(path, member if name == "member" else many())
    if name != "digest":
        monkeypatch.setattr(static_files, "_digest", lambda _: "0" * 64)

    begun = threading.Event()

    def work(item: str) -> object:
        if not item:
            begun.wait()
            raise InputError("damaged")
        begun.set()
        while True:  # until the other thread has failed
            entry = model.File(filename="x", url="x", hashes={})
            with contextlib.suppress(InputError), open(item, "rb") as file:
                read_file(Root(str(tmp_path)), file, None, entry)

    with pytest.raises(InputError, match="damaged"):
        map_in_threads(2, work, ["", str(path)])


@pytest.mark.parametrize("form", ["a-{}-py3-none-any.whl", "a-1-{}-py3-none-any.whl"])
def test_numbers_with_equal_hashes(form: str) -> None:
    """20,000 wheels with such versions took half a minute."""
    names = [form.format(number * (2**61 - 1)) for number in range(1, 100)]
    files = [static_files.parse_file("", name) for name in names]
    assert len({hash(file.same) for file in files if file is not None}) == len(names)


def test_names_of_equal_versions() -> None:
    versions = ("1!2.0", "1!2", "1!02.0.0+a.1", "1!2+A.01")
    one, two, three, four = (
        file.same
        for version in versions
        if (file := static_files.parse_file("", f"a-{version}.zip")) is not None
    )
    assert one == two != three == four
