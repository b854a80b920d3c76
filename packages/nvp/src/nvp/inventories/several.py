"""Several inventories as one: files that belong together, and names that collide."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from nvidia_variant_provider.errors import InputError, ProviderError, shown

from .model import Machine
from .nvidia_smi import merge
from .reading import read_inventory

__all__ = ["read_inventories"]


def read_inventories(
    paths: Iterable[str],
) -> tuple[Sequence[Machine], Sequence[ProviderError]]:
    """Read the machines of several files.

    The two outputs of nvidia-smi with one file stem are one machine.

    :returns: the machines of the files that could be read, and an error for each other
        file, and for each file with a machine of an earlier file.
    """
    machines: dict[tuple[str, int], Machine] = {}
    by_stem: dict[str, tuple[str, int]] = {}
    errors: list[ProviderError] = []
    for path in paths:
        try:
            read = read_inventory(path)
        except ProviderError as error:
            errors.append(error)
            continue
        stem = os.path.splitext(path)[0]
        if len(read) == 1 and stem in by_stem:
            merged = merge(machines[by_stem[stem]], read[0])
            if merged is not None:
                machines[by_stem[stem]] = merged
                continue
        taken = {item.name for item in machines.values()}
        repeated = [item.name for item in read if item.name in taken]
        if repeated:
            message = f"two machines have the name {shown(repeated[0])}"
            hint = "another inventory has it; give each machine a name of its own"
            errors.append(InputError(message, path=path, hint=hint))
            continue
        if len(read) == 1:
            by_stem[stem] = path, 0
        machines.update({(path, number): item for number, item in enumerate(read)})
    return list(machines.values()), errors
