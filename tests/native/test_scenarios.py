"""The fake driver libraries refuse an invalid scenario."""

from __future__ import annotations

import signal

import pytest
from support.bench import CUDA, NVML, Bench
from support.native import VARIABLE, Scenario, needs_compiler

pytestmark = needs_compiler


@pytest.mark.parametrize(
    "line",
    [
        "nvml.drivers_version = 1",
        "cuda.driver_version = 1",
        "nvml.error.cuInit = 1",
        "nvml.error.nvmlErrorString = 1",
        "nvml.error.load = 1",
        "nvml.device.0.error.nvmlInitWithFlags = 1",
        "nvml.device.00.name = x",
        "nvml.device.**.name = x",
        "nvml.device.#.name = x",
        "nvml.device..name = x",
        "visible = 1",
    ],
)
def test_unknown_keys_abort_and_python_refuses_them(bench: Bench, line: str) -> None:
    for code in (NVML, CUDA):
        status, _, err = bench.run(line, code)
        assert (status, "unknown key" in err) == (-signal.SIGABRT, True), err
    assert bench.calls() == ["FATAL unknown key"] * 2
    library, _, key = line.partition(" =")[0].partition(".")
    values = {key or library: 1}
    scenario = Scenario(cuda=values) if library == "cuda" else Scenario(nvml=values)
    with pytest.raises(ValueError, match="no such key"):
        scenario.text()


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "nvml.count = many",
        "nvml.count = 4294967296",
        "nvml.count =",
        "cuda.cuda_version = 12.9",
        "cuda.device.0.capability = 9",
        "cuda.device.0.capability = 9.0a",
        "nvml.libcuda = maybe",
        "nvml.behaviour.nvmlInitWithFlags = sleeep",
        "nvml.behaviour.nvmlInitWithFlags = segv 1",
        "nvml.behaviour.nvmlInitWithFlags = exit",
        "nvml.driver_version = \\q",
        "nvml.driver_version = \\x0",
        "nvml.driver_version = \\x00",
        "nvml.driver_version = a\0b",
        "nvml.count = 1\nnvml.count = 1",
        "log = /elsewhere",
    ],
)
def test_malformed_scenarios_abort(bench: Bench, text: str) -> None:
    status, _, err = bench.run(text, CUDA)
    assert (status, err.startswith("fake cuda: ")) == (-signal.SIGABRT, True), err


def test_missing_values_and_missing_scenarios_abort(bench: Bench) -> None:
    status, _, err = bench.run("", CUDA + "lib.cuDriverGetVersion(c.byref(number))")
    assert (status, "cuda_version" in err) == (-signal.SIGABRT, True)
    status, _, err = bench.run("", CUDA, **{VARIABLE: str(bench.folder / "missing")})
    assert (status, VARIABLE in err) == (-signal.SIGABRT, True)
    code = (
        f"import os; kept = os.environ.pop({VARIABLE!r}){CUDA}\n"
        f"os.environ[{VARIABLE!r}] = kept\n"
        "lib.cuDriverGetVersion(c.byref(number)); print(number.value)"
    )
    bench.log.unlink(missing_ok=True)
    assert bench.output("# a note\n\n cuda.cuda_version=7 \n", code) == "7"
    assert bench.calls() == ["load cuda", "cuDriverGetVersion"]
