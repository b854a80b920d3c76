"""Distributions that compute without a GPU, of projects with another form that does."""

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
    """Return the rows of the table by project: what is for CPUs, and what is for GPUs.

    Where ``gpu`` is missing, there is none for the platform, and ``advice`` says more.
    """
    rows = json.loads(read_resource("knowledge", "cpu_forms.json"))
    return {row["project"]: row for row in rows}


def find_form(distribution: Distribution) -> Mapping[str, Any] | None:
    """Return the row of a distribution; ``None`` for what is no form for CPUs."""
    row = _forms().get(distribution.name)
    if row is None or row.get("platform") not in (
        None,
        platform_of_wheel(distribution),
    ):
        return None
    allowed = SpecifierSet(row.get("releases", ""))
    try:
        fits = allowed.contains(distribution.public_version, prereleases=True)
    except ValueError:  # packaging before 26
        return None
    return row if fits else None


def find_forms_for_cpus(stack: Stack) -> Iterator[Finding]:
    """Yield what is there in a form for CPUs, and what takes its place."""
    for name in _forms():
        own = stack.distributions.get(name)
        row = None if own is None else find_form(own)
        if own is None or row is None:
            continue
        wanted = row.get("gpu", "")
        other = wanted.partition("[")[0]
        # Two of one project have a finding of their own.
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
