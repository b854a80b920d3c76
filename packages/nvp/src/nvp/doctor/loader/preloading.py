"""What torch and jax load before their own libraries.

Both look for NVIDIA's libraries in the folders that the distributions ``nvidia-*``
install: ``nvidia/cublas/lib`` and the like for CUDA 12, ``nvidia/cu13/lib`` since CUDA
13. Which ones, and in which order, has changed from release to release, so that it is
read from their source, which is not run.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence

from ..installation import read_head
from .process import Failure, Process

__all__ = ["load_jax", "load_torch"]

_PAIR = re.compile(r"""["'](\w+)["']\s*[:,]\s*["'](lib[\w-]+\.so[^"']*)["']""")
"""``"cublas": "libcublas.so.*[0-9]"`` in older torch; newer torch lists pairs."""

_JAX = re.compile(r"""_load\(\s*["'](\w+)["'],\s*\[([^\]]*)\]""")
"""``_load("cublas", ["libcublas.so.12", "libcublasLt.so.12"])`` in jax."""

_JAX_NAME = re.compile(r"""["'](lib[\w-]+\.so[\w.]*)["']""")
_CUDA = re.compile(r"""^cuda\b[^=]*=\s*["'](\d+)""", re.MULTILINE)
_GLOBAL_DEPS = "libtorch_global_deps.so"


def load_torch(process: Process, folders: Sequence[str]) -> list[Failure]:
    """Do to a process what ``import torch`` does.

    :param folders: the ``sys.path``.
    :returns: what could not be loaded; empty where there is no torch.
    """
    home = _first(folders, "torch", "lib", _GLOBAL_DEPS)
    if home is None:
        return []
    package = os.path.join(home, "torch")
    library = os.path.join(package, "lib", _GLOBAL_DEPS)
    source = read_head(os.path.join(package, "__init__.py"))
    before, _, loading = source.partition("def _load_global_deps")
    loading = loading.partition("\ndef ")[0]
    major = _CUDA.search(read_head(os.path.join(package, "version.py")))
    layout = f"cu{major[1]}" if major else None
    listed = [(match[1], match[2]) for match in _PAIR.finditer(before)]
    failures = process.load(library)
    if failures:
        stems = {name.partition(".")[0] for _, name in listed}
        if failures[0].name.partition(".")[0] not in stems:
            return failures
        _load_listed(process, folders, layout, listed)
        failures = process.load(library)
        if failures:
            return failures
    elif any("libcudart" in item.path for item in process.loaded):
        # In case of success, some libraries are loaded so that they are found before
        # other copies. In older torch these are the ones that the function names.
        if "_preload_cuda_deps(required=False)" not in loading:
            listed = [(match[1], match[2]) for match in _PAIR.finditer(loading)]
        _load_listed(process, folders, layout, listed)
    for path in sorted(glob.glob(os.path.join(glob.escape(package), "_C.*.so"))):
        failures += process.load(path)
    return failures


def load_jax(process: Process, folders: Sequence[str]) -> None:
    """Load what the CUDA plug-in of jax loads first; what is missing is passed over."""
    for folder in folders:
        pattern = os.path.join(glob.escape(folder), "jax_plugins/xla_cuda*/__init__.py")
        for path in sorted(glob.glob(pattern)):
            for match in _JAX.finditer(read_head(path)):
                for name in _JAX_NAME.findall(match[2]):
                    place = ("nvidia", match[1], "lib", name)
                    home = _first(folders, *place)
                    if home is not None:
                        process.load(os.path.join(home, *place))


def _load_listed(
    process: Process,
    folders: Sequence[str],
    layout: str | None,
    listed: Sequence[tuple[str, str]],
) -> None:
    for folder_name, pattern in listed:
        path = next(_places(folders, layout, folder_name, pattern), None)
        if path is not None:
            process.load(path)


def _places(
    folders: Sequence[str], layout: str | None, folder_name: str, pattern: str
) -> Iterator[str]:
    """Yield the files that torch takes for one library, the preferred one first."""
    names = [os.path.join("nvidia", folder_name)]
    names += [os.path.join("nvidia", layout)] if layout else []
    for folder in folders:
        for name in (*names, folder_name):
            yield from glob.glob(
                os.path.join(glob.escape(folder), name, "lib", pattern)
            )


def _first(folders: Sequence[str], *path: str) -> str | None:
    return next((f for f in folders if os.path.exists(os.path.join(f, *path))), None)
