"""Resolving the releases of an index with the options of a selection."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.documents import PROVIDER, TORCH_LABELS, document, of_one
from support.loopback import H100
from support.wheels import stub_wheel, write_page

from nvidia_variant_provider.machine.environment import CudaVersion
from nvidia_variant_provider.metadata import VariantsMetadata, read_metadata
from nvidia_variant_provider.resolution.inputs import Priorities
from nvidia_variant_provider.resolution.resolver import Resolution
from nvp.index.http.threads import Turn
from nvp.index.selection import shown
from nvp.index.selection.component import VariantRepository
from nvp.index.selection.options import Selection
from nvp.index.selection.variants import ReleaseResolver
from nvp.index.server.places import FolderUpstream

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


@pytest.mark.parametrize("has_files", [True, False])
def test_the_metadata_of_a_page_is_bounded(
    has_files: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of 120 releases took a gigabyte, with half a megabyte compressed."""
    monkeypatch.setattr(shown, "_MOST_METADATA", 20_000)
    folder = tmp_path / "demo"
    folder.mkdir()
    for number in range(20):
        text = of_one("cu126")
        text["providers"] = {
            "nvidia": {**PROVIDER, "requires": ["x" * 3000 + f"{number}"]}
        }
        version = f"{number}.0"
        stub_wheel(folder, "demo", version, "cu126", variant_json=text)
        if has_files:
            (folder / f"demo-{version}-variants.json").write_text(json.dumps(text))
    selection = Selection(machine=lambda: H100, priorities=Priorities(), environ={})
    made = VariantRepository(FolderUpstream(tmp_path), selection=selection)
    for _ in range(2):
        _, page = asyncio.run(made.show("demo"))
        problems = [release.problem for release in page.releases.values()]
        assert 4 < problems.count(None) < 20
        assert any("MiB of metadata" in (problem or "") for problem in problems)


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
        made = VariantRepository(FolderUpstream(tmp_path), selection=selection)
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
