"""The public Python API: what the commands of the command line do, as functions.

The functions read environment variables and the user's ``variants.toml`` unless they
are given a value instead. They print nothing. All errors are `ProviderError`, whose
attributes ``message``, ``path``, ``place``, ``hint`` and ``exit_code`` say what is
wrong, where, and what to do next.
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
