"""The wheels of a page that a census reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvp.census.listing import select_wheels
from nvp.census.model import Options, Outcome, Wheel
from nvp.census.store import Store
from nvp.index.http.urls import IndexFile

PLATFORM = "manylinux_2_28_x86_64"
NAME = f"demo-1.0-cp312-cp312-{PLATFORM}.whl"


def listed(*names: str) -> list[IndexFile]:
    return [IndexFile(name=name, url=f"https://example.com/{name}") for name in names]


def selected(names: list[str], options: Options) -> list[str]:
    wheels = select_wheels("demo", listed(*names), options)
    return [wheel.filename for wheel in wheels]


WHEELS = [
    f"demo-1.0-cp39-cp39-{PLATFORM}.whl",
    f"demo-1.0-cp312-cp312-{PLATFORM}.whl",
    f"demo-1.0-cp310-cp310-{PLATFORM}.whl",
    "demo-1.0-cp312-cp312-win_amd64.whl",
    f"demo-1.1+cu126-cp312-cp312-{PLATFORM}.whl",
    f"demo-1.1+cu130-cp312-cp312-{PLATFORM}.whl",
    f"demo-1.1-cp312-cp312-{PLATFORM}-cu126.whl",
    f"demo-2.0rc1-cp312-cp312-{PLATFORM}.whl",
]


def test_one_wheel_for_each_release_platform_and_label() -> None:
    assert selected(WHEELS, Options()) == [
        f"demo-1.1+cu126-cp312-cp312-{PLATFORM}.whl",
        f"demo-1.1+cu130-cp312-cp312-{PLATFORM}.whl",
        f"demo-1.1-cp312-cp312-{PLATFORM}-cu126.whl",
        f"demo-1.0-cp312-cp312-{PLATFORM}.whl",
        "demo-1.0-cp312-cp312-win_amd64.whl",
        f"demo-2.0rc1-cp312-cp312-{PLATFORM}.whl",
    ]


def test_every_wheel() -> None:
    assert sorted(selected(WHEELS, Options(every_wheel=True))) == sorted(WHEELS)


def test_the_newest_releases_are_final_ones() -> None:
    names = selected(WHEELS, Options(releases=1))
    assert {name.split("-")[1].split("+")[0] for name in names} == {"1.1"}


@pytest.mark.parametrize("pattern", ["win_amd64", "win*", "*amd64"])
def test_platforms(pattern: str) -> None:
    names = selected(WHEELS, Options(platforms=[pattern]))
    assert names == ["demo-1.0-cp312-cp312-win_amd64.whl"]


def test_other_files_are_passed_over() -> None:
    names = [
        "demo-1.0.tar.gz",
        "other-1.0-py3-none-any.whl",
        "demo-new-py3-none-any.whl",
        "demo.whl",
        "x" * 300 + ".whl",
    ]
    assert selected(names, Options()) == []


def test_what_is_known_of_a_wheel() -> None:
    (wheel,) = select_wheels(
        "Demo.Kernels",
        [
            IndexFile(
                name=f"demo_kernels-1.0-1-cp312-cp312-{PLATFORM}-cu126.whl",
                url="https://example.com/x",
                sha256="ab" * 32,
                size=5,
            )
        ],
        Options(),
    )
    assert (wheel.project, wheel.version, wheel.label) == (
        *("demo-kernels", "1.0"),
        "cu126",
    )
    assert wheel.tags == f"cp312-cp312-{PLATFORM}"
    assert wheel.key == f"{wheel.url}#{wheel.filename}#sha256={'ab' * 32}"
    assert wheel.hash_key == f"sha256:{'ab' * 32}#{wheel.filename}"


def test_files_that_only_their_queries_name() -> None:
    """A page can give the hash of one file to another, so the key tells their URLs."""
    (wheel,) = listed_from("https://example.com/get?file=1")
    (other,) = listed_from("https://example.com/get?file=2")
    assert wheel.key != other.key
    name = wheel.filename
    (wheel,) = listed_from(f"https://example.com/{name}?signature=1")
    (other,) = listed_from(f"https://example.com/{name}?signature=2")
    assert wheel.key == other.key


def listed_from(url: str) -> list[Wheel]:
    name = f"demo-1.0-cp312-cp312-{PLATFORM}.whl"
    file = IndexFile(name=name, url=url, sha256="ab" * 32)
    return [*select_wheels("demo", [file], Options())]


@pytest.mark.parametrize(
    ("size", "kept"), [(5, 5), (0, 0), (None, None), (2**63 - 1, 2**63 - 1), (-1, None)]
)
def test_sizes(size: int | None, kept: int | None) -> None:
    file = replace(listed(WHEELS[0])[0], size=size)
    (wheel,) = select_wheels("demo", [file], Options())
    assert wheel.size == kept


def test_a_size_that_no_store_has_room_for() -> None:
    file = replace(listed(WHEELS[0])[0], size=10**30)
    (wheel,) = select_wheels("demo", [file], Options())
    assert wheel.size is None


@pytest.mark.parametrize(
    "path",
    ["repo;of=@/{}", "b;\udcff@/{}", "?id=@/{}", "{};of=@", "get;of=@?{}"],
)
def test_secret_parts_of_a_url_identify_a_wheel(path: str) -> None:
    (wheel,) = select_wheels("demo", listed(WHEELS[0]), Options())
    keys = {
        replace(
            wheel,
            url=f"https://example.com/{path.format(wheel.filename).replace('@', part)}",
            sha256=sha,
        ).key
        for part in "ab"
        for sha in (None, "0" * 64)
    }
    assert len(keys) == 4
    assert not any("=a" in key for key in keys)


def test_without_a_hash_the_query_distinguishes_files(tmp_path: Path) -> None:
    """Two tenants of a server may have files of the same name."""
    bare = Wheel(
        project="demo",
        version="1.0",
        filename=NAME,
        tags=f"cp312-cp312-{PLATFORM}",
        url=f"https://example.com/{NAME}",
    )
    one, two = (replace(bare, url=f"{bare.url}?repo={name}") for name in "ab")
    with Store(str(tmp_path / "census.sqlite")) as store:
        store.add(Outcome(wheel=one, status="inspected"))
        assert not store.is_known(two)
        store.add(Outcome(wheel=two, status="skipped"))
        assert {row["status"] for row in store.wheels()} == {"inspected", "skipped"}
        assert not any("repo=b" in str(tuple(row)) for row in store.wheels())
        # Earlier versions wrote this key for all queries.
        old = f"{bare.url}?repo=****#{NAME}"
        list(store.rows("UPDATE wheels SET key = ? WHERE id = 1", [old]))
        assert not store.is_known(one)
        store.add(Outcome(wheel=one, status="inspected"))
        assert store.is_known(one)
        assert len(list(store.wheels())) == 2
        # Another page may claim any hash for the same file.
        store.add(Outcome(wheel=bare, status="inspected"))
        store.add(Outcome(wheel=replace(bare, sha256="b" * 64), status="skipped"))
        assert store.is_known(bare)
        # With a hash, the query may be a signature.
        signed = replace(bare, url=f"{bare.url}?signature=1", sha256="a" * 64)
        store.add(Outcome(wheel=signed, status="inspected"))
        assert store.is_known(replace(signed, url=f"{bare.url}?signature=2"))
