"""The public Python API: one function for each command.

The functions read environment variables and the user's ``variants.toml``, unless an
argument replaces them, and never print. All errors are `ProviderError`: its attributes
``message``, ``path``, ``place`` and ``hint`` describe the problem, its location and the
next step, and ``exit_code`` is that of the command line.
"""

from __future__ import annotations

from nvidia_variant_provider.api import (
    Environment,
    Release,
    Resolution,
    detect,
    resolve,
)

from .checking import check, check_installed
from .machines import (
    diff_receipts,
    doctor,
    read_environment,
    read_machine,
    read_machines,
)
from .planning import (
    diff,
    diff_of_indexes,
    diff_of_projects,
    fleet,
    matrix,
    releases,
)
from .publishing import (
    census,
    inspect,
    inspect_distribution,
    upgrade,
    upgrade_index,
    validate,
    write_index,
)

__all__ = [
    "Environment",
    "Release",
    "Resolution",
    "census",
    "check",
    "check_installed",
    "detect",
    "diff",
    "diff_of_indexes",
    "diff_of_projects",
    "diff_receipts",
    "doctor",
    "fleet",
    "inspect",
    "inspect_distribution",
    "matrix",
    "read_environment",
    "read_machine",
    "read_machines",
    "releases",
    "resolve",
    "upgrade",
    "upgrade_index",
    "validate",
    "write_index",
]
