"""Mutated binaries and archives give reports, and never an exception.

Other people choose all bytes that the readers see.
"""

from __future__ import annotations

import io
import struct
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.containers import (
    binaries,
    container,
    entry,
    inspect_bytes,
    inspect_on_disk,
)

from nvp import api
from nvp.gpu_code.compression import decode_lz4, decompress
from nvp.gpu_code.fatbin import MAGIC
from nvp.gpu_code.report import LibraryReport

SAMPLES = {path.name: path.read_bytes() for path in binaries()}
TABLES = [name for name in SAMPLES if name.endswith((".so", ".dll", ".cubin", ".o"))]
SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

borders = st.lists(st.integers(0, 40_000), max_size=30)
numbers = st.sampled_from([0, 1, 2, 7, 8, 63, 64, 255, 4096, 65535, 1 << 31, 2**32 - 1])
patches = st.lists(
    st.tuples(st.integers(0, 1 << 20), numbers, st.sampled_from("BHIQ")),
    min_size=1,
    max_size=8,
)


def patch(data: bytes, changes: list[tuple[int, int, str]], within: int) -> bytes:
    """Write numbers over the first or last ``within`` bytes of ``data``."""
    out = bytearray(data)
    for place, number, form in changes:
        width = struct.calcsize(form)
        at = place % max(1, min(len(out), within) - width)
        if place % 3 == 0:
            at = max(0, len(out) - width - at)
        struct.pack_into("<" + form, out, at, number % (1 << 8 * width))
    return bytes(out)


