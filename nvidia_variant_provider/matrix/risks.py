"""What a pick leaves open: things that nobody has promised to work."""

from __future__ import annotations

from ..knowledge.tables import NATIVE, PTX, runs_machine_code
from ..machine.environment import ComputeCapability, CudaVersion
from ..machine.supported import LOWER_BOUND, NAMESPACE, SM_ARCH
from ..metadata.model import VariantsMetadata
from .cells import CPU, Cell, Matrix
from .lanes import describe_lanes

__all__ = ["describe_risks", "find_risks"]


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
    elif cell.how == NATIVE and not any(
        _is_promised(target, cell.capability) for target in targets
    ):
        risks.append(
            "the build's machine code matches by number only: NVIDIA does not "
            "promise that code runs on both desktop GPUs and Tegra"
        )
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
    lanes_of: dict[str, set[tuple[CudaVersion, ComputeCapability]]] = {}
    for cell in matrix.cells:
        for risk in find_risks(matrix.metadata, cell):
            lanes_of.setdefault(risk, set()).add((cell.cuda, cell.capability))
    drivers = sorted({cell.cuda for cell in matrix.cells})
    gpus = sorted({cell.capability for cell in matrix.cells})
    return [
        f"{risk[0].upper()}{risk[1:]}: "
        + "; ".join(describe_lanes(lanes, drivers=drivers, gpus=gpus))
        for risk, lanes in lanes_of.items()
    ]


def _is_promised(target: str, capability: ComputeCapability) -> bool:
    """Return whether NVIDIA's rules let the GPU run ``target`` as machine code."""
    number, _, kind = target.partition("_")
    # The metadata format allows any text here; text without a number matches nothing.
    is_number = number.isdigit() and len(number) > 1
    return kind == "real" and is_number and runs_machine_code(number, capability)


def _is_met(bound: str, driver: CudaVersion) -> bool:
    try:
        return CudaVersion.parse(bound if "." in bound else f"{bound}.0") <= driver
    except ValueError:
        return False
