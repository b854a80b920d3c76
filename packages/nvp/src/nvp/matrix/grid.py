"""The grid of a release's cells, the names of its rows and columns, and the risks.

Rows are GPUs, because a GPU needs a name next to its number. Columns are drivers, few
of which differ, so the table stays narrow. Adjacent GPUs that get the same builds from
all drivers are merged into one band, and so are drivers. A pick is the build that a
machine gets, and a risk is a possible failure of that build.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvidia_variant_provider.machine.supported import (
    LOWER_BOUND,
    NAMESPACE,
    SM_ARCH,
    UPPER_BOUND,
)
from nvidia_variant_provider.metadata.model import (
    NULL_LABELS,
    Features,
    Properties,
    VariantsMetadata,
)

from ..knowledge.tables import (
    NATIVE,
    PTX,
    driver_branches,
    gpu_models,
    runs_machine_code,
    tegra_code,
)
from .cells import (
    CPU,
    NO_BUILD,
    UNKNOWN,
    Cell,
    Matrix,
    Pair,
    describe_pairs,
    span,
)

UNSUPPORTED = "no driver for this CUDA version supports the GPU"
"""The reason why a pair has no cell, or only a hypothetical cell."""

Drivers: TypeAlias = tuple[CudaVersion, ...]
"""A band of adjacent drivers, in ascending order."""

Gpus: TypeAlias = tuple[ComputeCapability, ...]
"""A band of adjacent compute capabilities, in ascending order."""

_T = TypeVar("_T")
_Pick: TypeAlias = tuple[str | None, str, bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The build for every driver-GPU pair.

    :param title: the release, such as ``torch 2.9.1``.
    :param drivers: all drivers, in ascending order.
    :param gpus: all GPUs, in ascending order.
    :param cells: the cell of each driver-GPU pair; some pairs may have no cell.
    :param builds: for each label, the requirements and contents of its GPU build.
    :param notes: sentences below the table.
    """

    title: str
    drivers: Drivers
    gpus: Gpus
    cells: Mapping[Pair, Cell]
    builds: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=())

    @property
    def driver_bands(self) -> list[Drivers]:
        """The drivers of each column of the merged table."""
        rows = self.gpu_bands
        return _bands(
            self.drivers, lambda cuda: [self._pick((cuda,), row) for row in rows]
        )

    @property
    def gpu_bands(self) -> list[Gpus]:
        """The GPUs of each row of the merged table."""
        return _bands(
            self.gpus, lambda gpu: [self._pick((c,), (gpu,)) for c in self.drivers]
        )

    @property
    def labels(self) -> list[str]:
        """The labels of GPU builds; labels for the oldest drivers come first."""
        first: dict[str, CudaVersion] = {}
        for (cuda, _), cell in sorted(self.cells.items()):
            if cell.label is not None and cell.uses_gpu:
                first.setdefault(cell.label, cuda)
        return sorted(first, key=lambda label: (first[label], label))

    def at(self, drivers: Drivers, gpus: Gpus) -> Cell | None:
        """Return any cell of two bands: all their cells have the same build.

        The result is ``None`` if none of the drivers supports any of the GPUs.
        """
        pairs = ((cuda, gpu) for cuda in drivers for gpu in gpus)
        return next(filter(None, map(self.cells.get, pairs)), None)

    def _pick(self, drivers: Drivers, gpus: Gpus) -> _Pick | None:
        cell = self.at(drivers, gpus)
        return None if cell is None else (cell.label, cell.how, cell.exists)


def grid_of(matrix: Matrix) -> Grid:
    """Return the grid of a release, with the notes and risks below it."""
    metadata = matrix.metadata
    title = matrix.title or "This release"
    if metadata is not None and metadata.name is not None:
        title = f"{metadata.name.replace('_', '-')} {metadata.version}"
    return make_grid(
        matrix.cells,
        title=title,
        variants=None if metadata is None else metadata.variants,
        builds=matrix.builds,
        notes=[*matrix.notes, *_notes(matrix), *describe_risks(matrix)],
    )


def _notes(matrix: Matrix) -> Iterator[str]:
    """Yield notes about the options that change the table."""
    if matrix.minor_version_compatibility:
        yield "Minor-version compatibility is on: not what installers do by default"
    if matrix.absent:
        yield (
            f"Hardware of other vendors ({', '.join(matrix.absent)}) counts as absent; "
            f"--assume {matrix.absent[0]} turns it on"
        )
    if matrix.left_out:
        count = len(matrix.cells)
        yield (
            f"{count} of {count + matrix.left_out} pairs of a driver and a GPU can "
            "exist; --all-pairs shows the others"
        )


