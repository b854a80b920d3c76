"""NV513 and NV514: whether the libraries of a wheel match its tags and METADATA.

The module also collects the facts with which `content_rules` checks the properties.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeAlias

from nvidia_variant_provider.errors import join, listed, shown
from nvidia_variant_provider.machine.supported import LOWER_BOUND, NAMESPACE, SM_ARCH

from ..gpu_code.bounds import (
    Runtime,
    library_runtimes,
    major_of_name,
    required_runtimes,
)
from ..gpu_code.claims import TrueClaim, find_claim, reaches, values_of
from ..gpu_code.report import LibraryReport, WheelReport
from ..gpu_code.units import Unit, parse_target, split_units
from ..wheels.archive import WheelName
from .findings import Checks, Problem
from .labels import Claim, claim_of, labels_of
from .spelling import corrected, has_unknown

_Kind: TypeAlias = tuple[frozenset[str], frozenset[str]]
"""The targets and the stubs of a unit, which decide what it lacks."""


class Lack(enum.Enum):
    """The ways in which a wheel lacks the code for a declared value.

    `_classify` tries them in this order.
    """

    OTHER_NAME = "all GPUs that get the build run code for another target"
    EMPTY_CUBINS = "the only machine code for the target is without kernels"
    SPECIFIC_CODE = "there is code for one GPU or one family alone"
    NO_PTX = "there is no PTX"
    NO_CODE = "there is neither machine code nor PTX"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortfall:
    """A declared value of ``sm_arch`` whose exact target some libraries lack.

    :param value: the value of ``sm_arch``.
    :param units: the libraries that lack the code.
    """

    value: str
    lack: Lack
    units: Sequence[Unit]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaringWheel:
    """A wheel that declares properties of ``nvidia``.

    :param units: the libraries; copies of a library for different GPUs or CUDA versions
        form one unit.
    :param loaded: the units with kernels for at least one target.
    :param values: the well-formed values of ``sm_arch``.
    :param names_targets: whether ``sm_arch`` is declared at all.
    :param unclear: the features with unknown values, which other rules report.
    :param declared: the drivers and targets that the wheel declares.
    :param truth: the drivers and targets that the code of the wheel supports.
    :param shortfalls: the declared values whose exact target some libraries lack.
    :param place: the place of the ``nvidia`` features in ``variant.json``.
    :param pure: whether the wheel is for every platform, with kernels in another wheel.
    """

    report: WheelReport
    units: Sequence[Unit]
    loaded: Sequence[Unit]
    values: Sequence[str]
    names_targets: bool
    unclear: frozenset[str]
    declared: Claim
    truth: TrueClaim
    shortfalls: Sequence[Shortfall]
    place: str
    pure: bool

    def at(self, feature: str) -> str:
        """Return the place of a feature in ``variant.json``."""
        return join(self.place, feature)

    def lacking(self, lack: Lack) -> Iterator[Shortfall]:
        """Yield the shortfalls of the kind ``lack``."""
        return (item for item in self.shortfalls if item.lack is lack)


def describe_wheel(
    report: WheelReport, name: WheelName, document: Mapping[str, Any] | None
) -> DeclaringWheel | None:
    """Return the declared properties of a wheel, with the facts about its GPU code.

    :param document: the ``variant.json``; ``None`` for a non-variant wheel.
    :returns: ``None`` if the wheel declares no property of ``nvidia``.
    """
    given = _declared_features(document, name.label)
    if given is None:
        return None
    # NV302 reports misspelled values, so the other rules use the corrected values.
    features = corrected(given)
    units = split_units(report)
    loaded = [unit for unit in units if unit.targets]
    declared = claim_of(features)
    values = [f"{number}_real" for number in declared.real]
    values += [f"{number}_virtual" for number in declared.virtual]
    values = list(dict.fromkeys(values))  # a label may list a value thousands of times
    return DeclaringWheel(
        report=report,
        units=units,
        loaded=loaded,
        values=values,
        names_targets=isinstance(features.get(SM_ARCH), list),
        unclear=frozenset(
            feature
            for feature, values in features.items()
            if has_unknown(features, feature)
            or (feature == LOWER_BOUND and values and declared.lower is None)
        ),
        declared=declared,
        truth=find_claim(report),
        shortfalls=tuple(_find_shortfalls(values, units, loaded)),
        place=join(join("variants", name.label or ""), NAMESPACE),
        pure=any(tag.platform == "any" for tag in name.tags),
    )


def has_library_by_cuda(report: WheelReport) -> bool:
    """Return whether a wheel has copies of a library for several CUDA versions."""
    units = () if report.all_defects else split_units(report)
    return any(unit.by_cuda for unit in units if unit.targets)


def letter_of(unit: Unit, value: str) -> str:
    """Return the letter of a unit's code for a declared value: ``a``, ``f`` or empty.

    ``a`` is code for one GPU, ``f`` for one family of GPUs. The letter is empty if the
    unit has generic code, or no code, for the number.
    """
    number, _, kind = parse_target(value)
    return _letters(unit.targets).get((number, kind), "")


@lru_cache(maxsize=2**16)  # many libraries of a wheel have the same targets
def _letters(targets: frozenset[str]) -> Mapping[tuple[int, str], str]:
    letters: dict[tuple[int, str], str] = {}
    for number, letter, kind in map(parse_target, targets):
        letters[number, kind] = min(letter, letters.get((number, kind), letter))
    return letters


def _declared_features(
    document: Mapping[str, Any] | None, label: str | None
) -> Mapping[str, Any] | None:
    if document is None or label is None:
        return None
    properties = labels_of(document).get(label)
    features = properties.get(NAMESPACE) if isinstance(properties, dict) else None
    return features if isinstance(features, dict) else None


def _find_shortfalls(
    values: Sequence[str], units: Sequence[Unit], loaded: Sequence[Unit]
) -> Iterator[Shortfall]:
    # Many libraries of a wheel have the same targets: judge one of each kind.
    kinds: dict[_Kind, Unit] = {}
    for unit in loaded or units:
        kinds.setdefault(_kind_of(unit), unit)

    @cache
    def having(found: frozenset[_Kind]) -> Sequence[Unit]:
        return [unit for unit in loaded or units if _kind_of(unit) in found]

    for value in values:
        if loaded:
            lacking = [x for x in kinds.values() if value not in values_of(x.targets)]
            lack, judged = _classify(value, lacking)
        else:
            lack = Lack.EMPTY_CUBINS
            judged = [x for x in kinds.values() if value in values_of(x.stubs)]
        if judged:
            every = having(frozenset(map(_kind_of, judged)))
            yield Shortfall(value=value, lack=lack, units=every)


def _kind_of(unit: Unit) -> _Kind:
    return unit.targets, unit.stubs


def _classify(value: str, lacking: Sequence[Unit]) -> tuple[Lack, Sequence[Unit]]:
    failing = [unit for unit in lacking if not reaches(unit, value)]
    if not failing:
        return Lack.OTHER_NAME, lacking
    if any(value in values_of(unit.stubs) for unit in failing):
        return Lack.EMPTY_CUBINS, failing
    if specific := [unit for unit in failing if letter_of(unit, value)]:
        return Lack.SPECIFIC_CODE, specific
    return Lack.NO_PTX if value.endswith("_virtual") else Lack.NO_CODE, failing


_PLATFORM = re.compile(
    r"(?:linux|(?:many|musl)linux\w*?)_(?P<elf>x86_64|i686|aarch64|armv[67]l|ppc64(?:le)?"
    r"|s390x|riscv64)|win_(?P<pe>amd64|arm64)|win(?P<pe32>32)"
)
_MACHINES = {
    "amd64": "x86_64",
    "arm64": "aarch64",
    "i686": "x86",
    "32": "x86",
    "armv6l": "arm",
    "armv7l": "arm",
    "ppc64le": "ppc64",
    "riscv64": "riscv",
}
"""Maps machines in platform tags to their names in library reports, if different."""

_PROCESSORS = frozenset({"aarch64", "arm", "ppc64", "riscv", "s390x", "x86", "x86_64"})
"""The machines to check. Files for other machines, such as GPUs, fit any wheel."""

_EXTENSION = re.compile(r".*\.(?:abi3|cpython-[^./]+|cp3[0-9]+-[^./]+)\.(?:so|pyd)")
"""Matches the names of extension modules, which only the interpreter loads."""

_MAX_NAMED = 3
"""The maximum number of libraries in a message."""


LIBRARY_CHECKS: Checks[tuple[WheelReport, WheelName]] = Checks()
"""The checks of all libraries of a wheel, whether or not they have GPU code."""


@LIBRARY_CHECKS.rule("NV513")
def check_nv513(wheel: tuple[WheelReport, WheelName]) -> Iterator[Problem]:
    """Report libraries for a processor or system other than the platform tag's."""
    report, name = wheel
    platforms = {tag.platform for tag in name.tags}
    foreign, others = part_libraries(report, name)
    if native := [x for x in others if x.machine in _PROCESSORS]:
        # Wheels may contain programs and libraries for other machines, such as helpers
        # that are copied to a device. Report only files that the tag's platform loads.
        foreign = _loaded(foreign, native)
    if foreign:
        names = listed([shown(x.path, 100) for x in foreign], _MAX_NAMED)
        systems = {"elf": "Linux", "pe": "Windows"}
        machines = sorted({f"{systems[x.format]} on {x.machine}" for x in foreign})
        yield Problem(
            "",
            f"{names}: made for {' and '.join(machines)}, and the wheel is for "
            f"{', '.join(sorted(platforms))}",
            "build the library for the platform of the wheel, or correct the tag",
        )


