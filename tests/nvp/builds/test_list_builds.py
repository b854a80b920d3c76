"""The wheels and the METADATA for the table of builds."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version
from support.index_server import serve
from support.wheels import stub_wheel, write_page

from nvidia_variant_provider.machine.environment import CudaVersion
from nvp.builds.needs import requirements_on
from nvp.index.http.blocking import BlockingClient
from nvp.index.http.urls import IndexFile
from tools.list_builds import (
    choose,
    list_wheels,
    read_metadata,
    record_of_metadata,
)
from tools.list_builds import (
    write_page as write_chosen,
)

LINUX = "linux_x86_64"
NCCL = 'nvidia-nccl-cu12; platform_system == "Linux" and platform_machine != "aarch64"'


def file(tags: str, version: str = "2.0", size: int = 9, time: float = 5) -> IndexFile:
    name = f"Demo-{version}-{tags}.whl"
    url = f"https://wheels.example/{name}?a=1&b"
    return IndexFile(name=name, url=url, size=size, time=time, sha256="0" * 64)


class TestList:
    def test_one_wheel_of_each_final_release_and_platform(self) -> None:
        files = [
            file("cp39-cp39-manylinux2014_x86_64"),
            file("cp313-cp313-manylinux2014_x86_64"),
            file("cp313-cp313-win_amd64"),
            file("cp313-cp313-macosx_11_0_arm64"),
            file("py3-none-any", "1.0"),
            file("py3-none-any", "2.0rc1"),
            file("py3-none-any", "0.9", time=3),
            IndexFile(name="demo-2.0.tar.gz", url="", time=5),
            IndexFile(name="other-2.0-py3-none-any.whl", url="", time=5),
        ]
        listed = list_wheels("demo", files, 4)
        assert {(str(v), p): f for (v, p), f in listed.items()} == {
            ("1.0", "any"): files[4],
            ("2.0", LINUX): files[1],
            ("2.0", "win_amd64"): files[2],
        }

    def test_a_much_smaller_wheel_for_an_older_linux_has_no_gpu_code(self) -> None:
        small = file("py3-none-manylinux2014_x86_64", size=5)
        large = file("py3-none-manylinux_2_28_x86_64", size=250)
        for files in ([small, large], [large, small]):
            assert [*list_wheels("demo", files, 0).values()] == [large]

    def test_named_releases_and_all(self) -> None:
        tags = "py3-none-manylinux2014_x86_64"
        files = [file(tags, version) for version in ("1.0", "2.0", "3.0")]
        listed = list_wheels("demo", [*files, file("py3-none-win_amd64")], 0)
        assert [*choose(listed, {LINUX: "3.0 1.0"}).values()] == [files[0], files[2]]
        assert [*choose(listed, {LINUX: "*"}).values()] == files
        assert choose(listed, {}) == {}

    def test_a_release_without_such_a_wheel(self) -> None:
        with pytest.raises(ValueError, match=r"'2\.0'"):
            choose(list_wheels("demo", [file("py3-none-any")], 0), {LINUX: "2.0"})


def test_metadata_is_read_from_the_index_or_from_the_wheel(tmp_path: Path) -> None:
    folder = tmp_path / "xgboost"
    tag = "py3-none-manylinux2014_x86_64"
    stub_wheel(folder, "xgboost", "0.1", tag=tag, requires=["numpy", NCCL])
    stub_wheel(folder, "xgboost", "0.2", tag=tag, requires=["numpy"])
    write_page(folder)
    beside = (
        "Metadata-Version: 2.1\nName: xgboost\nVersion: 0.3\nRequires-Dist: torch\n"
    )
    wheel = stub_wheel(folder, "xgboost", "0.3", tag=tag)
    wheel.with_name(f"{wheel.name}.metadata").write_text(beside)
    # The table has this release from its wheel, and the other file is not a wheel.
    (folder / f"xgboost-3.3.0-{tag}.whl").write_bytes(b"")
    write_page(folder)
    with serve(tmp_path) as url, BlockingClient() as client:
        page = client.read_page(f"{url}xgboost/")
        listed = list_wheels("xgboost", page.files, 0)
        records = [*read_metadata(client, "xgboost", listed)]
        write_chosen(tmp_path / "chosen" / "xgboost", listed.values())
        chosen = client.read_page(f"{url}chosen/xgboost/")
    assert [(r.version, r.source) for r in records] == [
        ("0.1", "METADATA requires nvidia-nccl-cu12"),
        ("0.3", "METADATA"),
    ]
    assert records[0].needs.cuda == CudaVersion(12)
    assert records[1].needs.requires == ("torch",)
    assert [f.url for f in chosen.files] == [f.url for f in listed.values()]
    assert [f.sha256 for f in chosen.files] == [f.sha256 for f in listed.values()]


@pytest.mark.parametrize(
    ("platform", "cuda"),
    [(LINUX, (12, 0)), ("any", (12, 0)), ("linux_aarch64", None), ("win_amd64", None)],
)
def test_requirements_of_another_platform_do_not_count(
    platform: str, cuda: tuple[int, int] | None
) -> None:
    metadata = f"Metadata-Version: 2.1\nRequires-Dist: {NCCL}\n".encode()
    record = record_of_metadata("xgboost", Version("2.1"), platform, metadata, "")
    assert (record and record.needs.cuda) == cuda


@pytest.mark.parametrize(
    ("text", "platforms"),
    [
        ("a", "linux_x86_64 linux_aarch64 win_amd64"),
        ("a; python_version < '3'", "linux_x86_64 linux_aarch64 win_amd64"),
        ("a; extra == 'b'", "linux_x86_64 linux_aarch64 win_amd64"),
        ("a; extra == 'b' and os_name == 'nt'", "win_amd64"),
        ("a; sys_platform == 'win32' and python_version < '3.9'", "win_amd64"),
        ("a; platform_machine == 'AMD64'", "win_amd64"),
        ("a; platform_machine == 'aarch64'", "linux_aarch64"),
        ("a; platform_system != 'Windows'", "linux_x86_64 linux_aarch64"),
        ("a; sys_platform == 'darwin'", ""),
        ("not valid; sys_platform (", "linux_x86_64 linux_aarch64 win_amd64"),
        ("a; extra != 'b' and os_name == 'nt'", "win_amd64"),
    ],
)
def test_what_a_platform_requires(text: str, platforms: str) -> None:
    known = ("linux_x86_64", "linux_aarch64", "win_amd64")
    assert [p for p in known if requirements_on([text], p)] == platforms.split()
    assert requirements_on([text], None) == requirements_on([text], "any") == (text,)
