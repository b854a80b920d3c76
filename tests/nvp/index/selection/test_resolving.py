"""Resolving the releases of an index with the options of a selection."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from simple_repository import model
from support.documents import PROVIDER, TORCH_LABELS, document, of_one
from support.loopback import H100
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel, write_page

from nvidia_variant_provider.machine.environment import CudaVersion
from nvidia_variant_provider.metadata import VariantsMetadata, read_metadata
from nvidia_variant_provider.resolution.inputs import Priorities
from nvidia_variant_provider.resolution.resolver import Resolution
from nvp.index.http.client import Client
from nvp.index.http.threads import Turn
from nvp.index.selection import shown
from nvp.index.selection.component import VariantRepository
from nvp.index.selection.core_metadata import EvaluatedWheel, Evaluator
from nvp.index.selection.options import Selection
from nvp.index.selection.shown import ShownPage
from nvp.index.selection.variants import ReleaseResolver
from nvp.index.server.places import FolderUpstream
from nvp.index.server.served_locks import ListedUpstream
from nvp.metadata.requirements import SelectedVariant
from nvp.wheels.archive import MAX_REQUIRES

OPT_IN = {"NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY": "1"}


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({}, False),
        ({"environ": {}}, False),
        ({"environ": OPT_IN}, True),
        ({"minor_version_compatibility": True}, True),
    ],
)
def test_the_caller_passes_the_environment(
    given: dict[str, Any],
    fits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a driver for CUDA 12.7, the build for CUDA 12.8 needs the opt-in."""
    # The variables of this process do not count.
    for name, text in OPT_IN.items():
        monkeypatch.setenv(name, text)
    older = H100.replace(cuda_driver_version=CudaVersion(12, 7))
    selection = Selection(machine=lambda: older, priorities=Priorities(), **given)
    resolver = ReleaseResolver(selection)
    metadata = read_metadata(document(TORCH_LABELS))
    resolution = asyncio.run(resolver.resolve(metadata))
    assert ("cu128" in resolution.compatible) is fits


