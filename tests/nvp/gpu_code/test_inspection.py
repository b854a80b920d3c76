"""The inspection of wheels, directories, installed distributions and single files."""

from __future__ import annotations

import io
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.containers import BINARIES, container, entry, write_wheel
from support.range_server import Answer, serve_answers

from nvidia_variant_provider.errors import InputError
from nvp import api
from nvp.gpu_code import compression, files, inspection
from nvp.gpu_code.compression import Budget
from nvp.gpu_code.library import inspect_library, inspect_local
from nvp.gpu_code.report import (
    BrokenError,
    LibraryReport,
    WheelReport,
    sort_targets,
)
from nvp.gpu_code.zip_members import Source

PLAIN = (BINARIES / "plain.so").read_bytes()
CUBIN = (BINARIES / "new-80.cubin").read_bytes()
MEMBERS = {
    "demo/__init__.py": b"x = 1\n",
    "demo/kernels/a.cubin": CUBIN,
    "demo/lib.so": PLAIN,
    "demo/weights.bin": bytes(5000),
    "demo.libs/libother-1234.so.1": PLAIN,
    "demo-1.0.dist-info/METADATA": b"Name: demo\n",
}


def wheel(folder: Path) -> Path:
    return write_wheel(folder / "demo-1.0-py3-none-any.whl", MEMBERS)


def tree(folder: Path) -> Path:
    for name, data in MEMBERS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def paths(report: WheelReport) -> list[str]:
    return [library.path for library in report.libraries]


LIBRARIES = ["demo.libs/libother-1234.so.1", "demo/kernels/a.cubin", "demo/lib.so"]


def test_wheel(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    report = api.inspect(path)
    assert (report.path, report.kind) == (str(path), "wheel")
    assert (report.members, report.size) == (6, path.stat().st_size)
    assert paths(report) == LIBRARIES
    assert [item.path for item in report.vendored] == LIBRARIES[:1]
    # Only the targets of the project's own libraries count.
    assert report.targets == {
        "75_real": 1,
        "80_real": 2,
        "90_real": 1,
        "90_virtual": 1,
    }


def test_an_open_file_gives_the_same_and_stays_open(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    with path.open("rb") as file:
        report = api.inspect(file, name=str(path), jobs=2)
        file.seek(0)
        assert file.read(2) == b"PK"
    assert report == api.inspect(path)


def test_folder(tmp_path: Path) -> None:
    report = api.inspect(tree(tmp_path))
    assert (report.kind, report.members, report.defects) == ("directory", 6, ())
    assert paths(report) == LIBRARIES


def test_wheels_in_a_folder(tmp_path: Path) -> None:
    name = wheel(tmp_path).name
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"nothing")
    report = api.inspect(tmp_path)
    assert paths(report) == [f"{name}/{path}" for path in LIBRARIES]
    (defect,) = report.defects
    assert defect.path == "broken-1.0-py3-none-any.whl"


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    folder = tree(tmp_path / "tree")
    (folder / "lib.so.1").symlink_to(folder / "demo" / "lib.so")
    (folder / "loop").symlink_to(folder)
    (folder / "gone.so").symlink_to(tmp_path / "nothing")
    os.mkfifo(folder / "pipe.so")
    report = api.inspect(folder)
    assert paths(report) == LIBRARIES
    assert report.defects == ()


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="the system has none")
def test_a_file_that_is_replaced_by_a_device_is_not_read() -> None:
    """Each function opens the path again; a pipe or a terminal would make it wait."""
    readers: list[Callable[[], object]] = [
        lambda: Source("/dev/zero").read(0, 4),
        lambda: list(files._read("/dev/zero", 4)),
    ]
    for read in readers:
        with pytest.raises((OSError, BrokenError), match="not a regular file"):
            read()
    report = inspect_local("lib.so", 4, "/dev/zero")
    assert report is not None
    (defect,) = report.defects
    assert defect.message == "cannot be read: not a regular file"


def test_installed_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tree(tmp_path) / "demo-1.0.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
    lost = "demo/lost.so"
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in [*MEMBERS, lost]))
    monkeypatch.syspath_prepend(tmp_path)
    report = api.inspect_distribution("Demo")
    assert (report.path, report.kind) == ("Demo", "distribution")
    assert paths(report) == LIBRARIES
    assert [item.path for item in report.vendored] == LIBRARIES[:1]
    (defect,) = report.defects
    assert defect.path == lost


def test_a_distribution_that_is_missing_or_lists_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="no distribution 'nothing-here'"):
        api.inspect_distribution("nothing-here")
    info = tmp_path / "bare-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bare\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="does not list its files"):
        api.inspect_distribution("bare")
    (info / "RECORD").write_text("a" * 200_000)
    with pytest.raises(InputError, match="RECORD of 'bare' cannot be read"):
        api.inspect_distribution("bare")