def make_grid(
    cells: Iterable[Cell],
    *,
    title: str,
    variants: Mapping[str, Properties] | None = None,
    builds: Mapping[str, str] | None = None,
    notes: Iterable[str] = (),
) -> Grid:
    """Arrange cells, such as the result of `find_cells`, in a grid.

    :param variants: the properties of each label, from which the legend is made.
    :param builds: the legend for labels without properties.
    """
    cell_of = {(cell.cuda, cell.capability): cell for cell in cells}
    return Grid(
        title=title,
        drivers=tuple(sorted({cuda for cuda, _ in cell_of})),
        gpus=tuple(sorted({gpu for _, gpu in cell_of})),
        cells=cell_of,
        builds={
            **(builds or {}),
            **{
                label: _description(item[NAMESPACE])
                for label, item in (variants or {}).items()
                if NAMESPACE in item
            },
        },
        notes=tuple(notes),
    )


def caption(cell: Cell | None) -> str:
    """Return the text of a cell, which can be understood without color.

    ``cu130``: machine code. ``cu130*``: PTX only. ``cpu``: the null variant.
    ``other (cpu)``: another label without nvidia properties. ``(none)``: no label.
    ``[cu130]``: the driver does not support the GPU. ``-``: no cell. For regular
    wheels, ``none``: no build runs. ``cu130?``: it is unknown whether the build runs.
    """
    if cell is None:
        return "-"
    text, _ = _described(cell)
    return text if cell.exists else f"[{text}]"


def meaning(cell: Cell | None) -> str:
    """Return the meaning of `caption` in words."""
    if cell is None:
        return UNSUPPORTED
    _, words = _described(cell)
    return words if cell.exists else f"{words}; {UNSUPPORTED}"


def _described(cell: Cell) -> tuple[str, str]:
    """Return the caption of a cell, and its meaning in words."""
    if cell.how == NO_BUILD:
        return "none", "no build of the release runs on the GPU"
    if cell.label is None:
        return "(none)", "no label fits: the non-variant wheel"
    if cell.how == CPU:
        text = "cpu" if cell.label in NULL_LABELS else f"{cell.label} (cpu)"
        return text, f"{cell.label}, which uses no GPU"
    mark, words = {
        PTX: ("*", ", whose PTX the driver compiles"),
        UNKNOWN: ("?", "; whether it runs is unknown"),
    }.get(cell.how, ("", ""))
    return cell.label + mark, cell.label + words


def branches(band: Drivers) -> str:
    """Return the driver branches of a band, such as ``R560-R565``; empty if unknown."""
    known = [f"R{branch}" for branch, cuda in driver_branches().items() if cuda in band]
    return span(known) if known else ""


def architectures(band: Gpus) -> str:
    """Return ``Turing to Hopper`` for a band; for a single GPU, add the product."""
    names = [
        gpu_models()[gpu].architecture.partition(" (")[0]
        for gpu in band
        if gpu in gpu_models()
    ]
    distinct = list(dict.fromkeys(names))
    if len(distinct) > 1 and names[0] == names[-1]:
        # A range would be wrong: Rubin's numbers lie between numbers of Blackwell.
        return " and ".join(distinct)
    if len(band) == 1 and distinct:
        # Add the product: several capabilities share an architecture.
        name = gpu_models()[band[0]].name.partition(" (")[0]
        return f"{distinct[0]}: {name}"
    return " to ".join((distinct[0], distinct[-1])[: len(distinct)]) if distinct else ""


def products(gpu: ComputeCapability) -> str:
    """Return the products with a compute capability; empty if unknown."""
    model = gpu_models().get(gpu)
    return model.products.rpartition(": ")[2] if model else ""


def _description(features: Features) -> str:
    parts = []
    if LOWER_BOUND in features:
        parts.append(f"CUDA {' or '.join(features[LOWER_BOUND])} and newer")
    if UPPER_BOUND in features:
        parts.append(f"before CUDA {' or '.join(features[UPPER_BOUND])}")
    targets = features.get(SM_ARCH, ())
    for kind, words in (("real", "machine code for"), ("virtual", "PTX for")):
        numbers = sorted(
            (target.partition("_")[0] for target in targets if target.endswith(kind)),
            key=lambda number: (len(number), number),
        )
        if numbers:
            dotted = (f"{n[:-1]}.{n[-1]}" if len(n) > 1 else n for n in numbers)
            parts.append(f"{words} {', '.join(dotted)}")
    return "; ".join(parts)