@pytest.mark.parametrize(
    ("has_files", "is_shared"), [(True, False), (True, True), (False, False)]
)
def test_the_metadata_of_a_page_is_bounded(
    has_files: bool, is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of 120 releases took a gigabyte, with half a megabyte compressed.

    1,000 releases that share a document took three minutes and 2.8 GB.
    """
    monkeypatch.setattr(shown, "_MOST_METADATA", 20_000)
    folder = tmp_path / "demo"
    folder.mkdir()
    for number in range(20):
        text = of_one("cu126")
        text["providers"] = {
            "nvidia": {
                **PROVIDER,
                "requires": ["x" * 3000 + f"{number}" * (not is_shared)],
            }
        }
        version = f"{number}.0"
        stub_wheel(folder, "demo", version, "cu126", variant_json=text)
        if has_files:
            (folder / f"demo-{version}-variants.json").write_text(json.dumps(text))
    selection = Selection(machine=lambda: H100, priorities=Priorities(), environ={})
    made = VariantRepository(FolderUpstream(tmp_path, Client()), selection=selection)
    for _ in range(2):
        _, page = asyncio.run(made.show("demo"))
        problems = [release.problem for release in page.releases.values()]
        assert 4 < problems.count(None) < 20
        assert any("MiB of metadata" in (problem or "") for problem in problems)


@pytest.mark.parametrize(
    ("marker", "most"), [("", 24), ("; 'nvidia' in variant_namespaces", 14)]
)
def test_metadata_of_the_wheels_of_a_page_is_bounded(
    marker: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """41 MB of METADATA took 2.4 GB of the disk, and 1.4 GB of memory."""
    for number in range(40):
        stub_wheel(
            tmp_path / "demo",
            "demo",
            f"{number}.0",
            "cu126",
            variant_json=of_one("cu126"),
            requires=[f"x{marker}"],
            extras=["x" * 16_000],
        )
    selection = Selection(machine=lambda: H100, priorities=Priorities(), rewrites=True)
    monkeypatch.setattr(shown, "_MOST_METADATA", 60_000)
    monkeypatch.setattr(shown, "_RELEASES", 1)
    made = VariantRepository(FolderUpstream(tmp_path, Client()), selection=selection)
    _, page = asyncio.run(made.show("demo"))
    newest = sorted(page.releases, key=Version, reverse=True)
    shows = [bool(page.releases[version].labels) for version in newest]
    assert 3 < sum(shows) < most
    assert shows == sorted(shows, reverse=True)
    for version in newest[sum(shows) :]:
        release = page.releases[version]
        reason = release.problem or release.unread["cu126"]
        assert "MiB of metadata" in reason


def show(files: list[model.File]) -> ShownPage:
    selection = Selection(machine=lambda: H100, priorities=Priorities(), rewrites=True)

    async def make() -> ShownPage:
        index, client = ListedUpstream({"demo": files}), Client()
        made = VariantRepository(index, selection=selection, client=client)
        _, page = await made.show("demo")
        await client.close()
        return page

    return asyncio.run(make())


def test_the_parts_of_wheels_that_are_read_for_a_page_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of members of 512 wheels took gigabytes, and minutes."""
    members = {f"{number:090}": b"" for number in range(3000)}
    paths = [
        stub_wheel(
            tmp_path,
            "demo",
            f"{number}.0",
            "cu126",
            variant_json=of_one("cu126"),
            members=members,
        )
        for number in range(8)
    ]
    answers = {f"/{path.name}": Answer(body=path.read_bytes()) for path in paths}
    monkeypatch.setattr(shown, "_MOST_METADATA", 25_000)
    monkeypatch.setattr(shown, "_RELEASES", 1)

    with serve_answers(answers) as server:
        urls = {path.name: f"{server.url}/{path.name}" for path in paths}
        page = show([model.File(*item, {}) for item in urls.items()])
        assert sum(server.sent.values()) < 5 * len(answers[f"/{paths[0].name}"].body)
    shows = [bool(page.releases[f"{number}.0"].labels) for number in range(8)]
    assert shows == sorted(shows)
    assert 0 < sum(shows) < 5


def test_metadata_that_cannot_be_used_is_not_read_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """METADATA with another hash took time, too, but did not count."""
    monkeypatch.setattr(shown, "_MOST_METADATA", 60_000)
    monkeypatch.setattr(shown, "_RELEASES", 1)
    text = of_one("cu126")
    paths = [
        stub_wheel(tmp_path, "demo", f"{number}.0", "cu126", variant_json=text)
        for number in range(20)
    ]
    answers = {f"/{path.name}": Answer(body=path.read_bytes()) for path in paths}
    answers |= {f"/{path.name}.metadata": Answer(body=b"another") for path in paths}
    with serve_answers(answers) as server:
        page = show(
            [
                model.File(
                    path.name,
                    f"{server.url}/{path.name}",
                    {},
                    dist_info_metadata={"sha256": "0" * 64},
                )
                for path in paths
            ]
        )
    assert not any(release.labels for release in page.releases.values())
    assert 0 < sum(".metadata" in request for request in server.requests) < 6


def test_markers_do_not_delay_other_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label with 50,000 values delayed all other pages for 8 seconds."""
    marked = ["x; 'nvidia' in variant_namespaces"]
    text = of_one("cu126")
    stub_wheel(
        tmp_path / "demo", "demo", "1", "cu126", variant_json=text, requires=marked
    )
    threads = set()
    of = SelectedVariant.of

    def record(label: str, resolution: Resolution) -> SelectedVariant:
        threads.add(threading.get_ident())
        return of(label, resolution)

    async def read() -> None:
        made = VariantRepository(
            FolderUpstream(tmp_path, Client()), selection=selection
        )
        file = (await made.get_project_page("demo")).files[0]
        await made.get_resource("demo", f"{file.filename}.metadata")
        assert isinstance(
            await made.get_resource("demo", file.filename), EvaluatedWheel
        )

    monkeypatch.setattr(SelectedVariant, "of", record)
    selection = Selection(machine=lambda: H100, priorities=Priorities(), rewrites=True)
    asyncio.run(read())
    assert threads
    assert threading.get_ident() not in threads


def test_pages_with_much_metadata_are_made_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty pages with three documents of 4 MB took 2.2 GB."""
    for name in "abcdef":
        stub_wheel(tmp_path / name, name, "1.0", "cu128")
        text = json.dumps(document(TORCH_LABELS)) + " " * 600_000
        (tmp_path / name / f"{name}-1.0-variants.json").write_text(text)
        write_page(tmp_path / name)
    active: list[int] = []
    most: list[int] = []
    resolve = ReleaseResolver.resolve

    async def record(self: ReleaseResolver, metadata: VariantsMetadata) -> Resolution:
        active.append(1)
        most.append(len(active))
        try:
            return await resolve(self, metadata)
        finally:
            active.pop()

    async def show() -> None:
        made = VariantRepository(
            FolderUpstream(tmp_path, Client()), selection=selection
        )
        for _ in range(2):  # the document is cached the second time
            pages = await asyncio.gather(*map(made.get_project_page, "abcdef"))
            assert all(any("cu128" in x.filename for x in p.files) for p in pages)

    monkeypatch.setattr(ReleaseResolver, "resolve", record)
    selection = Selection(machine=lambda: H100, priorities=Priorities(), environ={})
    asyncio.run(show())
    assert most == [1] * 12


def test_a_turn_that_is_over_is_not_taken() -> None:
    """Otherwise no other page with much metadata would ever be made."""

    async def check() -> None:
        lock = asyncio.Lock()
        await lock.acquire()
        async with Turn(lock) as turn:
            waiting = [asyncio.create_task(turn.take()) for _ in range(2)]
            await asyncio.sleep(0)
        lock.release()
        await asyncio.gather(*waiting)
        assert not lock.locked()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("requires", "is_clear"),
    [
        ("other >=", False),
        ("other<18446744073709551616; extra == 'x'", False),
        ("other @ file:x", False),
        ("other @ https:///x", False),
        ("other_", False),
        ("other; extra == 'z' and 'x' in extras", False),
        ("other; extra == 'extras'", True),
        ("other===abc", False),
        ("other; os_name === 'posix'", False),
        ("other @ https://h.example/other-1.0.zip", False),
        ("other (); extra == 'z'", False),
        ("other>=1.0,", False),
        ("other.zip", False),
        ("other; 'z' == 'z'", False),
        ("other; extra == '1'", False),
        ("other; extra == '=z'", False),
        ("other; platform_release >= '5'", False),
        ("other; 'x' not  in os_name", False),
        ("other; os_name == 'posix' or'x' in os_name", False),
        ("other; os_name == 'posix' and'x' not in os_name", False),
        ("other; (os_name == 'x')and('x' in os_name)or os_name=='y'", True),
        ("other~=1.0alpha1", False),
        ("other~=2023.03.6", False),
        ("other==1.00.*", False),
        ("other; python_version == '3.09.*'", False),
        ("other; python_version < '3.*'", False),
        ("other; python_version >= '1!1.0'", False),
        ("other; python_version < '3.9+x'", False),
        ("other; python_version == 'x'", False),
        ("other; 'x' in implementation_version", False),
        ("other; python_version in '2.7 3.9' or 'x' in os_name", True),
        ("other; python_implementation=='x' or 'x' in implementation_name", True),
        ("other==1.0+cu126,<1!2.0; python_full_version < '3.14.0rc1'", True),
        ("other~=1.0rc1,!=1.10.*,>=2023.03.6; python_version != '3.9.*'", True),
        ("other; extra == 'z'" + " or os_name == 'x'" * 120, False),
        ("other; ('x' not in os_name or python_version<'3.9') and extra=='3d'", True),
        ("other[a-b]>=1.0; python_version < '3.99'", True),
    ],
)
def test_a_variant_with_a_requirement_that_not_all_installers_read(
    requires: str, is_clear: bool, tmp_path: Path
) -> None:
    """pip and uv then took another index, and not the regular wheel of this one."""
    folder = tmp_path / "demo"
    for label, names in (("cu126", ()), ("cu128", (requires,))):
        document = of_one(label)
        stub_wheel(folder, "demo", "1.0", label, variant_json=document, requires=names)
    selection = Selection(machine=lambda: H100, priorities=Priorities(), rewrites=True)
    made = VariantRepository(FolderUpstream(tmp_path, Client()), selection=selection)
    _, page = asyncio.run(made.show("demo"))
    release = page.releases["1.0"]
    assert release.labels == (("cu128", "cu126") if is_clear else ("cu126",))
    reasons = [*release.unread.values()]
    assert all("not all installers read its requirement" in why for why in reasons)
    assert bool(reasons) is not is_clear


