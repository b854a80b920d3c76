"""Run Python code with the fake driver libraries, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from support.native import CUDA_SONAME, NVML_SONAME, environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.native import Scenario

__all__ = ["CUDA", "NVML", "PYNVML", "Bench"]

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
        """Wait until the libraries have logged a call."""
        self.wait_until(lambda: name in self.calls())

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until another process has fulfilled a condition."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)
