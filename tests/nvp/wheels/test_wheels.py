"""The names of wheels, and their files when an archive is damaged or hostile."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from email.parser import HeaderParser
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.command import Run
from support.documents import TORCH, of_one
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import InputError
from nvp.wheels import archive
from nvp.wheels.archive import (
    first_header,
    is_for_platform,
    only,
    open_wheel,
    parse_requires,
    parse_wheel_name,
)
from nvp.wheels.variant_json import (
    WheelContent,
    is_plain,
    read_own_metadata,
    read_wheel,
    read_wheel_metadata,
)

COMMAND = "upgrade"


class TestWheels:
    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("torch-2.8.0-cp313-cp313-linux_x86_64", ("torch", "2.8.0", None)),
            ("torch-2.8.0-cp313-cp313-linux_x86_64-cu129", ("torch", "2.8.0", "cu129")),
            ("torch-2.8.0-1-cp313-cp313-linux_x86_64", ("torch", "2.8.0", None)),
            ("torch-2.8.0-1a-cp313-cp313-win32-null", ("torch", "2.8.0", "null")),
            (
                "My.Project-1.0.0+CU.1-py3-none-any-0.1_a",
                ("my_project", "1.0.0+cu.1", "0.1_a"),
            ),
        ],
    )
    def test_name_is_parsed_with_its_label(
        self, name: str, parts: tuple[str, str, str | None]
    ) -> None:
        parsed = parse_wheel_name(f"{name}.whl")
        assert (parsed.name, parsed.version, parsed.label) == parts

    @pytest.mark.parametrize(
        "name",
        [
            "torch-2.8.0-cp313-cp313-linux_x86_64-CU129",
            "torch-2.8.0-cp313-cp313-linux_x86_64-cu+129",
            "torch-2.8.0-cp313-cp313-linux_x86_64-",
            "torch-x-cp313-cp313-linux_x86_64-cu129",
            "torch-2.8.0",
            "torch-2.8.0-1-cp313-cp313-win32-null-null",
            # 54,000 tags
            f"torch-2.8.0-{'a.' * 37}a-{'b.' * 37}b-{'c.' * 37}c",
            f"torch-2.8.0-{'a.' * 35}a-{'b.' * 35}b-{'c.' * 35}c-cu129",
        ],
    )
    def test_name_of_another_form_is_refused(self, name: str) -> None:
        with pytest.raises(InputError):
            parse_wheel_name(f"{name}.whl")

    @pytest.mark.parametrize(
        "members",
        [
            {},
            {"variant.json": "{}"},
            {"a/b.dist-info/variant.json": "{}"},
            {"a.dist-info/variant.json": "{}"},
            {"a.dist-info/variant.json": "["},
            {"a.dist-info/variant.json": "[]"},
            {"a.dist-info/variant.json": '"variant.json"'},
            {"a.dist-info/variant.json": json.dumps(TORCH)},
            {"a.dist-info/variant.json": json.dumps(of_one("cu128"))},
            {
                "a.dist-info/variant.json": json.dumps(of_one("cu126")),
                "b.dist-info/variant.json": json.dumps(of_one("cu126")),
            },
        ],
    )
    def test_wheel_without_usable_metadata_is_a_problem(
        self, members: Mapping[str, str], run: Run, tmp_path: Path
    ) -> None:
        path = tmp_path / "torch-2.9-py3-none-any-cu126.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in members.items():
                archive.writestr(name, text)
        outcome = run("--index", tmp_path)
        assert outcome.code == 1
        assert f": {path.name}" in outcome.err
        assert os.listdir(tmp_path) == [path.name]

    def test_member_that_is_too_large_is_refused(self, tmp_path: Path) -> None:
        """Twenty of 3 MiB that were parsed at the same time took 1.5 GB."""
        path = tmp_path / "bomb.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.dist-info/variant.json", b" " * (256 * 1024 + 1))
        with pytest.raises(InputError, match="larger than 256 KiB"):
            read_wheel_metadata(path, "cu126")

    def test_list_of_members_that_is_too_large_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = stub_wheel(
            tmp_path, "torch", "2.9", "cu126", variant_json=of_one("cu126")
        )
        read_wheel_metadata(path, "cu126")
        monkeypatch.setattr(archive, "MAX_READ", 100)
        with pytest.raises(InputError, match="list of members"):
            read_wheel_metadata(path, "cu126")

    @settings(
        deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(data=st.data())
    def test_damaged_archive_is_read_or_refused(
        self, data: st.DataObject, tmp_path: Path
    ) -> None:
        path = stub_wheel(
            tmp_path, "torch", "2.9", "cu126", variant_json=of_one("cu126")
        )
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
                st.integers(0, 255)
            )
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        try:
            metadata, _ = read_wheel_metadata(path, "cu126")
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017
        else:
            assert list(metadata.variants) == ["cu126"]


@pytest.mark.parametrize(
    ("tag", "platform", "expected"),
    [
        ("any", "linux_x86_64", True),
        ("manylinux_2_28_x86_64.manylinux2014_x86_64", "linux_x86_64", True),
        ("musllinux_1_2_x86_64", "linux_x86_64", False),
        ("linux_aarch64", "linux_aarch64", True),
        ("manylinux_2_28_aarch64", "linux_x86_64", False),
        ("manylinux1_i686", "linux_x86_64", False),
        ("win_amd64", "linux_x86_64", False),
        ("win_amd64", "win_amd64", True),
        ("win32", "win_amd64", False),
        ("win32", "win32", True),
        ("macosx_14_0_arm64", "linux_aarch64", False),
        ("macosx_11_0_universal2", "macosx_14_0_arm64", True),
        ("manylinux_2_28_aarch64", "macosx_14_0_arm64", False),
    ],
)
def test_is_for_platform(tag: str, platform: str, expected: bool) -> None:
    assert is_for_platform(f"{tag}.whl", platform) == expected


@pytest.mark.parametrize(
    ("requirement", "depends"),
    [
        ('demo; "cu126" == variant_label', True),
        ("demo; 'nvidia' in variant_namespaces and os_name == 'nt'", True),
        ("demo @ https://example.com/demo;variant_label=cu126/demo.whl", False),
        ('demo; extra == "variant_label"', False),
        ('demo[variant_label]; os_name == "nt"', False),
    ],
)
def test_a_requirement_depends_on_the_variant_by_its_marker_alone(
    requirement: str, *, depends: bool
) -> None:
    content = WheelContent(variant_json=None, requires=[requirement])
    assert list(content.markers) == ([requirement] if depends else [])


_LINES = ("Requires-Dist:", "requires-dist: six", "Requires-Dist :", "Name: demo", ":")
_OTHERS = ("From here", "é:", "text", " ", "\t", "\x0b", "\x85", "\u2028")
_ENDS = ("\r", "\n", "\r\n", "\n ", "\n\n")


@given(st.lists(st.sampled_from([*_LINES, *_OTHERS, *_ENDS]), max_size=12))
@settings(deadline=None)
def test_requirements_are_read_as_the_standard_library_reads_them(
    pieces: list[str],
) -> None:
    text = "".join(pieces)
    headers = HeaderParser().parsestr(text).get_all("Requires-Dist", [])
    # Python before 3.13 keeps the end of an empty line before an indented one.
    expected = tuple(str(value).lstrip(" \t\r\n") for value in headers)
    assert parse_requires(text.encode()) == expected
    name = str(HeaderParser().parsestr(text).get("Name", ""))
    assert first_header(text.encode(), "name") == name.strip()


METADATA = """\
Metadata-Version: 2.1
Name: My.demo
Version: 1.0
License: MIT
        more