def _bands(
    items: Sequence[_T], row: Callable[[_T], Sequence[_Pick | None]]
) -> list[tuple[_T, ...]]:
    """Merge adjacent items with equal picks. A missing pick equals any pick."""
    bands: list[list[_T]] = []
    picks: list[_Pick | None] = []
    for item in items:
        own = row(item)
        pairs = list(zip(picks, own, strict=True)) if bands else []
        if bands and all(a == b or None in (a, b) for a, b in pairs):
            bands[-1].append(item)
            picks = [a or b for a, b in pairs]
        else:
            bands.append([item])
            picks = list(own)
    return [tuple(band) for band in bands]


def find_risks(metadata: VariantsMetadata, cell: Cell) -> tuple[str, ...]:
    """Return the risks of the build in a cell, as sentences about "the build".

    Cells with the same risk have equal sentences, so they can be grouped.
    """
    if cell.label is None or cell.how == CPU:
        return ()
    features = metadata.variants[cell.label][NAMESPACE]
    risks = []
    if cell.how == PTX:
        risks.append(
            "the build has only PTX for the GPU: the driver compiles it at first use, "
            "and refuses it when the build's CUDA toolkit is newer than the driver"
        )
    targets = features.get(SM_ARCH)
    if targets is None:
        risks.append(
            f"the build does not say which GPUs it has kernels for (no {SM_ARCH})"
        )
    elif cell.how == NATIVE:
        risks += _risks_of_tegra(targets, features.get(LOWER_BOUND, ()), cell)
    bounds = features.get(LOWER_BOUND)
    if bounds is None:
        risks.append(f"the build does not say which driver it needs (no {LOWER_BOUND})")
    elif not any((v := _version(b)) is not None and v <= cell.cuda for b in bounds):
        risks.append(
            "the build is for a newer CUDA minor version than the driver's: its "
            "machine code runs, PTX and functions of the newer version do not"
        )
    return tuple(risks)


def describe_risks(matrix: Matrix) -> list[str]:
    """Return a sentence for each risk of a matrix, with the affected machines."""
    metadata = matrix.metadata
    if metadata is None:
        return []
    pairs_of: dict[str, set[Pair]] = {}
    for cell in matrix.cells:
        for risk in find_risks(metadata, cell):
            pairs_of.setdefault(risk, set()).add((cell.cuda, cell.capability))
    known = {(cell.cuda, cell.capability) for cell in matrix.cells}
    return [
        f"{risk[0].upper()}{risk[1:]}: " + "; ".join(describe_pairs(pairs, known))
        for risk, pairs in pairs_of.items()
    ]


def _risks_of_tegra(
    targets: Sequence[str], bounds: Sequence[str], cell: Cell
) -> Iterator[str]:
    """Yield a risk if the GPU might be unable to run code with a matching number."""
    # The metadata format allows any text as a value; text without a number is ignored.
    numbers = [
        number
        for number, _, kind in (target.partition("_") for target in targets)
        if kind == "real" and number.isdigit() and len(number) > 1
    ]
    toolkit = min(filter(None, map(_version, bounds)), default=None)
    gpu = cell.capability
    if any(runs_machine_code(item, gpu, toolkit, cell.cuda) for item in numbers):
        return
    crossings = {
        code: bounds
        for (code, other), bounds in tegra_code().items()
        if other == gpu and code.sm in numbers
    }
    known = min(filter(None, crossings.values()), default=None)
    kind = "desktop GPUs"
    if any(gpu_models()[code].tegra for code in crossings):
        kind = "a Jetson"
    if known is None and crossings:
        yield "machine code for desktop GPUs does not run on this Jetson"
    elif known is None:
        yield "machine code for a Jetson does not run on other GPUs"
    elif cell.cuda < known[0]:
        yield f"machine code for {kind} needs a driver for CUDA {known[0]} on this GPU"
    else:
        yield (
            f"machine code for {kind}, built with CUDA before {known[1]}, may not run "
            "on this GPU"
        )


def _version(bound: str) -> CudaVersion | None:
    try:
        return CudaVersion.parse(bound if "." in bound else f"{bound}.0")
    except ValueError:
        return None
