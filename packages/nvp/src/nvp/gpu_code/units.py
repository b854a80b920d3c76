"""The units of a wheel, the GPUs that they run on, and the owners of libraries.

A wheel runs on a GPU if all of its own libraries do. But some files are alternatives: a
program loads the loose cubin for its GPU, or either ``lib_cuda126.so`` or
``lib_cuda130.so`` for its CUDA version. A unit is one library or a set of alternatives.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvidia_variant_provider.machine.supported import OLDEST

from ..knowledge.builds import build_records
from ..knowledge.tables import (
    NATIVE,
    PTX,
    UNKNOWN,
    gpu_models,
    parse_isa,
    ptx_versions,
    runs_machine_code,
    runs_ptx,
    toolkits,
)
from .report import LibraryReport, WheelReport

_TARGET = re.compile(r"([1-9][0-9]{1,3})([af]?)_(real|virtual)")
_CHOICE = re.compile(
    r"(?<![a-z0-9])(cu|cuda|sm)[-_]?[0-9]{2,3}[af]?(?![a-z0-9])", re.IGNORECASE
)
_LOOSE = ("cubin", "ptx", "fatbin", "data")


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A library, or several alternative files of which a program loads one.

    :param name: the path, with ``*`` in place of the parts that differ between files.
    :param libraries: the files of the unit.
    :param by_cuda: whether the files are alternatives for several CUDA versions; the
        oldest version determines the bound.
    :param targets: the targets with kernels, such as ``90a_real``.
    :param stubs: the targets that have only stubs.
    :param isa: the newest PTX version of each PTX target, as (major, minor).
    """

    name: str
    libraries: tuple[LibraryReport, ...]
    by_cuda: bool
    targets: frozenset[str]
    stubs: frozenset[str]
    isa: Mapping[str, tuple[int, int]]

    def how(
        self,
        capability: ComputeCapability,
        toolkit: CudaVersion | None = None,
        driver: CudaVersion | None = None,
    ) -> str | None:
        """Return how a GPU runs the unit: `NATIVE`, `PTX` or `UNKNOWN`, or ``None``.

        ``None`` means that the GPU does not run the unit. The result can be `UNKNOWN`
        only if ``toolkit``, the CUDA version of the code, is given.
        """
        return _how(self.targets, capability, toolkit, driver)

    def choices(self) -> list[Mapping[str, tuple[int, int]]]:
        """Return ``{target: PTX version}`` per file if `by_cuda`, else for the unit."""
        return [_ptx(i) for i in self.libraries] if self.by_cuda else [self.isa]

    def jit_toolkit(self, capability: ComputeCapability) -> CudaVersion | None:
        """Return the minimum CUDA version of a driver that compiles the PTX for a GPU.

        The driver compiles the PTX of the highest target. If `by_cuda`, the lowest
        requirement counts, because the program loads a library that the driver can run.
        The result is ``None`` if the PTX is newer than any known toolkit.

        :raises LookupError: the unit has no PTX for the GPU.
        """
        needed = [
            ptx_toolkit(max(candidates)[1])
            for group in self.choices()
            if (
                candidates := [
                    (parse_target(target)[0], version)
                    for target, version in group.items()
                    if runs_ptx(target.partition("_")[0], capability)
                ]
            )
        ]
        if not needed:
            raise LookupError(str(capability))
        known = [version for version in needed if version is not None]
        return min(known, default=None)


@lru_cache(maxsize=2**16)  # many libraries of a wheel have the same targets
def _how(
    targets: frozenset[str],
    capability: ComputeCapability,
    toolkit: CudaVersion | None,
    driver: CudaVersion | None,
) -> str | None:
    how = None
    for target in targets:
        number, _, kind = target.partition("_")
        if kind == "virtual" and runs_ptx(number, capability):
            how = PTX
        elif kind == "real":
            runs = runs_machine_code(number, capability, toolkit, driver)
            if runs:
                return NATIVE
            if runs is None and toolkit is not None:
                how = how or UNKNOWN
    return how


def _ptx(library: LibraryReport) -> dict[str, tuple[int, int]]:
    """Return the newest PTX version of each PTX target of a library."""
    kernels = library.kernels
    return {
        target: max(map(parse_isa, versions), default=(0, 0))
        for target, versions in library.ptx_isa.items()
        if target in kernels and _TARGET.fullmatch(target)
    }


