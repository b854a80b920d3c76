"""Files that are not wheels: each is a finding, in bounded time and memory."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lint_cases import lint_document
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import InputError
from nvp import api
from nvp.lint.findings import Finding
from nvp.wheels.variant_json import read_wheel

CLEAN: Any = lint_document("clean")
OWN = json.dumps({**CLEAN, "variants": {"cu12": CLEAN["variants"]["cu12"]}})
FILE = "torch-2.9.1-py3-none-any-cu12.whl"
INFO = "torch-2.9.1.dist-info"
METADATA = "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n"
BOMB = b"\0" * (24 * 1024 * 1024)

LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def archive(
    *members: tuple[str, str | bytes], method: int = zipfile.ZIP_DEFLATED
) -> bytes:
    """Return a zip file with the required members of a wheel.

    :param members: further members, which replace those of the same name.
    """
    files: dict[str, str | bytes] = {
        f"{INFO}/METADATA": METADATA,
        f"{INFO}/variant.json": OWN,
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as target:
        for name, text in {**files, **dict(members)}.items():
            target.writestr(zipfile.ZipInfo(name), text, compress_type=method)
    return buffer.getvalue()


def findings(path: Path) -> list[Finding]:
    """Check an archive, which has no RECORD."""
    return api.validate([path], ignore=["NV420"])


def patched(data: bytes, magic: bytes, offset: int, form: str, *values: int) -> bytes:
    """Return ``data`` with other numbers in the first record of a kind."""
    changed = bytearray(data)
    struct.pack_into(form, changed, data.index(magic) + offset, *values)
    return bytes(changed)


def in_both_records(data: bytes, offset: int, form: str, *values: int) -> bytes:
    """Return ``data`` with other numbers in both headers of METADATA."""
    data = patched(data, LOCAL, offset, form, *values)
    return patched(data, CENTRAL, offset + 2, form, *values)


def many_members(count: int) -> bytes:
    """Return a list of members of 47 bytes each, without the members themselves."""
    entry = CENTRAL + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"x"
    size = count * len(entry)
    end = END + struct.pack("<HHHHIIH", 0, 0, 0, 0, size, 0, 0)
    return entry * count + end


def hidden_members(count: int) -> bytes:
    """Return such a list whose last record contains the magic number a second time."""
    data = many_members(count)
    offset = struct.unpack("<I", END)[0]
    return data[:-6] + struct.pack("<IH", offset, 0)


def zip64_members(count: int) -> bytes:
    """Return a list of members whose count is only in the zip64 record."""
    data = many_members(count)[:-22]
    size = len(data)
    end64 = struct.pack(
        "<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, 0
    )
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, size, 1)
    return data + end64 + locator + END + bytes(18)


def wrong_sum() -> bytes:
    data = archive(method=zipfile.ZIP_STORED)
    return data.replace(b"Name: torch", b"Name: tor_h")


def far_away() -> bytes:
    """Return an archive with a member at byte 2**64 - 1, which zip64 can express."""
    data = archive()
    start = data.index(CENTRAL)
    (length,) = struct.unpack_from("<H", data, start + 28)
    extra = struct.pack("<HHQ", 1, 8, 2**64 - 1)
    data = patched(data, CENTRAL, 30, "<H", len(extra))
    data = patched(data, CENTRAL, 42, "<I", 0xFFFFFFFF)
    (size,) = struct.unpack_from("<I", data, data.index(END) + 12)
    data = patched(data, END, 12, "<I", size + len(extra))
    at = start + 46 + length
    return data[:at] + extra + data[at:]


HOSTILE: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "page of a proxy": lambda: b"<html>404</html>",
    "truncated at the end": lambda: archive()[:-30],
    "truncated at the start": lambda: archive()[40:],
    "wrong checksum": wrong_sum,
    "encrypted": lambda: in_both_records(archive(), 6, "<H", 1),
    "unknown compression": lambda: in_both_records(archive(), 8, "<H", 99),
    "bzip2": lambda: archive(method=zipfile.ZIP_BZIP2),
    "lzma": lambda: archive(method=zipfile.ZIP_LZMA),
    "far away": far_away,
    "no METADATA": lambda: archive().replace(b"METADATA", b"METADATE"),
    "two METADATA": lambda: archive(("other-1.dist-info/METADATA", METADATA)),
    "two variant.json": lambda: archive(("other-1.dist-info/variant.json", OWN)),
    "bomb in METADATA": lambda: archive((f"{INFO}/METADATA", BOMB)),
    "bomb in variant.json": lambda: archive((f"{INFO}/variant.json", BOMB)),
    "bomb of bzip2": lambda: archive(
        (f"{INFO}/METADATA", BOMB), method=zipfile.ZIP_BZIP2
    ),
    "bomb of lzma": lambda: archive(
        (f"{INFO}/METADATA", BOMB), method=zipfile.ZIP_LZMA
    ),
    "bomb that claims to be small": lambda: patched(
        archive((f"{INFO}/METADATA", BOMB)), CENTRAL, 24, "<I", 10
    ),
    "claims to be larger than it is": lambda: patched(
        archive(method=zipfile.ZIP_STORED), CENTRAL, 20, "<II", 0x7FFFFFFF, 0x7FFFFFFF
    ),
    "too many members": lambda: many_members(1_500_000),
    "too many members, hidden": lambda: hidden_members(1_000_000),
    "too many members, in zip64": lambda: zip64_members(1_000_000),
}

# The interpreter and the linter need 30 MiB.
MAX_MIB = 96
WATCHED = """
import json, re, resource, sys

