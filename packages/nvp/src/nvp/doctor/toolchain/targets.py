"""The GPUs that compilers make code for.

For a release of CUDA, the tables name them. For extensions of torch, the variable
``TORCH_CUDA_ARCH_LIST`` does. Its grammar is that of ``torch.utils.cpp_extension`` in
torch 2.15. Entries are separated by semicolons or spaces. An entry is a compute
capability such as ``8.0``, one with a suffix such as ``9.0a``, or either with ``+PTX``;
or it is the name of an architecture, which stands for several.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion

from ...gpu_code.units import ptx_toolkit
from ...knowledge.tables import gpu_models, runs_machine_code, runs_ptx, toolkits

__all__ = [
    "VARIABLE",
    "ArchitectureList",
    "compiles_for",
    "driver_for_ptx",
    "is_older_than",
    "parse_architectures",
]


def compiles_for(
    cuda: CudaVersion, capability: ComputeCapability, suffix: str = ""
) -> bool | None:
    """Return whether a release of CUDA makes machine code for exactly one GPU.

    :param suffix: ``a`` for the target that has the features of this GPU alone.
    :returns: ``None`` where the tables know neither the release nor the GPU.
    """
    toolkit = toolkits().get(cuda)
    if toolkit is not None:
        return f"{capability.sm}{suffix}" in toolkit.targets
    model = gpu_models().get(capability)
    if model is None:
        return None
    last = model.last_toolkit
    return model.first_toolkit <= cuda and (last is None or cuda <= last)


def is_older_than(cuda: CudaVersion, capability: ComputeCapability) -> bool:
    """Return whether a release of CUDA came before a GPU.

    It then makes PTX of an older target, which the driver compiles for the GPU.
    """
    model = gpu_models().get(capability)
    return model is not None and cuda < model.first_toolkit


def driver_for_ptx(cuda: CudaVersion) -> CudaVersion:
    """Return the oldest driver that reads the PTX of a release of CUDA.

    CUDA 12.6 has the PTX version of 12.5, so that a driver for 12.5 reads it.
    """
    toolkit = toolkits().get(cuda)
    if toolkit is None:
        return cuda
    return ptx_toolkit(toolkit.ptx_isa) or cuda


VARIABLE = "TORCH_CUDA_ARCH_LIST"

_NAMES = {
    "Kepler+Tesla": "3.7",
    "Kepler": "3.5+PTX",
    "Maxwell+Tegra": "5.3",
    "Maxwell": "5.0;5.2+PTX",
    "Pascal": "6.0;6.1+PTX",
    "Volta+Tegra": "7.2",
    "Volta": "7.0+PTX",
    "Turing": "7.5+PTX",
    "Ampere+Tegra": "8.7",
    "Ampere": "8.0;8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell+Tegra": "11.0",
    "Blackwell": "10.0;10.3;12.0;12.1+PTX",
    "Rubin": "10.7+PTX",
}
"""The names of torch 2.15, from ``named_arches``. Those with ``+Tegra`` stand before
the plain ones: torch replaces them as text, one after the other."""

_ENTRY = re.compile(r"([0-9]{1,2})\.([0-9])([af]?)(\+PTX)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchitectureList:
    """What the variable says.

    :param text: its value.
    :param machine_code: the targets of machine code, such as ``80`` and ``90a``.
    :param ptx: the targets of PTX.
    :param unknown: the entries that torch refuses.
    """

    text: str
    machine_code: tuple[str, ...]
    ptx: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    def has_code_for(self, capability: ComputeCapability) -> bool:
        """Return whether an extension gets machine code that runs on a GPU."""
        return any(runs_machine_code(name, capability) for name in self.machine_code)

    def has_ptx_for(self, capability: ComputeCapability) -> bool:
        """Return whether an extension gets PTX that is for a GPU."""
        return any(runs_ptx(name, capability) for name in self.ptx)

    def to_dict(self) -> dict[str, object]:
        """Return the list as it stands in the JSON report."""
        return {
            "text": self.text,
            "machine_code": list(self.machine_code),
            "ptx": list(self.ptx),
            "unknown": list(self.unknown),
        }


def parse_architectures(text: str) -> ArchitectureList | None:
    """Read the value of the variable.

    :returns: ``None`` where torch chooses by the GPUs itself: the value is empty or
        ``native``.
    """
    if not text or text == "native":
        return None
    expanded = text.replace(" ", ";")
    for name, entries in _NAMES.items():
        expanded = expanded.replace(name, entries)
    machine_code: dict[str, None] = {}
    ptx: dict[str, None] = {}
    unknown: dict[str, None] = {}
    for entry in expanded.split(";"):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            unknown[entry] = None
            continue
        target = f"{int(match[1])}{match[2]}{match[3]}"
        machine_code[target] = None
        if match[4]:
            ptx[target] = None
    return ArchitectureList(
        text=text,
        machine_code=tuple(machine_code),
        ptx=tuple(ptx),
        unknown=tuple(unknown),
    )
