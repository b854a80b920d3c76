"""The cache of detection, which is a file."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from support.native import environment, machine, needs_compiler

from nvidia_variant_provider.detection import cache, detect
from nvidia_variant_provider.machine.environment import CudaVersion, Environment
from nvp.cli import main

pytestmark = needs_compiler


class Machine:
    """A machine whose driver logs each query."""

    def __init__(self, folder: Path, libraries: Path) -> None:
        self.log = folder / "log"
        self.root = folder / "root"
        (self.root / "dev").mkdir(parents=True)
        (self.root / "dev" / "nvidia0").touch()
        scenario = machine("9.0", log=self.log).write(folder / "scenario")
        self.variables = {
            **environment(libraries, scenario),
            "NV_VARIANT_PROVIDER_SYSROOT": str(self.root),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self.file = folder / "cache" / "nvidia-variant-provider" / "detection.json"
        self.scenario = folder / "scenario"

    def times_asked(self, **variables: str) -> int:
        """Detect again, and return the number of queries to the driver: 0 or 1."""
        before = self.log.read_text().count("load nvml") if self.log.exists() else 0
        detect({**self.variables, **variables})
        after = self.log.read_text().count("load nvml") if self.log.exists() else 0
        return after - before

    def change(self, edit: Callable[[dict[str, Any]], object]) -> None:
        document = json.loads(self.file.read_text())
        edit(document)
        self.file.write_text(json.dumps(document))


@pytest.fixture
def node(tmp_path: Path, libraries: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, libraries)
    assert made.times_asked() == 1
    yield made
    assert "FATAL" not in made.log.read_text()


def test_a_second_detection_does_not_ask_the_driver(node: Machine) -> None:
    first = detect(node.variables)
    assert node.times_asked() == 0
    assert detect(node.variables) == first
    assert first.cuda_driver_version == CudaVersion(12, 9)


def test_the_file_is_json_that_only_the_user_can_read(node: Machine) -> None:
    mode = node.file.stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert stat.S_IMODE(node.file.parent.stat().st_mode) == 0o700
    document = json.loads(node.file.read_text())
    assert Environment.from_dict(document["environment"]) == detect(node.variables)
    assert [path.name for path in node.file.parent.iterdir()] == ["detection.json"]


@pytest.mark.parametrize("given", ["{}/c", "", "  "])
def test_the_folder_is_that_of_platformdirs(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", given.format(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = platformdirs.user_cache_dir("nvidia-variant-provider", appauthor=False)
    assert cache.cache_file(os.environ) == os.path.join(expected, "detection.json")


def test_a_missing_file_costs_no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """`loads` imports `json` for a text that is not JSON, such as an empty one."""
    monkeypatch.delattr(cache, "loads")
    assert cache.load("/nowhere/detection.json", []) is None


def test_without_a_home_folder_nothing_is_kept() -> None:
    assert cache.cache_file({}) is None


def test_a_relative_home_folder_is_none() -> None:
    """A relative path would be another directory for each current directory."""
    assert cache.cache_file({"HOME": "home"}) is None
    assert cache.cache_file({"HOME": "home", "XDG_CACHE_HOME": "cache"}) is None


def test_a_variable_turns_the_cache_off(node: Machine) -> None:
    assert node.times_asked(NV_VARIANT_PROVIDER_NO_CACHE="1") == 1


def test_another_device_node_makes_the_result_void(node: Machine) -> None:
    (node.root / "dev" / "nvidia1").touch()
    assert node.times_asked() == 1
    assert node.times_asked() == 0


def test_another_kernel_driver_makes_the_result_void(node: Machine) -> None:
    version = node.root / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Mon")
    assert node.times_asked() == 1
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  Tue")
    assert node.times_asked() == 1


def test_another_boot_makes_the_result_void(
    node: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("another")
    monkeypatch.setattr(cache, "_BOOT_ID", str(boot_id))
    assert node.times_asked() == 1


def test_the_libraries_of_another_container_make_the_result_void(node: Machine) -> None:
    """The kernel gives the number of a mount namespace again when it has ended."""
    (node.root / "etc").mkdir(exist_ok=True)
    for _ in range(2):
        (node.root / "etc/new").touch()
        (node.root / "etc/new").replace(node.root / "etc/ld.so.cache")
        assert node.times_asked() == 1
        assert node.times_asked() == 0


@pytest.mark.parametrize(
    "name", ["SLURM_JOB_ID", "SLURM_STEP_ID", "PBS_JOBID", "CUDA_MPS_PIPE_DIRECTORY"]
)
def test_another_job_makes_the_result_void(name: str, node: Machine) -> None:
    """A job without GPUs may run before one with GPUs, on a node that shows all."""
    for number in "12":
        assert node.times_asked(**{name: number}) == 1
        assert node.times_asked(**{name: number}) == 0


def test_another_library_path_makes_the_result_void(
    node: Machine, tmp_path: Path
) -> None:
    path = f"{node.variables['LD_LIBRARY_PATH']}:{tmp_path}"
    assert node.times_asked(LD_LIBRARY_PATH=path) == 1


def test_no_value_of_a_variable_is_kept(node: Machine) -> None:
    """Not each secret has a name by which it is known."""
    proxies = [f"http://user:hunter{number}@proxy\udcff" for number in "23"]
    for proxy in proxies:
        assert node.times_asked(NV_PROXY=proxy) == 1
        assert node.times_asked(NV_PROXY=proxy) == 0
        assert "hunter" not in node.file.read_text()


@pytest.mark.parametrize(("hours", "asked"), [(0.5, 0), (23.9, 0), (24.1, 1), (-1, 1)])
def test_a_result_counts_for_a_day(hours: float, asked: int, node: Machine) -> None:
    node.change(lambda document: document.update(time=time.time() - hours * 3600))
    assert node.times_asked() == asked


@pytest.mark.parametrize(("minutes", "asked"), [(9, 0), (11, 1)])
def test_a_result_with_a_reason_counts_for_ten_minutes(
    minutes: int, asked: int, node: Machine
) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["time"] = time.time() - minutes * 60
        document["environment"]["gpus"][0]["reason"] = "gpu-lost"

    node.change(edit)
    assert node.times_asked() == asked


def test_the_result_of_a_short_deadline_does_not_count_for_a_longer_one(
    node: Machine,
) -> None:
    variables = {"NV_VARIANT_PROVIDER_DETECT_TIMEOUT": "19"}
    assert [node.times_asked(**variables) for _ in range(2)] == [1, 0]
    assert node.times_asked() == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"key": []}',
        '{"key": null, "time": "x", "environment": {}}',
        "\ufffd",
    ],
)
def test_a_file_that_is_not_valid_is_ignored(text: str, node: Machine) -> None:
    node.file.write_text(text)
    assert node.times_asked() == 1
    assert node.times_asked() == 0


@pytest.mark.parametrize("key", ["key", "time", "environment"])
def test_a_file_that_lacks_a_key_is_ignored(key: str, node: Machine) -> None:
    node.change(lambda document: document.pop(key))
    assert node.times_asked() == 1


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602, 0o4600])
def test_a_file_that_others_may_write_or_read_is_ignored(
    mode: int, node: Machine
) -> None:
    node.file.chmod(mode)
    assert node.times_asked() == 1
    assert stat.S_IMODE(node.file.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_ignored(node: Machine) -> None:
    os.chown(node.file, 12345, 12345)
    assert node.times_asked() == 1


def test_a_link_and_a_named_pipe_are_ignored(node: Machine, tmp_path: Path) -> None:
    node.file.rename(tmp_path / "elsewhere")
    node.file.symlink_to(tmp_path / "elsewhere")
    assert node.times_asked() == 1
    node.file.unlink()
    os.mkfifo(node.file, 0o600)
    assert node.times_asked() == 1


def test_a_directory_is_ignored(node: Machine) -> None:
    node.file.unlink()
    node.file.mkdir(0o600)
    before = os.listdir("/proc/self/fd")
    assert cache.read_own(str(node.file), 1000) is None
    assert os.listdir("/proc/self/fd") == before


def test_the_oldest_of_many_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index filled the disk with METADATA, which is kept for a month."""
    monkeypatch.setattr(cache, "_MOST_KEPT", 16 * 5000)
    monkeypatch.setattr(cache, "_cleared", {})
    now, names = time.time(), [f"{number:02}" for number in range(40)]
    for number, name in enumerate(names):
        path = tmp_path / "kept" / name
        cache.write_own(str(path), bytes(5000 - cache._BLOCK), life=3600)
        os.utime(path, (now - 100 + number,) * 2)
    assert sorted(os.listdir(tmp_path / "kept")) == names[-16:]


