"""The GPU code of distributions is read once for each content."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest
from support.containers import library
from support.gpu_wheels import binary
from support.stacks import Installed, make_environment

from nvp import api
from nvp.doctor.distributions import (
    Distribution,
    find_distributions,
)
from nvp.doctor.software import CodeReader
from nvp.gpu_code.report import WheelReport

FILES = {"demo/__init__.py": b"", "demo/lib.so": binary("plain.so")}


def archive() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("lib.so", binary("plain.so"))
    return content.getvalue()


def installed(prefix: Path, item: Installed) -> Distribution:
    return find_distributions([str(make_environment(prefix, item))])[item.name]


def read(prefix: Path, cache: Path, item: Installed) -> tuple[WheelReport | None, bool]:
    """Read a distribution, and return whether its files were read."""
    opened: list[str] = []
    reader = CodeReader(str(cache), watch=lambda name: _Watch(opened, name))
    report = reader.read(installed(prefix, item))
    return report, bool(opened)


class _Watch:
    def __init__(self, opened: list[str], name: str) -> None:
        opened.append(name)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def test_the_report_is_that_of_inspect(tmp_path: Path) -> None:
    item = Installed(files=FILES, requires=["nvidia-cuda-runtime==13.0.48"])
    report, _ = read(tmp_path / "env", tmp_path / "cache", item)
    assert report is not None
    (library,) = report.libraries
    file = tmp_path / "env/lib/python3.11/site-packages/demo/lib.so"
    (expected,) = api.inspect(file).libraries
    assert library.targets == expected.targets
    assert report.requires == ("nvidia-cuda-runtime==13.0.48",)


def test_a_second_run_reads_no_library(tmp_path: Path) -> None:
    item = Installed(files=FILES)
    first, was_read = read(tmp_path / "env", tmp_path / "cache", item)
    assert was_read
    second, was_read = read(tmp_path / "env", tmp_path / "cache", item)
    assert not was_read
    assert second == first


def test_another_file_with_the_same_size_and_time_is_read(tmp_path: Path) -> None:
    """Containers have environments in the same directory, and may share a cache."""
    (code, fake), prefix = (library("75_real"), library("90_real")), tmp_path / "env"
    reports = []
    for content in (fake, code):
        distribution = installed(prefix, Installed(files={"demo/lib.so": code}))
        path = Path(distribution.locate("demo/lib.so"))
        path.write_bytes(content)
        os.utime(path, ns=(10**18, 10**18))
        reports.append(CodeReader(str(tmp_path / "cache")).read(distribution))
    assert [x and {*x.libraries[0].targets} for x in reports] == [
        {"90_real"},
        {"75_real"},
    ]


def test_another_environment_is_read_too(tmp_path: Path) -> None:
    cache, times = tmp_path / "cache", []
    for name in ("one", "other"):
        prefix = tmp_path / name
        installed(prefix, Installed(files=FILES))
        for path in prefix.rglob("lib.so"):
            os.utime(path, ns=(10**18, 10**18))
            times.append(path.stat().st_mtime_ns)
        found = find_distributions([str(prefix / "lib/python3.11/site-packages")])
        opened: list[str] = []
        reader = CodeReader(str(cache), watch=lambda name: _Watch(opened, name))  # noqa: B023
        assert reader.read(found["demo"]) is not None
        assert opened == ["demo"]
    assert times == [10**18] * 2


@pytest.mark.parametrize("change", ["content", "time", "version"])
def test_a_change_is_seen(change: str, tmp_path: Path) -> None:
    read(tmp_path / "env", tmp_path / "cache", Installed(files=FILES))
    item = Installed(files=FILES, version="2.0" if change == "version" else "1.0")
    if change == "content":
        item = Installed(files={**FILES, "demo/lib.so": binary("ptx-only.so")})
    if change == "version":
        os.rename(
            tmp_path / "env/lib/python3.11/site-packages/demo-1.0.dist-info",
            tmp_path / "env/lib/python3.11/site-packages/demo-2.0.dist-info",
        )
    prefix = tmp_path / "env"
    if change == "time":
        distribution = installed(prefix, item)
        os.utime(distribution.locate("demo/lib.so"), ns=(1, 1))
        opened: list[str] = []
        reader = CodeReader(
            str(tmp_path / "cache"), watch=lambda name: _Watch(opened, name)
        )
        assert reader.read(distribution) is not None
        assert opened == ["demo"]
        return
    _, was_read = read(prefix, tmp_path / "cache", item)
    assert was_read


def test_a_damaged_cache_is_read_again(tmp_path: Path) -> None:
    item = Installed(files=FILES)
    first, _ = read(tmp_path / "env", tmp_path / "cache", item)
    (kept,) = (tmp_path / "cache").iterdir()
    for damage in (b"", b"{}", b"[1]", kept.read_bytes()[:-5]):
        kept.write_bytes(damage)
        os.utime(tmp_path / "env/lib/python3.11/site-packages/demo/lib.so", ns=(5, 5))
        os.utime(tmp_path / "env/lib/python3.11/site-packages/demo/lib.so", ns=(5, 5))
        again, _ = read(tmp_path / "env", tmp_path / "cache", item)
        assert again == first


def test_a_missing_file_is_a_defect_and_is_not_kept(tmp_path: Path) -> None:
    distribution = installed(tmp_path / "env", Installed(files=FILES))
    os.unlink(distribution.locate("demo/lib.so"))
    report = CodeReader(str(tmp_path / "cache")).read(distribution)
    assert report is not None
    assert [item.path for item in report.all_defects] == ["demo/lib.so"]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "item",
    [
        Installed(files=FILES, recorded=False),
        Installed(files={"demo/__init__.py": b"x = 1\n"}),
        # 30 archives of 1.5 MB that expanded to 45 GB took two minutes.
        Installed(files={"demo/a.zip": archive(), "demo/B.WHL": archive()}),
    ],
)
def test_nothing_to_look_into(item: Installed, tmp_path: Path) -> None:
    assert read(tmp_path / "env", tmp_path / "cache", item) == (None, False)