def split_units(report: WheelReport) -> tuple[Unit, ...]:
    """Return the units of the project's own libraries that have GPU code.

    Static libraries are for linking, so they count only without other libraries.
    """
    own = [item for item in report.own if item.targets]
    groups: dict[str, list[LibraryReport]] = {}
    for item in [i for i in own if i.format != "archive"] or own:
        key = "loose files" if item.format in _LOOSE else _CHOICE.sub("*", item.path)
        groups.setdefault(key, []).append(item)
    units = [_unit(name, libraries) for name, libraries in sorted(groups.items())]
    return tuple(unit for unit in units if unit.targets or unit.stubs)


def choices_by_cuda(report: WheelReport) -> Mapping[str, tuple[str, ...]]:
    """Map each path with alternatives to all paths that differ only in CUDA version."""
    groups: dict[str, list[str]] = {}
    for item in report.own:
        if item.format != "archive" and _is_by_cuda(item.path):
            groups.setdefault(_CHOICE.sub("*", item.path), []).append(item.path)
    return {
        path: tuple(paths)
        for paths in groups.values()
        for path in paths
        if len(paths) > 1
    }


def _is_by_cuda(path: str) -> bool:
    words = {match[1].lower() for match in _CHOICE.finditer(path)}
    return bool(words & {"cu", "cuda"})


def _unit(name: str, libraries: list[LibraryReport]) -> Unit:
    targets = _known(target for item in libraries for target in item.kernels)
    stubs = _known(target for item in libraries for target in item.stubs)
    isa: dict[str, tuple[int, int]] = {}
    for item in libraries:
        for target, version in _ptx(item).items():
            isa[target] = max(isa.get(target, (0, 0)), version)
    single = libraries[0].path
    return Unit(
        name=single if len(libraries) == 1 else name,
        libraries=tuple(libraries),
        by_cuda=len(libraries) > 1 and _is_by_cuda(single),
        targets=targets,
        stubs=stubs - targets,
        isa=isa,
    )


def _known(targets: Iterable[str]) -> frozenset[str]:
    return frozenset(target for target in targets if _TARGET.fullmatch(target))


def parse_target(target: str) -> tuple[int, str, str]:
    """Split a target such as ``90a_real`` into number, letter (may be empty) and kind.

    :raises ValueError: the target has a different form.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ValueError(f"{target!r} is not a target")
    return int(match[1]), match[2], match[3]


@cache
def ptx_toolkit(isa: tuple[int, int]) -> CudaVersion | None:
    """Return the first CUDA version that reads a PTX version; ``None`` if unknown.

    A driver for that CUDA version or a newer one compiles such PTX. CUDA 11.0 is
    returned for older versions too, because properties cannot name these.
    """
    first = next((cuda for cuda, v in ptx_versions().items() if v >= isa), None)
    return None if first is None else max(first, OLDEST)


@cache
def first_toolkit(target: str) -> CudaVersion | None:
    """Return the first toolkit that emits a target, or ``None`` if it is unknown."""
    number, letter, _ = parse_target(target)
    model = gpu_models().get(ComputeCapability(number // 10, number % 10))
    if model is not None and not letter:
        return model.first_toolkit
    name = f"{number}{letter}"
    return next((v for v, known in toolkits().items() if name in known.targets), None)


_WITHOUT_KERNELS = (
    "cudadevrt|cudart|cufile[a-z_]*|cupti|nvperf_host|nvperf_target|nvtoolsext|"
    "pcsamplingutil"
)
"""The names of NVIDIA's libraries that contain no kernels for programs to use."""

_NAMES = (
    f"{_WITHOUT_KERNELS}|"
    "cublas|cublaslt|cublasmp|cudensitymat|cudnn[a-z_]*|cudss[a-z_]*|cufft|cufftmp|"
    "cufftw|cupauliprop|curand|cusolver|cusolvermg|cusolvermp|cusparse|cusparselt|"
    "custabilizer|custatevec|cutensor|cutensormg|cutensormp|cutensornet|nccl|npp[a-z]*|"
    "nvblas|nvcomp[a-z_]*|nvfatbin|nvimgcodec|nvinfer[a-z_]*|nvjitlink|nvjpeg|nvjpeg2k|"
    "nvonnxparser|nvptxcompiler|nvrtc|nvrtc-builtins|nvshmem[a-z_]*|nvtiff|nvvm"
)