Requires-Python: >=3.9, <4
Requires-Dist: other
Summary: \xe9

body
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", True),
        ("\n", "\r\n", True),
        ("\n\nbody\n", "", True),
        ("Requires-Python: >=3.9, <4\n", "", True),
        ("body", "Name : \r \x00", True),
        ("My.demo", "My.demo ", False),
        ("My.demo", " My.demo", False),
        ("My.demo", "\n My.demo", False),
        ("My.demo", "other", False),
        ("Name: ", "NAME: ", False),
        ("1.0", "1.0+cu126", False),
        ("1.0", "1.0\n\t", False),
        (">=3.9, <4", ">=3. 9", False),
        (">=3.9, <4", ">=3.9,,<4", False),
        (">=3.9, <4", ">=3.9,", False),
        (">=3.9, <4", "> =3.9", False),
        (">=3.9, <4", ", ,", False),
        (">=3.9, <4", f">={2**64}", False),
        (">=3.9, <4", ">=3.9\xa0", False),
        (">=3.9, <4", "", False),
        ("other", "other;\n extra == 'z'", False),
        ("Metadata", " Metadata", False),
        ("MIT", "MIT\rother", False),
        ("MIT", "MIT\nother", False),
        ("MIT", "MIT\nA b: c", False),
        ("MIT", "MIT\nA: b" + "\nA: b" * 19_980, True),
        ("MIT", "MIT\nA: b" + "\nA: b" * 20_000, False),
        ("\xe9", "\udce9", False),
    ],
)
def test_metadata_that_all_installers_read(old: str, new: str, expected: bool) -> None:
    """uv refuses a name with white space at its end, which pip accepts."""
    text = METADATA.replace(old, new)
    metadata = text.encode("utf-8", "surrogateescape")
    assert is_plain(metadata, "my_demo-1.0-py3-none-any-cu126.whl") is expected


