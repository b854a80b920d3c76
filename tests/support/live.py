"""Machines with fakes for the driver, on which ``doctor --live`` runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.native import CUDA_SONAME, VARIABLE, Scenario, environment
from support.stacks import Installed, make_environment

if TYPE_CHECKING:
    from support.command import Outcome, Run

__all__ = ["TORCH", "LiveMachine", "torch_build"]

_LARGE = 2 * 1024 * 1024
"""The size in bytes below which `doctor` takes a library for a stub."""


class LiveMachine:
    """Runs ``doctor --live`` on a machine with fakes for the driver's libraries."""

    def __init__(
        self, folder: Path, libraries: Path, run: Run, patch: pytest.MonkeyPatch
    ) -> None:
        self.folder = folder
        self.prefix = folder / "environment"
        self._run = run
        (folder / "root/dev").mkdir(parents=True)
        (folder / "root/dev/nvidia0").touch()
        self._libraries = folder / "libraries"
        self._libraries.mkdir()
        for library in libraries.iterdir():
            data = library.read_bytes()
            # The loader ignores bytes after the end of a library.
            (self._libraries / library.name).write_bytes(data.ljust(_LARGE, b"\0"))
        for name, value in {
            "NV_VARIANT_PROVIDER_SYSROOT": str(folder / "root"),
            "NV_VARIANT_PROVIDER_NO_CACHE": "1",
            "NV_VARIANT_PROVIDER_DETECT_TIMEOUT": "60",
            **environment(self._libraries, folder / "scenario"),
        }.items():
            patch.setenv(name, value)
        # Hide the compilers of this system, which would cause other findings.
        patch.setenv("PATH", str(folder))
        for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES"):
            patch.delenv(name, raising=False)

    @property
    def log(self) -> list[str]:
        """The logged calls of the fakes."""
        return (self.folder / "log").read_text().splitlines()

    def processes(self) -> list[str]:
        """Return the command lines of the children that are still running."""
        mark = f"{VARIABLE}={self.folder / 'scenario'}".encode()
        lines = []
        for status in Path("/proc").glob("[0-9]*/environ"):
            try:
                is_child = mark in status.read_bytes()
                line = (status.parent / "cmdline").read_text().replace("\0", " ")
            except OSError:  # the process has ended, or belongs to another user
                continue
            if is_child and line:  # a zombie has no command line
                lines.append(line)
        return lines

    def wait_for_processes(self) -> None:
        """Wait until no child is running: a killed process ends a little later."""
        deadline = time.monotonic() + 30
        while lines := self.processes():
            assert time.monotonic() < deadline, lines

    def remove_driver(self) -> None:
        """Make a machine whose libcuda cannot be loaded."""
        (self._libraries / CUDA_SONAME).write_bytes(b"")

    def install(self, *installed: Installed) -> None:
        """Install distributions in an environment with an interpreter."""
        make_environment(self.prefix, *installed)
        program = self.prefix / "bin/python"
        program.parent.mkdir()
        program.symlink_to(os.path.realpath(sys.executable))
        home = os.path.dirname(os.path.realpath(sys.executable))
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        lines = f"home = {home}\nversion = {version}.0\n"
        (self.prefix / "pyvenv.cfg").write_text(lines)
        if version != "3.11":
            packages = self.prefix / "lib"
            (packages / "python3.11").rename(packages / f"python{version}")

    def doctor(self, scenario: Scenario, *arguments: object) -> Outcome:
        """Run ``doctor --live`` on the environment."""
        scenario.but(log=self.folder / "log").write(self.folder / "scenario")
        if not self.prefix.exists():
            self.install()
        return self._run("doctor", "--python", self.prefix, "--live", *arguments)


TORCH = r"""
import os
import sys

MODE = os.environ.get("TORCH_MODE", "")
if MODE == "raises":
    raise ImportError("libcudart.so.13: cannot open shared object file\nmore")
if MODE == "hangs":
    import time
    time.sleep(1000)
if MODE == "crashes":
    os.abort()
if MODE == "exits":
    sys.exit(3)
if MODE == "prints":
    os.write(1, b'{"end": "import"}\n' * 1000)
    print("noise", flush=True)
if MODE.startswith("starts"):
    import subprocess
    program = "import time; time.sleep(1000)"
    if "daemon" in MODE:
        program = f"import os; os.setsid(); os.closerange(0, 3); {program}"
    child = subprocess.Popen([sys.executable, "-c", program])
    with open(os.environ["TORCH_CHILD"], "w") as file:
        file.write(str(child.pid))
    import time
    time.sleep(1000)

__version__ = "2.9.0+cu128"


class version:
    cuda = None if MODE == "cpu" else "12.8"


class Tensor:
    def __init__(self, device="cpu", compiled=False):
        self.device = device
        self.compiled = compiled

    def _self(self, *_):
        return self

    __mod__ = __add__ = __pow__ = _self
    reshape = float = sin = cos = sum = cpu = _self

    def to(self, device):
        return Tensor(device)

    def __matmul__(self, other):
        assert other.device == self.device
        if MODE == "no kernel" and self.device != "cpu":
            raise RuntimeError("CUDA error: no kernel image\nCompile with")
        return Tensor(self.device)


def arange(count):
    return Tensor()


def linspace(first, last, count, device):
    return Tensor(device)


def equal(one, other):
    return MODE != "wrong"


def allclose(one, other, rtol):
    return one.compiled and not other.compiled


def compile(function):
    if MODE == "no compiler":
        raise RuntimeError("Failed to find C compiler")
    return lambda values: Tensor(function(values).device, compiled=True)


class cuda:
    def get_arch_list():
        return ["sm_90", "sm_120"]

    def is_available():
        return MODE not in ("unavailable", "cpu")

    def init():
        raise RuntimeError("The NVIDIA driver on your system is too old\nPlease")

    def device_count():
        return 2

    def synchronize(index=0):
        pass

    def get_device_name(index):
        return "Fake GPU"
"""
"""The part of torch that the live proof uses; TORCH_MODE selects a defect."""


def torch_build(files: Mapping[str, bytes] | None = None) -> Installed:
    """Return a distribution with the module, and with other files."""
    members = {"torch/__init__.py": TORCH.encode(), **(files or {})}
    return Installed(name="torch", version="2.9.0+cu128", files=members)
