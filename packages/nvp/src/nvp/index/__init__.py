"""Package indexes: reading them, and showing installers what a machine can run.

`VariantRepository` is the component for servers that are made of simple-repository, and
`connect` is the entrance for code that reads one URL.
"""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .http.blocking import BlockingClient
    from .selection.component import VariantRepository
    from .server.rewritten import RewrittenWheels

__all__ = ["RewrittenWheels", "VariantRepository", "connect"]


def connect(
    environ: Mapping[str, str], *, python: str | None = None, retries: int = 0
) -> BlockingClient:
    """Make a client that reads URLs as the user's pip would.

    :param environ: the environment variables that pip sees.
    :param python: the interpreter whose pip is asked; the running one by default.
    :param retries: how often a request is sent again after a failure that may pass.
    """
    # The client is imported when it is needed, since most commands read no URL.
    from .pip.settings import make_blocking_client

    return make_blocking_client(environ, python=python, retries=retries)


def __getattr__(name: str) -> object:
    # Most importers of this package need neither.
    if name == "VariantRepository":
        from .selection.component import VariantRepository

        return VariantRepository
    if name == "RewrittenWheels":
        from .server.rewritten import RewrittenWheels

        return RewrittenWheels
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
