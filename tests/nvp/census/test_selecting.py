"""The wheels of a page that a census reads."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.tags import Tag
from packaging.version import Version

from nvp.census.listing import select_wheels
from nvp.census.model import Options, Outcome, Status, Wheel
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


def test_no_tags_of_all_names_are_in_memory() -> None:
    """A name may have a hundred tags, and a page 200,000 names."""
    many = "-".join(".".join(f"{x}{i}" for i in range(4)) for x in ("cp3", "a", "p"))
    names = [f"demo-1.{i}-{many}.whl" for i in range(20)]
    before = sum(isinstance(item, Tag) for item in gc.get_objects())
    wheels = select_wheels("demo", listed(*names), Options())
    assert next(wheels).filename == names[-1]
    kept = sum(isinstance(item, Tag) for item in gc.get_objects()) - before
    assert kept <= 64
    assert len(list(wheels)) == 19


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
    ["repo;of=@/{}", "b;\udcff@/{}", "?id=@/{}", "{};of=@", "get;of=@?{}", "{}?for=@"],
)
@pytest.mark.parametrize("sha256", [None, "0" * 64])
def test_the_index_identifies_wheels_whose_urls_have_secrets(
    path: str, sha256: str | None, tmp_path: Path
) -> None:
    """A part of a URL may be a signature, or the name of a tenant of the server."""
    wheels = [
        Wheel(
            project="demo",
            version="1.0",
            filename=NAME,
            tags=f"cp312-cp312-{PLATFORM}",
            url=f"https://example.com/{path.format(NAME).replace('@', part)}",
            sha256=sha256,
            index=f"https://example.com/{tenant}/",
        )
        for tenant in ("a", "b")
        for part in ("x1", "x2")
    ]
    with Store(str(tmp_path / "census.sqlite")) as store:
        for number, wheel in enumerate(wheels):
            status: Status = "skipped" if number % 2 else "failed"
            store.add(Outcome(wheel=wheel, status=status))
        rows = [tuple(row) for row in store.wheels()]
        assert len(rows) == 2
        assert all(map(store.is_known, wheels))
    assert not any(part in str(rows) for part in ("x1", "x2"))


def test_the_urls_of_two_indexes_are_the_same_without_secrets() -> None:
    (wheel,) = select_wheels("demo", listed(NAME), Options())
    one, two = (replace(wheel, index=f"https://example.com/{x}/") for x in "ab")
    assert one.key == two.key


@pytest.mark.parametrize("secret", ["b", "****"])
def test_a_page_that_claims_a_hash_replaces_no_row_of_another_tenant(
    secret: str, tmp_path: Path
) -> None:
    """The store has no secrets, so the two wheels have the same URL there."""
    (wheel,) = select_wheels("demo", listed(NAME), Options())
    one, two = (
        replace(wheel, url=f"{wheel.url}?repo={name}", index=name, sha256="0" * 64)
        for name in ("a", secret)
    )
    with Store(str(tmp_path / "census.sqlite")) as store:
        store.add(Outcome(wheel=one, status="inspected", hashed=True))
        store.add(Outcome(wheel=two, status="skipped"))
        assert {row["status"] for row in store.wheels()} == {"inspected", "skipped"}


def test_versions_are_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 versions with one hash took 50 seconds."""
    names = [f"demo-{version}-py3-none-any.whl" for version in ("1", "1.0", "2.0")]
    monkeypatch.setattr(Version, "__hash__", None)
    assert selected(names, Options(releases=1)) == [names[2]]
    assert selected(names[:2], Options(releases=1)) != []
