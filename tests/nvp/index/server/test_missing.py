"""Requests for files of a page for another machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest
from support.builds import machine
from support.loopback import Running, ask, start

from nvp.index.selection.options import Pins

OLD = machine("12.8", "8.0")
NEW = machine("13.0", "8.0")


@pytest.fixture(scope="module")
def urls_elsewhere(published: Path) -> dict[str, str]:
    """Return the path of each label's wheel, as on a machine that runs all of them."""
    with start(str(published), machine=NEW) as running:
        files = running.page().files
    paths = {}
    for name, url in files.items():
        path = url.partition("/f/")[2]
        if name.startswith("torch-2.8.0") and path:
            paths[path.split("/")[1]] = f"/f/{path}"
    assert {"cu130", "cu126", "plain"} <= paths.keys()
    return paths


@pytest.fixture(scope="module")
def here(published: Path) -> Iterator[Running]:
    with start(str(published), machine=OLD) as running:
        yield running


def test_a_build_that_does_not_fit(
    here: Running, urls_elsewhere: dict[str, str]
) -> None:
    root = here.urls[0].removesuffix("/simple/")
    reply = ask(root + urls_elsewhere["cu130"])
    assert reply.status == 404
    name = urls_elsewhere["cu130"].rpartition("/")[2]
    assert reply.text == (
        f"{name}: variant cu130 of torch 2.8.0 does not fit this machine: it needs a "
        "driver for CUDA 13.0 or newer, but this driver is for CUDA 12.8; this machine "
        "gets variant cu126\n"
    )


@pytest.mark.parametrize("end", ["", ".metadata"])
def test_a_build_that_fits_has_another_rank_here(
    end: str, published: Path, urls_elsewhere: dict[str, str]
) -> None:
    pins = Pins(everywhere="cu126")
    with start(str(published), machine=OLD, pins=pins) as running:
        url = running.urls[0].removesuffix("/simple/") + urls_elsewhere["cu126"]
        reply = ask(url + end)
        assert reply.status == 302
        name = reply.headers["location"]
        assert name == f"torch-2.8.0-1cu126-py3-none-any.whl{end}"
        assert ask(urljoin(url, name.removesuffix(end))).status == 200


@pytest.mark.parametrize(
    "name", ["torch-9-py3-none-any.whl", "x", "torch-a-b", f"x-{'9' * 5000}"]
)
def test_a_file_that_no_machine_gets(name: str, here: Running) -> None:
    root = here.urls[0].removesuffix("/simple/")
    assert ask(f"{root}/f/torch/cu126/00000000/{name}").status == 404
