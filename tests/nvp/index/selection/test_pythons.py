"""The Pythons that the wheels of a page support."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from packaging.version import Version
from simple_repository import model
from support.builds import machine
from support.label_index import FILES, Pages

from nvp.index.http.client import Client
from nvp.index.selection import options
from nvp.index.selection.component import select
from nvp.index.selection.options import (
    Selection,
    Takers,
    Target,
    clauses_of,
    find_pythons,
    takers_of,
)
from nvp.index.selection.reader import Reader
from nvp.index.selection.wheel_files import find_installable, find_wheels
from nvp.index.server.places import _release
from nvp.index.server.rendering import respond_renamed
from nvp.wheels.archive import release_of_sdist


@pytest.mark.parametrize(
    ("tags", "requires_python", "pythons"),
    [
        ("cp312-cp312-any", None, {12}),
        ("cp312-cp312t-any", None, set()),
        ("cp38-abi3-any", ">=3.13", {13, 14, 15}),
        ("cp313-abi3-any", "<3.15", {13, 14}),
        ("py2.py3-none-any", ">=3.12,!=3.13.*,<3.15", {12, 14}),
        ("py312-none-any", "", {12, 13, 14, 15}),
        ("cp310.cp311-cp310.cp311-any", "<=3.10", set()),
        ("py3-none-any", "not a rule", {10, 11, 12, 13, 14, 15}),
        ("pp311-pypy311_pp73-any", None, set()),
        ("cp27-none-any", None, set()),
    ],
)
def test_the_pythons_that_take_a_wheel(
    tags: str, requires_python: str | None, pythons: set[int]
) -> None:
    assert find_pythons(tags, requires_python) == pythons


@pytest.fixture
def old_linux(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this machine have glibc 2.17."""
    own = frozenset({"linux_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"})
    monkeypatch.setattr(options, "default_platform", lambda: "linux_x86_64")
    monkeypatch.setattr(options, "_own_tags", lambda: own)
    options._fits.cache_clear()
    yield
    options._fits.cache_clear()


@pytest.mark.usefixtures("old_linux")
@pytest.mark.parametrize(
    ("rest", "requires_python", "is_sure"),
    [
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", ">=3.10", True),
        ("cp311-cp311-manylinux_2_98_x86_64", None, False),
        ("cp311-cp311-manylinux_2_98_x86_64.manylinux_2_17_x86_64", None, True),
        ("cp311-cp311-manylinux_2_98_x86_64.manylinux_2_17_aarch64", None, False),
        ("cp311-cp311-manylinux_2_0_x86_64", None, False),
        ("cp311-cp311-linux_odd_x86_64", None, False),
        ("cp311-cp311-manylinux_2_98_x86_64.win_amd64", None, False),
        ("cp311-cp311-win_amd64", None, True),
        ("cp38-abi3-linux_x86_64", ">=3.8.1, !=3.9.*,!=3.9.1,<4", True),
        ("py3-none-any", ">=3.11.0", True),
        ("py3-none-any", ">=3.11.4", False),
        ("py3-none-any", ">3.11", False),
        ("py3-none-any", "~=3.11.2", False),
        ("py3-none-any", "!=3.11.2", False),
        ("py3-none-any", "!=3.11.2.*", False),
        ("py3-none-any", "!= 3.12.1", False),
        ("py3-none-any", ">=3. 9", False),
        ("CP311-cp311-linux_x86_64", None, False),
    ],
)
def test_whether_every_client_of_this_machine_takes_a_wheel(
    rest: str, requires_python: str | None, is_sure: bool
) -> None:
    """pip and uv read the glibc, the patch release of Python, and odd texts."""
    name = f"demo-1.0+cu126-{rest}.whl"
    file = model.File(filename=name, url="", hashes={}, requires_python=requires_python)
    pythons = frozenset({11, 12})
    assert takers_of(file, pythons, None) == Takers(pythons, is_sure)
    target = Target(version="3.11.9", tags={})
    assert takers_of(file, pythons, target).is_sure


@pytest.mark.usefixtures("old_linux")
@pytest.mark.parametrize("tag", ["manylinux_2_98_x86_64", "manylinux_2_17_x86_64"])
def test_a_build_for_a_newer_glibc_withdraws_no_other(tag: str) -> None:
    """Behind `serve`, pip and uv took an older release, or found none."""
    names = [
        f"kern-2.0+cu128-cp311-cp311-{tag}.whl",
        "kern-2.0+cu126-cp311-cp311-manylinux_2_17_x86_64.whl",
    ]
    files = [
        {"filename": x, "url": f"{FILES}/{x}", "hashes": {}, "size": 9} for x in names
    ]
    page = json.dumps({"meta": {"api-version": "1.0"}, "name": "kern", "files": files})
    source = Pages({"kern": page}, kind="application/vnd.pypi.simple.v1+json")
    found = machine("12.8", "9.0")
    selection = Selection(machine=lambda: found, platform="linux_x86_64")
    reader = Reader(Client())
    (index,) = select([source], selection=selection, reader=reader, warn=pytest.fail)
    shown = asyncio.run(index.get_project_page("kern")).files
    yanked = [file.filename for file in shown if file.yanked]
    assert yanked == ([] if "98" in tag else names[1:])


