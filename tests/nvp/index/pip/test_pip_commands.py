"""``pip``: the commands of each supported version of pip."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.index_server import serve
from support.json_index import serve_json
from support.processes import PIPS, Environment, Pip, installed_labels

CHOSEN = {"torch": "2.8.0 cu126", "runtime": "12.6 None"}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "version",
    [
        PIPS[0],
        *(pytest.param(version, marks=pytest.mark.slow) for version in PIPS[1:]),
    ],
)
def test_install(
    version: str,
    fresh: Callable[[str], Environment],
    environ: dict[str, str],
    index: str,
) -> None:
    environment = fresh(version)
    done = Pip(environment.python, environ)("install", "-i", index, "torch")
    assert done.code == 0, done.text
    assert environment.labels() == CHOSEN
    # Each build is named once; builds that pip did not choose are not named.
    assert done.out.count(" -> ") == 1
    assert done.out.count("\ntorch 2.8.0 -> cu126\n") == 1
    assert "Variant-property" not in done.out
    assert "\nInstalled variant cu126 of torch 2.8.0\n" in done.out
    assert done.err == ""


@pytest.mark.parametrize(
    "version", [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]
)
def test_install_from_json(
    version: str, pip_of: Callable[[str], Pip], published: Path, tmp_path: Path
) -> None:
    with serve_json(published, tmp_path / "log") as index:
        pip = pip_of(version)
        done = pip("install", "-i", index.url, "--target", tmp_path / "it", "torch")
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == CHOSEN
    # METADATA of each build that fits is read (PEP 658), since it may have variant
    # markers, and then the one build that pip takes.
    asked = {path.rpartition("/")[2] for path in index.requests() if "torch-" in path}
    assert {name for name in asked if not name.endswith(".metadata")} == {
        "torch-2.7.0-variants.json",
        "torch-2.8.0-variants.json",
        "torch-2.8.0-py3-none-any-cu126.whl",
    }
    assert "torch-2.8.0-py3-none-any-cu126.whl.metadata" in asked


def test_report(
    pip: Pip, pips: dict[str, Environment], published: Path, index: str, tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    done = pip("install", "-i", index, "--dry-run", "--report", file, "torch")
    assert done.code == 0, done.text
    report = json.loads(file.read_text())
    found = {item["metadata"]["name"]: item for item in report["install"]}
    assert sorted(found) == ["runtime", "torch"]
    (wheel,) = (published / "torch").glob("torch-2.8.0-*-cu126.whl")
    hashes = found["torch"]["download_info"]["archive_info"]["hashes"]
    assert hashes == {"sha256": digest(wheel)}
    assert "Would install variant cu126 of torch 2.8.0\n" in done.out
    assert found["torch"]["download_info"]["url"] == f"{index}torch/{wheel.name}"
    assert "127.0.0.1" not in file.read_text().replace(index, "")
    assert "has the URLs of variant wheels, which no released pip installs" in done.err
    assert pips[PIPS[-1]].labels() == {}


def test_a_report_is_alone_on_stdout(pip: Pip, index: str) -> None:
    done = pip("install", "-qi", index, "--dry-run", "--report", "-", "torch")
    assert done.code == 0, done.text
    assert done.out.endswith("}\n")
    report = json.loads(done.out)
    urls = {item["download_info"]["url"] for item in report["install"]}
    assert urls == {
        f"{index}torch/torch-2.8.0-py3-none-any-cu126.whl",
        f"{index}runtime/runtime-12.6-py3-none-any.whl",
    }


@pytest.mark.parametrize("printed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_report_of_a_failed_installation(
    printed: bool, pip: Pip, index: str, tmp_path: Path
) -> None:
    """pip writes the report before it installs, and the URLs must outlive the run."""
    (tmp_path / "file").touch()
    options = ("--no-deps", "--prefix", tmp_path / "file", "--report")
    report = tmp_path / "report.json"
    place = "-" if printed else report
    done = pip("install", "-qi", index, *options, place, "torch")
    assert done.code == 1, done.text
    (item,) = json.loads(done.out if printed else report.read_text())["install"]
    url = f"{index}torch/torch-2.8.0-py3-none-any-cu126.whl"
    assert item["download_info"]["url"] == url
    assert "could not be restored" not in done.err


def test_no_report_of_a_failed_resolution(pip: Pip, index: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = pip("install", "-qi", index, "--report", report, "torch==99")
    assert done.code == 1, done.text
    assert not report.exists()
    assert "could not be restored" not in done.err


@pytest.mark.parametrize(
    "case",
    [
        pytest.param((PIPS[0], "wheel", "--wheel-dir"), marks=pytest.mark.slow),
        (PIPS[-1], "download", "--dest"),
    ],
)
def test_downloaded_files_have_the_bytes_of_the_index(
    case: tuple[str, str, str],
    pip_of: Callable[[str], Pip],
    published: Path,
    index: str,
    tmp_path: Path,
) -> None:
    version, command, option = case
    folder = tmp_path / "it"
    done = pip_of(version)(command, "-i", index, option, folder, "torch")
    assert done.code == 0, done.text
    (wheel,) = (published / "torch").glob("torch-2.8.0-*-cu126.whl")
    (runtime,) = (published / "runtime").glob("runtime-12.6-*.whl")
    assert {digest(path) for path in folder.iterdir()} == {
        digest(wheel),
        digest(runtime),
    }


@pytest.mark.parametrize(
    "label",
    [
        "cu126",
        *(pytest.param(label, marks=pytest.mark.slow) for label in ("plain", None)),
    ],
)
def test_a_hash_selects_its_build(
    label: str | None, pip: Pip, published: Path, index: str, tmp_path: Path
) -> None:
    """A lock file of another machine may have the hash of a build that is not best."""
    end = f"-{label}.whl" if label else "-any.whl"
    (wheel,) = (published / "torch").glob(f"torch-2.8.0-*{end}")
    (runtime,) = (published / "runtime").glob("runtime-12.6-*.whl")
    file = tmp_path / "requirements.txt"
    lines = [f"torch==2.8.0 --hash=sha256:{digest(wheel)}"]
    if label == "cu126":
        lines.append(f"runtime==12.6 --hash=sha256:{digest(runtime)}")
    file.write_text("\n".join(lines))
    target = tmp_path / "it"
    done = pip(
        *("install", "-i", index, "--require-hashes", "-r", file, "--target", target)
    )
    assert done.code == 0, done.text
    assert installed_labels(target)["torch"] == f"2.8.0 {label}"
    # pip selected the build because of its hash, so the message has no reason about the
    # machine.
    assert "does not fit" not in done.text


@pytest.mark.parametrize("label", ["cu126", pytest.param(None, marks=pytest.mark.slow)])
def test_a_hash_selects_its_build_on_a_page_without_hashes(
    label: str | None, pip: Pip, published: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "index"
    shutil.copytree(published / "torch", folder / "torch")
    shutil.copytree(published / "runtime", folder / "runtime")
    for page in folder.glob("*/index.html"):
        page.write_text(re.sub("#sha256=[0-9a-f]+", "", page.read_text()))
    (wheel,) = (folder / "torch").glob(f"torch-2.8.0-*-{label or 'any'}.whl")
    (runtime,) = (folder / "runtime").glob("runtime-12.6-*.whl")
    file = tmp_path / "requirements.txt"
    file.write_text(
        f"torch==2.8.0 \\\n  --hash=sha256:{digest(wheel)}\n"
        f"runtime==12.6 --hash=sha256:{digest(runtime)}\n"
    )
    target = tmp_path / "it"
    with serve(folder) as index:
        done = pip("install", "-i", index, "-r", file, "--target", target)
    assert done.code == 0, done.text
    assert installed_labels(target)["torch"] == f"2.8.0 {label}"


def test_a_hash_of_a_build_that_does_not_fit_is_not_found(
    pip: Pip, published: Path, index: str, tmp_path: Path
) -> None:
    (wheel,) = (published / "torch").glob("torch-2.8.0-*-cu130.whl")
    file = tmp_path / "requirements.txt"
    # The hashes in included files count, as in pip.
    file.write_text("-r pinned.txt\n")
    pinned = tmp_path / "pinned.txt"
    pinned.write_text(f"torch==2.8.0 --hash=sha256:{digest(wheel)}")
    done = pip("install", "-i", index, "-r", file, "--target", tmp_path / "it")
    assert done.code == 1
    assert not (tmp_path / "it").exists()
    # pip reports that another wheel may have been changed.
    (best,) = (published / "torch").glob("torch-2.8.0-*-cu126.whl")
    last = done.err.splitlines()[-1]
    assert last.startswith(
        f"error: the hash sha256:{digest(wheel)[:12]}... that you give is that of "
        f"variant cu130 of torch 2.8.0 ({wheel.name}), which does not fit this "
        "machine: "
    )
    assert last.endswith(f"; pin that of {best.name}: --hash=sha256:{digest(best)}")