def test_a_variant_has_at_most_so_many_requirements(tmp_path: Path) -> None:
    """The last one may be invalid."""
    names = [f"x{number}" for number in range(MAX_REQUIRES + 1)]
    folder, text = tmp_path / "demo", of_one("cu126")
    stub_wheel(folder, "demo", "1.0", "cu126", variant_json=text, requires=names)
    selection = Selection(machine=lambda: H100, priorities=Priorities(), rewrites=True)
    made = VariantRepository(FolderUpstream(tmp_path, Client()), selection=selection)
    _, page = asyncio.run(made.show("demo"))
    assert page.releases["1.0"].unread.keys() == {"cu126"}


@pytest.mark.parametrize(
    ("limit", "regular", "is_shown"),
    [
        (">=3.12", {}, True),
        (">=3.12", {"py3-none-any": None}, False),
        (">=3.12", {"py3-none-any": ">=3.9"}, False),
        (">=3.9", {"py3-none-any": ">=3.9,<4"}, True),
        (">=3.12", {"cp312-cp312-win_amd64": ">=3.12", "py3-none-any": None}, False),
        (">=3.9", {"cp312-cp312-win_amd64": ">=3.9", "py3-none-any": ">=3.9"}, True),
        (">=3.12", {"sdist": None}, False),
        (">=3.9", {"sdist": None, "py3-none-any": ">=3.9"}, True),
        (">=3.12", {"damaged": None, "py3-none-any": ">=3.12"}, False),
        (None, {"damaged": None}, True),
    ],
)
def test_a_variant_for_fewer_versions_of_python_than_the_regular_files(
    limit: str | None, regular: dict[str, str | None], is_shown: bool, tmp_path: Path
) -> None:
    """Installers took another release, because they try one wheel of each."""
    folder, document = tmp_path / "demo", of_one("cu126")
    stub_wheel(
        folder, "demo", "1.0", "cu126", variant_json=document, requires_python=limit
    )
    for tag, own in regular.items():
        if tag == "sdist":
            (folder / "demo-1.0.tar.gz").write_bytes(b"")
        elif tag == "damaged":
            (folder / "demo-1.0-cp311-none-any.whl").write_bytes(b"PK")
        else:
            stub_wheel(folder, "demo", "1.0", tag=tag, requires_python=own)
    selection = Selection(machine=lambda: H100, priorities=Priorities(), rewrites=True)
    made = VariantRepository(FolderUpstream(tmp_path, Client()), selection=selection)
    _, page = asyncio.run(made.show("demo"))
    release = page.releases["1.0"]
    assert bool(release.labels) is is_shown
    if not is_shown:
        assert "fewer versions of Python" in release.unread["cu126"]


