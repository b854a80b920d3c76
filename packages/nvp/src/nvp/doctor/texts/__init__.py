"""The texts that explain each check, from which the page of the checks is made."""

from __future__ import annotations

from collections.abc import Mapping

from ..model import Check, Code
from .abi import ABI_CHECKS
from .builds import BUILD_CHECKS
from .libraries import LIBRARY_CHECKS
from .live import LIVE_CHECKS
from .machine import MACHINE_CHECKS
from .toolchain import TOOLCHAIN_CHECKS
from .workloads import RECEIPT_CHECKS, WORKLOAD_CHECKS

__all__ = ["TEXTS"]

TEXTS: Mapping[Code, Check] = {
    check.code: check
    for check in (
        *MACHINE_CHECKS,
        *BUILD_CHECKS,
        *LIBRARY_CHECKS,
        *TOOLCHAIN_CHECKS,
        *ABI_CHECKS,
        *LIVE_CHECKS,
        *WORKLOAD_CHECKS,
        *RECEIPT_CHECKS,
    )
}
"""The text of each check, by code."""
