"""The checks of ``doctor``: one function for each code.

ND1xx machine, ND2xx builds, ND3xx libraries, ND4xx toolchain, ND5xx ABI. To add a
check, add its code to `model`, its text to `texts` and its function to `CHECKS`;
``tests/doctor/test_contracts.py`` names what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..model import Code, Find
from .abi import find_missing_symbols, find_other_abi, find_other_labels
from .assemblers import find_old_assemblers, find_wrong_assembler_paths
from .builds import (
    find_builds_without_code,
    find_builds_without_gpu,
    find_newer_builds,
    find_newer_ptx,
    find_only_ptx,
    find_partial_builds,
    find_wrong_variants,
)
from .compilers import (
    find_left_out_gpus,
    find_newer_toolchain,
    find_other_compilers,
)
from .libraries import find_missing_libraries, find_other_copies, find_two_cudas
from .machine import (
    find_compatibility_libraries,
    find_missing_capabilities,
    find_stub_driver,
    find_unreadable_driver,
)
from .requirements import find_wrong_libraries, find_wrong_triton

__all__ = ["CHECKS"]

CHECKS: Mapping[Code, Find] = {
    "ND101": find_unreadable_driver,
    "ND102": find_missing_capabilities,
    "ND103": find_stub_driver,
    "ND104": find_compatibility_libraries,
    "ND201": find_newer_builds,
    "ND202": find_builds_without_code,
    "ND203": find_partial_builds,
    "ND204": find_only_ptx,
    "ND205": find_newer_ptx,
    "ND206": find_wrong_variants,
    "ND207": find_builds_without_gpu,
    "ND301": find_missing_libraries,
    "ND302": find_two_cudas,
    "ND303": find_other_copies,
    "ND304": find_wrong_libraries,
    "ND401": find_old_assemblers,
    "ND402": find_wrong_assembler_paths,
    "ND403": find_wrong_triton,
    "ND404": find_other_compilers,
    "ND405": find_newer_toolchain,
    "ND406": find_left_out_gpus,
    "ND501": find_other_abi,
    "ND502": find_other_labels,
    "ND503": find_missing_symbols,
}
"""The function of each check that needs no GPU, in the order of the report."""