def checked(report: LibraryReport | None, size: int) -> None:
    """Assert what holds for every report."""
    if report is None:
        return
    report.to_dict()
    assert all(count > 0 for count in report.targets.values())
    assert all(report.stubs[name] <= report.targets[name] for name in report.stubs)
    # An entry takes at least 64 bytes, in a chain or in the list of a group.
    entries = sum(report.targets.values()) + sum(report.lto.values())
    assert entries + sum(report.unknown.values()) <= max(1, size // 64)
    assert len(report.defects) <= 25
    assert len(report.needed) <= 512


@SLOW
@given(st.sampled_from(sorted(SAMPLES)), patches, borders)
def test_numbers_written_anywhere_into_a_binary(
    name: str, changes: list[tuple[int, int, str]], cuts: list[int]
) -> None:
    data = patch(SAMPLES[name], changes, len(SAMPLES[name]))
    whole = inspect_bytes(data, name)
    checked(whole, len(data))
    assert inspect_bytes(data, name, cuts) == whole
    assert inspect_on_disk(data, name, 100 + len(cuts)) == whole


@SLOW
@given(st.sampled_from(TABLES), patches, borders)
def test_numbers_written_into_the_tables_of_a_binary(
    name: str, changes: list[tuple[int, int, str]], cuts: list[int]
) -> None:
    data = patch(SAMPLES[name], changes, 400)
    whole = inspect_bytes(data, name)
    checked(whole, len(data))
    assert inspect_bytes(data, name, cuts) == whole
    assert inspect_on_disk(data, name, 100 + len(cuts)) == whole


@SLOW
@given(st.sampled_from(sorted(SAMPLES)), st.floats(0, 1), borders)
def test_a_binary_cut_off_anywhere(name: str, kept: float, cuts: list[int]) -> None:
    data = SAMPLES[name][: int(len(SAMPLES[name]) * kept)]
    whole = inspect_bytes(data, name)
    checked(whole, len(data))
    assert inspect_bytes(data, name, cuts) == whole
    assert inspect_on_disk(data, name, 100 + len(cuts)) == whole


small_entries = st.builds(
    entry,
    kind=st.sampled_from([1, 2, 4, 8, 0x100, 0x20]),
    arch=st.sampled_from([0, 75, 90, 121, 9999, 10_000]),
    payload=st.binary(max_size=80),
    flags=st.sampled_from([0x11, 0x2011, 0x8011, 0x100011, 0x200011]),
    header=st.sampled_from([64, 72, 120, 200]),
    size=st.sampled_from([0, 1, 900, 1 << 40]),
)
chunks = st.one_of(
    st.binary(max_size=40),
    st.just(MAGIC),
    small_entries,
    st.lists(small_entries, max_size=4).map(lambda entries: container(*entries)),
    st.builds(
        lambda entries, size: container(*entries, size=size),
        st.lists(small_entries, max_size=3),
        st.integers(0, 600),
    ),
)


@SLOW
@given(st.lists(chunks, max_size=6).map(b"".join), borders)
def test_sequences_of_generated_containers_and_entries(
    data: bytes, cuts: list[int]
) -> None:
    whole = inspect_bytes(data, "data.bin")
    checked(whole, len(data))
    assert inspect_bytes(data, "data.bin", cuts) == whole
    assert inspect_on_disk(data, "data.bin", 100 + len(cuts)) == whole


def test_a_payload_that_ends_where_the_file_ends() -> None:
    first = container(entry(kind=1, payload=b"", header=64, size=0))
    data = first + container(entry(kind=1, payload=bytes(200), header=120), size=360)
    for ending in range(len(data) - 40, len(data) + 1):
        cut = data[:ending]
        whole = inspect_bytes(cut, "data.bin")
        assert inspect_on_disk(cut, "data.bin", 100) == whole, ending


@SLOW
@given(
    st.sampled_from([b"\x7fELF", b"MZ", MAGIC, b"!<arch>\n", b".version 8.7\n", b""]),
    st.binary(max_size=600),
)
def test_random_bytes_after_the_magic_of_a_format(magic: bytes, noise: bytes) -> None:
    for name in ("a.so", "a.ptx", "a.cubin"):
        checked(inspect_bytes(magic + noise, name), len(magic + noise))


def archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("demo/plain.so", SAMPLES["plain.so"])
        file.writestr("demo/__init__.py", b"x = 1")
        info = zipfile.ZipInfo("demo/plain.cubin")
        file.writestr(info, SAMPLES["new-80.cubin"], zipfile.ZIP_STORED)
    return out.getvalue()


ARCHIVE = archive()


@SLOW
@given(patches, st.sampled_from([400, len(ARCHIVE)]))
def test_numbers_written_into_an_archive(
    changes: list[tuple[int, int, str]], within: int
) -> None:
    report = api.inspect(io.BytesIO(patch(ARCHIVE, changes, within)))
    assert report.kind == "wheel"
    for library in report.libraries:
        checked(library, library.size)


sequences = st.lists(
    st.tuples(st.binary(max_size=300), st.integers(1, 400), st.integers(4, 600)),
    max_size=8,
)


@given(sequences, st.binary(min_size=5, max_size=40))
def test_lz4_blocks_decode_as_in_a_plain_model(
    parts: list[tuple[bytes, int, int]], last: bytes
) -> None:
    """Blocks decode to what a plain model of literals and matches gives."""
    block, plain = bytearray(), bytearray()
    for literals, distance, length in parts:
        plain += literals
        offset = min(distance, len(plain))
        if not offset:
            continue
        more = length - 4
        token = min(len(literals), 15) << 4 | min(more, 15)
        block.append(token)
        block += extended(len(literals)) + literals + offset.to_bytes(2, "little")
        block += extended(more)
        for _ in range(length):
            plain.append(plain[-offset])
    block.append(min(len(last), 15) << 4)
    block += extended(len(last)) + last
    plain += last
    assert decode_lz4(bytes(block), len(plain) + 10) == plain
    assert decode_lz4(bytes(block), len(plain) // 2) == plain[: len(plain) // 2]


def extended(length: int) -> bytes:
    if length < 15:
        return b""
    return b"\xff" * ((length - 15) // 255) + bytes([(length - 15) % 255])


@given(st.sampled_from(["none", "lz4", "zstd"]), st.binary(), st.integers(0, 1000))
def test_decompression_is_bounded(name: str, data: bytes, limit: int) -> None:
    plain = decompress(name, data, limit)
    assert plain is None or len(plain) <= limit


@given(st.binary(min_size=1), st.lists(st.binary(max_size=80), max_size=3))
def test_a_decoder_is_used_again_after_damage(text: bytes, noise: list[bytes]) -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = zstandard.compress(text)
    for damaged in (*noise, packed[:-1], packed[:4] + b"\xff" * 9):
        decompress("zstd", damaged, 100)
        assert decompress("zstd", packed, len(text) + 1) == text
        assert decompress("zstd", packed, 1) == text[:1]
