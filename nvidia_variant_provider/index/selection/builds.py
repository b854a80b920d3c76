"""A simple repository that keeps installers away from builds that cannot run.

`BuildRepository` wraps any repository of the library simple-repository. Wheels with a
variant label pass through it; of all others it shows, yanks or hides what
`nvidia_variant_provider.builds.page` decides.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import errors, model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from ...builds.backends import Backend
from ...builds.page import Build, Decisions, decide
from ...builds.requirements import required_projects
from ...builds.table import PROJECTS
from ...errors import InputError
from ...machine.environment import Environment
from .judging import PageJudge

__all__ = ["BuildRepository", "JudgedPage"]

logger = logging.getLogger(__name__)

_UNAVAILABLE = (
    errors.PackageNotFoundError,
    errors.ResourceUnavailable,
    errors.SourceRepositoryUnavailable,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedPage:
    """What is known of the builds of a project, and what becomes of them."""

    project: str
    builds: Sequence[Build]
    decisions: Decisions