def part_libraries(
    report: WheelReport, name: WheelName
) -> tuple[Sequence[LibraryReport], Sequence[LibraryReport]]:
    """Return the libraries for machines of no platform tag, and the other libraries."""
    suited = {_machine_of(tag.platform) for tag in name.tags}
    if None in suited:  # A tag is platform-independent, or for an unchecked platform.
        return (), report.libraries
    foreign: list[LibraryReport] = []
    others: list[LibraryReport] = []
    for item in report.libraries:
        is_suited = (item.format, item.machine) in suited
        is_foreign = item.machine in _PROCESSORS and not is_suited
        (foreign if is_foreign else others).append(item)
    return foreign, others


@LIBRARY_CHECKS.rule("NV514")
def check_nv514(wheel: tuple[WheelReport, WheelName]) -> Iterator[Problem]:
    """Report a required CUDA major version that no linked library has."""
    report, _ = wheel
    required = required_runtimes(report.requires)
    linked = list(_linked(report))
    majors = {runtime.version.major for runtime in linked}
    if not linked or not required or majors & {r.version.major for r in required}:
        return
    newest = max(linked, key=lambda runtime: runtime.version)
    yield Problem(
        "METADATA",
        f"{newest.source}, and {required[0].source}",
        f"require the packages of CUDA {newest.version.major}, or build for CUDA "
        f"{required[0].version.major}",
    )


