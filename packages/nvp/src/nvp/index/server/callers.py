"""Who may call the local index of ``pip``: programs that have its token.

The secret part of its URLs is on the command line of each pip that another pip starts
for a build, where every user of this machine can read it. So the URL is not enough:
requests have to bring a token as well. pip gets the token in an environment variable,
which other users cannot read and which builds inherit.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["TokenCheck", "with_token"]

_USER_DATA = "PIP_USER_AGENT_USER_DATA"
"""The variable whose text pip sends in its ``User-Agent``, also with ``--isolated``."""


class TokenCheck:
    """Refuses requests whose ``User-Agent`` does not have the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        app = self._app
        if scope["type"] == "http":
            agent = Headers(scope=scope).get("user-agent", "")
            words = re.split(r"[^\w-]+", agent, flags=re.ASCII)
            if not any(secrets.compare_digest(word, self._token) for word in words):
                app = PlainTextResponse("Not the user's own pip", status_code=403)
        await app(scope, receive, send)


def with_token(environ: Mapping[str, str], token: str) -> dict[str, str]:
    """Return the variable by which pip brings ``token``, besides the user's own text.

    Every pip from 19.1 on reads it, and so do those that it starts.
    """
    own = environ.get(_USER_DATA)
    return {_USER_DATA: f"{own} {token}" if own else token}
