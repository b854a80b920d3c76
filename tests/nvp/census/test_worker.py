"""Reading one wheel: the result for any behaviour of the wheel and its server."""

from __future__ import annotations

import hashlib
import os
import pickle
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.containers import library
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel

from nvp.census import worker
from nvp.census.model import Outcome, Wheel
from nvp.census.store import Store
from nvp.census.worker import Task, read_wheel
from nvp.index.http.blocking import BlockingClient
from nvp.index.http.client import Client
from nvp.index.http.urls import Settings

PLATFORM = "cp312-cp312-manylinux_2_28_x86_64"
LARGE = 3 * 1024 * 1024


@pytest.fixture(autouse=True)
def _own_clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no client outlive its test, query pip, or wait between attempts."""

    def connect(_environ: object, *, retries: int) -> BlockingClient:
        return BlockingClient(
            lambda: Client(Settings(plain_http=True, retries=retries))
        )

    monkeypatch.setattr(worker, "_clients", {})
    monkeypatch.setattr(worker, "connect", connect)
    monkeypatch.setattr("nvp.index.http.replies._FIRST", 0.0)
    yield
    for client in worker._clients.values():
        client.close()


def gpu_wheel(folder: Path, *, padding: int = 0) -> Path:
    """Return a wheel with a library; with ``padding``, the wheel is too large to be
    read at once."""
    members = {"demo/lib.so": library("80_real", "90_virtual") + os.urandom(padding)}
    return stub_wheel(folder, "demo", "1.0", tag=PLATFORM, members=members)


def wheel_of(path: Path, url: str | None = None) -> Wheel:
    data = path.read_bytes()
    return Wheel(
        project="demo",
        version="1.0",
        filename=path.name,
        tags=PLATFORM,
        url=url or str(path),
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def read(wheel: Wheel, deadline: float = 900.0) -> Outcome:
    """Read a wheel as a worker does: the task and the result are pickled."""
    task = pickle.loads(pickle.dumps(Task(wheel=wheel, deadline=deadline)))
    outcome: Outcome = pickle.loads(pickle.dumps(read_wheel(task)))
    return outcome


def same(outcome: Outcome) -> Outcome:
    """Return the outcome without the values that differ between runs and places."""
    return replace(
        outcome,
        bytes_read=0,
        seconds=0.0,
        hashed=False,
        wheel=replace(outcome.wheel, url="", sha256=None, size=None),
    )


def test_a_local_wheel(tmp_path: Path) -> None:
    path = gpu_wheel(tmp_path)
    outcome = read(wheel_of(path))
    assert outcome.status == "inspected"
    assert outcome.report is not None
    (own,) = outcome.report.own
    assert own.targets == {"80_real": 1, "90_virtual": 1}
    assert outcome.claims["strict"].sm_arch == ("80_real", "90_virtual")
    assert outcome.claims["strict"].lower_bound == "13.0"
    assert 0 < outcome.bytes_read <= 2 * path.stat().st_size
    assert outcome.seconds > 0


@pytest.mark.parametrize("padding", [0, LARGE])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_wheel_on_a_server_is_the_same(
    tmp_path: Path, padding: int, ranges: bool
) -> None:
    path = gpu_wheel(tmp_path, padding=padding)
    answer = Answer(body=path.read_bytes(), ranges=ranges)
    with serve_answers({f"/{path.name}": answer}) as server:
        outcome = read(wheel_of(path, f"{server.url}/{path.name}"))
    assert same(outcome) == same(read(wheel_of(path)))
    # The reader requests the end of the wheel first, and then the block around it.
    assert outcome.bytes_read <= path.stat().st_size + 64 * 1024


def test_a_wheel_without_native_libraries_is_not_read(tmp_path: Path) -> None:
    members = {"demo/data.bin": bytes(LARGE), "demo/LICENSE": b"free"}
    path = stub_wheel(tmp_path, "demo", "1.0", members=members, requires=["packaging"])
    answer = Answer(body=path.read_bytes())
    with serve_answers({f"/{path.name}": answer}) as server:
        outcome = read(wheel_of(path, f"{server.url}/{path.name}"))
    assert (outcome.status, outcome.reason) == ("skipped", "it has no native library")
    assert outcome.report is not None
    assert outcome.report.requires == ("packaging",)
    assert outcome.bytes_read <= 64 * 1024, "only the end of the wheel"


@pytest.mark.parametrize(
    "name",
    [
        "a.so",
        "a.so.12",
        "a.cpython-312-x86_64-linux-gnu.so",
        "A.DLL",
        "a.pyd",
        "a.dylib",
        "lib.a",
        "k.cubin",
        "k.fatbin",
        "k.ptx",
        "bin/ptxas",
    ],
)
def test_what_may_have_gpu_code_is_read(tmp_path: Path, name: str) -> None:
    path = stub_wheel(tmp_path, "demo", "1.0", members={f"demo/{name}": b"x"})
    assert read(wheel_of(path)).status == "inspected"


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_wrong_hash(tmp_path: Path, size: int) -> None:
    path = gpu_wheel(tmp_path, padding=size)
    answer = Answer(body=path.read_bytes(), ranges=False)
    with serve_answers({f"/{path.name}": answer}) as server:
        wheel = wheel_of(path, f"{server.url}/{path.name}")
        outcome = read(replace(wheel, sha256="0" * 64))
    assert (outcome.status, outcome.may_pass) == ("failed", True)
    assert f"its sha256 is {wheel.sha256}" in str(outcome.reason)


@pytest.mark.parametrize("size", [10, LARGE])
def test_another_size_than_that_of_the_page(tmp_path: Path, size: int) -> None:
    path = gpu_wheel(tmp_path, padding=size)
    with serve_answers({f"/{path.name}": Answer(body=path.read_bytes())}) as server:
        wheel = wheel_of(path, f"{server.url}/{path.name}")
        outcome = read(replace(wheel, size=LARGE + 1))
    assert outcome.status == "failed"
    assert outcome.reason == f"it has {wheel.size} bytes, and {LARGE + 1} by the page"


@pytest.mark.parametrize("version", [6, 7])
@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("damaged", [b"\x7fELF", b"PK\x05\x06"])
def test_damage_is_final_only_in_bytes_with_the_hash_of_the_page(
    tmp_path: Path, damaged: bytes, size: int, version: int
) -> None:
    path = gpu_wheel(tmp_path, padding=size)
    honest = path.read_bytes()
    path.write_bytes(honest.replace(damaged, bytes(4)))
    answers = {f"/{path.name}": Answer(body=path.read_bytes())}
    place = str(tmp_path / "census.sqlite")
    with serve_answers(answers) as server:
        as_published = wheel_of(path, f"{server.url}/{path.name}")
        on_the_way = replace(as_published, sha256=hashlib.sha256(honest).hexdigest())
        with Store(place) as store:
            for wheel in (as_published, on_the_way):
                store.add(read(wheel))
            if version == 6:
                # In older versions, every row of an inspected wheel was final.
                store._connection.execute("UPDATE wheels SET may_pass = 0, hashed = 0")
                store._connection.execute("PRAGMA user_version = 6")
        with Store(place) as store:
            # Version 7 has downloaded all of this wheel because of its damage.
            assert store.is_known(as_published) is (version == 7)
            assert not store.is_known(on_the_way)
            answers[f"/{path.name}"] = Answer(body=honest)
            store.add(read(on_the_way))
            assert store.is_known(on_the_way)


class Changing(dict[str, Answer]):
    """Answers with a new version of a file to each request."""

    def __init__(self, body: bytes, *, tagged: bool) -> None:
        super().__init__()
        self._body = body
        self._tagged = tagged
        self._count = 0

    def get(self, *_: object) -> Answer:
        self._count += 1
        headers = {"ETag": f'"{self._count}"'} if self._tagged else {}
        more = b"" if self._tagged else bytes(self._count)
        return Answer(body=self._body + more, headers=headers)


@pytest.mark.parametrize("tagged", [True, False])
def test_a_wheel_that_changes_between_two_reads(tmp_path: Path, tagged: bool) -> None:
    path = gpu_wheel(tmp_path, padding=LARGE)
    with serve_answers(Changing(path.read_bytes(), tagged=tagged)) as server:
        wheel = wheel_of(path, f"{server.url}/{path.name}")
        outcome = read(replace(wheel, size=None))
    assert (outcome.status, outcome.may_pass) == ("failed", True)
    assert outcome.reason == "it has changed while it was read"


def test_a_local_wheel_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gpu_wheel(tmp_path)
    inspect = worker.inspect_wheel

    def slow(*arguments: object) -> Outcome:
        os.utime(path, (1, 1))
        return inspect(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(worker, "inspect_wheel", slow)
    outcome = read(wheel_of(path))
    assert (outcome.status, outcome.may_pass) == ("failed", True)
    assert outcome.reason == "it has changed while it was read"


def test_a_server_without_ranges_and_a_large_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_WHOLE", 2 * 1024 * 1024)
    path = gpu_wheel(tmp_path, padding=LARGE)
    answer = Answer(body=path.read_bytes(), ranges=False)
    with serve_answers({f"/{path.name}": answer}) as server:
        wheel = wheel_of(path, f"{server.url}/{path.name}")
        outcome = read(wheel)
    assert outcome.status == "skipped"
    assert outcome.reason == (
        "its server sends only whole files, and it has more than 2 MiB"
    )


def test_a_deadline_of_a_server_that_hangs(tmp_path: Path) -> None:
    path = gpu_wheel(tmp_path, padding=LARGE)
    answer = Answer(body=path.read_bytes(), fault="hang")
    with serve_answers({f"/{path.name}": answer}) as server:
        wheel = wheel_of(path, f"{server.url}/{path.name}")
        outcome = read(wheel, deadline=0.2)
    assert (outcome.status, outcome.may_pass) == ("failed", True)
    assert outcome.reason == "not read within 0.2 s"


def test_a_deadline_while_a_wheel_is_inflated(tmp_path: Path) -> None:
    outcome = read(wheel_of(gpu_wheel(tmp_path)), deadline=0.0)
    assert (outcome.status, outcome.may_pass) == ("failed", True)
    assert outcome.reason == "not read within 0 s"


@pytest.mark.parametrize("status", [403, 404, 410, 503])
@pytest.mark.parametrize("size", [None, 10])
def test_a_status_of_the_server(tmp_path: Path, status: int, size: int | None) -> None:
    path = gpu_wheel(tmp_path)
    with serve_answers({f"/{path.name}": Answer(status=status)}) as server:
        wheel = wheel_of(path, f"{server.url}/{path.name}")
        outcome = read(replace(wheel, size=size))
    assert (outcome.status, outcome.may_pass) == ("failed", True)
    assert str(outcome.reason).startswith(f"HTTP {status}")


def test_a_server_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    path = gpu_wheel(tmp_path, padding=LARGE)
    body = path.read_bytes()

    class Busy(dict[str, Answer]):
        count = 0

        def get(self, *_: object) -> Answer:
            self.count += 1
            if self.count % 2:
                return Answer(status=429, headers={"Retry-After": "0"})
            return Answer(body=body)

    with serve_answers(Busy()) as server:
        outcome = read(wheel_of(path, f"{server.url}/{path.name}"))
    assert outcome.status == "inspected"


def test_a_server_that_asks_for_patience(tmp_path: Path) -> None:
    path = gpu_wheel(tmp_path)
    answer = Answer(status=429, headers={"Retry-After": "86400"})
    with serve_answers({f"/{path.name}": answer}) as server:
        outcome = read(wheel_of(path, f"{server.url}/{path.name}"))
        assert len(server.requests) == 1
    assert outcome.may_pass
    assert "asks to wait for 86400 s" in str(outcome.reason)


def test_a_file_that_is_no_wheel(tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    path.write_bytes(b"hello")
    for sha256, may_pass in ((None, False), ("0" * 64, True)):
        outcome = read(replace(wheel_of(path), sha256=sha256))
        assert (outcome.status, outcome.may_pass) == ("failed", may_pass)
        assert "not a readable archive" in str(outcome.reason)


def test_a_local_wheel_that_is_gone(tmp_path: Path) -> None:
    path = gpu_wheel(tmp_path)
    wheel = wheel_of(path)
    path.unlink()
    outcome = read(wheel)
    assert outcome.status == "failed"
    assert outcome.reason == "cannot be read: No such file or directory"


def test_a_damaged_member_is_a_defect(tmp_path: Path) -> None:
    path = gpu_wheel(tmp_path)
    data = path.read_bytes()
    at = data.index(b"\x7fELF") + 100
    path.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    outcome = read(wheel_of(path))
    assert outcome.status == "inspected"
    assert outcome.report is not None
    assert not outcome.report.complete
    assert "its checksum is wrong" in str(outcome.report.all_defects)


def test_a_bomb_is_a_defect(tmp_path: Path) -> None:
    """A member of ten gigabytes in a few kilobytes is not inflated."""
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("demo/lib.so", bytes(100_000))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2") + 24
    data[at : at + 4] = (0xFFFFFFF0).to_bytes(4, "little")
    path.write_bytes(data)
    outcome = read(wheel_of(path))
    assert outcome.status == "inspected"
    assert outcome.report is not None
    assert "it ends after 100000" in str(outcome.report.all_defects)


def test_credentials_of_the_index(tmp_path: Path) -> None:
    path = gpu_wheel(tmp_path)
    answers = {f"/{path.name}": Answer(body=path.read_bytes())}
    with serve_answers(answers, credentials="user:secret") as server:
        wheel = wheel_of(path, f"{server.url}/{path.name}")
        refused = read(wheel)
        task = Task(wheel=wheel, credentials=((server.url, ("user", "secret")),))
        outcome = read_wheel(task)
    assert "HTTP 401" in str(refused.reason)
    assert refused.may_pass
    assert outcome.status == "inspected"
    assert "secret" not in repr(task)


def test_damaged_libraries_are_no_reason_to_skip_a_wheel(tmp_path: Path) -> None:
    path = gpu_wheel(tmp_path)
    path.write_bytes(path.read_bytes()[40:])
    outcome = read(wheel_of(path))
    assert outcome.status == "inspected"
    assert outcome.report is not None
    assert not outcome.report.complete


@pytest.mark.parametrize("padding", [0, LARGE])
def test_a_hostile_index_keeps_no_wheel_out(padding: int, tmp_path: Path) -> None:
    """The hostile page has the hash of another index's wheel for its own wheel."""
    honest = gpu_wheel(tmp_path / "honest", padding=padding)
    members = {"demo/data.txt": os.urandom(padding)}
    other = stub_wheel(tmp_path / "b", "demo", "1.0", tag=PLATFORM, members=members)
    path = f"/{honest.name}"
    with (
        serve_answers({path: Answer(body=honest.read_bytes())}) as first,
        serve_answers({path: Answer(body=other.read_bytes())}) as second,
        Store(str(tmp_path / "census.sqlite")) as store,
    ):
        wheel = wheel_of(honest, first.url + path)
        lie = replace(wheel, url=second.url + path, size=other.stat().st_size)
        for given, hashed in ((lie, False), (wheel, not padding)):
            assert not store.is_known(given)
            outcome = read_wheel(Task(wheel=given))
            assert outcome.hashed is hashed
            store.add(outcome)
            assert store.is_known(given) is not outcome.may_pass
        found = {row["url"]: row["status"] for row in store.wheels()}
    of_lie = "skipped" if padding else "failed"
    assert found == {wheel.url: "inspected", lie.url: of_lie}