def distribution(
    folder: Path, record: bytes, metadata: bytes, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Install ``demo`` into a prefix of its own."""
    site = folder / "prefix" / "lib" / "python3" / "site-packages"
    info = tree(site) / "demo-1.0.dist-info"
    (info / "RECORD").write_bytes(record)
    (info / "METADATA").write_bytes(metadata)
    monkeypatch.syspath_prepend(site)
    return site


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/etc/passwd", True),
        ("../../../../secret.so", True),
        ("demo/../../../../../secret.so", True),
        # These files are a part of the installation, but are not libraries.
        ("../../../secret.so", False),
        ("demo/../../../../secret.so", False),
        ("demo/lost.pyc", False),
    ],
)
def test_files_outside_of_the_installation_are_not_read(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, told: bool
) -> None:
    for folder in (tmp_path, tmp_path / "prefix"):
        folder.mkdir(exist_ok=True)
        (folder / "secret.so").write_bytes(PLAIN)
    record = f"demo/lib.so,,\n{path},,\n".encode()
    distribution(tmp_path, record, b"Name: demo\n", monkeypatch)
    report = api.inspect_distribution("demo")
    assert paths(report) == ["demo/lib.so"]
    assert [item.path for item in report.defects] == [path] * told


def test_a_distribution_whose_files_are_not_utf_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = distribution(tmp_path, b"\xff\xfe,,\n", b"Name: demo\n", monkeypatch)
    with pytest.raises(InputError, match="RECORD of 'demo' is not UTF-8"):
        api.inspect_distribution("demo")
    info = site / "demo-1.0.dist-info"
    (info / "RECORD").write_bytes(b"demo/lib.so,,\n")
    (info / "METADATA").write_bytes(b"Name: demo\n\n\xff\xfe")
    (defect,) = api.inspect_distribution("demo").defects
    assert defect.path == "METADATA"


def test_the_rows_of_a_record_and_its_defects_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_RECORDED", 1000)
    record = b"".join(b"demo/%d.so,,\n" % index for index in range(2000))
    distribution(tmp_path, record, b"Name: demo\n", monkeypatch)
    report = api.inspect_distribution("demo")
    assert len(report.defects) == files.MAX_DEFECTS + 1
    assert report.defects[-1].message == "801 more defects"


@pytest.mark.skipif(not os.path.exists("/proc/version"), reason="there is no /proc")
def test_files_without_a_size_are_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading ``/proc/kmsg``, which claims to be empty, never ends."""
    monkeypatch.setattr("builtins.open", None)
    assert api.inspect("/proc/version").libraries == ()


def test_the_number_of_requirements_is_bounded(tmp_path: Path) -> None:
    lines = "Requires-Dist: x\n" * 20_000 + "Requires-Dist: nvidia-cuda-runtime-cu12\n"
    members = {"demo-1.0.dist-info/METADATA": f"Name: demo\n{lines}".encode()}
    path = write_wheel(tmp_path / "demo-1.0-py3-none-any.whl", members)
    report = api.inspect(path)
    assert len(report.requires) == 10_000
    (defect,) = report.defects
    assert "only the first 10000 requirements" in defect.message


def test_a_wrong_elf_header_is_one_defect(tmp_path: Path) -> None:
    path = tmp_path / "a.so"
    path.write_bytes(b"\x7fELF" + bytes(100))
    (defect,) = api.inspect(path).all_defects
    assert defect.message == "not an ELF file"


@pytest.mark.parametrize("name", ["missing", "nul\0byte"])
def test_a_path_that_cannot_be_read(name: str) -> None:
    with pytest.raises(InputError, match="cannot be read") as caught:
        api.inspect(name)
    assert caught.value.path == name
    assert caught.value.hint


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes to open")
def test_a_named_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="neither a file nor a directory"):
        api.inspect(tmp_path / "pipe")


