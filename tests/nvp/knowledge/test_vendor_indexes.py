"""The rules that all records of indexes of vendors obey."""

from __future__ import annotations

import re
import string
from urllib.parse import urlsplit

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from nvp.builds.needs import parse_backend
from nvp.knowledge.builds import build_records
from nvp.knowledge.tables import VendorIndex, find_vendors, vendor_indexes

RECORDS = vendor_indexes()
_PLATFORMS = {"linux_x86_64", "linux_aarch64", "win_amd64"}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.url)
def test_each_record(record: VendorIndex) -> None:
    assert record.maker
    assert record.projects
    assert list(record.projects) == sorted(set(record.projects)) or record.leader
    assert all(canonicalize_name(name) == name for name in record.projects)
    for backend in map(parse_backend, record.backends):
        assert backend is not None
        assert backend.kind == "cuda"
    parts = {name for _, name, _, _ in string.Formatter().parse(record.url) if name}
    assert parts <= {"backend", "version", "torch"}
    assert ("backend" in parts) <= bool(record.backends)
    assert record.kind in ("simple", "links")
    assert record.confidence in ("seen", "recalled")
    assert {*record.platforms} <= _PLATFORMS
    assert record.platforms
    assert all(find_vendors(name) for name in record.needs)
    SpecifierSet(record.releases)
    for url in (record.url, record.source):
        assert urlsplit(url).scheme == "https"
        assert urlsplit(url).hostname
    assert re.fullmatch(r"202[0-9]-[01][0-9]-[0-3][0-9]", record.date)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.url)
def test_the_builds_that_are_known(record: VendorIndex) -> None:
    assert len({row[:2] for row in record.builds}) == len(record.builds)
    for torch, backend, *rest in record.builds:
        assert re.fullmatch(r"2\.[0-9]{1,2}", torch)
        assert backend in record.backends
        assert len(rest) == (3 if record.file else 0)
        minor = (*map(int, torch.split(".")),)
        assert (torch, backend, *rest) in (record.builds_for(minor) or ())
    parts = {name for _, name, _, _ in string.Formatter().parse(record.file) if name}
    wanted = {"version", "backend", "torch", "abi", "python"}
    assert parts == (wanted if record.file else set())
    # Releases after the newest known one may have builds on a page of links.
    if record.builds:
        assert record.builds_for((9, 9)) == ([] if record.file else None)


def test_the_url_of_a_backend() -> None:
    pyg = next(record for record in RECORDS if record.maker == "PyG")
    url = pyg.find_url("cu126", torch=(2, 8))
    assert url == "https://data.pyg.org/whl/torch-2.8.0+cu126.html"
    vllm = find_vendors("vLLM")[0]
    assert vllm.find_url("cu129", version="0.33.0").endswith("/0.33.0/cu129")
    assert vllm.find_url("cu129").endswith("/VERSION/cu129")


def test_the_index_of_torch_has_every_label_of_the_table() -> None:
    labels = {row.label for row in build_records()["torch"] if row.label}
    assert labels <= {*find_vendors("torch")[0].backends}


def test_every_maker_that_users_are_sent_to() -> None:
    projects = ("torch", "vllm", "flash-attn", "jaxlib", "cudf-cu12", "torch-scatter")
    others = ("onnxruntime-gpu", "flashinfer-jit-cache", "llama-cpp-python")
    assert all(find_vendors(project) for project in (*projects, *others))
    assert find_vendors("numpy") == []
    assert any(record.gpus for record in find_vendors("torch"))
