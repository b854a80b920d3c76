"""Machines for which the NVIDIA provider of uv has another answer than this one.

Each case has the wheel that uv 0.13.8 installs. If a case starts to fail, uv has
changed: correct the case, or delete it and let ``test_uv.py`` cover the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from support.documents import document, forced, nvidia
from support.outcomes import REFUSED, our_outcome, uv_outcome
from support.uv_installer import UvIndex

BY_DRIVER = document(
    {
        "null": {},
        "cu11": nvidia("11"),
        "cu12": nvidia("12.20"),
        "cu12_25": nvidia("12.25"),
        "cu15": nvidia("15.20"),
        "cu15_21": nvidia("15.21"),
        "cu16": nvidia("16.0"),
    }
)
BY_GPU = document(
    {
        "null": {},
        "cuda": nvidia("12.0"),
        "sm90": nvidia("12.0", sm=["90_real"]),
        "sm130": nvidia("12.0", sm=["130_real"]),
    }
)
UPPER_BOUND = document({"null": {}, "below13": nvidia(upper="13.0")})
ONLY_SM_ARCH = document({"null": {}, "sm90": nvidia(sm=["90_real"])})


@dataclass(frozen=True, kw_only=True)
class Case:
    """A release on a machine, with the installation of uv and the selection of nvp."""

    cuda: str
    sm: str
    metadata: Mapping[str, Any]
    uv: str
    ours: str
    why: str


CLAMPED = (
    "PEP 817 makes our answer a subset of the catalog, so that a newer driver counts "
    "as the newest one in it; uv goes on counting"
)
TOO_OLD = (
    "the catalog cannot name a driver below 11.0, so that our answer is empty; uv only "
    "leaves out the lower bounds, and installs builds without one on any old driver"
)
UNNAMED = (
    "the catalog has no sm_arch for this GPU, so that we give none; uv makes them up"
)
MALFORMED = (
    "the user asked for a machine, so that we refuse what we cannot read; uv drops the "
    "provider, and says so only in its debug log"
)

CASES = {
    "driver 12.25": Case(
        cuda="12.25",
        sm="9.0",
        metadata=BY_DRIVER,
        uv="cu12_25",
        ours="cu12",
        why=CLAMPED,
    ),
    "driver 15.21": Case(
        cuda="15.21",
        sm="9.0",
        metadata=BY_DRIVER,
        uv="cu15_21",
        ours="cu15",
        why=CLAMPED,
    ),
    "driver 16.0": Case(
        cuda="16.0", sm="9.0", metadata=BY_DRIVER, uv="cu16", ours="cu15", why=CLAMPED
    ),
    "driver 99.0": Case(
        cuda="99.0",
        sm="9.0",
        metadata=BY_DRIVER,
        uv="null",
        ours="cu15",
        why="uv gives up above 1024 values, although a new driver runs older builds",
    ),
    "driver 10.2, upper bound": Case(
        cuda="10.2",
        sm="9.0",
        metadata=UPPER_BOUND,
        uv="below13",
        ours="null",
        why=TOO_OLD,
    ),
    "driver 10.2, sm_arch": Case(
        cuda="10.2",
        sm="9.0",
        metadata=ONLY_SM_ARCH,
        uv="sm90",
        ours="null",
        why=TOO_OLD,
    ),
    "capability 13.0": Case(
        cuda="12.9", sm="13.0", metadata=BY_GPU, uv="sm130", ours="cuda", why=UNNAMED
    ),
    "capability 9.15": Case(
        cuda="12.9", sm="9.15", metadata=BY_GPU, uv="sm90", ours="cuda", why=UNNAMED
    ),
    "driver that is no version": Case(
        cuda="abc", sm="9.0", metadata=BY_DRIVER, uv="null", ours=REFUSED, why=MALFORMED
    ),
    "capability without minor": Case(
        cuda="12.9", sm="90", metadata=BY_GPU, uv="null", ours=REFUSED, why=MALFORMED
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_uv_and_we_differ_as_the_case_says(case: Case, index: UvIndex) -> None:
    variables = forced(case.cuda, case.sm)
    assert uv_outcome(index, case.metadata, variables) == case.uv
    assert our_outcome(case.metadata, variables) == case.ours
    assert case.uv != case.ours, "this case is not an exception any more"


@pytest.mark.parametrize("cuda", ["12.25", "16.0"])
def test_beyond_the_catalog_known_properties_give_the_same_label(
    cuda: str, index: UvIndex
) -> None:
    variables = forced(cuda, "9.0")
    labels = {
        label: properties
        for label, properties in BY_DRIVER["variants"].items()
        if label in ("cu11", "cu12", "cu15")
    }
    metadata = document(labels)
    label = our_outcome(metadata, variables)
    assert label == uv_outcome(index, metadata, variables)
    assert label in labels
