"""The pages of a project on several indexes are judged by the same evidence.

Otherwise, each of them could withdraw its files for those of the others, and an
installer would find none.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simple_repository import model
from support.exposed import Item, pick, selection_for, wheel
from support.label_index import Pages
from support.loopback import JSON

from nvp.index.http.client import Client
from nvp.index.http.urls import UpstreamError
from nvp.index.selection import indexes
from nvp.index.selection.component import VariantRepository, select
from nvp.index.selection.options import parse_pins
from nvp.index.selection.reader import Reader

Builds = Mapping[str, Sequence[str]]
"""The requirements of each build of a project, keyed by its version."""


class Index(Pages):
    """An index with METADATA of its wheels, which it may send only sometimes.

    :param fails: the numbers of the requests for METADATA that fail.
    """

    def __init__(
        self, number: int, projects: Mapping[str, Builds], fails: Sequence[int] = ()
    ) -> None:
        pages: dict[str, str] = {}
        contents: dict[str, str] = {}
        for project, builds in projects.items():
            files = []
            for version, requires in builds.items():
                name = wheel(version).name.replace("kern", project)
                url = f"https://files.example/{number}/{name}"
                files.append(
                    {
                        "filename": name,
                        "url": url,
                        "hashes": {},
                        "size": 2_000_000,
                        "core-metadata": True,
                    }
                )
                lines = ["Metadata-Version: 2.1", f"Name: {project}"]
                lines += [f"Version: {version}"]
                lines += [f"Requires-Dist: {each}" for each in requires]
                contents[f"{name}.metadata"] = "\n".join([*lines, ""])
            document = {"meta": {"api-version": "1.0"}, "name": project, "files": files}
            pages[project] = json.dumps(document)
        url = f"https://{number}.example/simple/"
        super().__init__(pages, contents, url=url, kind=JSON)
        self._left = list(fails)

    async def get_resource(
        self,
        project_name: str,
        resource_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.Resource:
        await asyncio.sleep(0)
        if len(self.asked) in self._left:
            self.asked.append(resource_name)
            raise UpstreamError("HTTP 503 Service Unavailable", self.url)
        return await super().get_resource(
            project_name, resource_name, request_context=request_context
        )


def open_indexes(*indexes: Index) -> list[VariantRepository]:
    selection = selection_for(None, {})
    return select(
        indexes, selection=selection, reader=Reader(Client()), warn=lambda _: None
    )


async def read(each: VariantRepository) -> list[model.File]:
    return list((await each.get_project_page("kern")).files)


def versions(files: Sequence[model.File]) -> list[str]:
    """Return the versions of the files that an installer may take."""
    return [file.filename.split("-")[1] for file in files if not file.yanked]


LEADER: Mapping[str, Builds] = {"torch": {"2.9.0+cu118": []}}


@pytest.mark.parametrize("second", [{}, LEADER])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_requirements_of_all_builds_decide(
    order: Sequence[int], second: Mapping[str, Builds]
) -> None:
    """Each index withdrew its build for that of the other, and pip found none."""
    first = {} if second else LEADER
    pair = [
        Index(0, {"kern": {"1.0+cu118": [], "1.1a1+cu118": []}, **first}),
        Index(1, {"kern": {"1.0+cu126": ["torch"]}, **second}),
    ]
    components = open_indexes(*pair)

    async def run() -> dict[int, list[str]]:
        return {number: versions(await read(components[number])) for number in order}

    assert asyncio.run(run()) == {0: ["1.0+cu118", "1.1a1+cu118"], 1: []}


@pytest.mark.parametrize("at_once", [False, True])
def test_metadata_that_is_sent_only_sometimes(*, at_once: bool) -> None:
    """The page of one index was judged without it, and that of the other with it."""
    projects: Mapping[str, Builds] = {"kern": {"1.0+cu118": ["torch"]}, **LEADER}
    first = Index(0, projects, fails=[0])
    components = open_indexes(first, Index(1, {"kern": {"1.0+cu126": []}}))

    async def run() -> list[list[model.File]]:
        if at_once:
            return await asyncio.gather(*map(read, components))
        return [await read(each) for each in components]

    pages = asyncio.run(run())
    assert sorted(map(versions, pages)) == [[], ["1.0+cu126"]]
    assert first.asked == [f"{wheel('1.0+cu118').name}.metadata"]


REQUIRES: tuple[Sequence[str], ...]
REQUIRES = ([], ["torch"], ["torch==2.9.0"], ["torch==2.10.0"])
OWN_LABELS = ("", "+cu118", "+cu126", "+cu130", "+cpu")
KERNS = st.dictionaries(
    st.builds(
        "{}{}".format,
        st.sampled_from(("1.0", "1.0", "1.1", "2.0a1")),
        st.sampled_from(OWN_LABELS),
    ),
    st.sampled_from((*REQUIRES, ["nvidia-cublas-cu13"])),
    min_size=1,
    max_size=3,
)
TORCHES: st.SearchStrategy[Builds] = st.dictionaries(
    st.sampled_from(("2.9.0+cu118", "2.9.0+cu126", "2.10.0+cu130")),
    st.just(()),
)


@given(st.lists(st.tuples(KERNS, TORCHES), min_size=2, max_size=2), st.booleans())
def test_pip_finds_a_final_release(
    drawn: Sequence[tuple[Builds, Builds]],
    from_last: bool,
) -> None:
    pair = [
        Index(number, {"kern": kern, "torch": torch})
        for number, (kern, torch) in enumerate(drawn)
    ]

    async def run() -> list[model.File]:
        components = open_indexes(*pair)[:: -1 if from_last else 1]
        pages = [await read(each) for each in components]
        return [file for page in pages[:: -1 if from_last else 1] for file in page]

    alone = [
        file
        for index in pair
        for file in asyncio.run(index.get_project_page("kern")).files
    ]
    shown = asyncio.run(run())
    for pin in ("", "==1.0"):
        taken = pick(alone, pin, pre=False, sources=False)
        here = pick(shown, pin, pre=False, sources=False)
        assert (taken is None) == (here is None)
        if taken and here:
            early = [
                Item(url.rpartition("/")[2].replace("%2B", "+")).version.is_prerelease
                for url in (taken, here)
            ]
            assert early[0] >= early[1]


def test_a_label_on_a_late_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip took a release without the label, and nobody said why."""
    monkeypatch.setattr(indexes, "_LATE", 0.1)

    class Late(Index):
        async def get_project_page(self, *_: object, **__: object) -> NoReturn:
            await asyncio.Event().wait()
            raise AssertionError

    warnings: list[str] = []
    first, late = Index(0, {"kern": {"1.0": []}}), Late(1, {})
    pins = parse_pins(["cu126"])
    selection = replace(selection_for(None, {}), pins=pins)
    reader = Reader(Client())
    component, _ = select(
        [first, late], selection=selection, reader=reader, warn=warnings.append
    )
    assert versions(asyncio.run(read(component))) == ["1.0"]
    assert warnings == ["the labels of kern on a late index are unknown"]
