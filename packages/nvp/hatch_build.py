"""Put the schemas of the repository into the distributions of nvp.

The folder ``schemas/`` stands at the top of the repository, because every program may
read it, whatever language it is written in. The sdist has a copy beside this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["SchemasHook"]


class SchemasHook(BuildHookInterface[Any]):
    """Adds the folder ``schemas/`` to the sdist, and to the package in the wheel."""

    def initialize(self, _: str, build_data: dict[str, Any]) -> None:
        """Add the copy beside this file, or in a checkout the folder itself."""
        here = Path(self.root)
        copy = here / "schemas"
        schemas = copy if copy.is_dir() else here.parents[1] / "schemas"
        place = "nvp/schemas" if self.target_name == "wheel" else "schemas"
        build_data["force_include"][str(schemas)] = place
