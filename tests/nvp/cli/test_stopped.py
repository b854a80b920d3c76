"""Commands that take too much processor time or memory for their inputs are stopped."""

from __future__ import annotations

import json
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from jsonschema import Draft202012Validator
from support.command import Run
from support.paths import FIXTURES
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import InputError
from nvp import cli, signals
from nvp.census.store import Store
from nvp.cli import resolve
from nvp.cli.render import Result, render
from nvp.gpu_code.inspection import inspect_path
from nvp.index.http.threads import LoopThread
from nvp.inventories import reading
from nvp.lint import wheel
from nvp.lint.files import open_wheel

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no timer of processor time"
)
METADATA = str(FIXTURES / "published/torch-2.10.0-variants.json")
MIB = 1 << 20


def endless(*_: object, **__: object) -> NoReturn:
    while True:
        pass


def growing(*_: object, **__: object) -> NoReturn:
    kept: list[bytes] = []
    while len(kept) < 50:
        kept.append(b"x" * (10 << 20))
    raise MemoryError


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "SECONDS", 0.5)
    monkeypatch.setattr(cli, "MEMORY", 50 << 20)


def test_an_inventory_for_doctor(
    monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path
) -> None:
    """doctor limits its checks itself, and so does pip."""
    monkeypatch.setattr(signals, "bounded", partial(signals.bounded, 0.5, 50 << 20))
    monkeypatch.setattr(reading, "read_inventory", endless)
    (tmp_path / "nodes.yaml").write_text("a: b")
    result = run("doctor", "--environment", str(tmp_path / "nodes.yaml"))
    assert result.code == 3
    assert "the command was stopped after" in result.err


@pytest.mark.parametrize(
    ("work", "stopped"),
    [
        (endless, "after 0.55 seconds of processor time"),
        (growing, "at 50 MiB of memory"),
    ],
)
def test_a_command_is_stopped(
    work: Any,
    stopped: str,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
    report_schema: Draft202012Validator,
) -> None:
    monkeypatch.setattr(resolve, "resolve", work)
    result = run("resolve", METADATA, "--json")
    document = json.loads(result.out)
    report_schema.validate(document)
    assert (document["status"], result.code) == ("error", 3)
    (error,) = document["errors"]
    assert error["message"] == f"the command was stopped {stopped}"
    assert (error["path"], error["hint"]) == (METADATA, signals.STOPPED)
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


@pytest.mark.parametrize(
    ("work", "stopped"),
    [(endless, "after 0.3 seconds"), (growing, "at 20 MiB of memory")],
)
def test_printing_is_stopped(
    work: Any, stopped: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def printed(result: Result, **options: Any) -> None:
        work() if result.data else render(result, **options)

    monkeypatch.setattr(cli, "render", printed)
    monkeypatch.setattr(cli, "_SECONDS_OF_OUTPUT", 0.3)
    monkeypatch.setattr(cli, "_MEMORY_OF_OUTPUT", 20 << 20)
    result = run("resolve", METADATA, "--json")
    assert (json.loads(result.out)["data"], result.code) == (None, 3)
    assert f"stopped {stopped}" in result.out


@pytest.mark.parametrize("option", ["--report", "--export=rows.csv"])
def test_reading_a_store_is_stopped(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    # 580,000 rows of a store of 28 MiB took more than a GB.
    path = str(tmp_path / "store.sqlite")
    Store(path).close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nvp.census.report.count_wheels", growing)
    monkeypatch.setattr(cli, "MEMORY", 20 * MIB)
    words = ["census", "-o", path, option, "--json"]
    error = json.loads(run(*words).out)["errors"][0]
    assert (error["path"], error["hint"]) == (path, signals.STOPPED)
    assert error["message"].startswith("the command was stopped at 20 MiB")
    assert not (tmp_path / "rows.csv").exists()


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_other_inputs_are_reported(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    slow, fine = (
        stub_wheel(tmp_path, name, "1.0", "cpu", members={"a.fatbin": b"0"})
        for name in ("a", "b")
    )

    def inspected(path: str, **options: Any) -> Any:
        return endless() if path == str(slow) else inspect_path(path, **options)

    def opened(file: Any, *given: Any) -> Any:
        return endless() if file.path == str(slow) else open_wheel(file, *given)

    monkeypatch.setattr("nvp.gpu_code.inspection.inspect_path", inspected)
    monkeypatch.setattr(wheel, "open_wheel", opened)
    result = run(command, str(slow), str(fine), "--json")
    document = json.loads(result.out)
    assert "was stopped after" in result.out
    if command == "inspect":
        assert result.code == 3
        assert [item["path"] for item in document["data"]["files"]] == [str(fine)]
    else:
        found = {x["path"]: x["code"] for x in document["data"]["findings"]}
        assert (result.code, found[str(slow)]) == (1, "NV411")
        assert str(fine) in found


def test_large_inputs_raise_the_limits() -> None:
    with signals.limited(20, 100 * MIB, grows=True):
        (limit,) = signals._limits
        until, most = limit.until, limit._most
        signals.count_input("a", 32 * MIB)
        assert limit.until - until == pytest.approx(0.05)
        with signals.reading("b", 100 * MIB):
            assert limit.until - until < 100
            signals.count_input("c", 20 * MIB, is_new=False)
        assert limit.until - until == pytest.approx(120.1)
        assert limit._most - most == 8 * 120 * MIB


def test_one_input_leaves_a_part_to_others() -> None:
    with signals.limited(0.4, 1 << 40, grows=True):
        for name in ("a", "b"):
            stopped = pytest.raises(InputError, match="stopped after")
            with stopped as error, signals.reading(name):
                endless()
            assert error.value.path == name
        with signals.reading("c"):
            pass


def test_inputs_do_not_raise_the_limits_of_doctor() -> None:
    with signals.limited(20, 100 * MIB), signals.reading("a", 100 * MIB):
        (limit,) = signals._limits
        assert limit.until - limit.start == pytest.approx(20)


def test_work_in_a_thread_is_stopped() -> None:
    """The main thread waits meanwhile, and has to wake up for the signal."""
    is_over = False

    async def work() -> None:
        while not is_over:
            pass

    thread = LoopThread()
    with pytest.raises(signals.StoppedError), signals.limited(0.3, 1 << 40):
        thread.call(work())
    is_over = True
    thread.close()


def test_work_for_members_is_stopped(
    monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path
) -> None:
    names = [f"{number}.fatbin" for number in range(3)]
    path = stub_wheel(tmp_path, "a", "1.0", "cpu", members=dict.fromkeys(names, b"0"))
    until = time.process_time() + 4
    late: list[bool] = []

    def endless(*_: object) -> list[object]:
        (limit,) = signals._limits
        while not limit._reason and not late:
            late.extend([True] * (time.process_time() > until))
        return []

    monkeypatch.setattr("nvp.gpu_code.inspection._inspect_each", endless)
    result = run("inspect", "--jobs", "2", str(path))
    assert "stopped after 0." in result.out + result.err
    assert not late
