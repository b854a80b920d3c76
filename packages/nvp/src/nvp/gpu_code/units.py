"""The units of a wheel, and the GPUs that each unit runs on.

A wheel runs on a GPU if each of its own libraries does, not if one of them does. But
some files are alternatives: a program loads the loose cubin for its GPU, or the one of
``lib_cuda126.so`` and ``lib_cuda130.so`` that is for its CUDA. A unit is one library,
or the files that are alternatives to each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvidia_variant_provider.machine.supported import OLDEST

from ..knowledge.tables import (
    NATIVE,
    PTX,
    gpu_models,
    parse_isa,
    runs_machine_code,
    runs_ptx,
    toolkits,
)
from .report import LibraryReport, WheelReport

_TARGET = re.compile(r"([0-9]{2,4})([af]?)_(real|virtual)")
_CHOICE = re.compile(
    r"(?<![a-z0-9])(cu|cuda|sm)[-_]?[0-9]{2,3}[af]?(?![a-z0-9])", re.IGNORECASE
)
_LOOSE = ("cubin", "ptx", "fatbin", "data")


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A library, or several files of which a program loads one.

    :param name: the path; for several files with ``*`` where their paths differ.
    :param libraries: its files.
    :param by_cuda: whether the files are alternatives by CUDA version, so that the
        oldest one sets the bound.
    :param targets: the targets with kernels, such as ``90a_real``.
    :param stubs: the targets that have stubs only.
    :param isa: the newest PTX version of each PTX target, as (major, minor).
    """

    name: str
    libraries: tuple[LibraryReport, ...]
    by_cuda: bool
    targets: frozenset[str]
    stubs: frozenset[str]
    isa: Mapping[str, tuple[int, int]]

    def how(self, capability: ComputeCapability) -> str | None:
        """Return `NATIVE` or `PTX` if it runs on the GPU, else ``None``."""
        how = None
        for target in self.targets:
            number, _, kind = target.partition("_")
            if kind == "real" and runs_machine_code(number, capability):
                return NATIVE
            if kind == "virtual" and runs_ptx(number, capability):
                how = PTX
        return how

    def choices(self) -> list[Mapping[str, tuple[int, int]]]:
        """Return the PTX versions of each alternative by CUDA, or of all files."""
        return [_ptx(i) for i in self.libraries] if self.by_cuda else [self.isa]

    def jit_toolkit(self, capability: ComputeCapability) -> CudaVersion | None:
        """Return the CUDA version that a driver needs to compile its PTX for a GPU.

        The driver compiles the PTX of the highest target. Of alternatives by CUDA, the
        program loads one that the driver can run. The value is ``None`` if the PTX is
        newer than any known toolkit.

        :raises LookupError: it has no PTX for the GPU.
        """
        needed = [
            ptx_toolkit(max(candidates)[1])
            for group in self.choices()
            if (candidates := _compiled_for(group, capability))
        ]
        if not needed:
            raise LookupError(str(capability))
        known = [version for version in needed if version is not None]
        return min(known, default=None)


def _compiled_for(
    isa: Mapping[str, tuple[int, int]], capability: ComputeCapability
) -> list[tuple[int, tuple[int, int]]]:
    return [
        (parse_target(target)[0], version)
        for target, version in isa.items()
        if runs_ptx(target.partition("_")[0], capability)
    ]


def _ptx(library: LibraryReport) -> dict[str, tuple[int, int]]:
    """Return the newest PTX version of each PTX target of a library."""
    return {
        target: max(map(parse_isa, versions), default=(0, 0))
        for target, versions in library.ptx_isa.items()
        if target in library.kernels and _TARGET.fullmatch(target)
    }


def split_units(report: WheelReport) -> tuple[Unit, ...]:
    """Return the units of the project's own libraries that have GPU code.

    Static libraries are there for linking, and count only if there is nothing else.
    """
    own = [item for item in report.own if item.targets]
    groups: dict[str, list[LibraryReport]] = {}
    for item in [i for i in own if i.format != "archive"] or own:
        key = "loose files" if item.format in _LOOSE else _CHOICE.sub("*", item.path)
        groups.setdefault(key, []).append(item)
    units = [_unit(name, libraries) for name, libraries in sorted(groups.items())]
    return tuple(unit for unit in units if unit.targets or unit.stubs)


def _unit(name: str, libraries: list[LibraryReport]) -> Unit:
    targets = _known(target for item in libraries for target in item.kernels)
    stubs = _known(target for item in libraries for target in item.stubs)
    isa: dict[str, tuple[int, int]] = {}
    for item in libraries:
        for target, version in _ptx(item).items():
            isa[target] = max(isa.get(target, (0, 0)), version)
    single = libraries[0].path
    words = {match[1].lower() for match in _CHOICE.finditer(single)}
    return Unit(
        name=single if len(libraries) == 1 else name,
        libraries=tuple(libraries),
        by_cuda=len(libraries) > 1 and bool(words & {"cu", "cuda"}),
        targets=targets,
        stubs=stubs - targets,
        isa=isa,
    )


def _known(targets: Iterable[str]) -> frozenset[str]:
    return frozenset(target for target in targets if _TARGET.fullmatch(target))


def parse_target(target: str) -> tuple[int, str, str]:
    """Split a target such as ``90a_real`` into number, letter (may be empty) and kind.

    :raises ValueError: it has another form.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ValueError(f"{target!r} is not a target")
    return int(match[1]), match[2], match[3]


@cache
def ptx_toolkit(isa: tuple[int, int]) -> CudaVersion | None:
    """Return the first toolkit that emits a version of PTX; ``None`` if none is known.

    A driver for the toolkit's CUDA version, or for a newer one, compiles it. What is
    older than CUDA 11.0 counts as 11.0, the first version that properties can name.
    """
    first = next((v for v, known in toolkits().items() if known.ptx_isa >= isa), None)
    return None if first is None else max(first, OLDEST)


@cache
def first_toolkit(target: str) -> CudaVersion | None:
    """Return the first toolkit that emits a target, or ``None`` if none is known."""
    number, letter, _ = parse_target(target)
    model = gpu_models().get(ComputeCapability(number // 10, number % 10))
    if model is not None and not letter:
        return model.first_toolkit
    name = f"{number}{letter}"
    return next((v for v, known in toolkits().items() if name in known.targets), None)
