"""The reactions of uv and pip to the defects of pages and RECORD, NV417 to NV421."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.client_outcomes import ON_PAGES
from support.documents import TORCH, forced
from support.release_cases import CLEAN, edit_wheel
from support.uv_installer import InstallError, Release, UvIndex, uv_index
from support.wheels import stub_wheel, wheel_name

from nvp import api
from nvp.lint.runner import check_paths

H100 = forced("13.0", "9.0")
ON_12 = forced("12.9", "9.0")
"""A machine that gets the build cu12 of the clean document."""


def link(folder: Path, changed: str, given: str | None) -> None:
    """Write the page of a project again, with another hash for one file."""
    page = folder / "index.html"
    text = page.read_text(encoding="utf-8")
    start = text.index(f"{changed}#sha256=") + len(changed)
    end = text.index('"', start)
    fragment = "" if given is None else f"#sha256={given}"
    page.write_text(text[:start] + fragment + text[end:], encoding="utf-8")


@pytest.mark.parametrize("code", ON_PAGES)
def test_uv_compares_hashes_where_there_are_any(code: str, tmp_path: Path) -> None:
    given, accepted = ON_PAGES[code]
    with uv_index(tmp_path) as index:
        project = index.publish(TORCH)
        wheel = wheel_name(project, "1.0", "cu130")
        link(tmp_path / "index" / project, wheel, given)
        assert code in {f.code for f in check_paths([f"{index.url}{project}/"])}
        if accepted:
            assert index.install([project], H100) == ["cu130"]
        else:
            with pytest.raises(InstallError, match=r"[Hh]ash"):
                index.install([project], H100)


@pytest.mark.parametrize("code", ON_PAGES)
def test_pip_compares_hashes_where_there_are_any(code: str, tmp_path: Path) -> None:
    given, accepted = ON_PAGES[code]
    with uv_index(tmp_path) as index:
        project = index.publish(TORCH)
        folder = tmp_path / "index" / project
        link(folder, wheel_name(project, "1.0"), given)
        command = [sys.executable, "-m", "pip", "--isolated", "download", "--no-deps"]
        command += ["--index-url", index.url, "--dest", str(tmp_path), project]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == accepted, done.stderr


def test_uv_believes_a_page_that_contradicts_the_wheel(
    index: UvIndex, root: Path
) -> None:
    release = Release(index, root)
    page = release.files / "index.html"
    link = f'<a href="{release.wheel.name}'
    text = page.read_text().replace(
        link, f'<a data-requires-python="&gt;=99"{link[2:]}'
    )
    page.write_text(text, encoding="utf-8")
    url = f"{index.url}{release.project}/"
    assert "NV419" in {f.code for f in api.validate([url])}
    # This wheel and the others are for every Python.
    with pytest.raises(InstallError, match="Python>=99"):
        index.install([release.project], ON_12)


@pytest.mark.parametrize(
    "damage",
    [
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("unlisted", "stale")),
        *("absent", "none"),
    ],
)
def test_installers_do_not_compare_record_but_need_one(
    damage: str, index: UvIndex, root: Path, tmp_path: Path
) -> None:
    release = Release(index, root)
    info = f"{release.wheel.name.partition('-py3')[0]}.dist-info"
    names, texts = {
        "unlisted": ({}, {f"{info}/WHEEL,": "gone,"}),
        "absent": ({}, {f"{info}/RECORD,,": f"{info}/RECORD,,\ngone.py,sha256=x,1"}),
        "stale": ({}, {"Generator: stub_wheel": "Generator: me"}),
        "none": ({"RECORD": "RECORDS"}, {}),
    }[damage]
    edit_wheel(release.wheel, names, texts, record=False)
    release.link()
    assert "NV420" in {f.code for f in api.validate([release.wheel])}
    command = [sys.executable, "-m", "pip", "--isolated", "install", "--no-deps"]
    plain = release.wheel.with_name(wheel_name(release.project, "1.0"))
    plain.write_bytes(release.wheel.read_bytes())
    command += ["--no-index", "--target", str(tmp_path / "pip"), str(plain)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is (damage != "none"), done.stderr
    if damage == "none":
        with pytest.raises(InstallError, match="RECORD"):
            index.install([release.project], ON_12)
    else:
        assert index.install([release.project], ON_12) == ["cu12"]


def test_uv_downloads_a_wheel_to_read_its_metadata(index: UvIndex, root: Path) -> None:
    release = Release(index, root)
    members = {"large.bin": random.Random(1).randbytes(17 * 1024 * 1024)}
    own = {**CLEAN, "variants": {"cu12": CLEAN["variants"]["cu12"]}}
    stub_wheel(
        release.files,
        release.project,
        "1.0",
        "cu12",
        variant_json=own,
        members=members,
    )
    release.link()
    url = f"{index.url}{release.project}/"
    assert "NV421" in {f.code for f in api.validate([url])}
    assert index.install([release.project], ON_12, dependencies=True) == ["cu12"]
