"""The requests for wheels that the table of builds does not know."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from support.command import Run
from support.containers import library
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel, write_page

COMMAND = "check"
TAG = "py3-none-manylinux_2_17_x86_64"
OLD = ("--cuda-driver", "12.8", "--sm-arch", "9.0", "--platform", "linux_x86_64")
CUDA_13 = ["nvidia-cuda-runtime==13.0.96"]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Make an index with a build that METADATA describes, and one that its code
    describes."""
    folder = tmp_path / "index"
    stub_wheel(folder / "gpu-demo", "gpu-demo", "1.0", tag=TAG, requires=CUDA_13)
    members = {"code/lib.so": library("80_real")}
    stub_wheel(folder / "gpu-code", "gpu-code", "1.0", tag=TAG, members=members)
    stub_wheel(folder / "plain", "plain", "1.0", tag=TAG, requires=CUDA_13)
    for name in ("gpu-demo", "gpu-code", "plain"):
        write_page(folder / name)
    return folder


@pytest.fixture
def url(index: Path) -> Iterator[str]:
    """Run a server of the wheels that supports range requests."""
    wheels = {
        f"/{path.name}": Answer(body=path.read_bytes()) for path in index.rglob("*.whl")
    }
    with serve_answers(wheels) as server:
        yield server.url.rstrip("/")


def pin(folder: Path, *lines: str) -> Path:
    path = folder / "requirements.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_metadata_of_the_users_index_decides(
    run: Run, index: Path, tmp_path: Path
) -> None:
    path = pin(tmp_path, "gpu-demo==1.0", "plain==1.0")
    outcome = run(path, *OLD, "--index-url", index, "--json")
    (found,) = outcome.data["requirements"]
    assert (found["name"], found["verdict"], found["evidence"]) == (
        *("gpu-demo", "cannot", "metadata"),
    )
    assert outcome.code == 1


def test_offline_asks_nobody(run: Run, tmp_path: Path) -> None:
    outcome = run(pin(tmp_path, "gpu-demo==1.0"), *OLD, "--offline", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.data["requirements"][0]["verdict"] == "unknown"


def test_the_code_is_read_where_the_user_asks_for_it(
    run: Run, index: Path, tmp_path: Path
) -> None:
    path = pin(tmp_path, "gpu-code==1.0")
    words = (path, *OLD, "--index-url", index, "--json")
    assert run(*words).data["unknown"] == 1
    outcome = run(*words, "--inspect")
    (found,) = outcome.data["requirements"]
    assert (found["verdict"], found["evidence"]) == ("cannot", "inspected")
    assert "no code for compute capability 9.0" in found["reasons"][0]


LOCK = """\
lock-version = "1.0"
created-by = "test"
[[packages]]
name = "plain"
version = "1.0"
[[packages.wheels]]
name = "plain-1.0-{tag}.whl"
url = "{url}/plain-1.0-{tag}.whl"
size = {size}
hashes = {{ sha256 = "{digest}" }}
"""


def test_a_large_wheel_is_asked_at_its_recorded_url(
    run: Run, index: Path, url: str, tmp_path: Path
) -> None:
    """The recorded URL is used, although the user's own index does not respond."""
    (wheel,) = index.glob("plain/*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    path = tmp_path / "pylock.toml"
    for size, expected in ((2_000_000, [("plain", "cannot")]), (10_000, [])):
        path.write_text(LOCK.format(tag=TAG, url=url, size=size, digest=digest))
        outcome = run(path, *OLD, "--json", "--index-url", tmp_path / "no-index")
        found = [(x["name"], x["verdict"]) for x in outcome.data["requirements"]]
        assert found == expected


def test_small_wheels_that_are_not_read_are_counted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvp.checking.asking._MOST_UNNAMED", 0)
    path = tmp_path / "pylock.toml"
    text = LOCK.format(tag=TAG, url="http://127.0.0.1:9", size=10**6, digest="0" * 64)
    path.write_text(text)
    outcome = run(path, *OLD, "--json", "--index-url", tmp_path)
    assert outcome.data["requirements"] == []
    assert outcome.err.endswith(
        "below 64 MB without a sign of GPU code are not read: 1\n"
    )


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://[", "/\\u0000"])
def test_a_url_that_nobody_answers_is_a_warning(
    url: str, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "pylock.toml"
    text = LOCK.replace("plain", "gpu-demo").replace("gpu-demo-1.0", "gpu_demo-1.0")
    path.write_text(text.format(tag=TAG, url=url, size=2_000_000, digest="0" * 64))
    outcome = run(path, *OLD, "--json", "--index-url", tmp_path)
    assert outcome.code == 0
    assert outcome.data["unknown"] == 1
    assert outcome.err.startswith("warning: gpu-demo 1.0: ")


def test_a_wheel_with_another_hash_says_nothing(
    run: Run, url: str, tmp_path: Path
) -> None:
    path = tmp_path / "pylock.toml"
    path.write_text(LOCK.format(tag=TAG, url=url, size=2_000_000, digest="0" * 64))
    outcome = run(path, *OLD, "--json", "--index-url", tmp_path / "no-index")
    assert outcome.data["requirements"] == []
    assert "its sha256 is not the one" in outcome.err


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")
def test_a_locked_path_of_no_regular_file(
    run: Run, index: Path, tmp_path: Path
) -> None:
    """Reading the path would never end."""
    path = tmp_path / "pylock.toml"
    path.write_text(
        'lock-version = "1.0"\ncreated-by = "x"\n[[packages]]\nname = "gpu-demo"\n'
        'version = "1.0"\n[[packages.wheels]]\n'
        f'name = "gpu_demo-1.0-{TAG}.whl"\npath = "/dev/zero"\nsize = 2000000\n'
        f'hashes = {{sha256 = "{0:064}"}}\n'
    )
    outcome = run(path, *OLD, "--index-url", index)
    assert "not a regular file" in outcome.err


def test_an_index_that_is_no_url_says_nothing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "uv.lock"
    path.write_text(
        'version = 1\nrequires-python = ">=3.9"\n[[package]]\nname = "torch"\n'
        'version = "2.9.0"\nsource = { registry = "http://[" }\n'
    )
    assert run(path, *OLD, "--offline").code == 0


@pytest.mark.parametrize("marks", [10, 5000])
def test_a_url_with_very_many_letters_is_not_resolved(
    marks: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python normalizes the letters of a server in quadratic time."""
    letters, lengths = "\u0300" * marks, []
    original = unicodedata.normalize

    def normalize(form: Literal["NFC", "NFKC"], text: str) -> str:
        lengths.extend([len(text)] * (form == "NFKC"))
        return original(form, text)

    monkeypatch.setattr(unicodedata, "normalize", normalize)
    place = f"https://a{letters}.invalid/gpu_demo-1.0-{TAG}.whl"
    lock = "version = 1\n[[package]]\nname = 'gpu-demo'\nversion = '1.0'\n"
    lock += "source = { registry = 'https://index.invalid/simple' }\n"
    lock += f"wheels = [{{ url = '{place}', size = 2000000 }}]\n"
    path = tmp_path / "uv.lock"
    path.write_text(lock)
    assert run(path, *OLD, "--index-url", tmp_path).code == 0
    assert bool(lengths) is (marks == 10)
