"""The difference between a project's own libraries and those copied into its wheel.

A tool that repairs wheels (auditwheel, delvewheel) copies what the libraries of a wheel
are linked with into ``NAME.libs/``. What is there may be another project's library,
such as cuBLAS, or the project's own one, which was built next to its Python modules:
all kernels of faiss-gpu-cu12 are in ``faiss_gpu_cu12.libs/libfaiss-6b43fd57.so``. A
name alone does not tell. `copied_paths` asks, in this order:

1. Is it one of NVIDIA's libraries, by the name that NVIDIA gives it? It is a copy, in
   any folder, except in NVIDIA's own wheel of it.
2. Is it outside of the folders of such tools? It is the project's own.
3. Is it named like the project? It is the project's own.
4. Does the table of builds know the library as the own one of another project? It is a
   copy.
5. Has it GPU code, and do the project's own libraries link it (``DT_NEEDED``), directly
   or through each other? Then the project cannot run without that code: it is its own.
6. It is a copy.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache

from ..knowledge.builds import build_records
from .report import LibraryReport

_WITHOUT_KERNELS = (
    "cudadevrt|cudart|cufile[a-z_]*|cupti|nvperf_host|nvperf_target|nvtoolsext|"
    "pcsamplingutil"
)
"""The names of NVIDIA's libraries that bring no kernels for the program to call."""

_NAMES = (
    f"{_WITHOUT_KERNELS}|"
    "cublas|cublaslt|cublasmp|cudensitymat|cudnn[a-z_]*|cudss[a-z_]*|cufft|cufftmp|"
    "cufftw|cupauliprop|curand|cusolver|cusolvermg|cusolvermp|cusparse|cusparselt|"
    "custabilizer|custatevec|cutensor|cutensormg|cutensormp|cutensornet|nccl|npp[a-z]*|"
    "nvblas|nvcomp[a-z_]*|nvfatbin|nvimgcodec|nvinfer[a-z_]*|nvjitlink|nvjpeg|nvjpeg2k|"
    "nvonnxparser|nvptxcompiler|nvrtc|nvrtc-builtins|nvshmem[a-z_]*|nvtiff|nvvm"
)


def _files(names: str) -> re.Pattern[str]:
    """Return what files of these names are called on Linux and on Windows.

    Such as ``libcublas.so.12``, ``libcublas-1a2b.so.12``, ``libcupti_static.a``,
    ``cublas64_12.dll``, ``cutensor.dll`` and ``cudart_static.lib``.
    """
    return re.compile(
        rf"lib(?:{names})(?:_static(?:_[a-z]+)?)?[-.].*|"
        rf"(?:{names})(?:32|64)?(?:_[0-9].*|-[0-9a-f]{{8,}})?\.dll|"
        rf"(?:{names})(?:_static)?\.lib"
    )


_NVIDIA = _files(_NAMES)
_NO_KERNELS = _files(_WITHOUT_KERNELS)
_CUPTI = re.compile(r"(?:lib)?cupti.*")
_WITH_CUPTI = re.compile(r"(?:lib)?checkpoint\.(?:so|dll)(?:\.[0-9.]+)?")
"""A library of CUPTI with a name that others may use: it counts next to CUPTI only."""

_PROJECTS = re.compile(rf"(?:nvidia|tensorrt)(?:-.*)?|{_NAMES}")
"""NVIDIA's own projects, without the part of the name that is about CUDA."""

_HARDWARE = re.compile(r"(?:cpu|cu|cuda|gpu)[0-9]*x?")
_LIBRARY = re.compile(r"(.+?)(?:[-.][0-9a-f]{8,})?\.(?:so|dll)(?:\..*)?")
"""A library, whose name tools that repair wheels make longer by a part of its hash."""


def is_of_nvidia(name: str) -> bool:
    """Return whether a library has a name that NVIDIA gives, such as ``libnccl.so.2``.

    :param name: the name of the file, without its folder.
    """
    return _NVIDIA.fullmatch(name.lower()) is not None