@pytest.mark.parametrize("limit", ["three", ">=3. 9", ",>=3.9", ">=3.9,", ", ,"])
def test_a_variant_with_a_limit_that_not_all_installers_read(
    limit: str, tmp_path: Path
) -> None:
    """uv passed over the release because of a space in the limit."""
    folder, own = tmp_path / "demo", of_one("cu126")
    stub_wheel(folder, "demo", "1.0", "cu126", variant_json=own, requires_python=limit)
    stub_wheel(folder, "demo", "1.0", requires_python=">=3.9")
    selection = Selection(machine=lambda: H100, priorities=Priorities(), rewrites=True)
    made = VariantRepository(FolderUpstream(tmp_path, Client()), selection=selection)
    _, page = asyncio.run(made.show("demo"))
    assert not page.releases["1.0"].labels
    assert "not all installers read" in page.releases["1.0"].unread["cu126"]


def test_metadata_of_all_labels_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label for which a server waits before it refuses must not delay the others."""
    labels = {"cu128": "py3-none-any", "cu126": "cp311-cp311-win_amd64"}
    for label, tag in labels.items():
        document = of_one(label)
        stub_wheel(
            tmp_path / "demo", "demo", "1.0", label, variant_json=document, tag=tag
        )
    asked: list[str] = []
    all_asked = asyncio.Event()

    async def look(*args: Any) -> str:
        asked.append(args[-2].filename)
        if len(asked) == len(labels):
            all_asked.set()
        await asyncio.wait_for(all_asked.wait(), 30)
        return "refused"

    async def show() -> ShownPage:
        made = VariantRepository(
            FolderUpstream(tmp_path, Client()), selection=selection
        )
        return (await made.show("demo"))[1]

    monkeypatch.setattr(Evaluator, "depends_on_variant", look)
    selection = Selection(machine=lambda: H100, priorities=Priorities(), rewrites=True)
    page = asyncio.run(show())
    assert page.releases["1.0"].unread.keys() == labels.keys()
