"""The pages of a project on several indexes are judged by the same evidence.

Otherwise, each of them could withdraw its files for those of the others, and an
installer would find none.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from simple_repository import model
from support.exposed import TAGS, VERSION, Item, index_of, pick, selection_for, wheel
from support.label_index import Pages
from support.loopback import JSON

from nvp.index.http.client import Client
from nvp.index.http.urls import UpstreamError
from nvp.index.selection import indexes, options, visibility, wheel_files
from nvp.index.selection.component import VariantRepository, select
from nvp.index.selection.evidence import Followed, Part
from nvp.index.selection.indexes import Indexes, state_of
from nvp.index.selection.options import Pins, Target, parse_pins
from nvp.index.selection.reader import Reader

Builds = Mapping[str, Sequence[str]]
"""The requirements of each build of a project, keyed by its version."""


class Index(Pages):
    """An index with METADATA of its wheels, which it may send only sometimes.

    :param fails: the numbers of the requests for METADATA that fail.
    :param sends: METADATA is sent only after this event.
    :param signs: whether the URLs of files differ in each reply, as signed URLs do.
    :param extra: the value of a key that no standard defines, on each page.
    """

    def __init__(
        self,
        number: int,
        projects: Mapping[str, Builds],
        fails: Sequence[int] = (),
        *,
        sends: asyncio.Event | None = None,
        signs: bool = False,
        extra: object = None,
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
            pages[project] = json.dumps({**document, "extra": extra})
        url = f"https://{number}.example/simple/"
        super().__init__(pages, contents, url=url, kind=JSON)
        self._left, self._signs, self._replies = list(fails), signs, 0
        self._sends = sends

    async def get_project_page(
        self, project_name: str, **context: Any
    ) -> model.ProjectDetail:
        page = await super().get_project_page(project_name, **context)
        if not self._signs:
            return page
        self._replies += 1
        files = []
        for file in page.files:
            url = f"{file.url}?signature={self._replies}"
            url = url.replace("files.", f"files{self._replies}.")
            files.append(replace(file, url=url))
        return replace(page, files=tuple(files))

    async def get_resource(
        self, project_name: str, resource_name: str, **context: Any
    ) -> model.Resource:
        await (self._sends.wait() if self._sends else asyncio.sleep(0))
        if len(self.asked) in self._left:
            self.asked.append(resource_name)
            raise UpstreamError("HTTP 503 Service Unavailable", self.url)
        return await super().get_resource(project_name, resource_name, **context)


def open_indexes(
    *indexes: Index,
    target: Target | None = None,
    warn: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> list[VariantRepository]:
    """Return the components for an installer.

    :param options: further options of `Selection`.
    """
    selection = replace(selection_for(target, {}), **options)
    return select(indexes, selection=selection, reader=Reader(Client()), warn=warn)


async def read(each: VariantRepository) -> list[model.File]:
    return list((await each.get_project_page("kern")).files)


def versions(files: Sequence[model.File]) -> list[str]:
    """Return the versions of the files that an installer may take."""
    return [file.filename.split("-")[1] for file in files if not file.yanked]


LEADER: Mapping[str, Builds] = {"torch": {"2.9.0+cu118": []}}


@pytest.mark.parametrize("leading", [0, 1])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_index_has_the_required_project(order: Sequence[int], leading: int) -> None:
    """Each index withdrew its build for that of the other, and pip found none."""
    kern: Sequence[Builds]
    kern = {"1.0+cu118": [], "1.1a1+cu118": []}, {"1.0+cu126": ["torch"]}
    torch: list[Mapping[str, Builds]] = [{}, {}]
    torch[leading] = LEADER
    pair = [Index(number, {"kern": kern[number], **torch[number]}) for number in (0, 1)]
    components = open_indexes(*pair)

    async def run() -> dict[int, list[str]]:
        return {number: versions(await read(components[number])) for number in order}

    second = {0: ["1.1a1+cu118"], 1: ["1.0+cu126"]}
    left = second if leading else {0: ["1.0+cu118", "1.1a1+cu118"], 1: ["1.0+cu126"]}
    assert asyncio.run(run()) == left


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("signs", [False, True])
def test_metadata_that_is_sent_only_sometimes(*, at_once: bool, signs: bool) -> None:
    """The page of one index was judged without it, and that of the other with it."""
    projects: Mapping[str, Builds] = {"kern": {"1.0+cu118": ["torch"]}, **LEADER}
    first = Index(0, projects, fails=[0], signs=signs)
    components = open_indexes(first, Index(1, {"kern": {"1.0+cu126": []}}))

    async def run() -> list[list[model.File]]:
        if at_once:
            return await asyncio.gather(*map(read, components))
        return [await read(each) for each in components]

    pages = asyncio.run(run())
    assert sorted(map(versions, pages)) == [[], ["1.0+cu126"]]
    assert first.asked == [f"{wheel('1.0+cu118').name}.metadata"]


def test_a_page_with_a_deep_key() -> None:
    """The comparison with the last page was a RecursionError on all indexes."""
    deep: object = {}
    for _ in range(300):
        deep = {"a": deep}
    pair = Index(0, {"kern": {"1.0": []}}), Index(1, {"kern": {"1.0": []}}, extra=deep)
    component, _ = open_indexes(*pair)

    async def run() -> list[list[str]]:
        return [versions(await read(component)) for _ in range(2)]

    assert asyncio.run(run()) == [["1.0"], ["1.0"]]


def test_what_is_shared_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requirements of 1,200 projects took 700 MB, which were not counted."""
    monkeypatch.setattr(indexes, "_MEMORY", 1_000_000)
    made: list[str] = []

    def part(length: int) -> Part:
        required = {Version("1"): {"torch": "x" * length}}
        return Part(builds=(), judged=(), required=required, late=frozenset())

    async def run() -> None:
        every = Indexes([Index(0, {}), Index(1, {})])

        async def ask(key: str, length: int) -> None:
            async def work() -> Part:
                made.append(key)
                return part(length)

            await every.once(key, lambda: 0, work)

        for key in ("a", "a", "b", "a", "b", "a"):
            await ask(key, 600_000 if key == "b" else 300_000)
        assert made == ["a", "b"]
        await ask("c", 300_000)
        await ask("b", 600_000)
        assert made == ["a", "b", "c", "b"]
        own = part(900_000)

        async def follow() -> Followed:
            return Followed(name=None, backends={}, part=own, late=frozenset())

        await every.once("d", lambda: own, follow)
        await ask("a", 300_000)
        assert made[4:] == ["a"]

    asyncio.run(run())


