"""Another index has no page, or an odd page, of a project that a build requires."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import pytest
from packaging.version import Version
from simple_repository import model
from support.exposed import MACHINE
from support.judged_pages import make_judge
from support.label_index import Pages
from support.loopback import JSON
from support.required_projects import index_of as make_index
from support.required_projects import wheel

from nvp.index.http.client import Client
from nvp.index.http.urls import PassingError
from nvp.index.selection import evidence, indexes, judging, wheel_files
from nvp.index.selection.component import select
from nvp.index.selection.options import Selection, Target
from nvp.index.selection.reader import Reader

T = TypeVar("T")
Parse: TypeAlias = Callable[[bytes], T]

LINUX = "manylinux_2_17_x86_64"
TORCH = f"torch-9.0-cp311-cp311-{LINUX}.whl"
METADATA = {
    "kern-4.0+cu130": "",
    "kern-3.0": "torch==9.0",
    "kern-2.0": "nvidia-cuda-runtime-cu12",
    "torch-9.0": "nvidia-cuda-runtime-cu12",
}
"""The requirement of each wheel of the user's index. There is no torch 9.0."""

HONEST = "https://0.example"


def index_of(
    number: int,
    requires: Mapping[str, str | None],
    *,
    place: str = "",
    tag: str = "cp311-cp311",
) -> Pages:
    """Return an index; a wheel whose requirement is ``None`` has no METADATA."""
    wheels = {}
    for name, each in requires.items():
        tags = f"{tag}-{LINUX}"
        keys = {"url": f"{place}/{name}-{tags}.whl"} if place else {}
        wheels[name] = wheel(each, tags, **keys)
    return make_index(number, wheels)


def find_shown(own: Pages, other: Pages, is_first: bool) -> list[Version]:
    """Return the versions of kern that are shown on ``own``."""
    sources = [other, own] if is_first else [own, other]
    selection = Selection(machine=lambda: MACHINE, platform="linux_x86_64")
    reader = Reader(Client())
    found = select(sources, selection=selection, reader=reader, warn=lambda _: None)
    page = asyncio.run(found[sources.index(own)].get_project_page("kern"))
    return sorted(Version(x.filename.split("-")[1]) for x in page.files if not x.yanked)


