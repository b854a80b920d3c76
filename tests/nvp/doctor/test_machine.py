"""ND1xx: each code has a trigger, and a near miss that must not be reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.containers import library
from support.loader_cache import cache_file
from support.stacks import machine, make_stack, run_checks

from nvidia_variant_provider.machine.environment import Environment
from nvp.doctor.model import Stack
from nvp.doctor.runner import diagnose

REAL = bytes(2 * 1024 * 1024)
"""The minimum length of the driver's library, whose content is not read."""


def on(environment: Environment, tmp_path: Path, **environ: str) -> Stack:
    return make_stack(tmp_path, environment=environment, environ=environ)


def gpu(name: str) -> Environment:
    return Environment.from_dict(
        {"cuda_driver_version": "12.9", "gpus": [{"index": 0, "name": name}]}
    )


def driver_in(folder: Path, data: bytes = REAL) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "libcuda.so.1").write_bytes(data)
    return str(folder)


def failing(tmp_path: Path) -> Stack:
    return on(Environment(reason="driver-mismatch"), tmp_path)


def no_device(tmp_path: Path) -> Stack:
    return on(Environment(reason="no-device"), tmp_path)


def utility_only(tmp_path: Path) -> Stack:
    (tmp_path / "system").mkdir()
    (tmp_path / "system/.dockerenv").touch()
    variables = {"NVIDIA_DRIVER_CAPABILITIES": "utility"}
    return on(machine("12.9", "9.0"), tmp_path, **variables)


def all_capabilities(tmp_path: Path) -> Stack:
    variables = {"NVIDIA_DRIVER_CAPABILITIES": "all", "NVIDIA_VISIBLE_DEVICES": "all"}
    return on(machine("12.9", "9.0"), tmp_path, **variables)


def stub(tmp_path: Path) -> Stack:
    folder = driver_in(tmp_path / "cuda/lib64/stubs")
    return on(machine("12.9", "9.0"), tmp_path, LD_LIBRARY_PATH=f":{folder}")


def stub_behind_the_driver(tmp_path: Path) -> Stack:
    driver = driver_in(tmp_path / "driver")
    folder = driver_in(tmp_path / "cuda/lib64/stubs")
    path = f"{driver}:{folder}"
    return on(machine("12.9", "9.0"), tmp_path, LD_LIBRARY_PATH=path)


def compat_on(name: str, tmp_path: Path) -> Stack:
    folder = driver_in(tmp_path / "cuda/compat")
    return on(gpu(name), tmp_path, LD_LIBRARY_PATH=folder)


def compat_on_geforce(tmp_path: Path) -> Stack:
    return compat_on("NVIDIA GeForce RTX 4090", tmp_path)


def compat_on_h100(tmp_path: Path) -> Stack:
    return compat_on("NVIDIA H100 80GB HBM3", tmp_path)


TRIGGERS = {
    "ND101": failing,
    "ND102": utility_only,
    "ND103": stub,
    "ND104": compat_on_geforce,
}
NEAR_MISSES = {
    "ND101": no_device,
    "ND102": all_capabilities,
    "ND103": stub_behind_the_driver,
    "ND104": compat_on_h100,
}


@pytest.mark.parametrize("code", TRIGGERS)
def test_a_trigger_is_the_only_finding(code: str, tmp_path: Path) -> None:
    (finding,) = run_checks(TRIGGERS[code](tmp_path))
    assert finding.code == code
    assert finding.hint


@pytest.mark.parametrize("code", NEAR_MISSES)
def test_a_near_miss_is_not_reported(code: str, tmp_path: Path) -> None:
    assert run_checks(NEAR_MISSES[code](tmp_path)) == []


def test_a_gpu_that_is_lost_is_named(tmp_path: Path) -> None:
    lost = Environment.from_dict(
        {
            "cuda_driver_version": "12.9",
            "gpus": [
                {"index": 0, "compute_capability": "9.0"},
                {"index": 1, "reason": "gpu-lost"},
            ],
        }
    )
    (finding,) = run_checks(on(lost, tmp_path))
    assert finding.code == "ND101"
    assert finding.message.startswith("GPU 1: ")


def test_a_small_file_is_a_stub_in_any_folder(tmp_path: Path) -> None:
    folder = driver_in(tmp_path / "system/usr/lib64", b"\x7fELF")
    (finding,) = run_checks(on(machine("12.9", "9.0"), tmp_path))
    assert finding.code == "ND103"
    assert finding.path == f"{folder}/libcuda.so.1"


def test_a_driver_for_another_processor_is_passed_over(tmp_path: Path) -> None:
    other = bytearray(library())
    other[18:20] = (22).to_bytes(2, "little")
    folder = driver_in(tmp_path / "stubs", bytes(other))
    stack = on(machine("12.9", "9.0"), tmp_path, LD_LIBRARY_PATH=folder)
    assert run_checks(stack) == []


def test_the_cache_of_the_loader_names_the_driver(tmp_path: Path) -> None:
    stack = on(machine("12.9", "9.0"), tmp_path)
    folder = tmp_path / "system/opt/cuda/stubs"
    driver_in(folder)
    (tmp_path / "system/etc").mkdir()
    cache = cache_file({"libcuda.so.1": "/opt/cuda/stubs/libcuda.so.1"})
    (tmp_path / "system/etc/ld.so.cache").write_bytes(cache)
    (finding,) = run_checks(stack)
    assert finding.code == "ND103"
    assert finding.path == f"{folder}/libcuda.so.1"


