"""Finding out which servers send parts of files."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass

from nvidia_variant_provider.errors import InputError

from .client import Client
from .urls import redacted, server_of

__all__ = ["RangeSupport"]

logger = logging.getLogger(__name__)

_FRESH = 3600.0
"""Seconds for which a result holds: `serve` may run for weeks."""

_MOST = 1024
"""Bytes of a response that are read."""

_PATIENCE = 5.0
"""Seconds for the request. An installer waits for the page meanwhile."""


@dataclass(frozen=True, slots=True)
class _Asked:
    reply: asyncio.Future[bool]
    until: float


class RangeSupport:
    """Asks each server once whether it sends parts of files, with one small request.

    :param client: sends the request.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asked: dict[str, _Asked] = {}

    async def has(self, url: str) -> bool:
        """Return whether the server of a file sends its last bytes alone.

        :param url: the file, whose last byte is asked for.
        """
        now = asyncio.get_running_loop().time()
        asked = self._asked.get(server_of(url))
        if asked is None or now > asked.until:
            reply = asyncio.ensure_future(self._ask(url))
            asked = self._asked[server_of(url)] = _Asked(reply, now + _FRESH)
        # Several pages may wait for one request: the end of one does not cancel it.
        return await asyncio.shield(asked.reply)

    def deny(self, url: str) -> None:
        """Note that a server did not send a part of a file although others came."""
        loop = asyncio.get_running_loop()
        denied: asyncio.Future[bool] = loop.create_future()
        denied.set_result(False)
        self._asked[server_of(url)] = _Asked(denied, loop.time() + _FRESH)

    async def _ask(self, url: str) -> bool:
        try:
            # asyncio.timeout() exists since Python 3.11 only.
            sends = await asyncio.wait_for(self._sends_part(url), _PATIENCE)
        except (InputError, asyncio.TimeoutError) as error:
            logger.info("%s: no part of it could be read: %s", redacted(url), error)
            return False
        logger.info("%s: parts are %s", server_of(url), "sent" if sends else "not sent")
        return sends

    async def _sends_part(self, url: str) -> bool:
        # RFC 9110, section 14.1.2: a suffix range, as `RangeFile` starts with. Some
        # servers send ranges, but not these.
        wanted = {"Range": "bytes=-1", "Accept-Encoding": "identity"}
        # The whole of a large file exceeds the limit, and is not read.
        response = await self._client.get(url, wanted, limit=_MOST)
        given = response.headers.get("content-range", "")
        match = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", given)
        if response.status != 206 or len(response.body) != 1 or match is None:
            return False
        return int(match[1]) == int(match[2]) == int(match[3]) - 1
