"""The cells of a release as a grid, and the names of its rows and columns.

Rows are GPUs and columns are drivers. A GPU needs a name next to its number, which
fits a row, and few drivers differ, so that the table stays narrow. Adjacent GPUs that
get the same builds from all drivers are merged into one band, and so are drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvidia_variant_provider.machine.supported import (
    LOWER_BOUND,
    NAMESPACE,
    SM_ARCH,
    UPPER_BOUND,
)
from nvidia_variant_provider.metadata.model import NULL_LABELS, Features, Properties

from ..knowledge.tables import PTX, driver_branches, gpu_models
from .cells import CPU, NO_BUILD, UNKNOWN, Cell, Matrix, Place, span
from .risks import describe_risks

UNSUPPORTED = "no driver for this CUDA version supports the GPU"
"""Why there is no cell, or only one that says what would be."""

Drivers: TypeAlias = tuple[CudaVersion, ...]
"""A band of adjacent drivers, in ascending order."""

Gpus: TypeAlias = tuple[ComputeCapability, ...]
"""A band of adjacent compute capabilities, in ascending order."""

_T = TypeVar("_T")
_Pick: TypeAlias = tuple[str | None, str, bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """What every driver with every GPU gets.

    :param title: the release, such as ``torch 2.9.1``.
    :param drivers: all drivers, in ascending order.
    :param gpus: all GPUs, in ascending order.
    :param cells: the cell of each driver with each GPU, where there is one.
    :param builds: what each GPU label needs and contains, in words.
    :param notes: sentences below the table.
    """

    title: str
    drivers: Drivers
    gpus: Gpus
    cells: Mapping[Place, Cell]
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
        """The labels of GPU builds; those for the oldest drivers come first."""
        first: dict[str, CudaVersion] = {}
        for (cuda, _), cell in sorted(self.cells.items()):
            if cell.label is not None and cell.uses_gpu:
                first.setdefault(cell.label, cuda)
        return sorted(first, key=lambda label: (first[label], label))

    def at(self, drivers: Drivers, gpus: Gpus) -> Cell | None:
        """Return the cell that two bands have in common, where all picks are equal.

        It is ``None`` where no machine has such a driver with such a GPU.
        """
        places = ((cuda, gpu) for cuda in drivers for gpu in gpus)
        return next(filter(None, map(self.cells.get, places)), None)

    def _pick(self, drivers: Drivers, gpus: Gpus) -> _Pick | None:
        cell = self.at(drivers, gpus)
        return None if cell is None else (cell.label, cell.how, cell.exists)


def grid_of(matrix: Matrix) -> Grid:
    """Return the grid of a release, with its title and its open risks."""
    metadata = matrix.metadata
    title = matrix.title or "This release"
    if metadata is not None and metadata.name is not None:
        title = f"{metadata.name.replace('_', '-')} {metadata.version}"
    opt_in = "Minor-version compatibility is on: not what installers do by default"
    return make_grid(
        matrix.cells,
        title=title,
        variants=None if metadata is None else metadata.variants,
        builds=matrix.builds,
        notes=[
            *matrix.notes,
            *([opt_in] if matrix.minor_version_compatibility else []),
            *([_absent(matrix.absent)] if matrix.absent else []),
            *([_left_out(matrix)] if matrix.left_out else []),
            *describe_risks(matrix),
        ],
    )


def _left_out(matrix: Matrix) -> str:
    """Say how many pairs the table has, and how the others are shown."""
    count = len(matrix.cells)
    return (
        f"{count} of {count + matrix.left_out} pairs of a driver and a GPU can exist; "
        "--all-lanes shows the others as well"
    )


def _absent(namespaces: Sequence[str]) -> str:
    """Say which namespaces count as absent, and how that is changed."""
    names = ", ".join(namespaces)
    return (
        f"Hardware of other makers ({names}) counts as absent; "
        f"--assume {namespaces[0]} turns it on"
    )


def make_grid(
    cells: Iterable[Cell],
    *,
    title: str,
    variants: Mapping[str, Properties] | None = None,
    builds: Mapping[str, str] | None = None,
    notes: Iterable[str] = (),
) -> Grid:
    """Return the grid of cells such as those of `find_cells`.

    :param variants: the properties of each label, for the legend.
    :param builds: the legend of labels without properties.
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
    """Return the text of a cell, which says everything without any colour.

    ``cu130``: machine code. ``cu130*``: PTX only. ``cpu``: the null variant.
    ``other (cpu)``: another label without nvidia properties. ``(none)``: no label.
    ``[cu130]``: what a machine that cannot exist would get. ``-``: there is no cell.
    """
    if cell is None:
        return "-"
    text = _build(cell)
    return text if cell.exists else f"[{text}]"


def _build(cell: Cell) -> str:
    if cell.how == NO_BUILD:
        return "none"
    if cell.label is None:
        return "(none)"
    if cell.how == CPU:
        return "cpu" if cell.label in NULL_LABELS else f"{cell.label} (cpu)"
    marks = {PTX: "*", UNKNOWN: "?"}
    return f"{cell.label}{marks.get(cell.how, '')}"


def meaning(cell: Cell | None) -> str:
    """Return what `caption` says, in words."""
    if cell is None:
        return UNSUPPORTED
    words = _words(cell)
    return words if cell.exists else f"{words}; {UNSUPPORTED}"


def _words(cell: Cell) -> str:
    if cell.how == NO_BUILD:
        return "no build of the release runs on the GPU"
    if cell.label is None:
        return "no label fits: the non-variant wheel"
    if cell.how == CPU:
        return f"{cell.label}, which uses no GPU"
    if cell.how == PTX:
        return f"{cell.label}, whose PTX the driver compiles"
    if cell.how == UNKNOWN:
        return f"{cell.label}, of which nothing says whether it runs"
    return cell.label


def branches(band: Drivers) -> str:
    """Return the driver branches of a band, such as ``R560-R565``, if known."""
    known = [f"R{branch}" for branch, cuda in driver_branches().items() if cuda in band]
    return span(known) if known else ""


def architectures(band: Gpus) -> str:
    """Return ``Turing to Hopper`` for a band, or the product for a single GPU."""
    names = [
        gpu_models()[gpu].architecture.partition(" (")[0]
        for gpu in band
        if gpu in gpu_models()
    ]
    distinct = list(dict.fromkeys(names))
    if len(band) == 1 and distinct:
        # Several capabilities share an architecture, but rarely a product.
        name = gpu_models()[band[0]].name.partition(" (")[0]
        return f"{distinct[0]}: {name}"
    return " to ".join((distinct[0], distinct[-1])[: len(distinct)]) if distinct else ""


def products(gpu: ComputeCapability) -> str:
    """Return the products of a compute capability, or nothing if unknown."""
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
            parts.append(f"{words} {', '.join(map(_dotted, numbers))}")
    return "; ".join(parts)


def _dotted(number: str) -> str:
    return f"{number[:-1]}.{number[-1]}" if len(number) > 1 else number


def _bands(
    items: Sequence[_T], row: Callable[[_T], Sequence[_Pick | None]]
) -> list[tuple[_T, ...]]:
    """Put adjacent items together that agree wherever both have a pick."""
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