def test_large_lists_of_members_are_parsed_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of 4 MiB takes 60 MB, and wheels of 32 lists are read at the same time."""
    events: list[str] = []

    class Turn:
        def __enter__(self) -> None:
            events.append("parse")

        def __exit__(self, *_: object) -> None:
            events.append("end")

    class File(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            events.append("list" if len(data) > 256 * 1024 else "read")
            return data

    monkeypatch.setattr(archive, "_PARSING", Turn())
    for count, expected in ((1, ["read"]), (5000, ["list", "parse", "end", "read"])):
        members = {f"kern/{number:050}.h": b"" for number in range(count)}
        path = stub_wheel(tmp_path, "kern", "1.0", members=members)
        events.clear()
        metadata = read_own_metadata(path.name, File(path.read_bytes()))
        assert first_header(metadata, "Name") == "kern"
        # No request is made while other threads wait.
        assert [x for x, _ in groupby(events)][-len(expected) :] == expected


@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_own_metadata(path.name, io.BytesIO(path.read_bytes())),
        lambda path: read_wheel(str(path)),
        lambda path: read_wheel_metadata(path, "cu126"),
    ],
)
def test_only_a_few_members_are_kept(
    read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may send a member slowly, after a list of 89,000 members."""
    kept: list[int] = []
    original = zipfile.ZipFile.open

    def record(self: zipfile.ZipFile, *words: Any, **options: Any) -> Any:
        kept.append(max(len(self.filelist), len(self.NameToInfo)))
        return original(self, *words, **options)

    monkeypatch.setattr(zipfile.ZipFile, "open", record)
    members = {f"kern-1.0.dist-info/{number}": b"" for number in range(99)}
    path = stub_wheel(
        tmp_path, "kern", "1.0", "cu126", variant_json=of_one("cu126"), members=members
    )
    kept.clear()
    assert read(path)
    assert 1 <= max(kept) <= 3


def test_of_many_files_of_one_name_two_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "kern-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("kern-1.0.dist-info/METADATA", "Name: kern")
        for number in range(9):
            wheel.writestr(f"{number}.dist-info/WHEEL", "")
    with open_wheel(str(path), only("METADATA", "WHEEL")) as opened:
        assert len(opened.infolist()) == 3
    with pytest.raises(InputError, match=r"has 2 files \*\.dist-info/WHEEL"):
        read_wheel(str(path))