def links_kernels_of_nvidia(needed: Iterable[str]) -> bool:
    """Return whether linked libraries are of NVIDIA and have kernels, as cuBLAS does.

    :param needed: the names of the linked libraries.
    """
    return any(is_of_nvidia(x) and not _NO_KERNELS.fullmatch(x.lower()) for x in needed)


def copied_paths(
    libraries: Sequence[LibraryReport], project: str = ""
) -> frozenset[str]:
    """Return the paths of the libraries that were copied into a wheel from elsewhere.

    The docstring of the module has the rules.

    :param libraries: all libraries of one wheel; their paths begin at its top.
    :param project: the project of the wheel; empty for a folder that is no wheel.
    """
    stem = _stem(project)
    if _PROJECTS.fullmatch(stem):
        return frozenset()
    cupti = {
        item.path.rpartition("/")[0]
        for item in libraries
        if _CUPTI.fullmatch(_name(item))
    }
    own, copied, undecided = [], [], []
    for item in libraries:
        folder, _, _ = item.path.rpartition("/")
        name = _name(item)
        repaired = _repaired(folder)
        if (
            is_of_nvidia(name)
            or (folder in cupti and _WITH_CUPTI.fullmatch(name))
            or item.path.lower().startswith("nvidia/")
        ):
            copied.append(item)
        elif repaired is None or _is_named_like(name, stem or _stem(repaired)):
            own.append(item)
        elif _is_known(item, stem):
            copied.append(item)
        else:
            undecided.append(item)
    linked = _linked(own, undecided)
    copied += [item for item in undecided if item.path not in linked]
    return frozenset(item.path for item in copied)


def _linked(
    own: Iterable[LibraryReport], candidates: Iterable[LibraryReport]
) -> Collection[str]:
    """Return the paths of the candidates with GPU code that the own libraries link."""
    by_name = {_name(item): item for item in candidates}
    reached: dict[str, LibraryReport] = {}
    pending = list(own)
    while pending:
        for name in map(str.lower, pending.pop().needed):
            if (item := by_name.get(name)) and item.path not in reached:
                reached[item.path] = item
                pending.append(item)
    return {path for path, item in reached.items() if item.has_gpu_code}


def _name(item: LibraryReport) -> str:
    return item.path.rpartition("/")[2].lower()


def _repaired(folder: str) -> str | None:
    """Return the project that a folder ``NAME.libs`` names, which may be empty.

    The value is ``None`` for other folders.
    """
    for part in folder.lower().split("/"):
        if part == ".dylibs" or part.endswith(".libs"):
            return part.rpartition(".")[0]
    return None


def _stem(project: str) -> str:
    """Return the part of a project's name that is not about hardware.

    ``faiss`` is that of ``faiss_gpu_cu12``.
    """
    words = re.split(r"[-_.]+", project.lower())
    while len(words) > 1 and _HARDWARE.fullmatch(words[-1]):
        words.pop()
    return "-".join(words)


def _is_named_like(name: str, stem: str) -> bool:
    letters = _letters(stem)
    return bool(letters) and _letters(name).startswith((f"lib{letters}", letters))


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def _is_known(item: LibraryReport, stem: str) -> bool:
    """Return whether the table of builds has the library as another project's own."""
    match = _LIBRARY.fullmatch(_name(item))
    # Without GPU code it is of no interest, and reading the table takes a while.
    if match is None or not item.has_gpu_code:
        return False
    return bool(_owners().get(match[1], frozenset()) - {stem})


@cache
def _owners() -> dict[str, frozenset[str]]:
    """Return the projects that have a library as their own, by the library's name."""
    owners: dict[str, frozenset[str]] = {}
    for project, records in build_records().items():
        for record in records:
            pieces = record.needs.pieces or ()
            for library in (library for piece in pieces for library in piece):
                name = library.name.rpartition("/")[2].lower()
                if match := _LIBRARY.fullmatch(name):
                    known = owners.get(match[1], frozenset())
                    owners[match[1]] = known | {_stem(project)}
    return owners
