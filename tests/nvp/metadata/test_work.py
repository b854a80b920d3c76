"""The work for requirements of strangers is proportional to the size of the page."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import cpython_tags
from packaging.version import Version
from simple_repository import model
from support.builds import machine
from support.judged_pages import make_judge

from nvp.builds import stepping_back
from nvp.builds.needs import Backend, parse_backend
from nvp.builds.page import Build, PageVisibility, Visibility
from nvp.builds.stepping_back import Limits, follow
from nvp.builds.verdicts import Judgement, Verdict
from nvp.doctor.checks.replacing import find_companions
from nvp.index.pip.explain import explain_builds, find_requirements
from nvp.index.pip.installed import Installed
from nvp.index.pip.written import _find_uncovered
from nvp.index.selection import judging, renaming
from nvp.index.selection.renaming import Wheel
from nvp.index.selection.visibility import PageVerdicts
from nvp.index.server.served_locks import LockableRelease, LockableWheel, read_lockable
from nvp.metadata.requirements import Work
from nvp.wheels.archive import parse_wheel_name

YANKED = Visibility(action="yank", reason="it needs a newer driver")
SHOWN = Visibility(action="show")

T = TypeVar("T")


def clauses(number: int) -> str:
    """Return 49 clauses, which no other number has."""
    return ",".join(f"!=3.{number}.{minor}" for minor in range(49))


def build(version: str, verdict: Verdict = "cannot") -> Build:
    parsed = Version(version)
    return Build(
        file=f"kern-{version}-py3-none-linux_x86_64.whl",
        version=parsed,
        backend=parse_backend(parsed.local),
        judgement=Judgement(verdict=verdict, reasons=("it needs CUDA 13",)),
        platform="linux_x86_64",
    )


@pytest.fixture(name="steps")
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the comparisons of clauses with versions."""
    steps = [0]
    contains, select = SpecifierSet.contains, SpecifierSet.filter

    def counting(self: SpecifierSet, item: Any, **options: Any) -> bool:
        steps[0] += len(self)
        return contains(self, item, **options)

    def selecting(
        self: SpecifierSet, items: Iterable[Any], **options: Any
    ) -> Iterator[Any]:
        items = list(items)
        steps[0] += len(self) * len(items)
        return iter(list(select(self, items, **options)))

    monkeypatch.setattr(SpecifierSet, "contains", counting)
    monkeypatch.setattr(SpecifierSet, "filter", selecting)
    return steps


def test_limits_are_compared_with_a_part_of_the_builds(steps: list[int]) -> None:
    """METADATA of 25 KB took 18 seconds on the page of each project that it named."""
    limits = Limits({"kern": SpecifierSet(">=1")})
    limits.note(f"kern{clauses(number)}" for number in range(50))
    builds = [build(f"1.{number}+cu130") for number in range(2000)]
    files = {each.file: YANKED for each in builds}
    decided = []

    def decide(some: Any) -> PageVisibility:
        decided.append(len(some))
        return PageVisibility(files={}, newest=None, backends={})

    _, taken = limits.find_left("kern", builds, files, decide)
    assert taken == builds[-1]
    assert 2000 < steps[0] < 1_300_000
    assert sum(decided) < 40_000


def test_the_limits_of_a_run_are_bounded() -> None:
    """Each wheel of 31 KB took 200 MB for the rest of the run."""
    limits = Limits()
    for project in range(3):
        extras = [
            f"r{project}-{number}{clauses(number)}; extra == 'z'"
            for number in range(2000)
        ]
        limits.note([*extras, f"own{project}==1"])
    known = limits._known
    assert sum(len(each) for limit in known.values() for each in limit) < 50_000
    assert "own0" in known


def test_requirements_without_limits_are_work_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """METADATA of 4 MB may have 100,000 names of projects."""
    parsed = []

    def parse(text: str) -> Requirement:
        parsed.append(text)
        return Requirement(text)

    monkeypatch.setattr(stepping_back, "parse_requirement", parse)
    limits = Limits()
    limits.note(f"project-with-a-long-name-{number}" for number in range(60_000))
    limits.note(["own==1"])
    assert 20_000 < len(parsed) < 50_000


def test_a_companion_is_compared_with_a_part_of_the_leader(steps: list[int]) -> None:
    leader = [build(f"2.{number}+cu126", "runs") for number in range(3000)]
    cuda = parse_backend("cu126")
    assert cuda is not None
    backends: dict[Version, Backend] = {each.release: cuda for each in leader}
    visibility = PageVisibility(
        files={each.file: SHOWN for each in leader},
        newest=leader[-1].release,
        backends=backends,
    )
    companions = [build(f"1.{number}+cu126", "runs") for number in range(64)]
    requirements = {
        each.release: f"torch>1,{clauses(number)}"
        for number, each in enumerate(companions)
    }
    followed = follow(companions, requirements, leader, visibility)
    assert {*followed.values()} == {cuda}
    assert len(followed) == 64
    assert 0 < steps[0] < 1_400_000


