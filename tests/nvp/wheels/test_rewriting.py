"""Wheels whose METADATA changes on the way, read back with `zipfile` and by pip."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import tracemalloc
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvidia_variant_provider.errors import InputError
from nvp.index.server.rewritten import HoldingBack
from nvp.metadata.requirements import SelectedVariant
from nvp.wheels import rewriting
from nvp.wheels.rewriting import (
    RewritePlan,
    Rewriting,
    evaluate_core_metadata,
    plan_rewrite,
)

INFO = "demo-1.0.dist-info"
CUDA = SelectedVariant(
    label="cu126", properties=frozenset({("nvidia", "sm_arch", "90_real")})
)
METADATA = b"""Metadata-Version: 2.4
Name: demo
Version: 1.0
Requires-Dist: numpy
requires-dist:  nvidia-cudnn-cu12; "nvidia" in variant_namespaces
Requires-Dist: triton; variant_label != "null" and
 platform_system == "Linux"
Requires-Dist: amd-smi; "amd" in variant_namespaces
Provides-Extra: a

Requires-Dist: text; variant_label == "a line of the description"
"""
EVALUATED = b"""Metadata-Version: 2.4
Name: demo
Version: 1.0
Requires-Dist: numpy
requires-dist: nvidia-cudnn-cu12
Requires-Dist: triton; platform_system == "Linux"
Provides-Extra: a

Requires-Dist: text; variant_label == "a line of the description"
"""


def evaluate(data: bytes) -> bytes:
    return evaluate_core_metadata(data, CUDA)


class _Pipe(io.RawIOBase):
    """What cannot seek, so that zipfile writes data descriptors."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += data
        return len(data)


