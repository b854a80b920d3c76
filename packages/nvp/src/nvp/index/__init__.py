"""Package indexes: reading them, and showing installers what a machine can run.

`VariantRepository` is the component for servers that are made of simple-repository.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .selection.component import VariantRepository
    from .server.rewritten import RewrittenWheels

__all__ = ["RewrittenWheels", "VariantRepository"]


def __getattr__(name: str) -> object:
    # Most importers of this package need neither.
    if name == "VariantRepository":
        from .selection.component import VariantRepository

        return VariantRepository
    if name == "RewrittenWheels":
        from .server.rewritten import RewrittenWheels

        return RewrittenWheels
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