def test_a_folder_that_cannot_be_written_is_not_an_error(
    node: Machine, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    assert node.times_asked(XDG_CACHE_HOME=str(tmp_path / "file")) == 1


def test_forced_values_are_never_kept(node: Machine) -> None:
    forced = {"NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": "13.0"}
    node.file.unlink()
    assert node.times_asked(**forced) == 1
    assert detect(node.variables).cuda_driver_version == CudaVersion(12, 9)
    assert detect({**node.variables, **forced}).source == "forced+nvml"


class TestCommandLine:
    @pytest.fixture(autouse=True)
    def variables(self, node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in node.variables.items():
            monkeypatch.setenv(name, value)

    def asked(self, node: Machine, *arguments: str) -> int:
        before = node.log.read_text().count("load nvml")
        assert main(["detect", *arguments]) == 0
        return node.log.read_text().count("load nvml") - before

    def test_no_cache_asks_the_driver(self, node: Machine) -> None:
        assert self.asked(node) == 0
        assert self.asked(node, "--no-cache") == 1

    def test_clear_cache_removes_the_file(self, node: Machine) -> None:
        assert self.asked(node, "--clear-cache") == 1
        assert self.asked(node) == 0
        node.file.unlink()
        assert self.asked(node, "--clear-cache", "--no-cache") == 1
        assert not node.file.exists()

    def test_a_file_that_cannot_be_removed_is_an_error(
        self, node: Machine, capsys: pytest.CaptureFixture[str]
    ) -> None:
        node.file.unlink()
        node.file.mkdir()
        assert main(["detect", "--clear-cache"]) == 3
        assert "cannot be removed" in capsys.readouterr().err
