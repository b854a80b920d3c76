"""The options that `releases` shares with `pip` have the same meaning."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest
from support.builds import machine
from support.range_server import Answer, serve_answers
from support.sessions import ROOT
from support.wheels import publish, stub_wheel, write_page

from nvidia_variant_provider.errors import UsageError
from nvp import api
from nvp.cli import main

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="the wheels are for Linux on x86_64",
)

OLD = machine("12.8", "8.0")
HERE = "py3-none-manylinux_2_17_x86_64"
LABELS = ("2.10.0+cu126", "2.10.0+cu128", "2.9.1+cu126", "2.9.1+cpu")


def make_folder(folder: Path, *versions: str) -> str:
    for version in versions:
        stub_wheel(folder, "torch", version, tag=HERE)
    return str(folder)


def make_index(folder: Path, *versions: str) -> str:
    make_folder(folder / "torch", *versions)
    write_page(folder / "torch")
    return str(folder)


def test_a_folder_of_links_is_read_as_well(tmp_path: Path) -> None:
    index = make_index(tmp_path / "index", "2.9.1")
    links = make_folder(tmp_path / "links", "2.10.0")
    stub_wheel(tmp_path / "links", "demo", "1.0")
    table = api.releases("torch", index_url=index, find_links=[links], environment=OLD)
    assert [release.version for release in table.releases] == ["2.10.0", "2.9.1"]
    assert table.releases[0].selected == f"torch-2.10.0-{HERE}.whl"
    with pytest.raises(Exception, match="no index has a project nosuch"):
        api.releases("nosuch", index_url=index, find_links=[links], environment=OLD)


def test_links_with_a_name_that_is_too_long(tmp_path: Path) -> None:
    index = make_index(tmp_path, "2.9.1")
    links = ["x" * 300]
    table = api.releases("torch", index_url=index, find_links=links, environment=OLD)
    assert [release.version for release in table.releases] == ["2.9.1"]


def test_a_page_of_links_is_read_as_well(tmp_path: Path) -> None:
    index = make_index(tmp_path, "2.9.1")
    page = f'<!DOCTYPE html><a href="/torch-2.10.0-{HERE}.whl">x</a>'
    with serve_answers({"/l": Answer(body=page.encode(), kind="text/html")}) as server:
        table = api.releases(
            "torch",
            index_url=index,
            find_links=[f"{server.url.rstrip('/')}/l"],
            environment=OLD,
        )
    assert [release.version for release in table.releases] == ["2.10.0", "2.9.1"]
    with pytest.raises(UsageError, match="plain HTTP is for this machine"):
        api.releases(
            "torch",
            index_url=index,
            find_links=["http://links.example/"],
            environment=OLD,
        )


def test_a_trusted_host_may_speak_plain_http(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name is resolved only after the check of the host."""
    url = "http://wheels.invalid/simple/"
    with pytest.raises(UsageError, match="--trusted-host"):
        api.releases("torch", index_url=url, environment=OLD)
    monkeypatch.setenv("PIP_TIMEOUT", "2")
    with pytest.raises(Exception, match=r"cannot be read|no response"):
        api.releases(
            "torch", index_url=url, trusted_hosts=["wheels.invalid"], environment=OLD
        )


def test_a_label_decides_what_is_selected(tmp_path: Path) -> None:
    index = make_index(tmp_path, *LABELS)
    best = api.releases("torch", index_url=index, environment=OLD)
    assert best.releases[0].selected == f"torch-2.10.0+cu128-{HERE}.whl"
    for labels in (["cu126"], ["Torch=cu126"], ["other=cu128", "cu126"]):
        table = api.releases("torch", index_url=index, labels=labels, environment=OLD)
        assert table.newest == "2.10.0"
        assert table.releases[0].selected == f"torch-2.10.0+cu126-{HERE}.whl"
    table = api.releases("torch", index_url=index, labels=["cpu"], environment=OLD)
    assert [release.selected for release in table.releases] == [
        None,
        f"torch-2.9.1+cpu-{HERE}.whl",
    ]
    assert table.newest is None


def test_the_newest_release_is_one_with_the_label(tmp_path: Path) -> None:
    index = make_index(tmp_path, "2.10.0+cu128", "2.9.1+cu126")
    table = api.releases("torch", index_url=index, labels=["cu126"], environment=OLD)
    assert table.newest == "2.9.1"


def test_a_label_that_is_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = make_index(tmp_path, *LABELS)
    words = ["releases", "torch", "-i", index, "--cuda-driver", "12.8"]
    assert main([*words, "--label", "cu999"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("No build of torch with --label cu999 is known to run")
    assert main([*words, "--label", "CU 1"]) == 2
    assert "--label" in capsys.readouterr().err


@pytest.mark.parametrize(
    "label", ["gpu-demo=nope", pytest.param("nope", marks=pytest.mark.slow)]
)
def test_a_label_that_no_variant_has(
    label: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "releases",
        "gpu-demo",
        "-i",
        str(ROOT / "fixtures" / "index"),
        "--cuda-driver",
        "12.9",
    ]
    words += ["--sm-arch", "9.0", "--label"]
    assert main([*words, label]) == 1
    out, err = capsys.readouterr()
    name = label.rpartition("=")[2]
    assert f"no release of gpu-demo has the label {name}: it has cu126, cu1" in err
    text = " ".join(out.split())
    assert text.startswith(f"No build of gpu-demo with --label {label} is known to run")
    assert main([*words, "cu126"]) == 0
    assert main([*words, "other=nope"]) == 0


def test_every_gpu_counts(tmp_path: Path) -> None:
    metadata = {
        "$schema": "https://variants-schema.wheelnext.dev/v0.2.0.json",
        "default-priorities": {"namespace": ["nvidia"]},
        "providers": {"nvidia": {"requires": ["nvidia-variant-provider"]}},
        "variants": {
            "new": {
                "nvidia": {
                    "cuda_version_lower_bound": ["12.8"],
                    "sm_arch": ["80_real"],
                }
            },
            "null": {},
        },
    }
    publish(tmp_path, metadata, "demo", "1.0")
    both = machine("12.8", "8.0", "6.1")
    found = {
        every: {
            build.label: build.verdict
            for release in api.releases(
                "demo", index_url=str(tmp_path), environment=both, every_gpu=every
            ).releases
            for build in release.builds
        }
        for every in (False, True)
    }
    assert found[False]["new"] == "runs"
    assert found[True]["new"] == "cannot"


def test_the_folder_of_an_index_names_the_backend(tmp_path: Path) -> None:
    """As in `pip`, a regular wheel in such a directory is a build for that CUDA
    version."""
    folder = tmp_path / "cu130"
    stub_wheel(folder / "demo", "demo", "3.0", tag=HERE)
    write_page(folder / "demo")
    table = api.releases("demo", index_url=str(folder), environment=OLD)
    (build,) = table.releases[0].builds
    assert build.verdict == "cannot"
    assert build.reasons[0].startswith("it needs a driver for CUDA 13")
