"""Put files of the whole repository into the distributions of nvp.

The directory ``schemas/`` stands at the top of the repository, because every program
may read it, whatever language it is written in. The page ``docs/rules.md`` explains the
rules of ``validate``, and SARIF logs quote it. The sdist has copies of both beside this
file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["SharedFilesHook"]

_PLACES = {"schemas": "nvp/schemas", "docs/rules.md": "nvp/lint/rules.md"}
"""What the distributions need of the repository, and its place in the wheel."""


class SharedFilesHook(BuildHookInterface[Any]):
    """Adds the shared files to the sdist, and to the package in the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the copies beside this file, or in a checkout the files themselves."""
        if version == "editable":
            return  # Such an installation reads the files of the checkout.
        here = Path(self.root)
        for name, in_wheel in _PLACES.items():
            copy = here / name
            source = copy if copy.exists() else here.parents[1] / name
            place = in_wheel if self.target_name == "wheel" else name
            build_data["force_include"][str(source)] = place
