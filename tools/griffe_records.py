"""Tell griffe, which reads the code for the documentation, how records are made.

griffe does not run the code, and derives the signature of a class from its annotated
fields for dataclasses only. Without this extension the pages would show
``Environment(**fields)``, and ``mkdocs build --strict`` would refuse the documented
parameters. ``mkdocs.yml`` names this file.
"""

from __future__ import annotations

from typing import Any

import griffe

_DATACLASS = griffe.ExprCall(
    function=griffe.ExprName("dataclass", parent="dataclasses"),
    arguments=[griffe.ExprKeyword("kw_only", "True")],
)


class FrozenRecords(griffe.Extension):
    """Show subclasses of ``light.Frozen`` as the dataclasses that they stand for."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Mark a class for the extension of griffe that handles dataclasses.

        ``on_class`` would be too late: that extension runs before it.
        """
        if any(_is_frozen(base) for base in cls.bases):
            cls.decorators.append(griffe.Decorator(_DATACLASS, lineno=0, endlineno=0))


def _is_frozen(base: str | griffe.Expr) -> bool:
    path = base if isinstance(base, str) else base.canonical_path
    return path.endswith(".light.Frozen")