def test_what_is_shared_does_not_change_while_it_is_used() -> None:
    """After a minute or ten, evidence changed between two pages of a command."""

    async def run() -> None:
        now, made = [0.0], list[float]()
        every = Indexes([Index(0, {}), Index(1, {})], lambda: now[0])

        async def work() -> Part:
            made.append(now[0])
            return Part(builds=(), judged=(), required={}, late=frozenset())

        async def use(*seconds: float) -> None:
            for now[0] in seconds:
                await every.once("kern", lambda: 0, work)

        await use(0, 54, 62, 121, *range(500, 1095, 50))
        assert made == [0, 500]
        await use(1095, 1101, 1140)  # one installer reads its pages
        assert made == [0, 500]
        await use(*range(1185, 2400, 10))  # there is always one
        assert made == [0, 500, 1185, 2385]
        await every.once("kern", lambda: 1, work)  # the page has changed
        assert made[4:] == [2395]

    asyncio.run(run())


def test_what_is_shared_changes_with_each_yanked_file() -> None:
    """A file with an empty reason, which uv counts as yanked, changed nothing."""
    index = index_of(0, [wheel("1.0+cu126", yanked=True)])
    text = index.pages["kern"]
    states = []
    for reason in ('"CVE"', '""', "false"):
        index.pages = {"kern": text.replace('"CVE"', reason)}
        states.append(state_of(asyncio.run(index.get_project_page("kern")).files))
    assert len({*states}) == 3


@pytest.mark.parametrize("label", ["cu126", None])
def test_a_label_that_a_vendor_has(label: str | None) -> None:
    """Its build was passed over for one that the label excludes."""
    own, vendor = Index(0, {"kern": {"2.0+cu128": []}}), Index(1, {})
    vendor.pages = {"kern": own.pages["kern"].replace("cu128", "cu126")}
    vars(vendor)["is_vendor"] = True
    components = open_indexes(own, vendor, pins=Pins(everywhere=label))
    shown = [versions(asyncio.run(read(component))) for component in components]
    assert shown == ([[], ["2.0+cu126"]] if label == "cu126" else [["2.0+cu128"], []])


def test_a_required_project_on_a_page_that_only_others_can_read() -> None:
    """A release was passed over, because its torch was missing on that page."""

    class Odd(Index):
        async def get_project_page(
            self, project_name: str, **context: Any
        ) -> model.ProjectDetail:
            if project_name == "torch":
                raise UpstreamError("is not a page", self.url)
            return await super().get_project_page(project_name, **context)

    kern: Builds = {"2.0+cu126": ["torch==2.9.0"], "1.0+cu126": []}
    first = Index(0, {"kern": kern, "torch": {"2.9.0+cu130": []}})
    for second, shown in ((Index(1, {}), ["1.0+cu126"]), (Odd(1, {}), [*kern])):
        component, _ = open_indexes(first, second)
        assert versions(asyncio.run(read(component))) == shown


