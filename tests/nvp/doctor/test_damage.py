"""Damaged environments: one line about each defect, and never an exception."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gpu_wheels import binary
from support.stacks import Installed, machine, make_environment, make_stack

from nvp.doctor.distributions import find_distributions
from nvp.doctor.installation import find_installation
from nvp.doctor.model import Stack
from nvp.doctor.runner import diagnose

PLAIN = {"demo/plain.so": binary("plain.so")}
DEMO = Installed(files=PLAIN)

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="needs links")


def dist_info(stack: Stack) -> Path:
    return Path(stack.distributions["demo"].folder)


def notes(stack: Stack) -> tuple[str, ...]:
    diagnosis = diagnose(stack)
    assert all("\n" not in note for note in diagnosis.notes)
    return diagnosis.notes


def test_a_distribution_without_a_record(tmp_path: Path) -> None:
    installed = [
        Installed(name=f"demo{n}", recorded=False, files=PLAIN) for n in range(7)
    ]
    (note,) = notes(make_stack(tmp_path, *installed))
    assert note == (
        "files that no RECORD lists are not looked at: demo0, demo1, demo2, demo3, "
        "demo4 and 2 more"
    )


@pytest.mark.parametrize("text", [None, "", "\0\xff: damaged", "Requires-Dist: demo"])
def test_metadata_that_is_missing_or_damaged(text: str | None, tmp_path: Path) -> None:
    stack = make_stack(tmp_path, DEMO, environment=machine("13.4", "9.0"))
    path = dist_info(stack) / "METADATA"
    path.unlink()
    if text is not None:
        path.write_text(text, encoding="latin-1")
    (note,) = notes(stack)
    assert note == "demo: its METADATA is missing or damaged"


@needs_links
@pytest.mark.parametrize("name", ["METADATA", "RECORD", "variant.json"])
def test_links_in_a_circle(name: str, tmp_path: Path) -> None:
    stack = make_stack(tmp_path, DEMO, environment=machine("13.4", "9.0"))
    path = dist_info(stack) / name
    path.unlink(missing_ok=True)
    path.symlink_to(name)
    found = notes(stack)
    assert f"demo: its {name} cannot be read: Too many levels of symbolic links" in (
        found
    )


@needs_links
@pytest.mark.parametrize("name", ["METADATA", "RECORD", "variant.json", "INSTALLER"])
def test_a_link_to_a_secret_is_not_quoted(name: str, tmp_path: Path) -> None:
    stack = make_stack(tmp_path, DEMO, environment=machine("13.4", "9.0"))
    secret = tmp_path / "credentials"
    secret.write_text("https://jane:word@wheels.example\nName: word\n")
    path = dist_info(stack) / name
    path.unlink(missing_ok=True)
    path.symlink_to(secret)
    assert stack.distributions["demo"].read(name) is None
    found = notes(stack)
    assert f"demo: its {name} links to a file of another name" in found
    assert "word" not in str(found)


@needs_links
def test_an_installer_that_links_each_file_to_its_cache(tmp_path: Path) -> None:
    stack = make_stack(tmp_path, DEMO, environment=machine("13.4", "9.0"))
    cached = tmp_path / "cache"
    cached.mkdir()
    for path in dist_info(stack).iterdir():
        path.rename(cached / path.name)
        path.symlink_to(cached / path.name)
    assert stack.distributions["demo"].files
    assert notes(stack) == ()


def test_a_library_that_is_missing(tmp_path: Path) -> None:
    stack = make_stack(tmp_path, DEMO)
    Path(stack.distributions["demo"].locate("demo/plain.so")).unlink()
    (note,) = notes(stack)
    assert note == "demo: demo/plain.so: cannot be read: No such file or directory"


@needs_links
def test_a_library_that_is_a_circle_of_links(tmp_path: Path) -> None:
    stack = make_stack(tmp_path, DEMO)
    library = Path(stack.distributions["demo"].locate("demo/plain.so"))
    library.unlink()
    library.symlink_to("plain.so")
    (note,) = notes(stack)
    assert note.startswith("demo: demo/plain.so: ")


@needs_links
@pytest.mark.parametrize(
    "name",
    [
        "Lib/site-packages",
        "lib/python3.11/site-packages/nvidia/cuda_nvcc/nvvm/lib64/libnvvm.so.4",
    ],
)
def test_a_chain_of_links_that_is_longer_than_any_stack(
    name: str, tmp_path: Path
) -> None:
    last = tmp_path / name
    last.parent.mkdir(parents=True)
    for number in range(sys.getrecursionlimit()):
        link = last.with_name(f"link{number}")
        link.symlink_to(tmp_path if number == 0 else f"link{number - 1}")
    last.symlink_to(link)
    numba = Installed(name="numba-cuda", requires=["cuda-pathfinder"])
    stack = make_stack(tmp_path, numba, environment=machine("12.8", "9.0"))
    assert "ND307" in {finding.code for finding in diagnose(stack).findings}


@needs_links
def test_folders_in_a_circle_end(tmp_path: Path) -> None:
    packages = make_environment(tmp_path, DEMO)
    (packages / "again").symlink_to(packages)
    (packages / "nvidia").mkdir()
    (packages / "nvidia/cu13").symlink_to(packages / "nvidia")
    assert notes(make_stack(tmp_path, DEMO)) == ()


@pytest.mark.parametrize(
    "record", [b"\0", b'"', b"\xff\xfe,,", b"/etc/passwd,,\n../../../../../x.so,,\n"]
)
def test_a_damaged_record(record: bytes, tmp_path: Path) -> None:
    stack = make_stack(tmp_path, DEMO)
    (dist_info(stack) / "RECORD").write_bytes(record)
    assert len(notes(stack)) <= 4


def test_a_library_that_is_cut_off(tmp_path: Path) -> None:
    cut = binary("plain.so")[:3000]
    stack = make_stack(tmp_path, Installed(files={"demo/plain.so": cut}))
    found = notes(stack)
    assert found
    assert all(note.startswith("demo: demo/plain.so: ") for note in found)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_bytes_in_the_files_of_a_distribution(
    tmp_path: Path, data: st.DataObject
) -> None:
    stack = make_stack(tmp_path, DEMO, environment=machine("13.4", "9.0"))
    for name in ("METADATA", "RECORD", "variant.json"):
        if data.draw(st.booleans()):
            text = data.draw(
                st.one_of(
                    st.binary(max_size=60),
                    st.text(max_size=60).map(lambda t: t.encode("utf-8", "replace")),
                    st.just(b"Name: x\nRequires-Dist: nvidia-x; extra == 'a'\n"),
                )
            )
            (dist_info(stack) / name).write_bytes(text)
    notes(stack)


@pytest.mark.parametrize("megabytes", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_a_large_sparse_library(megabytes: int, tmp_path: Path) -> None:
    stack = make_stack(tmp_path, DEMO)
    with Path(stack.distributions["demo"].locate("demo/plain.so")).open("r+b") as file:
        file.truncate(megabytes << 20)
    tracemalloc.start()
    try:
        diagnosis = diagnose(stack)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [item.name for item, _ in diagnosis.stack.with_gpu_code()] == ["demo"]
    assert peak < 64 << 20


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_distributions(count: int, tmp_path: Path) -> None:
    packages = make_environment(tmp_path)
    for number in range(count):
        folder = packages / f"demo{number}-1.0.dist-info"
        folder.mkdir()
        text = f"Name: demo{number}\nRequires-Dist: demo{number // 2}\n"
        (folder / "METADATA").write_text(text)
        (folder / "RECORD").write_text(f"demo{number}/__init__.py,,\n")
    installation = find_installation(str(tmp_path), {})
    distributions = find_distributions(installation.folders)
    assert len(distributions) == count
    stack = make_stack(tmp_path, environment=machine("13.4", "9.0"))
    tracemalloc.start()
    try:
        diagnosis = diagnose(stack)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert diagnosis.findings == ()
    assert diagnosis.notes == ()
    assert peak < (64 << 20) + count * (16 << 10)