def _run(requires: Iterable[str]) -> Any:
    taken = build("0.1+cu118", "runs")
    builds = [build(f"1.{number}+cu130") for number in range(2000)]
    files = {each.file: YANKED for each in builds} | {taken.file: SHOWN}
    visibility = PageVisibility(files=files, newest=taken.release, backends={})
    page = PageVerdicts(project="kern", builds=[*builds, taken], visibility=visibility)
    installed = (
        Installed(project="kern", version="0.1+cu118", label=None, file=taken.file),
        Installed(project="bare", version="1", label=None, requires=tuple(requires)),
    )
    return SimpleNamespace(
        installed=installed,
        command=SimpleNamespace(asked=()),
        pages=lambda project: [page] if project == "kern" else [],
    )


def test_a_requirement_is_explained_once(steps: list[int]) -> None:
    """A wheel of 1 KB took 16 seconds."""
    run = _run([f"kern{clauses(1)}"] * 200)
    assert len(find_requirements(run)["kern"]) == 1
    (explained,) = explain_builds(run)
    assert len(explained.passed_over[0].versions) == 2000
    assert 0 < steps[0] < 300_000


def test_different_requirements_are_explained_within_limits(steps: list[int]) -> None:
    run = _run(f"kern{clauses(number)}" for number in range(200))
    (explained,) = explain_builds(run)
    assert explained.required_by == ()
    assert 0 < steps[0] < 1_000_000


def test_markers_of_a_lock_file_are_evaluated_within_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """60 requirements of 16 KB took 24 seconds."""
    evaluated = []
    real = Marker.evaluate

    def evaluate(self: Marker, *arguments: Any, **options: Any) -> bool:
        evaluated.append(self)
        return real(self, *arguments, **options)

    monkeypatch.setattr(Marker, "evaluate", evaluate)
    extras = " or ".join(f"extra == '{number}'" for number in range(300))
    requires = tuple(f"r{n}; ({extras}) and os_name == 'q'" for n in range(60))
    names = {label: f"kern-1.0-py3-none-any-{label}.whl" for label in "ab"}
    release = LockableRelease(
        wheels=tuple(
            LockableWheel(
                name=name,
                wheel=Wheel(file_name=name, parts=parse_wheel_name(name)),
                file=model.File(
                    filename=name, url=f"https://x.example/{name}", hashes={}
                ),
            )
            for name in names.values()
        ),
        metadata=None,
        requires={"a": (), "b": ("r0; extra == 'x' and os_name == 'q'", *requires)},
    )
    uncovered = _find_uncovered(release, {"kern": "1.0"}, names["a"])
    assert uncovered == {"b": "it requires r0, which is not locked"}
    assert 2 <= len(evaluated) < 1000


@pytest.mark.parametrize(("long", "most"), [(1, 100), (300_000, 4)])
def test_metadata_of_some_labels_is_read_for_a_lock_file(long: int, most: int) -> None:
    """METADATA of 4 MiB was read for each label."""
    labels = [f"l{number}" for number in range(200)]
    asked = []
    names = [f"kern-1.0-py3-none-any-{label}.whl" for label in labels]
    files = tuple(
        model.File(filename=name, url=f"https://x.example/{name}", hashes={})
        for name in names
    )

    async def read_requirements(_: str, file: model.File, __: object) -> Any:
        asked.append(file.filename)
        return ("r" * long,)

    resolution = SimpleNamespace(
        compatible=["l7"],
        metadata=SimpleNamespace(variants=dict.fromkeys(labels)),
        properties=lambda _: (),
    )
    shown = SimpleNamespace(
        resolution=resolution, project="kern", version="1.0", offers=()
    )
    page = SimpleNamespace(
        files=files,
        judged=SimpleNamespace(apply=lambda files: files),
        find_offer=lambda _: (shown, None),
    )

    async def recall(_: str) -> Any:
        return page

    repository: Any = SimpleNamespace(
        recall=recall, evaluator=SimpleNamespace(read_requirements=read_requirements)
    )
    release = asyncio.run(read_lockable(repository, "kern", names[7]))
    assert release is not None
    assert len(release.wheels) == 200
    assert asked[0] == names[7]
    assert 3 <= len(release.requires) < len(asked) <= most


