"""Small C++ libraries: a fake of the library of torch, and extensions of torch."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

__all__ = ["compile_library", "needs_cxx", "torch_library"]

needs_cxx = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("c++") is None,
    reason="needs Linux and a C++ compiler",
)

_TORCH = """
#include <string>
namespace c10 {
struct Shape { int dims() const; };
int Shape::dims() const { return 1; }
std::string name() { return "torch"; }
void check(const std::string &text) { throw text; }
}
namespace Ssh { void own(int) {} }
extern "C" int torch_call() { return 1; }
extern "C" __attribute__((visibility("hidden"))) int torch_hidden() { return 1; }
"""


@functools.cache
def compile_library(
    source: str, *, new_abi: bool = True, needed: tuple[str, ...] = ()
) -> bytes:
    """Compile a library.

    :param new_abi: the value of ``_GLIBCXX_USE_CXX11_ABI``.
    :param needed: the names of the libraries to link.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = ["-shared", "-fPIC", "-O1", "-Wl,--no-as-needed"]
        flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(new_abi)}")
        for library in needed:
            stub = folder / library
            subprocess.run(
                ["c++", "-shared", "-x", "c++", "/dev/null", "-o", stub], check=True
            )
            flags += [f"-L{folder}", f"-l:{library}"]
        (folder / "source.cpp").write_text(source)
        output = folder / "output.so"
        subprocess.run(["c++", folder / "source.cpp", *flags, "-o", output], check=True)
        return output.read_bytes()


def torch_library(*, new_abi: bool = True) -> bytes:
    """Return a library with a few functions in the namespaces of torch."""
    return compile_library(_TORCH, new_abi=new_abi)
