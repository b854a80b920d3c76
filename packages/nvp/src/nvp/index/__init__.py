"""Package indexes: read them, and show installers the builds that a machine can run.

`VariantRepository` is the component for servers based on simple-repository. `connect`
returns a client that reads URLs.
"""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .http.blocking import BlockingClient
    from .selection.component import VariantRepository
    from .server.rewritten import RewrittenWheels

__all__ = ["RewrittenWheels", "VariantRepository", "connect"]


def connect(environ: Mapping[str, str], *, retries: int = 0) -> BlockingClient:
    """Create a client that reads URLs like the user's pip.

    :param environ: the environment variables of pip.
    :param retries: the number of retries after a temporary failure.
    """
    # Import late, because most commands read no URL.
    from .pip.settings import make_blocking_client

    return make_blocking_client(environ, retries=retries)


def __getattr__(name: str) -> object:
    # Import late, because most modules that import this package need neither class.
    if name == "VariantRepository":
        from .selection.component import VariantRepository

        return VariantRepository
    if name == "RewrittenWheels":
        from .server.rewritten import RewrittenWheels

        return RewrittenWheels
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