def _files(names: str) -> re.Pattern[str]:
    """Return a pattern for the file names of libraries on Linux and on Windows.

    Examples are ``libcublas.so.12``, ``libcublas-1a2b.so.12``, ``libcupti_static.a``,
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
"""A CUPTI library with a common name, recognized only if CUPTI is beside it."""

_PROJECTS = re.compile(rf"(?:nvidia|tensorrt)(?:-.*)?|{_NAMES}")
"""The names of NVIDIA's own projects, without a CUDA suffix."""

_HARDWARE = re.compile(r"(?:cpu|cu|cuda|gpu)[0-9]*x?")
_LIBRARY = re.compile(r"(.+?)(?:[-.][0-9a-f]{8,})?\.(?:so|dll)(?:\..*)?", re.DOTALL)
"""The file name of a library, to which tools such as auditwheel may add a hash."""


def is_of_nvidia(name: str) -> bool:
    """Return whether an NVIDIA library has this file name, such as ``libnccl.so.2``.

    :param name: the name of the file, without its directory.
    """
    return _NVIDIA.fullmatch(name.lower()) is not None


def links_kernels_of_nvidia(needed: Iterable[str]) -> bool:
    """Return whether an NVIDIA library with kernels is linked, such as cuBLAS.

    :param needed: the names of the linked libraries.
    """
    return any(is_of_nvidia(x) and not _NO_KERNELS.fullmatch(x.lower()) for x in needed)


def copied_paths(
    libraries: Sequence[LibraryReport], project: str = ""
) -> frozenset[str]:
    """Return the paths of the libraries that were copied into a wheel from elsewhere.

    A tool such as auditwheel or delvewheel copies the linked libraries of a wheel into
    ``NAME.libs/``. They may be another project's libraries, such as cuBLAS, or a
    library of the project itself: all kernels of faiss-gpu-cu12 are in
    ``faiss_gpu_cu12.libs/libfaiss-6b43fd57.so``. The name of the directory is not
    enough. The first of these rules that applies to a library decides:

    1. A library with the name of an NVIDIA library is a copy, in any directory, unless
       the wheel is NVIDIA's own.
    2. A library outside of the directories of such tools is the project's own.
    3. A library that is named like the project is the project's own.
    4. A library that the table of builds lists for another project is a copy.
    5. A library with GPU code that the project's own libraries link (``DT_NEEDED``),
       directly or through others, is the project's own: the project needs that code.
    6. Any other library is a copy.

    :param libraries: all libraries of one wheel; their paths begin at its top.
    :param project: the project of the wheel; empty for a directory.
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
        elif repaired is None or (
            (letters := _letters(stem or _stem(repaired)))
            and _letters(name).startswith((f"lib{letters}", letters))
        ):
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
    """Return the paths of candidates with GPU code that libraries in ``own`` need."""
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
    """Return the project ``NAME`` of a directory ``NAME.libs``; it may be empty.

    The result is ``None`` for other directories.
    """
    for part in folder.lower().split("/"):
        if part == ".dylibs" or part.endswith(".libs"):
            return part.rpartition(".")[0]
    return None


def _stem(project: str) -> str:
    """Return a project's name without suffixes: ``faiss`` for ``faiss_gpu_cu12``."""
    words = re.split(r"[-_.]+", project.lower())
    while len(words) > 1 and _HARDWARE.fullmatch(words[-1]):
        words.pop()
    return "-".join(words)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def _is_known(item: LibraryReport, stem: str) -> bool:
    """Return whether the table of builds lists the library for another project."""
    match = _LIBRARY.fullmatch(_name(item))
    # Skip libraries without GPU code, because reading the table is slow.
    if match is None or not item.has_gpu_code:
        return False
    return bool(_owners().get(match[1], frozenset()) - {stem})


@cache
def _owners() -> dict[str, frozenset[str]]:
    """Return ``{name of a library: projects whose builds contain the library}``."""
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
