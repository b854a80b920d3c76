"""Reading the installed packages of an environment from ``*.dist-info``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .documents import version_of
from .model import Edge, Pin, PinnedFile, PinnedWheel

if TYPE_CHECKING:
    from ..doctor.distributions import Distribution


def pins_of_environment(python: str | None, environ: Mapping[str, str]) -> PinnedFile:
    """Return the pins of the installed packages, without running their code.

    :param python: an interpreter, or the directory of an environment; by default the
        activated environment, else the running interpreter.
    :param environ: the environment variables, which name the activated environment.
    :raises UsageError: no environment is found.
    """
    from ..doctor.distributions import find_distributions
    from ..doctor.installation import find_installation

    installation = find_installation(python, environ)
    pins, notes = [], []
    for item in find_distributions(installation.folders).values():
        pin = pin_of(item)
        pins.append(pin)
        if pin.version is None:
            notes.append(f"{item.name}: its version cannot be read")
        notes += [f"{item.name}: {defect}" for defect in item.defects]
    plain = (installation.version or "").removesuffix("t")
    return PinnedFile(
        path=installation.prefix,
        form="environment",
        pins=tuple(pins),
        roots=tuple(map(Edge, range(len(pins)))),
        requires_python=f"=={plain}.*" if plain else None,
        notes=tuple(notes),
    )


def pin_of(distribution: Distribution) -> Pin:
    """Return an installed distribution as a pin, with a reconstructed wheel name."""
    version = distribution.version
    tags = [line.split("-") for line in _tags(distribution.read("WHEEL") or b"")]
    wheels: tuple[PinnedWheel, ...] = ()
    if tags:
        # Wheel names join the interpreters, the ABIs and the platforms with dots.
        parts = [".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True)]
        stem = f"{distribution.name.replace('-', '_')}-{version}"
        wheels = (PinnedWheel(filename="-".join([stem, *parts]) + ".whl"),)
    return Pin(
        name=distribution.name,
        version=version_of(version),
        wheels=wheels,
        requires=tuple(text for _, text in distribution.requires),
        origin=distribution.origin_url or None,
        path=distribution.folder,
    )


def _tags(wheel: bytes) -> list[str]:
    found = re.findall(rb"(?m)^Tag: *([^\s-]+-[^\s-]+-[^\s-]+)", wheel)
    return [tag.decode("ascii", "replace") for tag in found]
