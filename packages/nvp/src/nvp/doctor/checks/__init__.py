"""The checks of ``doctor`` that need no GPU, one function for each code.

ND1xx machine, ND2xx builds, ND3xx libraries, ND4xx toolchain, ND5xx ABI.
"""

from __future__ import annotations

from ..model import CHECKS, Find

# Importing a module declares its checks.
from . import abi, builds, libraries, machine, toolchain

__all__ = ["STATIC", "abi", "builds", "libraries", "machine", "toolchain"]

STATIC: tuple[tuple[str, Find], ...] = tuple(
    (check.code, check.find) for check in sorted(CHECKS.values()) if check.find
)
"""The functions of these checks with their codes, in the order of the report."""