def _machine_of(platform: str) -> tuple[str, str] | None:
    """Return the file format and machine of a tag's libraries; ``None`` if unknown."""
    match = _PLATFORM.fullmatch(platform)
    if match is None:
        return None
    word = match["elf"] or match["pe"] or match["pe32"]
    return "elf" if match["elf"] else "pe", _MACHINES.get(word, word)


def _loaded(
    libraries: Iterable[LibraryReport], native: Collection[LibraryReport]
) -> list[LibraryReport]:
    """Return the foreign libraries that Python or a native library would load."""
    names = {_name(x) for x in native}
    needed = {name for x in native for name in x.needed} - names
    # Skip extension modules that the wheel also has for its own platform.
    modules = {_module(x) for x in native}
    return [
        x
        for x in libraries
        if (
            _module(x) not in modules
            if _EXTENSION.fullmatch(_name(x))
            # Keep a library with kernels unless a native one has the same name.
            else _name(x) in needed or (x.has_gpu_code and _name(x) not in names)
        )
    ]


def _name(library: LibraryReport) -> str:
    return library.path.rpartition("/")[2]


def _module(library: LibraryReport) -> tuple[str, str]:
    """Return the directory and the Python name of an extension module."""
    folder, _, name = library.path.rpartition("/")
    return folder, name.partition(".")[0]


def _linked(report: WheelReport) -> Iterator[Runtime]:
    """Yield the CUDA versions of linked libraries that the wheel does not contain."""
    alternatives = {
        item.path
        for unit in split_units(report)
        if unit.by_cuda
        for item in unit.libraries
    }
    brought = {major_of_name(_name(x)) for x in report.libraries}
    for item in report.own:
        if item.path not in alternatives:
            for runtime in library_runtimes(report, item):
                if runtime.named and runtime.version.major not in brought:
                    yield runtime
