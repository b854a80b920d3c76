"""pip and uv with the local index on a label index such as PyTorch's."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.builds import machine
from support.index_server import serve
from support.label_index import html_page
from support.loopback import start
from support.processes import PIPS, Pip, installed_labels
from support.uv_installer import install_with_uv
from support.wheels import stub_wheel, write_page

from nvidia_variant_provider.machine.environment import Environment as Machine

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="the wheels are for Linux on x86_64",
)

TAG = "py3-none-manylinux_2_17_x86_64"
VERSIONS = {
    "torch": [
        *("2.15.0+cu130", "2.15.0+cu132", "2.15.0+cpu", "2.15.0+xpu"),
        *("2.15.0+rocm7.2", "2.10.0+cu126", "2.10.0+cu128", "2.10.0+cu130"),
        *("2.10.0+cpu", "2.10.0+xpu", "2.9.1+cu128"),
    ],
    "torchvision": [
        *("0.30.0+cu130", "0.30.0+cpu", "0.25.0+cu126", "0.25.0+cu128"),
        *("0.25.0+cpu", "0.25.0+xpu"),
    ],
}
REQUIRED = {"0.30.0": "torch==2.15.0", "0.25.0": "torch==2.10.0"}
MACHINE = ("--cuda-driver", "12.8", "--sm-arch", "8.0")


@pytest.fixture(scope="module")
def union(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of the index, whose files are on another server."""
    files = tmp_path_factory.mktemp("files")
    pages = tmp_path_factory.mktemp("pages")
    with serve(files) as there, serve(pages) as here:
        for project, versions in VERSIONS.items():
            names = []
            for version in versions:
                requires = REQUIRED.get(version.partition("+")[0], "")
                wheel = stub_wheel(
                    files,
                    project,
                    version,
                    tag=TAG,
                    requires=[requires] if requires else [],
                )
                text = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
                text += f"Requires-Dist: {requires}\n" if requires else ""
                (files / f"{wheel.name}.metadata").write_text(text)
                names.append(wheel.name)
            (pages / project).mkdir()
            page = html_page(names, base=there.rstrip("/"), hashes=False)
            (pages / project / "index.html").write_text(page)
        yield here


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of an index such as PyPI, which names no labels."""
    folder = tmp_path_factory.mktemp("plain")
    for version in ("2.15.0", "2.10.0", "2.9.1"):
        stub_wheel(folder / "torch", "torch", version, tag=TAG)
    (folder / "torch" / "index.html").write_text(
        html_page(
            [path.name for path in (folder / "torch").iterdir()],
            base="..",
            hashes=False,
        )
        .replace("../", "")
        .replace('data-dist-info-metadata="true" data-core-metadata="true" ', "")
    )
    with serve(folder) as url:
        yield url


@pytest.mark.parametrize(
    "version", [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]
)
def test_the_newest_build_that_runs(
    version: str, union: str, pip_of: Callable[[str], Pip], tmp_path: Path
) -> None:
    words = ("install", "-i", union, "--target", tmp_path / "it", *MACHINE)
    done = pip_of(version)(*words, "torchvision", forced=False)
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == {
        "torch": "2.10.0+cu128 None",
        "torchvision": "0.25.0+cu128 None",
    }
    # The pin of torchvision is not the reason for the old torch, although the pin
    # allows no other.
    reasons = [x for x in done.out.splitlines() if x.startswith("torch ")]
    assert [line.partition("+")[0] for line in reasons] == ["torch 2.10.0"]
    assert "2.15.0 needs a driver for CUDA 13, but this one is " in reasons[0]


@pytest.mark.slow
def test_an_exact_pin_is_honoured_with_the_reason(
    union: str, pip: Pip, tmp_path: Path
) -> None:
    words = ("install", "-i", union, "--target", tmp_path / "it", *MACHINE)
    done = pip(*words, "torch==2.15.0+cu130", forced=False)
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == {"torch": "2.15.0+cu130 None"}
    assert "it needs a driver for CUDA 13, but this one is for CUDA 12.8" in done.text
    done = pip(*words, "--upgrade", "torch==2.15.0+xpu", forced=False)
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == {"torch": "2.15.0+xpu None"}


def test_a_label(union: str, pip: Pip, tmp_path: Path) -> None:
    words = ("install", "-i", union, "--target", tmp_path / "it", *MACHINE, "torch")
    done = pip(*words, "--label", "cu130", forced=False)
    assert done.code == 1
    assert "warning: torch==2.15.0: cu130 does not fit this machine: it n" in done.err
    done = pip(*words, "--label", "cu126", forced=False)
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == {"torch": "2.10.0+cu126 None"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", ["plain", pytest.param("union", marks=pytest.mark.slow)]
)
def test_an_index_without_labels_next_to_one_with_them(
    first: str, union: str, plain: str, pip: Pip, tmp_path: Path
) -> None:
    indexes = (plain, union) if first == "plain" else (union, plain)
    words = ("-i", indexes[0], "--extra-index-url", indexes[1])
    done = pip(
        *("install", *words, "--target", tmp_path / "it", *MACHINE, "torch"),
        forced=False,
    )
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == {"torch": "2.10.0+cu128 None"}


def test_a_folder_of_wheels(pip: Pip, tmp_path: Path) -> None:
    for version in VERSIONS["torch"]:
        stub_wheel(tmp_path / "wheels", "torch", version, tag=TAG)
    words = ("--no-index", "--find-links", tmp_path / "wheels")
    done = pip(
        *("install", *words, "--target", tmp_path / "it", *MACHINE, "torch"),
        forced=False,
    )
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == {"torch": "2.10.0+cu128 None"}


def test_the_order_of_pages_of_links(pip: Pip, tmp_path: Path) -> None:
    """Of files with the same name, pip takes that of the last page."""
    stub_wheel(tmp_path / "2", "other", "1.0+cu126", tag=TAG)
    for number in ("1", "2", "3"):
        wheel = stub_wheel(tmp_path / f"wheels/{number}", "kern", "1.0+cu126", tag=TAG)
        (tmp_path / number).mkdir(exist_ok=True)
        page = f'<!DOCTYPE html><a href="{wheel.as_uri()}">kern</a>'
        (tmp_path / number / "page.html").write_text(page)
    words = ("--no-index", "-f", "3/page.html", "-f", "1", "-f", "2", "kern")
    install = ("install", "--target", "target", *MACHINE)
    done = pip(*install, *words, forced=False, cwd=tmp_path)
    assert done.code == 0, done.text
    assert "Processing ./wheels/2/kern" in done.out


@pytest.mark.parametrize("start", ["<!DOCTYPE html>", '<base href="/">'])
@pytest.mark.parametrize(
    ("page", "place"),
    [
        ("links/page.html", "-f links/page.html"),
        ("links/page.html", "-f links"),
        ("wheels/page.html", "-f wheels"),
        ("links/page.html/index.html", "-f links"),
        ("wheels/page.html/index.html", "-f wheels"),
        ("links/page.html", "-f FILE://{here}/links/page.html"),
        # Of this path, pip lists the real directory, which ends in deep/real.
        ("real/page.html", "-f folder/../real"),
    ],
)
def test_a_local_page_with_a_file_that_is_yanked(
    start: str, page: str, place: str, pip: Pip, tmp_path: Path
) -> None:
    """Only pip reads the page. The other build of the release cannot run here."""
    for version in ("0.9+cu126", "1.0+cu130"):
        stub_wheel(tmp_path / "index/kern", "kern", version, tag=TAG)
    write_page(tmp_path / "index/kern")
    stub_wheel(tmp_path / "wheels", "other", "1.0+cu126", tag=TAG)
    wheel = stub_wheel(tmp_path / "it", "kern", "1.0+cu131", tag=TAG)
    link = f'<a href="{wheel.as_uri()}" data-yanked="CVE">kern</a>'
    (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / page).write_text(start + link)
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/real").mkdir()
    (tmp_path / "deep/real/page.html").touch()
    (tmp_path / "folder").symlink_to("deep/er")
    option, _, where = place.partition(" ")
    words = ("-i", tmp_path / "index", option, where.format(here=tmp_path), "kern==1.0")
    install = ("install", "--target", "target", *MACHINE)
    done = pip(*install, *words, forced=False, cwd=tmp_path)
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "target") == {"kern": "1.0+cu130 None"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (machine("12.8", "8.0"), "2.10.0+cu128"),
        (machine("13.0", "8.0"), "2.15.0+cu130"),
        (machine("12.8", "7.0"), "2.10.0+cu128"),
        (machine(None), "2.15.0+cpu"),
    ],
)
def test_uv_through_serve(
    environment: Machine,
    expected: str,
    union: str,
    environ: dict[str, str],
    tmp_path: Path,
) -> None:
    with start(union, machine=environment) as running:
        done = install_with_uv(running.urls[0], tmp_path / "it", environ, "torch")
    assert done.returncode == 0, done.stderr
    assert installed_labels(tmp_path / "it") == {"torch": f"{expected} None"}


def test_uv_says_why_a_pinned_build_cannot_run(
    union: str, environ: dict[str, str], tmp_path: Path
) -> None:
    with start(union, machine=machine("12.8", "8.0")) as running:
        done = install_with_uv(
            running.urls[0], tmp_path / "it", environ, "torch==2.15.0+cu130"
        )
    assert done.returncode == 0, done.stderr
    assert "it needs a driver for CUDA 13, but this one is for CUDA 12.8" in done.stderr


def test_a_newer_release_from_the_index_of_the_maker(
    plain: str, pip: Pip, tmp_path: Path
) -> None:
    line = (
        "torch 2.14.1+cu126 runs here, from PyTorch's index: nvp pip install "
        "--index-url https://download.pytorch.org/whl/cu126 torch"
    )
    words = ("install", "--dry-run", "-i", plain, "--target", tmp_path / "it", *MACHINE)
    done = pip(*words, "torch", forced=False)
    assert done.code == 0, done.text
    last = done.out.splitlines()[-2]
    assert last.startswith(f"{line} --target {tmp_path / 'it'} ")
    assert last.endswith(" ".join(MACHINE))
    assert done.text.count("download.pytorch.org") == 1
    done = pip(*words, "torch>=2.12", forced=False)
    assert done.code == 0, done.text
    assert "torch 2.15.0 would be installed although it cannot run here" in done.err
    assert line in done.out
    assert done.out.splitlines()[-1] == f"Next: nvp releases torch {' '.join(MACHINE)}"
    # The companion in this installation needs another torch.
    stub_wheel(tmp_path / "held", "held", "1.0", requires=["torch==2.10.0"])
    links = ("--find-links", tmp_path / "held")
    done = pip(*words, *links, "torch", "held", forced=False)
    assert "Would install held-1.0 torch-2.10.0" in done.out, done.text
    assert "download.pytorch.org" not in done.text
    newer = ("--cuda-driver", "13.2", "--sm-arch", "8.0")
    done = pip(*words[:-4], *newer, "torch", forced=False)
    assert "download.pytorch.org" not in done.text


@pytest.fixture(scope="module")
def cpu_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of an index that only has builds without GPU code."""
    folder = tmp_path_factory.mktemp("cpu")
    for project, version, requires in (
        ("torch", "2.15.0+cpu", []),
        ("torch", "2.10.0+cpu", []),
        ("torchvision", "0.30.0+cpu", ["torch==2.15.0"]),
    ):
        stub_wheel(folder / project, project, version, tag=TAG, requires=requires)
    for project in ("torch", "torchvision"):
        write_page(folder / project)
    with serve(folder) as url:
        yield url


