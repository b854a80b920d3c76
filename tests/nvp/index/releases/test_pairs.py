"""`matrix` and `diff` of releases on an index, and the machines that can exist."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from pathlib import Path

import pytest
from support.command import Run
from support.proxy import serve_proxy
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel, write_page

from nvidia_variant_provider.errors import UsageError
from nvp import api
from nvp.index.releases import machines
from nvp.index.releases.machines import parse_project

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="the wheels are for Linux on x86_64",
)

PYTHON = f"cp3{sys.version_info.minor}"
# The name differs from PyPI's, because the table has the hash of PyPI's wheel.
TAG = f"{PYTHON}-{PYTHON}-manylinux_2_17_x86_64"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Make an index with releases of torch from the table of builds."""
    for version in ("2.10.0", "2.14.1", "2.14.1+cu126", "2.15.0"):
        stub_wheel(tmp_path / "torch", "torch", version, tag=TAG)
    write_page(tmp_path / "torch")
    return tmp_path


def picks(run: Run, index: Path, project: str) -> dict[tuple[str, str], str | None]:
    outcome = run("matrix", project, "--index-url", index, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    return {(c["cuda"], c["sm"]): c["label"] for c in outcome.data["cells"]}


def test_the_matrix_agrees_with_releases(run: Run, index: Path) -> None:
    cells = picks(run, index, "torch==2.14.1")
    assert len(cells) == 347
    for driver, gpu in (("12.6", "7.0"), ("12.8", "9.0"), ("13.0", "9.0")):
        table = api.releases(
            "torch",
            index_url=str(index),
            environment=api.detect(
                {
                    "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": driver,
                    "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": gpu,
                }
            ),
        )
        (release,) = [item for item in table.releases if item.version == "2.14.1"]
        (build,) = [item for item in release.builds if item.file == release.selected]
        assert cells[driver, gpu] == (build.label or "plain")
    assert cells["11.0", "8.0"] is None


@pytest.mark.slow
def test_what_a_release_takes_away(run: Run, index: Path) -> None:
    outcome = run("diff", "torch==2.14.1", "torch==2.15.0", "--index-url", index)
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.out.startswith("torch 2.14.1 -> torch 2.15.0")
    assert "lost: cu126 -> none" in outcome.out
    words = " ".join(outcome.out.split())
    assert "it needs a driver for CUDA 13, but this one is for CUDA 12.0" in words
    assert "a driver for CUDA 13.0 gets plain" in words
    assert "stay with torch 2.14.1: it has cu126" in words
    # Volta and older have lost every build, whatever the driver.
    report = run(
        *("diff", "torch==2.14.1", "torch==2.15.0", "--index-url", index, "--json")
    )
    lost = {
        pair["sm"]
        for pair in report.data["pairs"]
        if pair["change"] == "lost" and pair["cuda"] == "13.0"
    }
    assert {"5.0", "6.0", "7.0"} <= lost
    assert "7.5" not in lost


def test_page_without_readable_wheels(run: Run, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "demo-x.whl").touch()
    write_page(tmp_path / "demo")
    outcome = run("matrix", "demo", "--index-url", tmp_path)
    assert outcome.code == 3
    assert outcome.err.startswith("error: no index has wheels of demo to show")


@pytest.mark.parametrize(
    "form",
    [
        "text",
        *(
            pytest.param(form, marks=pytest.mark.slow)
            for form in ("markdown", "html", "svg")
        ),
    ],
)
def test_every_form_of_the_matrix(run: Run, index: Path, form: str) -> None:
    outcome = run("matrix", "torch==2.15.0", "-i", index, "--format", form)
    assert outcome.code == 0
    assert "torch 2.15.0" in outcome.out
    assert "no build of the release runs on the GPU" in outcome.out


def test_words_of_the_matrix_are_explained(run: Run, index: Path) -> None:
    stub_wheel(index / "pure", "pure", "1.0", tag="py3-none-any")
    write_page(index / "pure")
    *_, named, why, _ = run("matrix", "pure==1.0", "-i", index).out.splitlines()
    assert named == "plain: the build without a label"
    assert why.startswith("pure 1.0 is a wheel for any platform, which has no library")
    assert "plain: " in run("matrix", "torch==2.15.0", "-i", index).out
    assert "plain: " not in run("matrix", "torch==2.14.1+cu126", "-i", index).out


def test_without_a_version_the_newest_release_counts(run: Run, index: Path) -> None:
    out = run("matrix", "torch", "--index-url", index).out
    assert out.startswith("torch 2.15.0: ")


def test_metadata_says_what_the_table_does_not_know(run: Run, tmp_path: Path) -> None:
    stub_wheel(
        tmp_path / "demo",
        "demo",
        "1.0",
        tag=TAG,
        requires=["nvidia-cuda-runtime-cu12==12.8.90"],
        members={"padding": os.urandom(1_100_000)},
    )
    write_page(tmp_path / "demo")
    cells = picks(run, tmp_path, "demo==1.0")
    assert cells["12.0", "9.0"] == "plain"
    assert cells["11.8", "9.0"] is None


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["matrix", "torch==9.9"], 3, "no index has torch 9.9"),
        (["matrix", "torch>=2.0"], 2, "is not a project, or a project with one"),
        (["diff", "torch==2.15.0", "missing"], 3, "no index has a project missing"),
        (["diff", "missing", "torch==2.15.0"], 3, "no index has a project missing"),
        (["matrix", "missing==1.0"], 3, "no index has a project missing"),
        (["matrix", "torch==2.15.0", "--assume", "intel"], 2, "--assume: regular"),
    ],
)
def test_errors(
    run: Run, index: Path, words: list[str], code: int, message: str
) -> None:
    outcome = run(*words, "--index-url", index)
    assert (outcome.code, outcome.out) == (code, "")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_file_and_a_project(run: Run, torch: Path) -> None:
    outcome = run("diff", torch, "torch==2.15.0")
    assert (outcome.code, outcome.out) == (2, "")
    assert "one of OLD and NEW is a project" in outcome.err


