"""Small compiled shared libraries, and the files that the real loader loads."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["SharedObject", "dlopen", "needs_compiler"]

needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None,
    reason="needs the loader of Linux and a C compiler",
)

_PROGRAM = """
import ctypes, json, os, sys
failure = None
try:
    for path in sys.argv[1:]:
        ctypes.CDLL(path)
except OSError as error:
    failure = str(error)
lines = open("/proc/self/maps", errors="surrogateescape").read().splitlines()
files = sorted({line.split(None, 5)[5] for line in lines if len(line.split()) > 5})
print(json.dumps([files, failure]))
"""


@dataclass(frozen=True, kw_only=True)
class SharedObject:
    """A library to compile.

    :param needed: the sonames of the linked libraries.
    :param rpath: the DT_RPATH, or the DT_RUNPATH if ``new_tags`` is set.
    """

    soname: str
    needed: Sequence[str] = ()
    rpath: str | None = None
    new_tags: bool = False

    def compile(self, folder: Path, name: str | None = None) -> Path:
        """Make a directory, write the library to it, and return the path of the
        library."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (name or self.soname)
        options = ["-o", str(path), f"-Wl,-soname,{self.soname},--no-as-needed"]
        if self.rpath is not None:
            tags = "enable" if self.new_tags else "disable"
            options += [f"-Wl,-rpath,{self.rpath},--{tags}-new-dtags"]
        with tempfile.TemporaryDirectory() as stubs:
            # The linker needs the linked libraries. For a library without a soname, the
            # linker records the name of the file.
            for needed in self.needed:
                Path(stubs, needed).write_bytes(_stub())
                options += [f"-L{stubs}", f"-l:{needed}"]
            _compile(options)
        return path


@functools.cache
def _stub() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stub.so")
        _compile(["-o", str(path)])
        return path.read_bytes()


def _compile(options: Sequence[str]) -> None:
    source = ["-x", "c", "/dev/null", "-x", "none"]
    command = ["cc", "-shared", "-nostdlib", *source, *options]
    subprocess.run(command, check=True, capture_output=True)


def dlopen(
    *paths: Path, environ: Mapping[str, str], python: str = sys.executable
) -> tuple[list[str], str | None]:
    """Load libraries in a process of Python.

    :returns: the loaded files, and the error of the first library that failed.
    """
    command = [python, "-S", "-E", "-c", _PROGRAM, *map(str, paths)]
    result = subprocess.run(
        command, env=dict(environ), capture_output=True, text=True, check=True
    )
    files, failure = json.loads(result.stdout)
    return files, failure