OTHERS = {
    "no page": index_of(1, {}),
    "an unreadable page": Pages({"torch": "{"}, url="https://1.example/", kind=JSON),
    "a newer release": index_of(1, {"torch-9.1": "nvidia-cuda-runtime-cu12"}),
    "no METADATA": index_of(1, {"torch-9.0": None}, tag="cp310-cp310"),
    "a build that cannot run": index_of(
        1, {"torch-9.0": "nvidia-cuda-runtime-cu13"}, tag="cp310-cp310"
    ),
    "the same URL": index_of(1, {"torch-9.0": None}, place=HONEST),
    "the same URL, and a build that cannot run": index_of(
        1, {"torch-9.0": "nvidia-cuda-runtime-cu13"}, place=HONEST
    ),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("is_first", [True, False])
def test_another_index_does_not_decide_about_a_build(
    other: str, is_first: bool
) -> None:
    """It made kern 3.0 unknown or impossible, and pip took the older 2.0."""
    versions = find_shown(index_of(0, METADATA), OTHERS[other], is_first)
    assert versions == [Version("2.0"), Version("3.0")]


@pytest.mark.parametrize(
    ("own", "other", "shown"),
    [
        pytest.param(
            {"torchao-9.1+cpu": ""}, {"torchao-9.0+cu126": ""}, ["2.0"], id="own"
        ),
        pytest.param(
            {"torchao-9.0+cu126": ""}, {"torchao-9.1+cpu": ""}, ["2.0"], id="another"
        ),
        pytest.param(
            {"torchao-9.1+cpu": "", "torchao-9.0+cu126": ""}, {}, [], id="one index"
        ),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_build_may_require_a_cpu_build_of_its_own_index(
    own: Mapping[str, str], other: Mapping[str, str], shown: list[str], is_first: bool
) -> None:
    """A GPU build of another index made kern 2.0 impossible, and pip took 1.0."""
    kern = {"kern-2.0": "torchao==9.1", "kern-1.0+cu126": ""}
    versions = find_shown(index_of(0, {**kern, **own}), index_of(1, other), is_first)
    assert versions == [*map(Version, ["1.0+cu126", *shown])]


def test_pages_share_the_verdicts_on_a_required_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page of torch with 19,900 files was judged for each page that requires it."""
    judged: list[str] = []

    def find_wheels(files: Sequence[model.File], project: str, *more: Any) -> Any:
        judged.append(project)
        return wheel_files.find_wheels(files, project, *more)

    monkeypatch.setattr(judging, "find_wheels", find_wheels)
    names = [f"kern{letter}" for letter in "abcdefgh"]
    requires = {**METADATA, **{f"{name}-2.0": "torch" for name in names}}
    sources = index_of(0, requires), index_of(1, {"torch-8.0": ""})
    selection = Selection(machine=lambda: MACHINE, platform="linux_x86_64")
    reader = Reader(Client())
    own, _ = select(sources, selection=selection, reader=reader, warn=lambda _: None)

    async def read() -> None:
        await asyncio.gather(*map(own.get_project_page, names))

    asyncio.run(read())
    assert judged.count("torch") == 2  # once for each index
    assert sorted(set(judged)) == [*names, "torch"]


def test_a_large_page_of_another_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """It made nvp forget which files are of the user's own index."""
    monkeypatch.setattr(indexes, "_MOST", 3)
    kern = {"kern-2.0": "torchao==9.1", "kern-1.0+cu126": "", "torchao-9.1+cpu": ""}
    many = {f"torchao-9.0.{number}+cu126": "" for number in range(5)}
    versions = find_shown(index_of(0, kern), index_of(1, many), is_first=False)
    assert versions == [Version("1.0+cu126"), Version("2.0")]


def test_an_index_names_the_server_of_another_one() -> None:
    """64 requests for METADATA of its wheels used up the requests of the user."""
    requires = {"kern-9.0": "nvidia-cuda-runtime-cu13"}
    own = index_of(0, METADATA)
    other = index_of(1, requires, place=HONEST)
    assert find_shown(own, other, is_first=True)[-1] == Version("3.0")
    assert not any("kern-9.0" in name for name in other.asked)


@pytest.mark.parametrize("failures", [1, 3, 4])
def test_a_page_of_another_index_fails(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installers repeat a request after 503, but nvp judged without this index."""
    monkeypatch.setattr(indexes, "_PAUSES", (0.0, 0.0, 0.0))

    class Failing(Pages):
        async def get_project_page(
            self, *args: Any, **more: Any
        ) -> model.ProjectDetail:
            self.asked.append("page")
            if len(self.asked) <= failures:
                raise PassingError("HTTP 503", self.url, status=503)
            return await super().get_project_page(*args, **more)

    other = index_of(1, {"torch-9.1": "nvidia-cuda-runtime-cu12"})
    own = index_of(
        0,
        {
            "kern-2.0": "torch>=9",
            "kern-1.0": "torch==8.0",
            "torch-9.0+cu130": "",
            "torch-8.0": "nvidia-cuda-runtime-cu12",
        },
    )
    failing = Failing(other.pages, other.contents, url=other.url, kind=JSON)
    found = [Version("1.0"), Version("2.0")] if failures < 4 else [Version("1.0")]
    assert find_shown(own, failing, is_first=False) == found


@pytest.mark.parametrize(
    "marker",
    [
        "python_version >= '3.12'",
        "python_full_version < '3.11.5'",
        "implementation_name == 'pypy'",
    ],
)
@pytest.mark.parametrize("text", ["torch==99.0", "nvidia-cuda-runtime-cu13"])
def test_a_requirement_of_another_python(text: str, marker: str) -> None:
    """pip took kern 1.0 because of a torch that it would not have installed."""
    requires = {
        "kern-2.0": f"{text}; {marker}",
        "kern-1.0": "nvidia-cuda-runtime-cu12",
        "torch-99.0+cu130": "",
    }
    versions = find_shown(index_of(0, requires), index_of(1, {}), is_first=True)
    assert versions[-1] == Version("2.0")


def test_metadata_of_a_wheel_for_another_python() -> None:
    """It decided about the wheel that ``nvp pip`` can install."""
    names = (f"kern-9.0-{tag}-{tag}-{LINUX}.whl" for tag in ("cp312", "cp311"))
    kern = [model.File(filename=x, url=x, hashes={}, size=10**8) for x in names]

    async def read_metadata(name: str, file: model.File, parse: Parse[T]) -> T:
        cuda = 13 if "cp312" in file.filename else 12
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n"
        return parse(f"{head}Requires-Dist: nvidia-cuda-runtime-cu{cuda}\n".encode())

    async def read_page(_: str) -> Sequence[model.File]:
        return []

    target = Target(version="3.11.7", tags={f"cp311-cp311-{LINUX}": None})
    judge = make_judge(MACHINE, read_metadata, read_page, pytest.fail, target=target)
    builds, _ = asyncio.run(judge.judge("kern", kern))
    assert [build.judgement.verdict for build in builds] == ["runs", "runs"]


def test_a_required_page_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two waits of 20 seconds for a page that uv did not need: uv gave up."""
    monkeypatch.setattr(evidence, "PATIENCE", 0.2)
    hung: list[str] = []

    class Hanging(Pages):
        async def get_project_page(
            self, *args: Any, **more: Any
        ) -> model.ProjectDetail:
            if "torch" in args:
                hung.append("torch")
                await asyncio.Event().wait()
            return await super().get_project_page(*args, **more)

    source = index_of(0, {"kern-1.0+cu126": "torch", "other-1.0+cu126": "torch"})
    own = Hanging(source.pages, source.contents, url=source.url, kind=JSON)
    selection = Selection(machine=lambda: MACHINE, platform="linux_x86_64")
    reader = Reader(Client())
    (found,) = select([own], selection=selection, reader=reader, warn=lambda _: None)

    async def read() -> None:
        for name in ("kern", "other", "kern"):
            page = await asyncio.wait_for(found.get_project_page(name), 10)
            assert len(page.files) == 1

    asyncio.run(read())
    assert hung == ["torch"]


def find_beside(other: Mapping[str, str | None], **keys: object) -> list[Version]:
    """Return the versions of kern that are shown beside an index with one torch.

    :param keys: those of the file of torch.
    """
    own = {
        "kern-0.9": "torch==99.0",
        "kern-0.8": "torch==98.0",
        "torch-99.0": "nvidia-cuda-runtime-cu13",
        "torch-98.0": "nvidia-cuda-runtime-cu13",
    }
    source = index_of(1, other)
    document = json.loads(source.pages["torch"])
    document["files"][0] |= keys
    source.pages = {"torch": json.dumps(document)}
    return find_shown(index_of(0, own), source, is_first=False)


@pytest.mark.parametrize(
    "keys", [{"requires-python": "<3"}, {"yanked": True}, {"requires-python": ">=3.99"}]
)
def test_a_file_of_the_same_name_that_nobody_can_install(
    keys: dict[str, object],
) -> None:
    """It counted as a build that may run, so kern 0.8 took the place of 0.9."""
    assert find_beside({"torch-98.0": ""}, **keys) == find_beside({"torch-1.0": ""})


def test_markers_for_which_no_work_is_left() -> None:
    """METADATA of another index used up the work, and then every marker held."""
    own = {
        "kern-0.9": "torch==98.0",
        "kern-0.8": "torch==97.0",
        "torch-98.0": 'nvidia-cuda-runtime-cu13; platform_machine == "aarch64"',
        "torch-97.0": "nvidia-cuda-runtime-cu12",
    }
    lines = [f"p; platform_machine == '{'x' * length}'" for length in (400, 1)]
    lines = ["nvidia-cuda-runtime-cu13", *[lines[0]] * 2000, *[lines[1]] * 100]
    other = index_of(1, {"torch-99.0": "\nRequires-Dist: ".join(lines)})
    assert find_shown(index_of(0, own), other, is_first=False)[-1] == Version("0.9")


def test_another_index_does_not_decide_which_pythons_count() -> None:
    """Its torch for Python 3.10 was the newest one, so markers counted for 3.10."""
    own = {
        "kern-0.9": "torch==98.0",
        "kern-0.8": "torch==97.0",
        "torch-97.0": "nvidia-cuda-runtime-cu12",
        "torch-98.0": "nvidia-cuda-runtime-cu13; python_version < '3.11'",
    }
    other = index_of(1, {"torch-200.0": "nvidia-cuda-runtime-cu13"}, tag="cp310-cp310")
    source = index_of(0, own, tag="cp39-abi3")
    assert find_shown(source, other, is_first=False)[-1] == Version("0.9")
