"""The cost of an archive, and parts that its METADATA hides."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from nvp import api


def test_an_archive_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "demo-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo-1.dist-info/METADATA", "Requires-Dist: torch\n")
        archive.writestr("demo/a.so", b"\x7fELF")
    opened: list[object] = []

    class Counted(zipfile.ZipFile):
        def infolist(self) -> list[zipfile.ZipInfo]:
            opened.append(self)
            return super().infolist()

    monkeypatch.setattr(zipfile, "ZipFile", Counted)
    assert api.inspect(str(path)).requires == ("torch",)
    assert len(set(map(id, opened))) == 1


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_metadata_that_cannot_be_read_hides_nothing_else(
    method: int, tmp_path: Path
) -> None:
    path = tmp_path / "demo-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("demo-1.dist-info/METADATA", "Requires-Dist: torch\n" * 99)
        archive.writestr("demo/a.so", b"\x7fELF" * 40)
    data = path.read_bytes()
    at = data.index(b"METADATA") + len(b"METADATA")
    path.write_bytes(data[:at] + b"\xff" * 8 + data[at + 8 :])
    report = api.inspect(str(path))
    assert report.requires == ()
    assert [library.path for library in report.libraries] == ["demo/a.so"]
