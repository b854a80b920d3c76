"""The entrance to `nvp.index` for code that reads one URL.

The client is imported when it is needed, since most verbs read no URL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .http.blocking import BlockingClient

__all__ = ["cache_folder", "connect"]


def cache_folder(environ: Mapping[str, str]) -> str | None:
    """Return the folder for what is read once, unless the user wants no cache.

    There is none either where a relative ``HOME`` would put it into the working folder.
    """
    from nvidia_variant_provider.detection.cache import NO_CACHE

    if environ.get(NO_CACHE) == "1":
        return None
    import platformdirs

    folder = platformdirs.user_cache_dir("nvidia-variant-provider", appauthor=False)
    return folder if os.path.isabs(folder) else None


def connect(
    environ: Mapping[str, str], *, python: str | None = None, retries: int = 0
) -> BlockingClient:
    """Make a client that reads URLs as the user's pip would.

    :param environ: the environment variables that pip sees.
    :param python: the interpreter whose pip is asked; the running one by default.
    :param retries: how often a request is sent again after a failure that may pass.
    """
    from .pip.settings import make_blocking_client

    return make_blocking_client(environ, python=python, retries=retries)