def test_a_text_file_has_no_libraries(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("nothing to see")
    report = api.inspect(path)
    assert (report.kind, report.members, report.libraries) == ("file", 1, ())


def test_ptx_without_directives_is_a_defect(tmp_path: Path) -> None:
    path = tmp_path / "kernel.ptx"
    path.write_text("// nothing\n")
    (library,) = api.inspect(path).libraries
    assert library.targets == {}
    assert [item.message for item in library.defects] == [
        "a PTX file without .version or .target"
    ]


def test_ptx_of_empty_lines_takes_linear_time(tmp_path: Path) -> None:
    """In quadratic time, this test would take ten minutes."""
    for number in range(60):
        (tmp_path / f"{number}.ptx").write_bytes(b"\n" * 100_000)
    assert len(api.inspect(tmp_path).libraries) == 60


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_the_number_of_jobs_does_not_change_the_report(
    jobs: int, tmp_path: Path
) -> None:
    path = wheel(tmp_path)
    calls: list[tuple[int, int]] = []
    report = api.inspect(path, jobs=jobs, progress=lambda *call: calls.append(call))
    assert report == api.inspect(path)
    total = sum(len(data) for name, data in MEMBERS.items() if name[-2:] != "py")
    total -= len(MEMBERS["demo-1.0.dist-info/METADATA"])
    assert calls == sorted(calls)
    assert calls[-1] == (total, total)


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_ends_all_threads(jobs: int, tmp_path: Path) -> None:
    class Enough(BaseException):
        pass

    def progress(*_: int) -> None:
        raise Enough

    before = set(threading.enumerate())
    with pytest.raises(Enough):
        api.inspect(wheel(tmp_path), jobs=jobs, progress=progress)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


def test_the_error_of_the_thread_that_failed_is_raised() -> None:
    counter = inspection._Counter(2, None)

    def read_until_told_to_stop() -> Iterator[bytes]:
        while not counter.stopped:
            yield bytes(1)
        yield bytes(1)

    def fail() -> Iterator[bytes]:
        raise OSError("the disk is gone")

    # The first thread reads the larger file, whose result is needed first.
    items = [
        files.File(path="large.so", size=2, pieces=read_until_told_to_stop),
        files.File(path="small.so", size=1, pieces=fail),
    ]
    with pytest.raises(OSError, match="the disk is gone"):
        inspection._inspect_all(items, 2, Budget(), counter)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_wheel_on_a_server_is_read_by_ranges(jobs: int, tmp_path: Path) -> None:
    pytest.importorskip("httpx", reason="it reads the ranges")
    from nvp.index.http.blocking import BlockingClient

    path = wheel(tmp_path)
    with serve_answers({"/demo.whl": Answer(body=path.read_bytes())}) as server:
        with (
            BlockingClient() as client,
            io.BufferedReader(client.open(f"{server.url}/demo.whl")) as file,
        ):
            report = api.inspect(file, name=str(path), jobs=jobs)
        assert all("bytes=" in request for request in server.requests)
    assert report == api.inspect(path)


def test_a_failing_network_is_an_error_and_not_a_defect(tmp_path: Path) -> None:
    class Remote(io.BytesIO):
        reads = 0

        def read(self, size: int | None = -1) -> bytes:
            self.reads += 1
            if self.reads > 8:
                raise InputError("cannot be read: HTTP 500", path="wheel")
            return super().read(size)

    with pytest.raises(InputError, match="HTTP 500"):
        api.inspect(Remote(wheel(tmp_path).read_bytes()))


def test_major_versions_of_the_linked_runtime() -> None:
    def majors(*needed: str) -> tuple[int, ...]:
        return LibraryReport(path="", format="elf", needed=needed).cuda_runtime

    assert majors("libcudart.so.12", "libc.so.6") == (12,)
    assert majors("libcudart.so.11.0") == (11,)
    assert majors("cudart64_110.dll", "cudart64_12.dll") == (11, 12)
    assert majors("libcudart-c3a75b33.so.12.8.90") == (12,)
    assert majors("libcublas.so.12", "libcudart_static.a") == ()


def test_targets_are_sorted_by_kind_number_and_letter() -> None:
    names = ["120_virtual", "100f_real", "90a_real", "100_real", "90_real"]
    assert list(sort_targets(dict.fromkeys(names, 1))) == [
        "90_real",
        "90a_real",
        "100_real",
        "100f_real",
        "120_virtual",
    ]


def test_without_zstandard_stubs_are_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = b"\x28\xb5\x2f\xfd" + bytes(100)
    path = tmp_path / "a.fatbin"
    path.write_bytes(container(entry(payload=stub, flags=0x8011, size=900)))
    monkeypatch.setattr(compression, "_zstd", lambda: None)
    assert not compression.has_zstd()
    for name in (path, BINARIES / "concatenated.so"):
        (library,) = api.inspect(name).libraries
        assert library.unchecked > 0
        assert library.stubs == {}
        # The targets are known without decompression.
        assert library.targets


def test_tables_that_point_backwards_take_two_more_passes() -> None:
    """Program headers point back to the dynamic section, and that to the names."""
    names, dynamic, programs, size = 1 << 20, 5 << 20, 9 << 20, 10 << 20
    data = bytearray(size)
    ident = b"\x7fELF\x02\x01\x01"
    numbers = (3, 62, 1, 0, programs, 0, 0, 64, 56, 2, 0, 0, 0)
    struct.pack_into("<16sHHIQQQIHHHHHH", data, 0, ident, *numbers)
    load = (1, 0, 0, 0, 0, size, size, 0)
    table = (2, 0, dynamic, dynamic, 0, 48, 48, 0)
    struct.pack_into("<IIQQQQQQ", data, programs, *load)
    struct.pack_into("<IIQQQQQQ", data, programs + 56, *table)
    struct.pack_into("<qQqQqQ", data, dynamic, 1, 1, 5, names, 0, 0)
    data[names : names + 17] = b"\0libcudart.so.12\0"
    passes = 0

    def pieces() -> Iterator[bytes]:
        nonlocal passes
        passes += 1
        for start in range(0, size, 1 << 20):
            yield bytes(data[start : start + (1 << 20)])

    report = inspect_library("demo.so", size, pieces)
    assert report is not None
    assert (report.needed, report.defects) == (("libcudart.so.12",), ())
    assert passes == 3