@pytest.mark.parametrize("requires", [[], ["numpy"]])
@pytest.mark.parametrize("own", ["1.0+cu130", "1.0+rocm6.3"])
def test_a_wheel_without_evidence_replaces_nothing(
    own: str, requires: Sequence[str]
) -> None:
    """A stranger's wheel did if it was large, because METADATA of it was read."""
    stranger = Index(1, {"kern": {"1.0": requires}})
    component, _ = open_indexes(Index(0, {"kern": {own: []}}), stranger)
    assert versions(asyncio.run(read(component))) == [own]


def test_limits_of_python_do_not_stop_other_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page of 4 MB, with a limit for each file, stopped them for ten seconds."""
    find = options.find_pythons

    def find_in_thread(tags: str, requires_python: str | None) -> frozenset[int]:
        assert threading.current_thread() is not threading.main_thread()
        return find(tags, requires_python)

    monkeypatch.setattr(wheel_files, "find_pythons", find_in_thread)
    (component,) = open_indexes(Index(0, {"kern": {"1.0+cu126": [], "2.0a1": []}}))
    assert versions(asyncio.run(read(component))) == ["1.0+cu126", "2.0a1"]


@pytest.mark.parametrize("tag", ["cp311", "cp312"])
def test_a_vendor_has_the_build_for_another_python(tag: str) -> None:
    """The index of the user had the release, but not for this Python."""
    target = Target(version=VERSION, tags=dict.fromkeys(TAGS))
    own, vendor = Index(0, {"kern": {"2.0+cu118": []}}), Index(1, {})
    vendor.pages = {"kern": own.pages["kern"].replace("cu118", "cu126")}
    own.pages = {"kern": own.pages["kern"].replace("cp311", tag)}
    vars(vendor)["is_vendor"] = True
    _, component = open_indexes(own, vendor, target=target)
    shown = versions(asyncio.run(read(component)))
    assert shown == ([] if tag == "cp311" else ["2.0+cu126"])


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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(KERNS, TORCHES), min_size=2, max_size=2))
def test_a_final_release_is_left_if_metadata_is_late(
    monkeypatch: pytest.MonkeyPatch, drawn: Sequence[tuple[Builds, Builds]]
) -> None:
    """The page of an index is then judged without the builds of the other one."""
    monkeypatch.setattr(indexes, "LATE", 0.02)
    monkeypatch.setattr(visibility, "LATE", 0.02)
    monkeypatch.setattr(visibility, "LEAST", 0.01)
    (kern, torch), (other, leader) = drawn

    async def run() -> tuple[list[model.File], list[model.File]]:
        sends = asyncio.Event()
        first = Index(0, {"kern": kern, "torch": torch})
        second = Index(1, {"kern": other, "torch": leader}, sends=sends)
        components = open_indexes(first, second)
        shown = await read(components[0])
        sends.set()
        alone = [await index.get_project_page("kern") for index in (first, second)]
        files = [file for page in alone for file in page.files]
        return files, shown + await read(components[1])

    alone, shown = asyncio.run(run())
    finals = [
        any(not Version(version).is_prerelease for version in versions(files))
        for files in (alone, shown)
    ]
    assert finals[1] >= finals[0]


def test_a_slow_index_does_not_hide_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """uv, which took nothing from the slow index, got a build that cannot run."""
    monkeypatch.setattr(visibility, "LEAST", 0.05)
    first = Index(0, {"kern": {"3.0+cu130": [], "2.0+cu128": []}})
    second = Index(1, {"kern": {"1.0+cu126": []}}, sends=asyncio.Event())
    component, _ = open_indexes(first, second)
    assert versions(asyncio.run(read(component))) == ["2.0+cu128"]


def test_a_pre_release_of_another_index_meets_no_requirement() -> None:
    """pip found no release that fits, because the pre-release seemed to fit."""
    first = Index(0, {"kern": {"1.0+cu130": [], "0.9+cu126": []}})
    second = Index(1, {"kern": {"2.0a1": []}})
    target = Target(version=VERSION, tags=dict.fromkeys(TAGS))
    limits = {"kern": SpecifierSet(">=1.0")}
    component, _ = open_indexes(first, second, target=target, limits=limits)
    shown = versions(asyncio.run(read(component)))
    assert shown == ["1.0+cu130", "0.9+cu126"]


def test_a_label_on_a_late_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip took a release without the label, and nobody said why."""
    monkeypatch.setattr(indexes, "LATE", 0.1)
    monkeypatch.setattr(indexes, "LEAST", 0.1)

    class Late(Index):
        async def get_project_page(self, *_: object, **__: object) -> NoReturn:
            await asyncio.Event().wait()
            raise AssertionError

    warnings: list[str] = []
    first, late = Index(0, {"kern": {"1.0": []}}), Late(1, {})
    pins = parse_pins(["cu126"])
    component, _ = open_indexes(first, late, pins=pins, warn=warnings.append)
    assert versions(asyncio.run(read(component))) == ["1.0"]
    reason = "another index is late"
    assert warnings == [f"not all labels of kern are known, because {reason}"]