@pytest.mark.usefixtures("old_linux")
def test_a_pre_release_beside_a_final_release_for_a_newer_glibc() -> None:
    """pip takes the pre-release if it can install no final one."""
    tags = {"1.0": "2_98", "2.0rc1": "2_17", "0.9": "2_17"}
    names = [
        f"demo-{v}-cp311-cp311-manylinux_{tag}_x86_64.whl" for v, tag in tags.items()
    ]
    files = [
        model.File(filename=name, url="", hashes={}, size=2_000_000) for name in names
    ]
    found = find_installable(find_wheels(files[:2], "demo"), None)
    assert [found[name, ""].pythons for name in names[:2]] == [{11}, {11}]
    found = find_installable(find_wheels(files, "demo"), None)
    assert (names[1], "") not in found


def test_name_with_a_billion_tags_is_not_installable() -> None:
    many = "py3." * 1000 + "py3"
    names = f"demo-1.0-{many}-{many}-{many}.whl", "demo-1.0-py3-none-any.whl"
    files = [
        model.File(filename=name, url=f"https://wheels.example/{name}", hashes={})
        for name in names
    ]
    found = find_installable(find_wheels(files, "demo"), None)
    assert [name for name, _ in found] == [names[1]]


def test_no_python_is_newer_than_those_of_the_newest_release() -> None:
    """Old wheels for the stable ABI name no last Python, and no client has one."""
    rules = {"3.0": "<3.14", "2.0": ">=3.9", "4.0rc1": None}
    files = [
        model.File(
            filename=f"demo-{version}-cp38-abi3-manylinux_2_28_x86_64.whl",
            url=f"https://wheels.example/{version}",
            hashes={},
            requires_python=rule,
        )
        for version, rule in rules.items()
    ]
    found = find_installable(find_wheels(files, "demo"), None)
    assert {
        Version(name.split("-")[1]): set(its.pythons)
        for (name, _), its in found.items()
    } == {
        Version("3.0"): {10, 11, 12, 13},
        Version("2.0"): {10, 11, 12, 13},
    }


@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("demo-1.0.tar.gz", "1.0"),
        ("my-demo-1.0+cu126.zip", "1.0"),
        *((f"demo-1.0rc1.tar.{kind}", "1.0rc1") for kind in ("bz2", "xz", "lzma")),
        ("demo-1.0.tbz", "1.0"),
        ("my-demo-1.0-1.tar.gz", "1.0.post1"),
        *((f"demo-1.0-{post}.zip", "1.0.post1") for post in ("r1", "post-1", "1")),
        ("demo-1.0-rc1.tar.gz", "1.0rc1"),
        ("demo-2-1.0.tar.gz", "1.0"),
        ("demo_2-1.tar.gz", "1"),
        ("demo-1.0_1.tar.gz", None),
        ("demo-1.0 .tar.gz", "1.0"),
        ("demo-1.0.tar.gz.asc", None),
        ("demo.zip", None),
        (f"demo-{'1' * 5000}.tar.gz", None),
    ],
)
def test_the_release_of_a_source_distribution(name: str, release: str | None) -> None:
    expected = None if release is None else Version(release)
    assert release_of_sdist(name) == expected


@pytest.mark.parametrize(
    ("project", "name", "release"),
    [
        ("demo-2", "demo-2-1.tar.gz", "1"),
        ("demo-2", "Demo_.2-1.0-1.zip", "1.0.post1"),
        ("demo", "demo-2-1.tar.gz", "2.post1"),
        ("demo", "demo-1.0+cu126.zip", "1.0"),
        ("demo", "demo-x-1.0.zip", None),
        ("a", "demo-1.0.zip", None),
    ],
)
def test_the_release_of_a_source_distribution_of_a_project(
    project: str, name: str, release: str | None
) -> None:
    expected = None if release is None else Version(release)
    assert release_of_sdist(name, project) == expected
    assert _release(model.File(name, "", {}), project) == expected


def test_the_clauses_of_a_limit_are_few() -> None:
    """METADATA of a wheel may have megabytes of them, and a page many wheels."""
    assert clauses_of(">=3.10, <4") == {">=3.10", "<4"}
    assert clauses_of(">=3. 10") == {">=3. 10"}
    many = ",".join(f"!=3.{n}" for n in range(100_000))
    (clause,) = clauses_of(many)
    assert many.startswith(clause)
    assert len(clause) == 500


def test_a_number_that_python_does_not_convert_is_no_version() -> None:
    """The listing of a project ended with a traceback."""
    name = f"demo-{'1' * 5000}"
    assert _release(model.File(f"{name}-variants.json", "", {}), "demo") is None
    assert respond_renamed([], "demo", f"{name}-1-py3-none-any.whl") is None
