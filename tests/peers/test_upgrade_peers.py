"""Upgraded metadata, read by uv 0.13.8 and variantlib 0.2.2.

Both refuse the file of the tutorial as it was published.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.documents import forced
from support.grids import some_of
from support.outcomes import REFUSED, uv_outcome
from support.paths import FIXTURES
from support.uv_installer import InstallError, UvIndex, uv_index
from support.variantlib_peer import by_priority, isolate, variantlib_outcome
from support.wheels import publish, stub_wheel

from nvidia_variant_provider.metadata import read_metadata
from nvidia_variant_provider.resolution.inputs import Priorities
from nvp import api
from nvp.metadata.checking import to_dict
from nvp.upgrading.upgrade import upgrade

FOLDER = FIXTURES / "variants-json"
TUTORIAL = FOLDER / "torch-2.8.0-variants.json"
SCHEMAS = sorted(FOLDER.glob("schema-*/*-variants.json"))
DRIVERS = ("11.8", "12.4", "12.6", "12.8", "12.9", "13.0")
CAPABILITIES = ("4.0", "5.0", "7.0", "7.5", "8.9", "9.0", "10.0", "12.0", "12.1")
GRID = [(cuda, sm) for cuda in DRIVERS for sm in CAPABILITIES]
H100 = forced("12.9", "9.0")


def document(path: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(path.read_bytes())
    return parsed


def upgraded(path: Path) -> dict[str, Any]:
    metadata = upgrade(read_metadata(path)).metadata
    assert metadata is not None
    return to_dict(metadata)


def labels_of_original(path: Path, cuda: str, sm: str) -> list[str]:
    resolution = api.resolve(path, priorities=Priorities(), environ=forced(cuda, sm))
    return ["null" if x == "00000000" else x for x in resolution.compatible]


@pytest.fixture(scope="module")
def projects(index: UvIndex) -> list[str]:
    """The release of the tutorial, upgraded from each schema version."""
    return [index.publish(upgraded(path)) for path in (TUTORIAL, *SCHEMAS)]


# By default, these are six of the machines: one GPU for each driver.
@pytest.mark.parametrize(("cuda", "sm"), some_of(GRID, len(CAPABILITIES) + 1))
def test_uv_installs_what_we_select_of_the_original(
    cuda: str, sm: str, index: UvIndex, projects: list[str]
) -> None:
    wanted = labels_of_original(TUTORIAL, cuda, sm)[0]
    installed = index.install(projects, forced(cuda, sm))
    assert installed == [wanted] * len(projects)


@pytest.mark.parametrize("path", [TUTORIAL, SCHEMAS[0], SCHEMAS[1], SCHEMAS[2]])
def test_both_refuse_the_original(
    path: Path, index: UvIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate(monkeypatch, tmp_path)
    assert uv_outcome(index, document(path), H100) == REFUSED
    assert variantlib_outcome(document(path)) == REFUSED


@pytest.mark.parametrize(
    ("cuda", "sm"),
    some_of([("12.9", "12.0"), ("12.4", "9.0"), ("12.6", "7.0"), ("13.0", "8.9")], 4),
)
def test_variantlib_orders_as_we_order_the_original(
    cuda: str, sm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate(monkeypatch, tmp_path)
    for name, value in forced(cuda, sm).items():
        monkeypatch.setenv(name, value)
    wanted = labels_of_original(TUTORIAL, cuda, sm)
    assert by_priority(upgraded(TUTORIAL)) == wanted
    for path in SCHEMAS:
        assert by_priority(upgraded(path), ask_again=False) == wanted


def test_uv_refuses_wheels_that_were_not_upgraded(tmp_path: Path) -> None:
    """The file of the index is upgraded, and ``variant.json`` in the wheel is old."""
    with uv_index(tmp_path) as index:
        publish(tmp_path / "index", upgraded(TUTORIAL), "torch", "1.0")
        project = tmp_path / "index" / "torch"
        old = document(TUTORIAL)
        old["variants"] = {"cu129": old["variants"]["cu129"]}
        (project / "index.html").unlink()
        stub_wheel(project, "torch", "1.0", "cu129", variant_json=old)
        (project / "index.html").write_text(
            "".join(f'<a href="{x.name}">{x.name}</a>' for x in project.glob("*-*"))
        )
        with pytest.raises(InstallError, match=r"variant\.json"):
            index.install(["torch"], H100)


# --for-uv

PUBLISHED = FIXTURES / "published"
NAMED_FOR_OTHERS = ["torch-2.9.0", "torch-2.10.0", "torchvision-0.25.0"]


@pytest.mark.parametrize("release", NAMED_FOR_OTHERS)
def test_uv_selects_gpu_builds_of_published_releases(
    release: str, index: UvIndex
) -> None:
    """Without the option every user of uv gets the CPU build of these releases."""
    path = PUBLISHED / f"{release}-variants.json"
    plain = api.upgrade(path).document
    for_uv = api.upgrade(path, for_uv=True).document
    assert plain is not None
    assert for_uv is not None
    projects = [index.publish(plain), index.publish(for_uv)]
    for cuda, sm, label in (
        ("12.6", "7.0", "cuda12.8"),
        ("12.9", "6.1", "cuda12.6"),
        ("13.0", "9.0", "cuda13.0"),
        ("11.8", "8.0", "null"),
    ):
        machine = forced(cuda, sm)
        assert index.install(projects, machine) == ["null", label]
        assert api.resolve(path, priorities=Priorities(), environ=machine).selected == (
            label
        )


def test_wheels_have_to_name_the_provider_for_uv_as_well(tmp_path: Path) -> None:
    """uv selects by the file of the index, and then asks by ``variant.json``."""
    path = PUBLISHED / "torch-2.10.0-variants.json"
    plain, for_uv = api.upgrade(path).document, api.upgrade(path, for_uv=True)
    assert plain is not None
    assert "build the wheels with it too" in str(for_uv.notes)
    with uv_index(tmp_path) as index:
        project = index.publish(plain)
        assert for_uv.text is not None
        name = project.replace("-", "_")
        folder = tmp_path / "index" / project
        file = folder / f"{name}-1.0-variants.json"
        file.write_text(for_uv.text)
        page = folder / "index.html"
        names = sorted(item.name for item in folder.iterdir() if item != page)
        page.write_text("".join(f'<a href="{name}">{name}</a>' for name in names))
        with pytest.raises(InstallError):
            index.install([project], H100)