@pytest.fixture(scope="module")
def companions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of an index such as PyPI, with torch and a companion."""
    folder = tmp_path_factory.mktemp("companions")
    for version in ("2.15.0", "2.10.0"):
        stub_wheel(folder / "torch", "torch", version, tag=TAG)
    for version, torch in (("0.30.0", "2.15.0"), ("0.25.0", "2.10.0")):
        needs = [f"torch=={torch}"]
        stub_wheel(
            folder / "torchvision", "torchvision", version, tag=TAG, requires=needs
        )
    for project in ("torch", "torchvision"):
        write_page(folder / project)
    with serve(folder) as url:
        yield url


@pytest.mark.parametrize(
    "project", [pytest.param("torchvision", marks=pytest.mark.slow), "torch"]
)
def test_a_build_without_gpu_code_does_not_come_in_through_a_companion(
    project: str, companions: str, cpu_only: str, pip: Pip, tmp_path: Path
) -> None:
    indexes = ("-i", companions, "--extra-index-url", cpu_only)
    words = ("install", *indexes, "--target", tmp_path / "it", *MACHINE, project)
    done = pip(*words, forced=False)
    assert done.code == 0, done.text
    expected = {"torch": "2.10.0 None", "torchvision": "0.25.0 None"}
    assert installed_labels(tmp_path / "it") == {
        name: label for name, label in expected.items() if name in ("torch", project)
    }
    # An index in a file replaces those of the command, so it decides alone.
    file = tmp_path / "requirements.txt"
    file.write_text(f"--index-url {cpu_only}\n{project}\n")
    alone = ("install", "-i", companions, "-r", file, "--target", tmp_path / "alone")
    done = pip(*alone, *MACHINE, forced=False)
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "alone")["torch"] == "2.15.0+cpu None"
    asked = (*words, "--upgrade", "--label", "torch=cpu")
    if project == "torch":
        done = pip(*asked, forced=False)
        assert done.code == 0, done.text
        assert installed_labels(tmp_path / "it") == {"torch": "2.15.0+cpu None"}
