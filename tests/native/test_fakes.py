"""The fake driver libraries act as a scenario describes."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.bench import CUDA, NVML, PYNVML, Bench
from support.native import (
    CUDA_SONAME,
    FUNCTIONS,
    NVML_SONAME,
    compile_libraries,
    machine,
    needs_compiler,
)
from support.paths import FIXTURES

pytestmark = needs_compiler

DRIVER = """
import ctypes as c
from cuda.bindings import driver as d
d.cuInit(0)
d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])[1])
def ptx(isa, target=50):
    text = f".version {isa}\\n.target sm_{target}\\n.visible .entry nvp_probe("
    return text.encode() + b"\\0"
def load(isa, target=50):
    return int(d.cuModuleLoadDataEx(ptx(isa, target), 0, [], [])[0])
"""


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


def test_cuda_python_loads_and_runs_the_kernel(bench: Bench) -> None:
    pytest.importorskip("cuda.bindings.driver")
    code = DRIVER + (
        "print(load('8.8'), load('9.0'), load('6.0', 95))\n"
        "_, module = d.cuModuleLoadData(ptx('8.8'))\n"
        "_, kernel = d.cuModuleGetFunction(module, b'nvp_probe')\n"
        "print(int(d.cuModuleGetFunction(module, b'other')[0]))\n"
        "_, memory = d.cuMemAlloc(8)\n"
        "a, b = c.c_uint64(int(memory)), c.c_uint32(5)\n"
        "p = (c.c_void_p * 2)(c.addressof(a), c.addressof(b))\n"
        "d.cuLaunchKernel(kernel, 1, 1, 1, 2, 1, 1, 0, 0, c.addressof(p), 0)\n"
        "out = (c.c_uint32 * 2)()\n"
        "d.cuMemcpyDtoH(c.addressof(out), memory, 8); print(list(out))\n"
    )
    right = machine("9.0")
    assert bench.output(right, code).splitlines() == ["0 222 218", "500", "[7, 12]"]
    wrong = right.but(cuda={"device.0.result": "wrong"})
    assert bench.output(wrong, code).endswith("[7, 13]")


def test_machine_code_loads_on_its_own_major_version(bench: Bench) -> None:
    pytest.importorskip("cuda.bindings.driver")
    folder = FIXTURES / "binaries"
    code = DRIVER + (
        "for name in 'old-75', 'new-80', 'new-90a', 'old-100':\n"
        f"    data = open(f'{folder}/{{name}}.cubin', 'rb').read()\n"
        "    print(int(d.cuModuleLoadData(data)[0]), end=' ')\n"
    )
    assert bench.output(machine("9.0"), code) == "209 209 0 209"
    assert bench.output(machine("8.6"), code) == "209 0 209 209"


def test_a_context_comes_before_everything_else(bench: Bench) -> None:
    pytest.importorskip("cuda.bindings.driver")
    code = (
        "from cuda.bindings import driver as d\n"
        "print(int(d.cuMemAlloc(8)[0]), int(d.cuInit(0)[0]), int(d.cuMemAlloc(8)[0]))"
    )
    assert bench.output(machine("9.0"), code) == "3 0 201"


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


def test_sleep_ends_with_sigterm(bench: Bench) -> None:
    scenario = machine().but(cuda={"behaviour.cuInit": "sleep"})
    with bench.start(scenario, CUDA + "lib.cuInit(0)") as process:
        try:
            bench.wait_for_call("cuInit")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == -signal.SIGTERM
        finally:
            process.kill()


def test_hang_ignores_every_signal_that_can_be_ignored(bench: Bench) -> None:
    scenario = machine().but(cuda={"behaviour.cuInit": "hang"})
    with bench.start(scenario, CUDA + "lib.cuInit(0)") as process:
        try:
            bench.wait_until(lambda: ignores(process.pid, signal.SIGTERM))
            assert ignores(process.pid, signal.SIGALRM)
            assert process.poll() is None
        finally:
            process.kill()


def ignores(pid: int, number: signal.Signals) -> bool:
    """Return whether a process ignores a signal, by its status in ``/proc``."""
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (x.split()[1] for x in status.splitlines() if x.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize(("behaviour", "least"), [("slow 300", 0.3), ("sleep 1", 1)])
def test_slow_and_sleep_delay_a_call(
    bench: Bench, behaviour: str, least: float
) -> None:
    scenario = machine("9.0").but(cuda={"behaviour.cuDeviceGet": behaviour})
    code = CUDA + (
        "import time; lib.cuInit(0); start = time.monotonic()\n"
        "lib.cuDeviceGet(c.byref(number), 0); print(time.monotonic() - start)"
    )
    assert float(bench.output(scenario, code)) >= least


def test_behaviour_of_one_device_does_not_affect_another(bench: Bench) -> None:
    endless = {"device.1.behaviour.cuDeviceGet": "sleep"}
    scenario = machine("9.0", "8.0").but(cuda=endless)
    code = CUDA + "lib.cuInit(0); print(lib.cuDeviceGet(c.byref(number), 0))"
    assert bench.output(scenario, code) == "0"


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
