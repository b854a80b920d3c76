"""Write tables as JSON text: one value on each line, but short lists on one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["KNOWLEDGE", "MACHINE", "SOURCES", "is_measured", "read", "render"]

ROOT = Path(__file__).resolve().parents[1]
KNOWLEDGE = ROOT / "packages" / "nvp" / "src" / "nvp" / "knowledge"
MACHINE = ROOT / "nvidia_variant_provider" / "machine"
SOURCES = ROOT / "tools" / "sources"


def read(path: Path) -> Any:
    """Return the value of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def is_measured(toolkit: Any) -> bool:
    """Return whether a record of `toolkits.json` is measured, not announced."""
    source: str = toolkit["source"]
    return source.startswith("ptxas of ")


def render(value: Any) -> str:
    """Return the text of a table, with a line end."""
    return f"{_render(value, '')}\n"


def _render(value: Any, indent: str) -> str:
    deeper = f"{indent} "
    if isinstance(value, dict):
        lines = [
            f"{deeper}{json.dumps(key)}: {_render(item, deeper)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        lines = [f"{deeper}{_render(item, deeper)}" for item in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)
