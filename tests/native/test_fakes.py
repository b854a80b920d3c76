"""The fake driver libraries do what a scenario says, and refuse a wrong scenario."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from support.native import (
    CUDA_SONAME,
    FUNCTIONS,
    NVML_SONAME,
    VARIABLE,
    Scenario,
    compile_libraries,
    environment,
    machine,
    needs_compiler,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_compiler

PYNVML = "import pynvml as n; n.nvmlInit()\n"
NVML = f"""
import ctypes as c
lib = c.CDLL("{NVML_SONAME}")
number = c.c_int(-7)
"""
CUDA = f"""
import ctypes as c
lib = c.CDLL("{CUDA_SONAME}")
number = c.c_int(-7)
def attributes(device):
    both = c.c_int(-7), c.c_int(-7)
    codes = [lib.cuDeviceGetAttribute(c.byref(v), 75 + i, device)
             for i, v in enumerate(both)]
    return codes + [v.value for v in both]
"""


class Bench:
    """Runs Python code in a process of its own, with one scenario."""

    def __init__(self, libraries: Path, folder: Path) -> None:
        self.libraries = libraries
        self.folder = folder
        self.log = folder / "calls.log"

    def start(
        self, scenario: Scenario | str, code: str, **variables: str
    ) -> subprocess.Popen[str]:
        path = self.folder / "scenario.txt"
        text = scenario if isinstance(scenario, str) else scenario.text()
        path.write_text(f"log = {self.log}\n{text}")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
        return subprocess.Popen(
            [sys.executable, "-I", "-c", code],
            env={**inherited, **environment(self.libraries, path), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, scenario: Scenario | str, code: str, **variables: str
    ) -> tuple[int, str, str]:
        with self.start(scenario, code, **variables) as process:
            try:
                out, err = process.communicate(timeout=30)
            finally:
                process.kill()
        return process.returncode, out, err

    def output(self, scenario: Scenario | str, code: str, **variables: str) -> str:
        status, out, err = self.run(scenario, code, **variables)
        assert (status, err) == (0, "")
        return out.strip()

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def wait_for_call(self, name: str) -> None:
        deadline = time.monotonic() + 20
        while name not in self.calls():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def bench(libraries: Path, tmp_path: Path) -> Bench:
    return Bench(libraries, tmp_path)


def test_nvml_of_a_healthy_machine(bench: Bench) -> None:
    code = PYNVML + (
        "print(n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetNVMLVersion())\n"
        "print(n.nvmlSystemGetCudaDriverVersion_v2())\n"
        "print(n.nvmlSystemGetCudaDriverVersion())\n"
        "for i in range(n.nvmlDeviceGetCount()):\n"
        "    h = n.nvmlDeviceGetHandleByIndex(i)\n"
        "    print(n.nvmlDeviceGetCudaComputeCapability(h), n.nvmlDeviceGetName(h))\n"
        "n.nvmlShutdown()"
    )
    assert bench.output(machine("9.0", "12.1"), code).splitlines() == [
        "575.57.08 12.575.57.08",
        "12090",
        "12090",
        "(9, 0) Fake GPU 0",
        "(12, 1) Fake GPU 1",
    ]
    per_device = [
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetName",
    ]
    assert bench.calls() == [
        "load nvml",
        "nvmlInitWithFlags",
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetNVMLVersion",
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlSystemGetCudaDriverVersion",
        "nvmlDeviceGetCount_v2",
        *per_device,
        *per_device,
        "nvmlShutdown",
    ]


def test_cuda_of_a_healthy_machine(bench: Bench) -> None:
    code = CUDA + (
        "name = c.create_string_buffer(b'?' * 9, 9)\n"
        "print(lib.cuDriverGetVersion(c.byref(number)), number.value)\n"
        "print(lib.cuInit(0), lib.cuDeviceGetCount(c.byref(number)), number.value)\n"
        "print(lib.cuDeviceGet(c.byref(number), 1), number.value, *attributes(1))\n"
        "print(lib.cuDeviceGetName(name, 8, 1), name.raw)\n"
        "print(lib.cuDeviceGetAttribute(c.byref(number), 74, 1))\n"
        "print(lib.cuDeviceGet(c.byref(number), 2), lib.cuInit(1))\n"
        "text = c.c_char_p()\n"
        "print(lib.cuGetErrorName(100, c.byref(text)), text.value)\n"
        "print(lib.cuGetErrorName(12345, c.byref(text)), text.value)\n"
    )
    assert bench.output(machine("9.0", "8.6"), code).splitlines() == [
        "0 12090",
        "0 0 2",
        "0 1 0 0 8 6",
        "0 b'Fake GP\\x00?'",
        "1",
        "101 1",
        "0 b'CUDA_ERROR_NO_DEVICE'",
        "1 None",
    ]
    assert bench.calls()[:3] == ["load cuda", "cuDriverGetVersion", "cuInit"]


def test_calls_before_initialisation_are_errors(bench: Bench) -> None:
    code = (
        NVML + "print(lib.nvmlDeviceGetCount_v2(c.byref(number)), lib.nvmlShutdown())"
    )
    assert bench.output(machine("9.0"), code) == "1 1"
    code = CUDA + "print(lib.cuDeviceGetCount(c.byref(number)), *attributes(0))"
    assert bench.output(machine("9.0"), code) == "3 3 3 -7 -7"


def test_a_handle_that_was_truncated_to_an_int_is_refused(bench: Bench) -> None:
    code = NVML + (
        "lib.nvmlInit_v2(); h = c.c_void_p()\n"
        "lib.nvmlDeviceGetHandleByIndex_v2(0, c.byref(h))\n"
        "get, two = lib.nvmlDeviceGetCudaComputeCapability, (c.byref(number),) * 2\n"
        "print(get(h, *two), get(c.c_void_p(h.value & 0xffffffff), *two))"
    )
    assert bench.output(machine("9.0"), code) == "0 2"


def test_a_key_with_a_star_counts_for_every_device(bench: Bench) -> None:
    scenario = machine().but(
        both={"count": 64, "device.*.capability": "9.0", "device.63.capability": "10.3"}
    )
    code = PYNVML + (
        "f = n.nvmlDeviceGetCudaComputeCapability\n"
        "print(*sorted({f(n.nvmlDeviceGetHandleByIndex(i)) for i in range(64)}))\n"
        "try: n.nvmlDeviceGetHandleByIndex(64)\n"
        "except n.NVMLError as e: print(e)"
    )
    assert bench.output(scenario, code) == "(9, 0) (10, 3)\nInvalid Argument"
    code = CUDA + "print(lib.cuInit(0), *attributes(62), *attributes(63))"
    assert bench.output(scenario, code) == "0 0 0 9 0 0 0 10 3"


@pytest.mark.parametrize("version", [0, -1, 999999999])
def test_nonsensical_versions_are_passed_on(bench: Bench, version: int) -> None:
    code = NVML + (
        "print(lib.nvmlInitWithFlags(1), end=' ')\n"
        "print(lib.nvmlSystemGetCudaDriverVersion_v2(c.byref(number)), number.value)\n"
    )
    assert bench.output(machine(cuda_version=version), code) == f"0 0 {version}"
    code = CUDA + "print(lib.cuDriverGetVersion(c.byref(number)), number.value)"
    assert bench.output(machine(cuda_version=version), code) == f"0 {version}"


@pytest.mark.parametrize("count", [4000000000, -1])
def test_nonsensical_counts_are_passed_on(bench: Bench, count: int) -> None:
    scenario = machine().but(both={"count": count})
    code = PYNVML + "print(n.nvmlDeviceGetCount())"
    assert bench.output(scenario, code) == str(count % 2**32)
    code = CUDA + (
        "print(lib.cuInit(0), lib.cuDeviceGetCount(c.byref(number)), number.value)"
    )
    assert bench.output(scenario, code) == f"0 0 {ctypes.c_int(count).value}"


def test_names_can_have_any_bytes_and_any_length(bench: Bench) -> None:
    strange, long = " \\xff\\é#\xff=\n".encode("latin-1"), "x" * 5000
    scenario = machine("9.0", "9.0").but(
        both={"device.0.name": strange, "device.1.name": long}
    )
    code = NVML + (
        "lib.nvmlInit_v2(); h = c.c_void_p()\n"
        "b = c.create_string_buffer(b'?' * 96, 96)\n"
        f"exact = {len(strange)} + 1\n"
        "for index, room in (0, 96), (0, exact), (0, exact - 1), (0, 0), (1, 96):\n"
        "    lib.nvmlDeviceGetHandleByIndex_v2(index, c.byref(h))\n"
        "    b.value = b''\n"
        "    print(lib.nvmlDeviceGetName(h, b, room), b.value)\n"
    )
    assert bench.output(scenario, code).splitlines() == [
        f"0 {strange!r}",
        f"0 {strange!r}",
        *["7 b''"] * 3,
    ]
    code = CUDA + (
        "lib.cuInit(0); b = c.create_string_buffer(96)\n"
        "print(lib.cuDeviceGetName(b, 96, 0), b.value)\n"
        "print(lib.cuDeviceGetName(b, 96, 1), len(b.value))\n"
        "print(lib.cuDeviceGetName(b, 0, 1), lib.cuDeviceGetName(b, -1, 1))\n"
    )
    assert bench.output(scenario, code) == f"0 {strange!r}\n0 95\n1 1"
    status, _, err = bench.run(
        scenario, PYNVML + "n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(0))"
    )
    assert status == 1
    assert "UnicodeDecodeError" in err


def test_calls_return_the_error_codes_of_the_scenario(bench: Bench) -> None:
    scenario = machine("9.0", "9.0").but(
        nvml={"device.1.error.nvmlDeviceGetHandleByIndex_v2": 15},
        cuda={"error.cuInit": 803, "device.*.error.cuDeviceGet": 999},
    )
    code = PYNVML + (
        "n.nvmlDeviceGetHandleByIndex(0)\n"
        "try: n.nvmlDeviceGetHandleByIndex(1)\n"
        "except n.NVMLError as e: print(e)"
    )
    assert bench.output(scenario, code) == "GPU is lost"
    assert bench.output(scenario, CUDA + "print(lib.cuInit(0))") == "803"
    works = scenario.but(cuda={"error.cuInit": None})
    code = CUDA + "print(lib.cuInit(0), lib.cuDeviceGet(c.byref(number), 0))"
    assert bench.output(works, code) == "0 999"
    code = "import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(e)"
    mismatch = machine().but(nvml={"error.nvmlInitWithFlags": 18})
    assert "version mismatch" in bench.output(mismatch, code)
    unheard_of = machine().but(nvml={"error.nvmlInitWithFlags": 4242})
    assert bench.output(unheard_of, code) == "fake error 4242"


def test_nvml_without_libcuda_makes_up_a_version_in_the_old_query(bench: Bench) -> None:
    code = PYNVML + (
        "print(n.nvmlSystemGetCudaDriverVersion())\n"
        "try: n.nvmlSystemGetCudaDriverVersion_v2()\n"
        "except n.NVMLError as e: print(e.value)"
    )
    missing = machine().but(nvml={"libcuda": "missing"})
    assert bench.output(missing, code) == "13000\n12"
    made_up = missing.but(nvml={"known_cuda_version": 11040})
    assert bench.output(made_up, code) == "11040\n12"


@pytest.mark.parametrize(
    ("visible", "code"), [("", 100), ("-1", 100), ("0", 0), (None, 0)]
)
def test_cuda_visible_devices_hides_all_devices(
    bench: Bench, visible: str | None, code: int
) -> None:
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    code_of_init = bench.output(
        machine("9.0"), CUDA + "print(lib.cuInit(0))", **variables
    )
    assert code_of_init == str(code)


def test_cuda_without_devices_is_an_error(bench: Bench) -> None:
    code = CUDA + "print(lib.cuInit(0))"
    assert bench.output(machine(), code) == "100"
    assert bench.output(machine().but(cuda={"error.cuInit": 0}), code) == "0"


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [("segv", -signal.SIGSEGV), ("abort", -signal.SIGABRT), ("exit 3", 3)],
)
def test_behaviours_that_end_the_process(
    bench: Bench, behaviour: str, status: int
) -> None:
    for function in ("nvmlInitWithFlags", "load"):
        scenario = machine().but(nvml={f"behaviour.{function}": behaviour})
        assert bench.run(scenario, PYNVML + "print('alive')") == (status, "", "")


def test_sleep_ends_with_sigterm_and_hang_does_not(bench: Bench) -> None:
    for behaviour, survives in (("sleep", False), ("hang", True)):
        scenario = machine().but(cuda={"behaviour.cuInit": behaviour})
        bench.log.unlink(missing_ok=True)
        with bench.start(scenario, CUDA + "lib.cuInit(0)") as process:
            bench.wait_for_call("cuInit")
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
            process.send_signal(signal.SIGTERM)
            try:
                assert (process.wait(0.5), survives) == (-signal.SIGTERM, False)
            except subprocess.TimeoutExpired:
                assert survives
            finally:
                process.kill()


@pytest.mark.parametrize(("behaviour", "least"), [("slow 300", 0.3), ("sleep 1", 1)])
def test_slow_and_sleep_delay_one_device(
    bench: Bench, behaviour: str, least: float
) -> None:
    scenario = machine("9.0", "8.0").but(
        cuda={"device.1.behaviour.cuDeviceGet": behaviour}
    )
    code = CUDA + (
        "import time; lib.cuInit(0); a = time.monotonic()\n"
        "lib.cuDeviceGet(c.byref(number), 0); b = time.monotonic()\n"
        "lib.cuDeviceGet(c.byref(number), 1); print(number.value, b - a)\n"
        "print(time.monotonic() - b)"
    )
    device, other, this = bench.output(scenario, code).split()
    assert device == "1"
    assert float(other) < least <= float(this)


def test_print_writes_with_and_without_a_buffer(bench: Bench) -> None:
    scenario = machine().but(nvml={"behaviour.nvmlInitWithFlags": "print {oops} 1"})
    code = PYNVML + "import os; os.write(1, b'reply\\n')"
    assert bench.output(scenario, code) == "{oops} 1\nreply\n{oops} 1"


def test_entry_points_can_be_left_out(tmp_path: Path, libraries: Path) -> None:
    every = [name for names in FUNCTIONS.values() for name in names]
    absent = set(every[::2])
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    compile_libraries(lacking, without=absent)
    code = (
        "import ctypes, sys\n"
        f"libs = [ctypes.CDLL(s) for s in ({NVML_SONAME!r}, {CUDA_SONAME!r})]\n"
        f"print([f for f in {every!r} if any(hasattr(l, f) for l in libs)])"
    )
    for folder, expected in (
        (libraries, every),
        (lacking, [name for name in every if name not in absent]),
    ):
        command = [sys.executable, "-I", "-c", code]
        paths = {"LD_LIBRARY_PATH": str(folder)}
        done = subprocess.run(
            command, env=paths, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == repr(expected)
    with pytest.raises(ValueError, match="cuInti"):
        compile_libraries(lacking, without=["cuInti"])


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
    status, _, err = bench.run("", CUDA, **{VARIABLE: "/nonexistent"})
    assert (status, VARIABLE in err) == (-signal.SIGABRT, True)
    code = (
        f"import os; kept = os.environ.pop({VARIABLE!r}){CUDA}\n"
        f"os.environ[{VARIABLE!r}] = kept\n"
        "lib.cuDriverGetVersion(c.byref(number)); print(number.value)"
    )
    bench.log.unlink(missing_ok=True)
    assert bench.output("# a note\n\n cuda.cuda_version=7 \n", code) == "7"
    assert bench.calls() == ["load cuda", "cuDriverGetVersion"]
