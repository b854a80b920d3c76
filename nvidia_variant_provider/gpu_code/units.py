"""What a wheel loads as one, and which GPUs each of those runs on.

A wheel runs on a GPU when each of its own libraries does, not when one of them does.
Some files are choices, though: of loose cubins a program takes the one for its GPU,
and of ``lib_cuda126.so`` and ``lib_cuda130.so`` the one for its CUDA.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from ..knowledge.tables import (
    NATIVE,
    PTX,
    gpu_models,
    parse_isa,
    runs_machine_code,
    runs_ptx,
    toolkits,
)
from ..machine.environment import ComputeCapability, CudaVersion
from .report import LibraryReport, WheelReport

__all__ = ["Unit", "first_toolkit", "parse_target", "ptx_toolkit", "split_units"]

_TARGET = re.compile(r"([0-9]{2,4})([af]?)_(real|virtual)")
_CHOICE = re.compile(
    r"(?<![a-z0-9])(cu|cuda|sm)[-_]?[0-9]{2,3}[af]?(?![a-z0-9])", re.IGNORECASE
)
_LOOSE = ("cubin", "ptx", "fatbin", "data")


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """What a program loads as one: a library, or files of which it takes one.

    :param name: the path; of several, with ``*`` where they differ.
    :param libraries: its files.
    :param by_cuda: they are a choice by CUDA version: the oldest one sets the bound.
    :param targets: those with kernels, as ``90a_real``.
    :param stubs: targets that have nothing but stubs.
    :param isa: the newest PTX language of each PTX target, as (major, minor).
    """

    name: str
    libraries: tuple[LibraryReport, ...]
    by_cuda: bool
    targets: frozenset[str]
    stubs: frozenset[str]
    isa: Mapping[str, tuple[int, int]]

    def how(self, capability: ComputeCapability) -> str | None:
        """`NATIVE`, `PTX`, or ``None`` where it does not run."""
        found = None
        for target in self.targets:
            number, _, kind = target.partition("_")
            if kind == "real" and runs_machine_code(number, capability):
                return NATIVE
            if kind == "virtual" and runs_ptx(number, capability):
                found = PTX
        return found

    def choices(self) -> list[Mapping[str, tuple[int, int]]]:
        """`isa` of each choice by CUDA; of any other unit, of all its files."""
        return [_ptx(i) for i in self.libraries] if self.by_cuda else [self.isa]

    def jit_toolkit(self, capability: ComputeCapability) -> CudaVersion | None:
        """The CUDA version that a driver needs to compile its PTX for a GPU.

        Of several targets the driver takes the highest; of a choice by CUDA the
        program takes one that the driver knows.

        :raises LookupError: it has no PTX for the GPU.
        """
        needed = [
            ptx_toolkit(max(found)[1])
            for group in self.choices()
            if (found := _compiled_for(group, capability))
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
    """The newest language of each PTX target of a library."""
    return {
        target: max(map(parse_isa, versions), default=(0, 0))
        for target, versions in library.ptx_isa.items()
        if target in library.kernels and _TARGET.fullmatch(target)
    }


def split_units(report: WheelReport) -> tuple[Unit, ...]:
    """The project's own code by what is loaded as one, without what has no kernels.

    Archives of objects are for linking: they count when there is nothing else.
    """
    own = [item for item in report.own if item.targets]
    groups: dict[str, list[LibraryReport]] = {}
    for item in [i for i in own if i.format != "archive"] or own:
        key = "loose files" if item.format in _LOOSE else _CHOICE.sub("*", item.path)
        groups.setdefault(key, []).append(item)
    units = [_unit(name, found) for name, found in sorted(groups.items())]
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
    """Number, letter (``a``, ``f`` or none) and kind of ``90a_real``.

    :raises ValueError: any other form.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ValueError(f"{target!r} is no target")
    return int(match[1]), match[2], match[3]


@cache
def ptx_toolkit(isa: tuple[int, int]) -> CudaVersion | None:
    """The first toolkit that emits a version of PTX; ``None``: newer than any known.

    Its CUDA version is what a driver needs to compile it. PTX 7.0 to 7.8 came with
    CUDA 11.0 to 11.8 (PTX ISA, "Release Notes"), older ones before.
    """
    if isa < (8, 0):
        return CudaVersion(11, min(isa[1], 8) if isa[0] == 7 else 0)
    return next((v for v, known in toolkits().items() if known.ptx_isa >= isa), None)


@cache
def first_toolkit(target: str) -> CudaVersion | None:
    """The first toolkit that emits a target (``90a_real``); ``None``: not known."""
    number, letter, _ = parse_target(target)
    model = gpu_models().get(ComputeCapability(number // 10, number % 10))
    if model is not None and not letter:
        return model.first_toolkit
    name = f"{number}{letter}"
    return next((v for v, known in toolkits().items() if name in known.targets), None)