def at_its_own_url(honest: Wheel, given: str) -> Wheel:
    """Return an entry of another index for the honest wheel, with one false value."""
    if given == "size":
        return replace(honest, size=7)
    name = f"other-9.0-{PLATFORM}.whl"
    return replace(honest, filename=name, project="other", size=None)


@pytest.mark.parametrize("first", ["lie", "honest"])
@pytest.mark.parametrize("has_hash", [True, False])
@pytest.mark.parametrize("given", ["size", "name"])
def test_another_index_says_nothing_final_of_a_url(
    given: str, has_hash: bool, first: str, tmp_path: Path
) -> None:
    path = gpu_wheel(tmp_path / "honest", padding=LARGE)
    with (
        serve_answers({f"/{path.name}": Answer(body=path.read_bytes())}) as server,
        Store(str(tmp_path / "census.sqlite")) as store,
    ):
        honest = replace(wheel_of(path, f"{server.url}/{path.name}"), size=None)
        honest = honest if has_hash else replace(honest, sha256=None)
        lie = at_its_own_url(honest, given)
        for wheel in (lie, honest) if first == "lie" else (honest, lie):
            if not store.is_known(wheel):
                store.add(read_wheel(Task(wheel=wheel)))
        (row,) = [row for row in store.wheels() if row["filename"] == path.name]
    assert row["status"] == "inspected"


def test_a_wheel_that_is_published_later_is_read(tmp_path: Path) -> None:
    """Another index, or a page without a login, may have had the URL before."""
    path = gpu_wheel(tmp_path)
    answers: dict[str, Answer] = {}
    with (
        serve_answers(answers) as server,
        Store(str(tmp_path / "census.sqlite")) as store,
    ):
        wheel = wheel_of(path, f"{server.url}/{path.name}")
        store.add(read_wheel(Task(wheel=wheel)))
        answers[f"/{path.name}"] = Answer(body=path.read_bytes())
        assert not store.is_known(wheel)
        store.add(read_wheel(Task(wheel=wheel)))
        (row,) = store.wheels()
    assert row["status"] == "inspected"