def test_a_damaged_cache_of_the_loader_is_a_note(tmp_path: Path) -> None:
    stack = on(machine("12.9", "9.0"), tmp_path)
    (tmp_path / "system/etc").mkdir()
    (tmp_path / "system/etc/ld.so.cache").write_bytes(b"ld.so-1.7.0")
    (note,) = diagnose(stack).notes
    assert "ldconfig says: File is not a cache file; a library" in note


def test_the_files_of_this_system_say_nothing_about_another(tmp_path: Path) -> None:
    stack = replace(stub(tmp_path), is_here=False)
    assert run_checks(stack) == []


@pytest.mark.parametrize("mask", ["", "-1", " ", "1", "7,0", "NoDevFiles", "none"])
def test_a_mask_that_hides_all_gpus(mask: str, tmp_path: Path) -> None:
    stack = on(machine("12.9", "9.0"), tmp_path, CUDA_VISIBLE_DEVICES=mask)
    (finding,) = run_checks(stack)
    assert (finding.code, finding.severity) == ("ND105", "warning")
    assert run_checks(replace(stack, is_here=False)) == []


@pytest.mark.parametrize("mask", ["0", "0,5", " 0", "GPU-8932f937", "MIG-8932f937"])
def test_a_mask_that_shows_a_gpu(mask: str, tmp_path: Path) -> None:
    stack = on(machine("12.9", "9.0"), tmp_path, CUDA_VISIBLE_DEVICES=mask)
    assert run_checks(stack) == []


@pytest.mark.parametrize(("given", "is_found"), [("void", True), ("all", False)])
def test_a_container_that_was_given_no_gpu(
    given: str, is_found: bool, tmp_path: Path
) -> None:
    environment = Environment(reason="no-device")
    stack = on(environment, tmp_path, NVIDIA_VISIBLE_DEVICES=given)
    found = [finding.code for finding in run_checks(stack)]
    assert found == ["ND105"] * is_found


@pytest.mark.parametrize("reason", ["unknown-error", "no-permission"])
def test_a_container_that_has_lost_its_devices(reason: str, tmp_path: Path) -> None:
    """The finding explains "Failed to initialize NVML: Unknown Error"."""
    stack = on(Environment(reason=reason), tmp_path / "a")
    (finding,) = run_checks(stack)
    assert "cgroupfs" not in finding.hint
    (Path(stack.root) / ".dockerenv").touch()
    (finding,) = run_checks(replace(stack))
    assert finding.code == "ND101"
    assert finding.hint.startswith("restart the container: it has lost its devices")


def release_in(folder: Path, version: str) -> str:
    """Write a driver's library under all of its names."""
    folder.mkdir(parents=True)
    (folder / f"libcuda.so.{version}").write_bytes(REAL)
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    return str(folder)


def test_a_driver_that_was_updated_without_a_reboot(tmp_path: Path) -> None:
    """CUDA reports 804 on a GeForce, although NVML may work."""
    own = machine("12.4", "8.9").replace(kernel_driver_version="550.54.14")
    folder = release_in(tmp_path / "driver", "560.35.03")
    stack = on(own, tmp_path, LD_LIBRARY_PATH=folder)
    (finding,) = run_checks(stack)
    assert (finding.code, finding.severity) == ("ND101", "error")
    assert "that of 560.35.03, and the kernel has 550.54.14" in finding.message
    assert "reboot" in finding.hint
    (Path(stack.root) / ".dockerenv").touch()
    (finding,) = run_checks(replace(stack))
    assert "from the image" in finding.hint
    same = own.replace(kernel_driver_version="560.35.03")
    assert run_checks(replace(stack, environment=same)) == []


def test_cuda_compat_is_of_another_release_on_purpose(tmp_path: Path) -> None:
    folder = release_in(tmp_path / "cuda/compat", "560.35.03")
    own = gpu("NVIDIA H100 80GB HBM3").replace(kernel_driver_version="550.54.14")
    assert run_checks(on(own, tmp_path, LD_LIBRARY_PATH=folder)) == []


def test_a_python_inside_a_snap(tmp_path: Path) -> None:
    stack = on(machine("12.9", "9.0"), tmp_path, SNAP="/snap/code/1")
    inside = tmp_path / "snap" / "code" / "bin" / "python"
    for python, codes in (
        (str(inside), ["ND105"]),
        ("/usr/bin/python3", []),
        ("/snap/code/current/bin/python", ["ND105"]),
        ("/var/lib/flatpak/app/org.example.App/files/bin/python3", ["ND105"]),
    ):
        installation = replace(stack.installation, python=python)
        findings = run_checks(replace(stack, installation=installation))
        assert [finding.code for finding in findings] == codes


def test_no_interpreter_in_a_directory_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = on(machine("12.9", "9.0"), tmp_path)
    stack = replace(stack, installation=replace(stack.installation, python=None))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run_checks(stack) == []


def test_a_linux_driver_inside_wsl(tmp_path: Path) -> None:
    system = tmp_path / "system"
    (system / "dev").mkdir(parents=True)
    (system / "dev" / "dxg").touch()
    own = driver_in(system / "usr/lib/wsl/lib")
    stack = on(machine("12.9", "9.0"), tmp_path, LD_LIBRARY_PATH=own)
    assert "ND106" not in [finding.code for finding in run_checks(stack)]
    driver_in(system / "usr/lib/x86_64-linux-gnu")
    (finding,) = run_checks(replace(stack, environ={}))
    assert finding.code == "ND106"
