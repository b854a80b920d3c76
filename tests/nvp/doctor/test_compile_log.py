"""The recorded output of torch 2.15 and Triton 3.9."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import pytest
from support.paths import FIXTURES

from nvp.doctor import compile_log
from nvp.doctor.compile_log import (
    MOST,
    CompileLog,
    split_prefix,
)

RECORDED = FIXTURES / "workloads"
SCRIPT = "/home/user/project/train.py"


def read(*lines: str) -> dict[str, Any]:
    log = CompileLog()
    for line in lines:
        log.read_line("stderr", line)
    return log.to_dict()


def recorded(name: str) -> dict[str, Any]:
    return read(*(RECORDED / f"{name}.txt").read_text().splitlines())


def places(entries: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(entry["path"], entry["line"], entry["count"]) for entry in entries]


def test_graph_breaks_and_where() -> None:
    log = recorded("torch-2.15-breaks-and-limit")
    assert places(log["graph_breaks"]) == [(SCRIPT, 4, 1), (SCRIPT, 6, 1)]
    assert [entry["reason"] for entry in log["graph_breaks"]] == [
        "Unsupported Tensor.item() call with capture_scalar_outputs=False",
        "Failed to trace builtin operator",
    ]


def test_recompilations_up_to_the_limit() -> None:
    log = recorded("torch-2.15-breaks-and-limit")
    (entry,) = log["recompilations"]
    assert (entry["function"], entry["line"], entry["count"]) == ("<lambda>", 10, 8)
    assert entry["reason"].startswith("3/0: tensor 'x' size mismatch")
    (fallback,) = log["fallbacks"]
    assert fallback["kind"] == "recompile-limit"
    assert fallback["reason"] == "config.recompile_limit (8) was reached"


def test_frames_that_are_skipped() -> None:
    log = recorded("torch-2.15-skipped-frames")
    # The break at line 11 is repeated when the function is compiled again.
    assert places(log["graph_breaks"]) == [
        (SCRIPT, 6, 1),
        (SCRIPT, 11, 2),
        (SCRIPT, 18, 1),
    ]
    assert [(e["kind"], e["line"]) for e in log["fallbacks"]] == [
        ("graph-break", 6),
        ("graph-break", 18),
    ]


def test_a_compiler_that_fails() -> None:
    (entry,) = recorded("torch-2.15-backend-failed")["fallbacks"]
    assert (entry["kind"], entry["function"], entry["line"]) == ("error", "f", 5)
    assert entry["reason"] == (
        "torch._dynamo.exc.BackendCompilerFailed: backend='backend' raised: "
        "RuntimeError: no such target sm_999"
    )


def test_autotuning_by_triton() -> None:
    (entry,) = recorded("triton-3.9-autotuning")["autotuning"]
    assert entry["kernel"] == "add_one"
    assert entry["key"] == "(200, 'torch.float32')"
    assert entry["config"].startswith("BLOCK: 128, num_warps: 4")
    assert entry["seconds"] == 0.16


def test_the_older_form_of_triton_has_one_line() -> None:
    (entry,) = read(
        "Triton autotuning for function add finished after 1.25s; "
        "best config selected: BLOCK: 64, num_warps: 2;"
    )["autotuning"]
    assert (entry["config"], entry["seconds"]) == ("BLOCK: 64, num_warps: 2", 1.25)


def test_autotuning_by_inductor() -> None:
    (entry,) = read(
        "AUTOTUNE mm(64x64, 64x32)",
        "strides: [64, 1], [32, 1]",
        "dtypes: torch.float16, torch.float16",
        "  triton_mm_3 0.0061 ms 100.0% ACC_TYPE='tl.float32'",
        "  mm 0.0072 ms 84.9% ",
        "SubProcess AUTOTUNE benchmarking takes 0.1500 seconds and 0.9000 seconds "
        "precompiling for 2 choices",
    )["autotuning"]
    assert entry["config"] == "triton_mm_3"
    assert entry["key"] == "64x64, 64x32"


@pytest.mark.parametrize("time", ["", "[2023-10-04 10:00:00,000] "])
def test_the_form_of_torch_2_1(time: str) -> None:
    prefix = f"{time}[1/0_2] torch._dynamo.symbolic_convert.__graph_breaks: [DEBUG] "
    log = read(
        f"{prefix}Graph break: call_function print from user code at:",
        f'{prefix}  File "train.py", line 7, in step',
    )
    assert places(log["graph_breaks"]) == [("train.py", 7, 1)]


@pytest.mark.parametrize(
    "line",
    [
        "V1122 03:09:00.860000 10175 torch/x.py:55] [0/0] [__graph_breaks] text",
        "[rank1]:W1122 03:09:00.860000 10175 torch/x.py:55] [0/0_1] text",
        "I1122 03:09:00.860000 10175 torch/x.py:55] text",
    ],
)
def test_the_prefix_of_a_line(line: str) -> None:
    assert split_prefix(line) == ("10175", "text")


def test_the_prefix_may_be_of_the_users_own_form() -> None:
    log = read("Graph break in user code at a:b.py:3", "Reason: it is dynamic")
    (entry,) = log["graph_breaks"]
    assert (entry["path"], entry["reason"]) == ("a:b.py", "it is dynamic")


def test_two_processes_are_kept_apart() -> None:
    prefix = "V1122 03:09:00.860000 {} torch/x.py:55] [0/0] [__graph_breaks] "
    first, second = prefix.format(11), prefix.format(22)
    log = read(
        f"{first}Graph break in user code at a.py:1",
        f"{second}Graph break in user code at b.py:2",
        f"{second}Reason: of b",
        f"{first}Reason: of a",
    )
    reasons = {entry["path"]: entry["reason"] for entry in log["graph_breaks"]}
    assert reasons == {"a.py": "of a", "b.py": "of b"}


def test_other_output_says_nothing() -> None:
    log = read(
        "epoch 1", "Reason: none", "- 0/0: x", "Graph break from `Tensor.item()`"
    )
    assert set(log["totals"].values()) == {0}


def test_entries_are_bounded_and_counted() -> None:
    lines = [f"Graph break in user code at a.py:{n}" for n in range(MOST + 50)]
    log = read(*lines)
    assert len(log["graph_breaks"]) == MOST
    assert log["totals"]["graph_breaks"] == MOST + 50


def test_texts_are_bounded() -> None:
    path = "x" * 60_000
    (entry,) = read(f"Graph break in user code at {path}:7")["graph_breaks"]
    assert len(entry["path"]) == 500


def test_passwords_of_urls_are_not_recorded() -> None:
    log = read(
        "Graph break in user code at /x.py:4",
        "Reason: call of https://user:hunter2@host/api?token=hunter2",
        "Triton autotuning for function f",
        "with key as ('http://user:hunter2@host',),",
        "finished after 1.0s, best config selected: http://user:hunter2@host;",
    )
    assert log["totals"]["graph_breaks"] == log["totals"]["autotuning"] == 1
    assert "hunter2" not in str(log)


def test_output_without_a_mark_is_not_looked_at() -> None:
    log = CompileLog()
    assert not log.is_relevant("stdout", b"x" * 1000)
    assert log.is_relevant("stdout", b"Graph break in user code at a.py:1")
    log.read_line("stdout", "Graph break in user code at a.py:1")
    assert log.is_relevant("stdout", b"more of the record")
    assert not log.is_relevant("stderr", b"of another stream")
    for _ in range(1000):
        log.read_line("stdout", "something else")
    assert not log.is_relevant("stdout", b"more of something else")


@pytest.mark.parametrize(
    "line",
    [
        "torch.compile {skip*}{ the frame a (*}{b line *}) and fall back to eager",
        "   function: '{' (x:1 *}",
        "WON'T CONVERT f {a line *}",
        "Graph break ({ in user code at *}:",
        "V1122 03:09:00.860000 1{:1*}",
    ],
)
def test_a_long_line_is_read_in_proportion(line: str) -> None:
    # Patterns that took cubic time needed hours for one line.
    pieces = re.sub(r"\{(.+?)\*\}", lambda found: found[1] * 3000, line)
    log = read("torch._dynamo hit config.cache_limit (8)", pieces)
    assert set(log["totals"].values()) == {0}


def test_incomplete_records_are_bounded() -> None:
    log = CompileLog()
    for number in range(compile_log._MOST_OPEN + 5):
        prefix = f"V1122 03:09:00.860000 {number} torch/x.py:55] "
        log.read_line("stderr", f"{prefix}Graph break in user code at a.py:{number}")
    assert len(log._open["stderr"]) == compile_log._MOST_OPEN
    assert split_prefix(f"V1122 03:09:00.860000 {'1' * 5000} torch/x.py:55] a")[0] == ""


def test_incomplete_records_keep_no_long_texts() -> None:
    # 1,000 records of 256 KB in each stream took 500 MB.
    long = "x" * 60_000
    log = CompileLog()
    tracemalloc.start()
    for number in range(120):
        prefix = f"V1122 03:09:00.860000 {number} torch/x.py:55] "
        kinds = (
            [f"Graph break: {long} from user code at:"],
            [f"Graph break in user code at {number}{long}:1"],
            ["WON'T CONVERT f a.py line 1", f"Error: {long}:"],
            [f"WON'T CONVERT f {number}{long} line 1"],
            [f"torch._dynamo hit config.{long}limit (8)"],
            [f"Triton autotuning for function {long}"],
            [f"AUTOTUNE {long}(a)", f"  {long} 1.0 ms 100.0%"],
        )
        for line in kinds[number % len(kinds)]:
            log.read_line("stderr", prefix + line)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(log._open["stderr"]) == 103  # the records with an exception have ended
    assert kept < 1 << 20


def test_numbers_of_many_digits() -> None:
    log = CompileLog()
    many = "9" * 5000
    for line in (
        f"Graph break in user code at a.py:{many}",
        f"Recompiling function f in a.py:{many}",
        "Triton autotuning for function k,",
        f"finished after {many}s,best config selected: a;",
    ):
        log.read_line("stderr", line)
    found: dict[str, Any] = log.to_dict()
    assert (found["graph_breaks"], found["recompilations"]) == ([], [])
    (tuning,) = found["autotuning"]
    assert tuning["seconds"] is None


def test_seconds_with_many_decimals() -> None:
    many = f"0.{'9' * 5000}"
    lines = (
        "Triton autotuning for function k,",
        f"finished after {many}s,best config selected: a;",
        "AUTOTUNE mm(1x1)",
        f"SingleProcess AUTOTUNE benchmarking takes {many} seconds",
    )
    (tuning,) = read(*lines)["autotuning"]
    assert tuning["seconds"] is None
