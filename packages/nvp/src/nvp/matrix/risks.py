"""What a pick leaves open: things that nobody has promised to work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nvidia_variant_provider.machine.environment import CudaVersion
from nvidia_variant_provider.machine.supported import LOWER_BOUND, NAMESPACE, SM_ARCH
from nvidia_variant_provider.metadata.model import VariantsMetadata

from ..knowledge.tables import NATIVE, PTX, gpu_models, runs_machine_code, tegra_code
from .cells import CPU, Cell, Matrix, Place, describe_lanes


def find_risks(metadata: VariantsMetadata, cell: Cell) -> tuple[str, ...]:
    """Return what a pick leaves open, as sentences about "the build".

    The sentences have no numbers, so that cells with the same risk share a sentence.
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
    elif not any(_is_met(bound, cell.cuda) for bound in bounds):
        risks.append(
            "the build is for a newer CUDA minor version than the driver's: its "
            "machine code runs, PTX and functions of the newer version do not"
        )
    return tuple(risks)


def describe_risks(matrix: Matrix) -> list[str]:
    """Return each risk of a matrix as a sentence with the machines that have it."""
    metadata = matrix.metadata
    if metadata is None:
        return []
    lanes_of: dict[str, set[Place]] = {}
    for cell in matrix.cells:
        for risk in find_risks(metadata, cell):
            lanes_of.setdefault(risk, set()).add((cell.cuda, cell.capability))
    known = {(cell.cuda, cell.capability) for cell in matrix.cells}
    return [
        f"{risk[0].upper()}{risk[1:]}: " + "; ".join(describe_lanes(lanes, known))
        for risk, lanes in lanes_of.items()
    ]


def _risks_of_tegra(
    targets: Sequence[str], bounds: Sequence[str], cell: Cell
) -> Iterator[str]:
    """Say so where the machine code matches the GPU by its number only."""
    # The metadata format allows any text here; text without a number matches nothing.
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
        yield (
            "the build's machine code is for desktop GPUs, and by PyTorch's own tables "
            "no such code runs on this Jetson"
        )
    elif known is None:
        yield (
            "the build's machine code matches by number only: CUDA does not run code "
            "for a Jetson on other GPUs"
        )
    elif cell.cuda < known[0]:
        yield (
            f"the build's machine code is for {kind}, and this GPU runs that only with "
            f"a driver for CUDA {known[0]} or newer"
        )
    else:
        yield (
            f"the build's machine code is for {kind}, and nothing says whether this "
            f"GPU runs that of builds for CUDA before {known[1]}"
        )


def _is_met(bound: str, driver: CudaVersion) -> bool:
    version = _version(bound)
    return version is not None and version <= driver


def _version(bound: str) -> CudaVersion | None:
    try:
        return CudaVersion.parse(bound if "." in bound else f"{bound}.0")
    except ValueError:
        return None
