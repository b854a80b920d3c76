"""Labels that the user wants, whatever fits best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Pins"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pins:
    """Which label to take of a project.

    :param everywhere: where a project has them.
    :param projects: ``{project: label}``, by normalized name.
    """

    everywhere: str | None = None
    projects: Mapping[str, str] = field(default_factory=dict)

    def get(self, project: str) -> str | None:
        """The label for a project."""
        return self.projects.get(project, self.everywhere)
