"""The cases of ``fixtures/provider`` that force values, against uv's own provider.

uv does not print the supported values. One small project for each value has a variant
that needs just this value and a null variant: the installed variant shows whether uv
supports the value. The order of the values remains unknown; ``test_uv.py`` compares
selections.
"""

from __future__ import annotations

import pytest
from support.conformance import Case, read_cases
from support.documents import document
from support.uv_installer import UvIndex

from nvidia_variant_provider.machine.environment import CUDA_DRIVER_VERSION, SM_ARCH

pytestmark = pytest.mark.slow

CASES = [
    case
    for case in read_cases("catalog", "forced", "opt-in")
    # The other cases need a fake driver, but uv finds the driver of this machine.
    if case.variables.get(CUDA_DRIVER_VERSION) and case.variables.get(SM_ARCH)
]

BEYOND = {
    "cuda_version_lower_bound": ("0", "10", "10.2", "12.21", "15.21", "16", "16.0"),
    "cuda_version_upper_bound": ("0", "10", "10.2", "12.21", "15.21", "16", "16.0"),
    "sm_arch": ("00_real", "40_virtual", "49_real", "130_real", "910_real"),
}
"""Values that the catalog does not name, and that some implementations support."""

Values = set[tuple[str, str]]


@pytest.fixture(scope="module")
def projects(index: UvIndex) -> dict[tuple[str, str], str]:
    """Return the project of each value of the catalog, and of some others."""
    catalog = read_cases("catalog")[0].catalog
    assert catalog is not None
    return {
        (feature["name"], value): index.publish(
            document({"null": {}, "this": {"nvidia": {feature["name"]: [value]}}})
        )
        for feature in catalog
        for value in (*feature["values"], *BEYOND[feature["name"]])
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_uv_supports_the_values_of_the_case(
    case: Case, index: UvIndex, projects: dict[tuple[str, str], str]
) -> None:
    labels = index.install(list(projects.values()), case.variables)
    supported = {
        value for value, label in zip(projects, labels, strict=True) if label == "this"
    }
    # uv drops a provider whose forced values it cannot read.
    wanted = {(part["name"], value) for part in case.answer for value in part["values"]}
    agrees = supported == wanted and case.error is None
    assert agrees == ("uv" not in case.differs), sorted(supported ^ wanted)