def test_names_of_projects() -> None:
    assert parse_project("Torch_Vision") == ("torch-vision", None)
    assert parse_project("torch == 2.15.0") == ("torch", "2.15.0")
    for text in ("torch[cuda]==2", "torch==2.*", "torch<3", "", "a b", "torch;x"):
        with pytest.raises(UsageError):
            parse_project(text)


def test_the_report_is_that_of_the_function(run: Run, index: Path) -> None:
    data = api.matrix(project="torch==2.15.0", index_url=str(index)).to_dict()
    outcome = run("matrix", "torch==2.15.0", "--index-url", index, "--json")
    assert json.loads(outcome.out)["data"] == data


def write_states(folder: Path) -> tuple[list[Path], dict[str, Answer]]:
    """Write pages of an old and a new release, each with six builds on a server."""
    pages, answers = [], dict[str, Answer]()
    for version, cuda in (("1.0", 12), ("2.0", 13)):
        files = []
        for number in range(6):
            own = f"{version}+build{number}"
            name = f"kern-{own}-{TAG}.whl"
            url = f"http://{cuda}.example/{name}"
            entry = {"filename": name, "url": url, "hashes": {}, "size": 2_000_000}
            files.append({**entry, "core-metadata": True})
            requires = f"Requires-Dist: nvidia-cublas-cu{cuda}"
            lines = f"Metadata-Version: 2.1\nName: kern\nVersion: {own}\n{requires}\n"
            answers[f"/{name}.metadata"] = Answer(body=lines.encode())
        page = {"meta": {"api-version": "1.0"}, "name": "kern", "files": files}
        pages.append(folder / f"{version}.json")
        pages[-1].write_text(json.dumps(page))
    return pages, answers


def test_metadata_is_read_for_both_states_of_an_index(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """METADATA of the new state was not read, so no loss of a build was found."""
    pages, answers = write_states(tmp_path)
    with serve_answers(answers) as server, serve_proxy(server.url) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("PIP_TRUSTED_HOST", "12.example 13.example")
        outcome = run("diff", *pages)
    assert outcome.code == 1
    assert "could not be read" not in outcome.err
    assert re.search(r"lost: 1\.0\S* -> none", outcome.out)


def test_the_servers_of_both_states_want_a_login(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock belonged to the event loop of the first table: RuntimeError."""
    pages, answers = write_states(tmp_path)
    keyring = tmp_path / "keyring"
    keyring.write_text("#!/bin/sh\nsleep 0.2\nexit 1\n")
    keyring.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PIP_KEYRING_PROVIDER", "subprocess")
    asks = serve_answers(answers, credentials="user:password")
    with asks as server, serve_proxy(server.url) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("PIP_TRUSTED_HOST", "12.example 13.example")
        outcome = run("diff", *pages)
    assert outcome.code == 0
    assert {path for path in proxy.asked if "kern-2.0" in path}


def test_a_silent_server_is_asked_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each project of a page waited 15 seconds for its own wheels."""
    pages = []
    for version in ("1.0", "2.0"):
        names = [f"kern{number}-{version}-{TAG}.whl" for number in range(3)]
        common = {"hashes": {}, "size": 2_000_000, "core-metadata": True}
        url = "http://12.example"
        files = [{"filename": x, "url": f"{url}/{x}", **common} for x in names]
        pages.append(tmp_path / f"{version}.json")
        page = {"meta": {"api-version": "1.0"}, "name": "kern0", "files": files}
        pages[-1].write_text(json.dumps(page))
    names = [
        f"/kern{n}-{v}-{TAG}.whl.metadata" for n in range(3) for v in ("1.0", "2.0")
    ]
    answers = {name: Answer(fault="hang") for name in names}
    monkeypatch.setattr(machines, "_DEADLINE", 1.0)
    monkeypatch.setenv("PIP_TIMEOUT", "1")
    with serve_answers(answers) as server, serve_proxy(server.url) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("PIP_TRUSTED_HOST", "12.example")
        outcome = run("diff", *pages)
    assert outcome.code == 0
    assert len({*proxy.asked}) == 1