def row(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"{path},sha256={digest.decode()},{len(content)}\n"


def make_wheel(
    members: dict[str, bytes],
    *,
    metadata: bytes = METADATA,
    method: int = zipfile.ZIP_DEFLATED,
    streamed: bool = False,
    zip64: bool = False,
    comment: bytes = b"",
    rows: str = "",
) -> bytes:
    files = dict(members)
    files[f"{INFO}/METADATA"] = metadata
    files[f"{INFO}/WHEEL"] = b"Wheel-Version: 1.0\n"
    record = "".join(row(path, content) for path, content in files.items())
    files[f"{INFO}/RECORD"] = (record + f"{INFO}/RECORD,,\n{rows}").encode()
    pipe, file = _Pipe(), io.BytesIO()
    target: Any = pipe if streamed else file
    with zipfile.ZipFile(target, "w", method) as archive:
        archive.comment = comment
        for name, content in files.items():
            with archive.open(name, "w", force_zip64=zip64) as member:
                member.write(content)
    return bytes(pipe.data) if streamed else file.getvalue()


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def apply_plan(plan: RewritePlan, stream: Iterable[bytes]) -> Iterator[bytes]:
    rewriting = Rewriting(plan)
    for piece in stream:
        yield from rewriting.feed(piece)
    yield rewriting.finish()


def rewritten(wheel: bytes, piece: int = 7) -> bytes:
    plan = plan_rewrite(io.BytesIO(wheel), evaluate)
    assert plan is not None
    made = b"".join(apply_plan(plan, pieces(wheel, piece)))
    assert len(made) == plan.size
    assert plan.metadata == EVALUATED
    return made


def contents(wheel: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


NAMES = st.sampled_from(["demo/__init__.py", "demo/lib.so", "demo/é.txt", "x", "z.py"])


@settings(deadline=None)
@given(
    members=st.dictionaries(NAMES, st.binary(max_size=300), max_size=4),
    form=st.fixed_dictionaries(
        {
            "method": st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
            "streamed": st.booleans(),
            "zip64": st.booleans(),
            # zipfile takes the end record's signature in a comment for the record.
            "comment": st.binary(max_size=20).filter(
                lambda comment: b"PK\x05\x06" not in comment
            ),
        }
    ),
    piece=st.integers(1, 400),
)
def test_only_metadata_and_record_change(
    members: dict[str, bytes], form: dict[str, Any], piece: int
) -> None:
    wheel = make_wheel(members, **form)
    before, after = contents(wheel), contents(rewritten(wheel, piece))
    assert list(after) == list(before)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"{INFO}/METADATA", f"{INFO}/RECORD"}
    assert after[f"{INFO}/METADATA"] == EVALUATED
    plan = plan_rewrite(io.BytesIO(wheel), evaluate)
    holding = HoldingBack()
    passed = b"".join(map(holding.feed, pieces(wheel, piece)))
    # Headers without sizes hold everything back that follows.
    assert plan is not None
    assert passed == wheel[: 0 if form["streamed"] else plan.unchanged]
    assert plan.size >= len(wheel)
    rows = list(csv.reader(after[f"{INFO}/RECORD"].decode().splitlines()))
    assert [name for name, _, _ in rows] == list(after)
    for name, digest, size in rows[:-1]:
        assert row(name, after[name]) == f"{name},{digest},{size}\n"


def test_other_members_are_copied_byte_for_byte() -> None:
    wheel = make_wheel({"demo/lib.so": bytes(range(256)) * 20})
    made = rewritten(wheel)
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        info = archive.getinfo(f"{INFO}/METADATA")
    assert made[: info.header_offset] == wheel[: info.header_offset]


def test_a_record_with_a_name_in_quotes() -> None:
    wheel = make_wheel({'demo/a,"b".py': b"x"})
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        record = archive.read(f"{INFO}/RECORD").replace(
            b'demo/a,"b".py,', b'"demo/a,""b"".py",'
        )
    quoted = io.BytesIO()
    with zipfile.ZipFile(quoted, "w") as archive:
        for name, content in contents(wheel).items():
            archive.writestr(name, record if name.endswith("RECORD") else content)
    after = contents(rewritten(quoted.getvalue()))
    lines = after[f"{INFO}/RECORD"].splitlines()
    assert lines[0] == record.splitlines()[0]
    assert lines[1].decode() + "\n" == row(f"{INFO}/METADATA", EVALUATED)


def test_a_wheel_without_variant_markers_has_no_plan() -> None:
    wheel = make_wheel({}, metadata=b"Name: demo\nRequires-Dist: numpy\n")
    assert plan_rewrite(io.BytesIO(wheel), evaluate) is None


def test_line_ends_of_windows_stay() -> None:
    data = METADATA.replace(b"\n", b"\r\n")
    assert evaluate(data) == EVALUATED.replace(b"\n", b"\r\n")


def test_bytes_that_are_not_text_stay() -> None:
    data = b"Summary: \xff\xfe\nRequires-Dist: d\xff; variant_label == ''\n\xff"
    assert evaluate(data) == b"Summary: \xff\xfe\n\xff"


def test_a_field_with_many_continuation_lines() -> None:
    """METADATA of 4 MiB took minutes, and a wheel of 10 kB can have it."""
    line = b'Requires-Dist: d; variant_label == ""\n'
    folds = b"Summary: a\n" + b" \n" * 19_000
    assert evaluate(folds + line + b"\r\r\n" + line) == folds + b"\r\r\n" + line
    with pytest.raises(InputError, match="over 20,000 lines"):
        evaluate(folds * 100)


def test_only_a_directory_with_a_name_has_the_metadata() -> None:
    wheel = make_wheel({".dist-info/METADATA": METADATA, ".dist-info/RECORD": b""})
    made = contents(rewritten(wheel))
    assert made[f"{INFO}/METADATA"] == EVALUATED
    assert made[".dist-info/METADATA"] == METADATA


class TestStreams:
    wheel = make_wheel({"demo/lib.so": b"x" * 1000})

    @pytest.mark.parametrize("change", [-1, 1])
    def test_of_another_length(self, change: int) -> None:
        plan = plan_rewrite(io.BytesIO(self.wheel), evaluate)
        assert plan is not None
        other = self.wheel + b"y" if change > 0 else self.wheel[:change]
        with pytest.raises(InputError, match="bytes"):
            b"".join(apply_plan(plan, [other]))

    def test_the_end_comes_after_the_whole_original(self) -> None:
        plan = plan_rewrite(io.BytesIO(self.wheel), evaluate)
        assert plan is not None
        rewriting = Rewriting(plan)
        made = b"".join(x for p in pieces(self.wheel, 100) for x in rewriting.feed(p))
        # Without its end the archive cannot be opened, so a wrong hash ends it.
        with pytest.raises(zipfile.BadZipFile):
            zipfile.ZipFile(io.BytesIO(made))
        contents(made + rewriting.finish())


@pytest.mark.parametrize("data", [b"", b"PK", b"x" * 100])
def test_what_is_not_an_archive(data: bytes) -> None:
    with pytest.raises(InputError, match="not a readable archive"):
        plan_rewrite(io.BytesIO(data), evaluate)


@pytest.mark.parametrize("end", ["\n", "a\r", "\x0b", "b\x85", "\u2028"])
def test_a_record_with_very_many_lines(end: str) -> None:
    """4 MiB of short lines took two seconds and 150 MB for each request."""
    with pytest.raises(InputError, match="its RECORD has over 50,000 lines"):
        plan_rewrite(io.BytesIO(make_wheel({}, rows=end * 50_000)), evaluate)
    many = make_wheel({}, rows="a,,\n" * 40_000)
    record = contents(rewritten(many, 10_000))[f"{INFO}/RECORD"].decode()
    assert row(f"{INFO}/METADATA", EVALUATED) in record
    assert record.endswith("a,,\n" * 40_000)


def test_something_before_the_first_member() -> None:
    with pytest.raises(InputError, match="before its first member"):
        plan_rewrite(io.BytesIO(b"#!python\n" + make_wheel({})), evaluate)


@given(
    wheel=st.just(make_wheel({"a": b"b"})),
    at=st.integers(0, 900),
    byte=st.binary(min_size=1, max_size=8),
)
def test_a_damaged_archive_is_refused_or_rewritten(
    wheel: bytes, at: int, byte: bytes
) -> None:
    damaged = wheel[:at] + byte + wheel[at + len(byte) :]
    try:
        plan = plan_rewrite(io.BytesIO(damaged), evaluate)
        if plan is not None:
            b"".join(apply_plan(plan, [damaged]))
    except InputError:
        pass


def test_a_record_with_a_line_of_many_fields() -> None:
    """To parse a line of 4 MiB took 120 MB for each request."""
    line = f"{INFO}/METADATA{',' * 4_000_000}\n"
    tracemalloc.start()
    try:
        record = contents(rewritten(make_wheel({}, rows=line), 10_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40_000_000
    assert line not in record[f"{INFO}/RECORD"].decode()


def test_a_wheel_with_many_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """31 wheels with 89,000 members took 2.4 GB while their METADATA came slowly."""
    wheel = make_wheel({f"demo/{number}.py": b"" for number in range(97)})
    assert plan_rewrite(io.BytesIO(wheel), evaluate) is not None
    monkeypatch.setattr(rewriting, "_MOST_MEMBERS", 99)
    with pytest.raises(InputError, match="it has more than 99 files"):
        plan_rewrite(io.BytesIO(wheel), evaluate)
    # Only wheels with variant markers are rewritten.
    assert plan_rewrite(io.BytesIO(wheel), lambda metadata: metadata) is None


@pytest.mark.parametrize("count", [1, 500])
def test_many_requirements_with_markers(count: int) -> None:
    """One METADATA of 4 MiB, of 26 KB when compressed, took 5 seconds and 300 MB."""
    start = 'a; "n" in variant_namespaces or os_name == "'
    room = 100_000 // count - len(start) - 1
    other = b'Requires-Dist: b; os_name == "' + b"x" * 200_000 + b'"\n'

    def evaluated(length: int) -> bytes:
        line = f'Requires-Dist: {start}{"x" * length}"\n'.encode()
        return evaluate(b"Name: demo\n" + line * count + other)

    assert evaluated(room).endswith(other)
    with pytest.raises(InputError, match="over 100,000 characters of requirements"):
        evaluated(room + 1)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_many_lines(end: bytes) -> None:
    """METADATA of 4 MiB, of 20 KB when compressed, took 0.4 seconds of each page."""
    line = b"Requires-Dist: a; 'x' in variant_namespaces" + end
    lines = b"A: b" + end
    description = end + lines * 30_000
    assert evaluate(line + lines * 19_998 + description).startswith(lines)
    with pytest.raises(InputError, match="over 20,000 lines before its description"):
        evaluate(line + lines * 20_000 + description)
