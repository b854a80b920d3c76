"""The stub wheels of the tests are as valid as published wheels."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import zipfile
from email.parser import Parser
from pathlib import Path

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from support.documents import TORCH
from support.variantlib_peer import run_command
from support.wheels import publish, stub_wheel, variants_json_name


def test_the_record_lists_every_file_with_its_hash(tmp_path: Path) -> None:
    path = stub_wheel(tmp_path, "torch", "2.9.1", "cu130", variant_json=TORCH)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        files = {name: archive.read(name) for name in archive.namelist()}
    record = "torch-2.9.1.dist-info/RECORD"
    rows = list(csv.reader(files[record].decode().splitlines()))
    assert [record, "", ""] in rows
    assert {row[0] for row in rows} == set(files)
    for name, digest, size in rows:
        if name != record:
            expected = hashlib.sha256(files[name]).digest()
            kind, _, text = digest.partition("=")
            assert kind == "sha256"
            assert base64.urlsafe_b64decode(f"{text}=") == expected
            assert int(size) == len(files[name])


def test_tags_and_metadata_agree_with_the_file_name(tmp_path: Path) -> None:
    tag = "cp311-cp311-manylinux_2_28_x86_64.manylinux_2_27_x86_64"
    path = stub_wheel(tmp_path, "Some-Name", "1.0", tag=tag, requires=["numpy>=2"])
    name, version, _, tags = parse_wheel_filename(path.name)
    assert (name, str(version)) == ("some-name", "1.0")
    with zipfile.ZipFile(path) as archive:
        info = "some_name-1.0.dist-info"
        wheel = Parser().parsestr(archive.read(f"{info}/WHEEL").decode())
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
    assert {Tag(*text.split("-")) for text in wheel.get_all("Tag", [])} == tags
    assert wheel["Root-Is-Purelib"] == "false"
    assert metadata.get_all("Requires-Dist") == ["numpy>=2"]


def test_variantlib_makes_the_same_metadata_of_the_wheels(tmp_path: Path) -> None:
    publish(tmp_path, TORCH, "torch", "2.9.1")
    path = tmp_path / "torch" / variants_json_name("torch", "2.9.1")
    published = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    run_command("generate-index-json", "--directory", str(path.parent))
    assert json.loads(path.read_text(encoding="utf-8")) == published == TORCH
