"""Find CPU-only distributions of projects that also have a distribution for GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from packaging.specifiers import SpecifierSet

from ...files import read_resource
from ..commands import Advice
from ..distributions import Distribution
from ..model import Finding, Stack, platform_of_wheel


@cache
def _forms() -> Mapping[str, Mapping[str, Any]]:
    """Return the table of CPU-only distributions, keyed by project.

    ``gpu`` is the requirement for GPUs; in rows without it, ``advice`` is the hint.
    """
    rows = json.loads(read_resource("knowledge", "cpu_forms.json"))
    return {row["project"]: row for row in rows}


def find_form(distribution: Distribution) -> Mapping[str, Any] | None:
    """Return the table row of a distribution if it is CPU-only, otherwise ``None``."""
    row = _forms().get(distribution.name)
    if row is None or row.get("platform") not in (
        None,
        platform_of_wheel(distribution),
    ):
        return None
    allowed = SpecifierSet(row.get("releases", ""))
    try:
        fits = allowed.contains(distribution.public_version, prereleases=True)
    except ValueError:  # raised by packaging before 26
        return None
    return row if fits else None


def find_forms_for_cpus(stack: Stack) -> Iterator[Finding]:
    """Yield a finding for each CPU-only distribution, with its replacement."""
    for name in _forms():
        own = stack.distributions.get(name)
        row = None if own is None else find_form(own)
        if own is None or row is None:
            continue
        wanted = row.get("gpu", "")
        other = wanted.partition("[")[0]
        # If the GPU distribution is installed too, ND306 reports the shared files.
        if other in stack.distributions:
            continue
        message = f"{own.title} computes without the GPU of this machine"
        hint = Advice(row.get("advice", ""))
        if wanted:
            remove = stack.pip("uninstall", "--yes", name)
            install = stack.pip("install", *row.get("options", ()), wanted)
            message += f"; {wanted} uses it"
            said = f"to use the GPU, put it in its place: {remove} && {install}"
            hint = Advice(said, (remove, install))
        is_required = any(need.name == other for need in stack.requirements)
        yield Finding.of(
            code="ND208",
            distribution=name,
            path=own.folder,
            message=message,
            hint=hint,
            severity="warning" if is_required else row["severity"],
        )