from nvp import api

# With this limit a defect fails the test, and does not exhaust the memory.
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
codes = [finding.code for finding in api.validate(sys.argv[1:])]
# ru_maxrss would start with the peak of the parent process.
with open("/proc/self/status") as file:
    peak = int(re.search(r"VmHWM:\\s*([0-9]+) kB", file.read())[1])
print(json.dumps([codes, peak >> 10]))
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_wheel(name: str, tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_bytes(HOSTILE[name]())
    (finding,) = api.validate([path])
    assert (finding.code, finding.path) == ("NV411", str(path))
    # In a directory, the other files are still checked.
    (tmp_path / "bad-1.0-variants.json").write_bytes(b"{")
    assert {"NV411", "NV100"} <= {f.code for f in api.validate([tmp_path])}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_hostile_wheels_take_little_memory(tmp_path: Path) -> None:
    paths = []
    for index, name in enumerate(HOSTILE):
        path = tmp_path / str(index) / FILE
        path.parent.mkdir()
        path.write_bytes(HOSTILE[name]())
        paths.append(str(path))
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *paths],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    codes, peak = json.loads(done.stdout)
    assert codes == ["NV411"] * len(HOSTILE)
    assert peak < MAX_MIB


def test_unusual_wheels_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / FILE
    for data in (
        archive(),
        archive(method=zipfile.ZIP_STORED),
        # The library may have any size, because its content is not GPU code.
        archive(("torch/lib.so", BOMB)),
        # PEP 491 has one such directory. In other directories, files with these names
        # have no meaning.
        archive(("torch/data/x.dist-info/METADATA", "x"), ("METADATA", "x")),
        b"#!/bin/sh\n" + archive(),
    ):
        path.write_bytes(data)
        assert findings(path) == []


BASE = archive()


@given(st.data())
def test_damaged_wheel_is_read_or_refused(data: st.DataObject) -> None:
    changed = bytearray(BASE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.sampled_from([0, 1, 127, 255]) | st.integers(0, 255))
    end = data.draw(st.just(len(changed)) | st.integers(0, len(changed)))
    # Every other exception fails the test.
    with suppress(InputError):
        read_wheel(io.BytesIO(bytes(changed[:end])))