def test_tags_of_machines_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tags of two wheels of each of a thousand releases took 80 seconds."""
    listed = []

    def tags(*arguments: Any, **options: Any) -> Iterator[Any]:
        listed.append(arguments)
        return cpython_tags(*arguments, **options)

    monkeypatch.setattr(renaming, "cpython_tags", tags)
    for start in range(10, 40):
        platforms = ".".join(f"manylinux_2_{start + n}_x86_64" for n in range(5))
        names = [
            f"kern-1-{python}-none-{platforms}-{label}.whl"
            for label, python in (("a", "py310"), ("b", "py310.py311"))
        ]
        (release,) = renaming.group(names, "kern").values()
        first, second = renaming.make_offers(release, ["a", "b"])
        assert first.name.startswith("kern-1-2a-py310.py311-none-")
        assert second.name.startswith("kern-1-1b-py310.py311-none-")
    assert len(listed) < 20


def _listed(project: str, versions: Iterable[str], size: int) -> list[model.File]:
    names = (
        f"{project}-{version}-cp311-cp311-manylinux_2_28_x86_64.whl"
        for version in versions
    )
    return [
        model.File(filename=x, url=f"https://x.example/{x}", hashes={}, size=size)
        for x in names
    ]


def _judge(
    releases: int, repeated: int, builds: int = 1
) -> tuple[list[Build], list[str]]:
    """Judge releases that require torch, which runs, and xformers, which does not.

    :param repeated: how often METADATA has each requirement.
    :returns: the builds, and the names of the wheels whose METADATA was read.
    """
    pages = {
        project: _listed(project, [f"9.{n}+{label}" for n in range(300)], 1) * builds
        for project, label in {"torch": "cu126", "xformers": "cu130"}.items()
    }
    read = []

    async def read_metadata(_: str, file: model.File, parse: Callable[[bytes], T]) -> T:
        read.append(file.filename)
        number = int(file.filename.split("-")[1].partition(".")[2])
        requires = (f"Requires-Dist: {x}{clauses(number)}\n" for x in pages)
        lines = "".join(requires) * repeated
        text = f"Name: kern\nVersion: 1.{number}\n{lines}"
        return await asyncio.to_thread(parse, text.encode())

    async def read_page(project: str) -> list[model.File]:
        return pages[project]

    environment = machine("12.8", "8.0")
    judge = make_judge(environment, read_metadata, read_page, print)
    files = _listed("kern", (f"1.{number}" for number in range(releases)), 50_000_000)
    found, _ = asyncio.run(judge.judge("kern", files))
    return found, read


def test_releases_are_compared_within_limits(steps: list[int]) -> None:
    """64 releases with 7 requirements of 49 clauses took 44 seconds."""
    builds, read = _judge(64, 1)
    assert builds[0].judgement.verdict == "cannot"
    assert len(read) == 64
    assert 0 < steps[0] < 1_100_000


def test_requirements_of_releases_are_parsed_within_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parsing 9,000 requirements of each release took 23 seconds."""
    parsed = []
    in_loop = []

    def parse(text: str) -> Requirement:
        parsed.append(len(text))
        if threading.current_thread() is threading.main_thread():
            in_loop.append(text)  # where it blocked all pages for 20 seconds
        return Requirement(text)

    monkeypatch.setattr("packaging.requirements.Requirement", parse)
    builds, read = _judge(9, 500)
    assert builds[0].judgement.verdict == "cannot"
    assert len(read) == 9
    assert 100_000 < sum(parsed) < 1_100_000
    assert 0 < len(in_loop) <= 5 * len(read)


def test_requirements_are_compared_beside_other_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A requirement on ``torch===a`` stopped all pages for 14 seconds."""
    threads = set()
    select = SpecifierSet.filter

    def selecting(self: SpecifierSet, items: Any, **options: Any) -> Iterator[Any]:
        threads.add(threading.current_thread())
        return iter(list(select(self, items, **options)))

    monkeypatch.setattr(SpecifierSet, "filter", selecting)
    _judge(2, 1)
    assert threads
    assert threading.main_thread() not in threads


def test_a_comparison_of_texts_takes_more_work() -> None:
    """``===`` makes a text of each version, which takes 50 times as long."""
    for clause, some in (("===1.0", 100), ("==1.0", 500)):
        work, left = Work(), some
        while work.parses(SpecifierSet(clause), 1000):
            left -= 1
        assert left in range(100)


def test_companions_are_compared_with_each_other_once() -> None:
    """Each of 8,000 users of torch was compared with all found before."""
    hashed = []

    class Name(str):
        __slots__ = ()

        def __hash__(self) -> int:
            hashed.append(self)
            return super().__hash__()

    torch = Name("torch")
    users = [
        SimpleNamespace(name=f"user{number}", is_library=False) for number in range(99)
    ]
    needs = [SimpleNamespace(user=user, is_exact=True) for user in users]
    stack: Any = SimpleNamespace(
        needs_by_name={"torch": needs}, distributions={}, linked_with_torch=()
    )
    assert find_companions(stack, torch) == users
    assert len(hashed) < 9


def test_equal_verdicts_of_a_release_are_kept_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """40,000 builds of a release of torch were compared for each of 1,000 labels."""
    compared = []

    def find(_: str, judged: Mapping[Version, Sequence[object]]) -> None:
        compared.append(max(map(len, judged.values())))

    monkeypatch.setattr(judging, "find_refusal", find)
    _judge(2, 1, builds=50)
    assert compared
    assert max(compared) == 1
