"""The checks of ``doctor`` that need no GPU, one function for each code.

ND1xx is for the machine, ND2xx for builds, ND3xx for libraries, ND4xx for the
toolchain, ND5xx for the ABI. The import of this package declares all these checks.
"""

from ..model import CHECKS
from . import access, agreement, builds, libraries, opened, toolchain

__all__ = [
    "CHECKS",
    "access",
    "agreement",
    "builds",
    "libraries",
    "opened",
    "toolchain",
]