@pytest.mark.parametrize(
    "name",
    [
        "torch.whl",
        "torch-2.9.1.whl",
        "torch-2.9.1-py3-none.whl",
        "torch-2.9.1-py3-none-any-.whl",
        "torch-2.9.1-py3-none-any-CU12.whl",
        "torch-2.9.1-py3-none-any-cu12-more.whl",
        "torch-two-py3-none-any-cu12.whl",
        "to rch-2.9.1-py3-none-any.whl",
        "torch-2.9.1-1x-py3-none-any-cu12-x.whl",
        "torch-2.9.1-py3-none-any-cu\n12.whl",
        ".whl",
    ],
)
def test_invalid_name_is_a_finding(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(archive())
    assert {f.code for f in api.validate([tmp_path / name])} == {"NV411"}
    assert {f.code for f in api.validate([tmp_path])} == {"NV411"}


@pytest.mark.parametrize("name", ["1" * 5000, ".".join("abcdefgh") * 200])
def test_name_longer_than_file_systems_allow_is_a_finding(name: str) -> None:
    wheel = f"torch-2.9.1-{name}-{name}-{name}-cu12.whl"
    assert {f.code for f in api.validate([wheel])} == {"NV411"}


@pytest.mark.parametrize("build", ["", "1-", "12_local-"])
def test_label_is_compared_next_to_a_build_tag(build: str, tmp_path: Path) -> None:
    name = f"torch-2.9.1-{build}py3-none-any-cu12.whl"
    (tmp_path / name).write_bytes(archive())
    assert findings(tmp_path / name) == []
    (tmp_path / name.replace("cu12", "cu13")).write_bytes(archive())
    (finding,) = findings(tmp_path / name.replace("cu12", "cu13"))
    assert finding.code == "NV412"


def test_missing_wheels_and_folders_named_like_wheels_are_findings(
    tmp_path: Path,
) -> None:
    assert [f.code for f in api.validate([tmp_path / FILE])] == ["NV411"]
    (tmp_path / FILE).mkdir()
    assert "NV411" in {f.code for f in api.validate([tmp_path])}
    assert [f.code for f in api.validate([tmp_path / FILE])] == ["NV100"]


@pytest.mark.parametrize(
    ("header", "is_marker"),
    [
        ("Requires-Dist: x; variant_label == 'cu12'", True),
        ("requires-dist: x ; 'nvidia' in variant_namespaces", True),
        ("Requires-Dist: x;\n  'nvidia :: sm_arch' in variant_features", True),
        ("Requires-Dist: x; extra == 'gpu'", False),
        ("Requires-Dist: variant_label", False),
        ("Summary: Requires-Dist: x; variant_label == 'cu12'", False),
        ("Summary: a\x0bRequires-Dist: x; variant_label == 'cu12'", False),
        ("\nRequires-Dist: x; variant_label == 'cu12'", False),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_variant_markers_are_found_in_requirements_only(
    header: str, is_marker: bool, end: str
) -> None:
    text = f"{METADATA}{header}\n\nThe description.\n".replace("\n", end)
    content = read_wheel(io.BytesIO(archive((f"{INFO}/METADATA", text))))
    assert bool(content.markers) is is_marker


def test_stub_wheels_have_no_findings(tmp_path: Path) -> None:
    path = stub_wheel(tmp_path, "torch", "2.9.1", "cu12", variant_json=json.loads(OWN))
    assert api.validate([path]) == []


@pytest.mark.parametrize(
    ("member", "text", "code"),
    [
        # The product of the three parts is a billion tags.
        ("WHEEL", "Tag: {0}-{0}-{0}\n".format(".".join(["a"] * 1000)), "NV414"),
        ("WHEEL", "Tag: " + "a-" * 1_000_000, "NV414"),
        ("WHEEL", "Tag: \x1b[31mx-y-z\n", "NV414"),
        ("WHEEL", "Tag: py3.-none-any\n", "NV414"),
        ("WHEEL", "Tag: --\n", "NV414"),
        ("METADATA", METADATA.replace("2.9.1", "9" * 1_000_000), "NV413"),
        ("METADATA", METADATA.replace("2.9.1", "2." * 1_000_000), "NV413"),
        (
            "METADATA",
            METADATA.replace("Name: torch", "Name: " + "-" * 1_000_000),
            "NV413",
        ),
        ("METADATA", METADATA.replace("Name: torch", "Name: t\udcffrch"), "NV413"),
    ],
    ids=[
        *("many tags", "many parts", "escape", "empty part", "empty", "digits"),
        *("parts", "name", "not text"),
    ],
)
def test_hostile_texts_are_short_findings(
    member: str, text: str, code: str, tmp_path: Path
) -> None:
    path = tmp_path / FILE
    data = text.encode("utf-8", "surrogateescape")
    path.write_bytes(archive((f"{INFO}/{member}", data)))
    (finding,) = findings(path)
    assert finding.code == code
    assert len(finding.message) < 1000
