"""The indexes of vendors, as pages of the recorded form on a server of the test."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.builds import machine
from support.command import Run
from support.index_server import serve
from support.label_index import html_page
from support.loopback import JSON, ask, start
from support.processes import installed_labels
from support.uv_installer import install_with_uv
from support.wheels import stub_wheel

from nvp.knowledge import tables as table

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="the wheels are for Linux on x86_64",
)

TAG = "py3-none-manylinux_2_17_x86_64"
OLD = ("--cuda-driver", "12.8", "--sm-arch", "8.0")
WHL = "download.pytorch.org/whl"
ASTRAL = "wheels.astral.sh/simple"

VENDORS = {
    f"{WHL}/cu126/torch": ["2.14.1+cu126", "2.10.0+cu126"],
    f"{WHL}/cu126/torchvision": ["0.29.1+cu126", "0.25.0+cu126"],
    # The directory has copies of other projects.
    f"{WHL}/cu126/demo": ["9.0"],
    f"{WHL}/cu128/torch": ["2.11.0+cu128"],
    f"{WHL}/cu129/torch": ["2.10.0+cu129"],
    f"{ASTRAL}/cu128/flash-attn": [
        "2.8.3+cu.12.8.torch.2.10",
        "2.8.3+cu.12.8.torch.2.11",
        "2.8.3+cu.12.8.torch.2.14",
    ],
    "wheels.vllm.ai/0.33.0/cu129/vllm": ["0.33.0+cu129"],
}
OWN = {"torch": ["2.15.0", "2.10.0"], "torchvision": ["0.30.0"], "demo": ["1.0"]}
REQUIRES = {
    "0.30.0": "torch==2.15.0",
    "0.29.1": "torch==2.14.1",
    "0.25.0": "torch==2.10.0",
    "0.33.0": "torch==2.14.1",
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve an index such as PyPI, and next to it those of vendors."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    vendors, index = tmp_path / "vendors", tmp_path / "own"
    for place, versions in VENDORS.items():
        make_page(vendors / place, versions)
    for project, versions in [*OWN.items(), ("vllm", ["0.33.0"])]:
        make_page(index / project, versions)
    with serve(vendors) as there, serve(index) as here:
        records = table.vendor_indexes()
        moved = tuple(
            replace(item, url=item.url.replace("https://", there)) for item in records
        )
        monkeypatch.setattr(table, "vendor_indexes", lambda: moved)
        yield here


def make_page(folder: Path, versions: list[str]) -> None:
    project = folder.name.replace("-", "_")
    for version in versions:
        release, _, label = version.partition("+")
        needs = [REQUIRES[release]] if release in REQUIRES else []
        if ".torch." in label:
            needs = [f"torch=={label.rpartition('.torch.')[2]}.*"]
        stub_wheel(folder, project, version, tag=TAG, requires=needs)
    page = html_page(
        sorted(path.name for path in folder.iterdir()),
        base=".",
        metadata=lambda _: None,
        hashes=False,
    )
    (folder / "index.html").write_text(page)


def install(run: Run, own: str, *words: object) -> dict[str, str]:
    """Return the versions that pip would install, by project."""
    pip = ("pip", "install", "--dry-run", "--ignore-installed", "-i", own, "--json")
    done = run(*pip, *words)
    assert done.code == 0, done.err
    return {item["name"]: item["version"] for item in done.data["installed"]}


def test_pip_takes_newer_builds_that_run(run: Run, own: str) -> None:
    vendors = (*OLD, "--vendor-indexes")
    assert install(run, own, *vendors, "torchvision", "demo") == {
        "torch": "2.14.1+cu126",
        "torchvision": "0.29.1+cu126",
        "demo": "1.0",
    }


def test_the_indexes_of_the_user_go_before(run: Run, own: str) -> None:
    vendors = (*OLD, "--vendor-indexes")
    # By PEP 440, a version with a label is newer than the same version without one.
    assert install(run, own, *vendors, "torch==2.10.0") == {"torch": "2.10.0"}
    named = install(run, own, *vendors, "torch==2.10.0+cu126")
    assert named == {"torch": "2.10.0+cu126"}


def test_extensions_for_the_torch_that_comes_with_them(run: Run, own: str) -> None:
    vendors = (*OLD, "--vendor-indexes")
    assert install(run, own, *vendors, "flash-attn") == {
        "flash-attn": "2.8.3+cu.12.8.torch.2.14",
        "torch": "2.14.1+cu126",
    }
    assert install(run, own, *vendors, "flash-attn", "torch==2.10.0") == {
        "flash-attn": "2.8.3+cu.12.8.torch.2.10",
        "torch": "2.10.0",
    }


def test_an_index_for_each_release(run: Run, own: str) -> None:
    assert install(run, own, *OLD, "--vendor-indexes", "vllm==0.33.0") == {
        "vllm": "0.33.0+cu129",
        "torch": "2.14.1+cu126",
    }


def test_releases(run: Run, own: str) -> None:
    done = run("releases", "torch", "-i", own, *OLD, "--vendor-indexes")
    assert done.out.startswith("torch 2.14.1, build cu126 (CUDA 12.6) is the newest")
    assert "from PyTorch's index" not in done.out
    done = run("releases", "torch", "-i", own, *OLD)
    assert done.out.startswith("torch 2.10.0 ")
    assert "torch 2.14.1+cu126 runs here, from PyTorch's index: " in done.out


@pytest.mark.slow
def test_nothing_is_asked_unless_wanted(run: Run, own: str, tmp_path: Path) -> None:
    """An unreadable index of a vendor does not change the result."""
    shutil.rmtree(tmp_path / "vendors")
    (tmp_path / "vendors").write_text("no directory")
    assert install(run, own, *OLD, "torch", "demo") == {
        "torch": "2.10.0",
        "demo": "1.0",
    }
    assert install(run, own, *OLD, "--vendor-indexes", "torch", "demo") == {
        "torch": "2.10.0",
        "demo": "1.0",
    }


@pytest.mark.parametrize(
    ("here", "every_gpu", "expected"),
    [
        (("12.8", "8.0"), False, "2.14.1+cu126"),
        (("13.2", "8.0"), False, "2.15.0"),
        (("13.2", "7.0", "10.0"), False, "2.15.0"),
        # This is the last build with code for both.
        (("13.2", "7.0", "10.0"), True, "2.10.0+cu129"),
    ],
)
def test_uv_gets_them_from_serve(
    own: str,
    environ: dict[str, str],
    here: tuple[str, ...],
    every_gpu: bool,
    expected: str,
) -> None:
    tmp_path = Path(environ["HOME"]).parent
    shutil.rmtree(tmp_path / "own" / "torch")
    make_page(tmp_path / "own" / "torch", ["2.15.0"])
    with start(
        own,
        machine=machine(*here),
        vendor_indexes=True,
        every_gpu=every_gpu,
    ) as running:
        own, vendors = running.urls
        words = ("--index", vendors, "--index-strategy", "unsafe-best-match")
        done = install_with_uv(own, tmp_path / "it", environ, "torch", *words)
    assert done.returncode == 0, done.stderr
    assert installed_labels(tmp_path / "it") == {"torch": f"{expected} None"}


def test_keys_of_the_pages_of_vendors(own: str, tmp_path: Path) -> None:
    """PEP 792 and 708 have keys of the page, which the combined page keeps."""
    page = tmp_path / "vendors" / WHL / "cu126/torch/index.html"
    status = (
        '<meta name="pypi:project-status" content="archived">'
        '<meta name="pypi:project-status-reason" content="It moved.">'
        '<meta name="pypi:tracks" content="https://index.example/torch/">'
    )
    page.write_text(page.read_text().replace("<body>", f"{status}<body>"))
    assert status in page.read_text()
    with start(own, machine=machine("12.8", "8.0"), vendor_indexes=True) as running:
        (vendors,) = running.urls[1:]
        document = json.loads(ask(f"{vendors}torch/", Accept=JSON).text)
    assert document["project-status"] == {"status": "archived", "reason": "It moved."}
    assert document["meta"]["tracks"] == ["https://index.example/torch/"]
