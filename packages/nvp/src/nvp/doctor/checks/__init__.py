"""The checks of ``doctor`` that need no GPU, one function for each code.

ND1xx machine, ND2xx builds, ND3xx libraries, ND4xx toolchain, ND5xx ABI. Importing this
package declares them all in `CHECKS`.
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
