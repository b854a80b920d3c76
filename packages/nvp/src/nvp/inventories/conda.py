"""pixi and conda: the virtual packages of ``pixi info --json`` and ``conda info``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .model import Machine, as_text, make_environment, parse_capability, parse_cuda

__all__ = ["is_info", "read_info"]

_KEYS = ("virtual_packages", "virtual_pkgs")


def is_info(document: Mapping[str, Any]) -> bool:
    """Return whether a document is the output of one of the two commands."""
    return any(isinstance(document.get(key), list) for key in _KEYS)


def read_info(document: Mapping[str, Any], name: str) -> Machine:
    """Read the machine that a command was run on.

    :param name: what to call it, since the output has no name.
    :raises InputError: a version is malformed.
    """
    packages = dict(_packages(document))
    cuda = packages.get("__cuda")
    arch = packages.get("__cuda_arch")
    notes = []
    if arch is not None:
        # CEP 46: the package has the lowest compute capability of all GPUs.
        notes.append("only its lowest compute capability is known")
    elif cuda is not None:
        notes.append(
            "it has no virtual package __cuda_arch: install nvidia-virtual-packages"
        )
    gpus = [] if cuda is None else [(None, parse_capability(arch) if arch else None)]
    return Machine(
        name=name,
        environment=make_environment(parse_cuda(cuda) if cuda else None, gpus),
        notes=tuple(notes),
    )


def _packages(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and version of each virtual package.

    pixi writes ``__cuda=12.9=0``, and conda ``["__cuda", "12.9", "0"]``.
    """
    for key in _KEYS:
        listed = document.get(key)
        for item in listed if isinstance(listed, list) else []:
            parts = item.split("=") if isinstance(item, str) else item
            if not isinstance(parts, list) or len(parts) < 2:
                continue
            name, version = as_text(parts[0]), as_text(parts[1])
            if name is not None and version is not None:
                yield name, version
