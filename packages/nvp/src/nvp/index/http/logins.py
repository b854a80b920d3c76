"""The login of each request, as pip and uv select it.

============================  ====================================================
the URL of the index has      logins in their order
============================  ====================================================
a user and a password         this login
a user                        pip: the netrc file's, this user, the keyring's
                              uv: the netrc file's for this user, the keyring's
no user                       pip: the netrc file's, the keyring's
                              uv: none, the netrc file's, the keyring's
============================  ====================================================

pip tries its next login after the status 401 only, and uv also after 403 and 404. An
index may answer 404 to the wrong login, and installers then use their next index. So
`serve`, which both use, tries all of these logins. The first response that is no
refusal counts; of refusals, that of the first login, or of the keyring's after 401.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain
from netrc import NetrcParseError, netrc
from time import monotonic
from urllib.parse import quote

import httpx

from ...files import file_state, read_netrc
from .connecting import basic, connected_host
from .replies import EARLY_END, NO_END, OWN, make_reply, unpack, without_frames
from .threads import FOR_INSTALLER, call_in_daemon
from .urls import (
    CompleteResponse,
    Settings,
    UpstreamError,
    is_plain,
    nearest_url,
    server_of,
    split_credentials,
)

logger = logging.getLogger(__name__)

Pair = tuple[str, str]
AskCredentials = Callable[[str], "Pair | None"]
"""Returns user name and password for a URL from the keyring, if any."""

Send = Callable[[str | None], Awaitable[httpx.Response]]
"""Sends a request with the given value of the ``Authorization`` header, if any."""

REFUSALS = (401, 403, 404)
_PAUSE = 10.0  # seconds until a keyring that had no other login is asked again
_HTTP = re.compile(r"\Ahttp:(?!.*:[0-9]+\Z)")  # with the default port
_SCHEME = re.compile(r"\Ahttps?:")
_FAILURE, _SECONDS = 1024 * 1024, 5.0  # the limits for the body of an error
_LONGEST_TARGET = 8192  # of a redirect, in characters; signed URLs have under 4,000

_ABSOLUTE = re.compile(
    r"https?://(?:[^\s/?#\\@]*@)?[a-z0-9_\[]", re.ASCII | re.IGNORECASE
)
"""The start of a URL that is absolute for every installer. Each corrects other forms in
its own way, such as ``http:/path``, which only some read as a relative URL."""


async def send(
    client: httpx.AsyncClient,
    url: str,
    headers: dict[str, str],
    authorization: str | None,
) -> httpx.Response:
    """Send a request, and return the response with an unread body.

    :param authorization: the value of the ``Authorization`` header, if any.
    """
    if authorization is not None:
        headers = {**headers, "Authorization": authorization}
    request = client.build_request("GET", url, headers={**headers, **OWN})
    if (request.url.port or 0) not in range(2**16):
        raise UpstreamError(f"no server has the port {request.url.port}", url)
    response = await client.send(request, stream=True, follow_redirects=False)
    # In this encoding, a server can pass on every header unchanged.
    response.headers.encoding = "latin-1"
    if "transfer-encoding" in response.headers:  # RFC 9112, section 6.3
        response.headers.pop("content-length", None)
    if (stream := response.extensions.get("network_stream")) is not None:
        response.extensions["is_odd"] = stream.get_extra_info("is_odd")
    if 400 <= response.status_code < 600:
        await _read_failure(response)
        await response.aclose()
        # The stream refers to the response, and would keep it until Python looks for
        # such cycles.
        response.stream = httpx.ByteStream(b"")
    return response


async def _read_failure(response: httpx.Response) -> None:
    """Read the body of an error, and keep a body that pip may be unable to read.

    pip reads the whole body, so the rest of a large or slow one counts as unreadable.
    """
    raw, more, url = bytearray(), response.extensions, str(response.url)
    is_whole = False

    async def read() -> None:
        try:
            async for chunk in response.aiter_raw():
                raw.extend(chunk)
                if len(raw) > _FAILURE:
                    return
        except httpx.ReadError as error:
            if str(without_frames(error)) != NO_END:  # no installer needs that here
                raise

    try:
        await asyncio.wait_for(read(), _SECONDS)
        is_whole = len(raw) <= _FAILURE
        if is_whole:
            reply = replace(make_reply(response), raw=bytes(raw))
            await unpack(reply, url, _FAILURE, None)
            return
    except (asyncio.TimeoutError, UpstreamError) as error:
        without_frames(error)
    except httpx.HTTPError as error:
        if not str(without_frames(error)).startswith(EARLY_END):
            response.headers.pop("content-length", None)
    more["raw"], more["is_whole"] = bytes(raw), is_whole


def authorization_after(response: httpx.Response | None, target: str) -> str | None:
    """Return the ``Authorization`` header to send to the target of a redirect, if any.

    By the rules of requests, the HTTP library of pip, the header is kept for the same
    host and port, and from HTTP to HTTPS with their default ports.

    :param response: the redirect; ``None`` for the first request.
    """
    if response is None:
        return None
    old, new = response.request.url, httpx.URL(target)
    # The port of these URLs is `None` for the default port of their scheme.
    is_same = (old.host, old.port) == (new.host, new.port)
    if old.scheme != new.scheme:
        is_same = is_same and new.port is None and new.scheme == "https"
    return response.request.headers.get("authorization") if is_same else None


def find_target(response: httpx.Response) -> str:
    """Return the URL that a response redirects to.

    :raises UpstreamError: the target is not a URL, or too long, or not the same for all
        installers, or has credentials: only the user may supply them.
    """
    location, following = response.headers["location"], response.next_request
    target = "" if following is None else str(following.url)
    is_read = 0 < len(target) <= _LONGEST_TARGET and is_plain(location)
    if not is_read or split_credentials(target)[1]:
        message = "redirects to a URL that installers read differently"
        if len(target) > _LONGEST_TARGET:
            message = f"redirects to a URL of over {_LONGEST_TARGET:,} characters"
        # A relative URL is not the same for an installer behind the local index. If
        # there are several headers, uv follows the first one.
        is_same = _ABSOLUTE.match(location) and location.isascii()
        is_same = is_same and len(response.headers.get_list("location")) == 1
        reply = make_reply(response) if is_same else None
        raise UpstreamError(message, str(response.url), reply=reply)
    return target


def leading_to(url: str) -> CompleteResponse:
    """Return a redirect to a server, as the reply for an installer.

    The installer may have other certificates, ciphers or trusted hosts than this
    program. It then reads the page itself, or fails as without this program.
    """
    url = split_credentials(url)[0]
    headers = {"location": url}
    return CompleteResponse(status=302, url=url, headers=headers, body=b"")


def find_netrc(paths: Iterable[str], url: str) -> Pair | None:
    """Return the user and password for the server of ``url`` in the first netrc file.

    The rules are those of requests, the HTTP library of pip, which ignores errors.
    """
    found = _read_netrc_file(paths)
    entry = found and found.authenticators(connected_host(url))
    if not entry or not any(entry):
        return None
    user, account, password = entry
    return user or account or "", password or ""


def find_others_in_netrc(
    paths: Iterable[str], url: str, *, has_user: bool
) -> list[Pair]:
    """Return the logins that only some installers find in the netrc file for ``url``.

    uv does not send an account as a user.

    :param has_user: whether ``url`` had a user. pip 23 then finds the default entry.
    """
    hosts = found.hosts if (found := _read_netrc_file(paths)) else {}
    host = connected_host(url)
    has_default = has_user or host not in hosts
    entries = hosts.get(host), hosts.get("default") if has_default else None
    return [(user or "", word or "") for user, _, word in filter(None, entries)]


def _read_netrc_file(paths: Iterable[str]) -> netrc | None:
    if (path := next(filter(os.path.exists, paths), None)) is None:
        return None
    try:
        return read_netrc(path)
    except (OSError, ValueError, NetrcParseError) as error:
        logger.debug("%s: cannot be read: %s", path, type(error).__name__)
        return None


def _headers(pair: Pair | None) -> Sequence[str]:
    """Return the headers that pip and uv send for a login."""
    return [basic(pair, encoding) for encoding in ("latin-1", "utf-8")] if pair else []


def with_user(url: str, user: str) -> str:
    """Add a user name to ``url``, which must have no credentials."""
    start, mark, rest = url.partition("://")
    return f"{start}{mark}{quote(user, safe='')}@{rest}"


class Logins:
    """The logins of one user, and to which servers they are sent.

    :param ask: called for each server that requires credentials.
    :param asks_first: call it before the first request for an index whose URL has only
        a user name. Other users may see this name in the command line of the keyring.
    """

    def __init__(
        self,
        settings: Settings,
        ask: AskCredentials | None = None,
        *,
        asks_first: bool = False,
    ) -> None:
        self._settings = settings
        self._ask = ask
        self._asks_first = asks_first
        # The logins that the user gave for URLs; `add` tells which ones are whole.
        self._given: dict[str, Pair] = {}
        self._whole: dict[str, bool] = {}
        self.asked = threading.Event()  # by a request that no installer needs
        # The logins of the netrc file and of the keyring, and when to ask it again.
        self._in_netrc: dict[str, Pair] = {}
        self._in_keyring: dict[str, Pair] = {}
        self._next: dict[str, float] = {}
        self._lock = asyncio.Lock()
        # The only index that gets a login; its pages may name any server.
        self._index: str | None = None

    def add(self, url: str, pair: Pair, *, whole: bool | None = None) -> None:
        """Send this user and password with the requests to the server of ``url``.

        If that server has several pairs, `nearest_url` selects the pair of a request.

        :param whole: whether the user gave the password, even an empty one. Others
            change, so requests read the netrc file, and perhaps the keyring, again.
        """
        url = f"{url.rstrip('/')}/"
        self._given[url] = pair
        self._in_keyring.pop(url, None)
        self._whole[url] = (
            bool(pair[1] or self._whole.get(url)) if whole is None else whole
        )

    def only(self, index: str | None) -> Logins:
        """Return logins that identify the user to one index, and share all else.

        :param index: the URL of the index; ``None`` for all servers, as for pip.
        """
        other = copy(self)
        other._index = index and f"{index.rstrip('/')}/"
        return other

    def identify(self, url: str) -> bool:
        """Return whether requests for ``url`` may identify the user.

        An index may redirect to itself on HTTPS; see `authorization_after`.
        """
        if self._index is None:
            return True
        server, own = server_of(url), server_of(self._index)
        return server in (own, _HTTP.sub("https:", own))

    def has(self, url: str) -> bool:
        """Return whether requests for ``url`` include a login."""
        return self.identify(url) and self._scope(url) in self._all

    @property
    def identity(self) -> Hashable:
        """The logins for all URLs, in a hashable form for the keys of caches."""
        states = [file_state(path) for path in self._settings.netrc]
        return frozenset(self._all.items()), *states

    @property
    def _all(self) -> dict[str, Pair]:
        return self._in_netrc | self._given | self._in_keyring

    def _scope(self, url: str) -> str:
        """Return the nearest URL that has a login, or else the server's URL."""
        if self._index is not None and self.identify(url):
            url = self._index  # pages and files of an index have one login
        return nearest_url(url, self._all) or f"{server_of(url)}/"

    def is_lost(self, response: httpx.Response, target: str) -> bool:
        """Return whether a redirect loses a login that installers would send.

        They may log in after a redirect to another server, also back to the index.
        """
        if self._index is None or authorization_after(response, target):
            return False
        return self._known(target) is not None

    def is_of_netrc(self, url: str) -> bool:
        """Return whether the netrc file has the login of pip for ``url``."""
        found = find_netrc(self._settings.netrc, url)
        return found is not None and found == self._known(url)

    def _known(self, url: str) -> Pair | None:
        # pip knows credentials by host and port, whatever the scheme.
        for same in (url, _SCHEME.sub("http:", url), _SCHEME.sub("https:", url)):
            if nearest := nearest_url(same, self._all):
                return self._all[nearest]
        return find_netrc(self._settings.netrc, url)

    async def send(
        self, url: str, before: httpx.Response | None, send: Send
    ) -> tuple[httpx.Response, httpx.Response | None]:
        """Send a request for ``url``, again with other logins if one is refused.

        :param url: a user and a password in it are those that a page gives.
        :param before: the response that redirects to ``url``, if any.
        :returns: the response; if it is a redirect for strangers, also the refusal of
            the user's login, which counts if the redirect leads to another refusal.
        """
        if not FOR_INSTALLER.get():
            self.asked.set()
        url, own = split_credentials(url)
        after = authorization_after(before, url)
        # The login that a page gives for a file is only for that file.
        if not self.identify(url):
            return await send(basic(own) if own else after), None
        scope = self._scope(url)
        given = self._given.get(scope)
        is_whole = bool(own[1] if own else before is None and self._is_whole(scope))
        # Without `trust_env`, pip does not read the netrc file after a redirect.
        reads = not is_whole and (before is None or self._settings.trust_env)
        found = self._read_netrc(url, scope) if reads else None
        pair = own or (self._all.get(scope) if before is None else None)
        # pip also sends the login of another user than that of the URL; uv does not.
        if found and (before or given is None or given[0] == found[0]):
            # After a redirect, uv sends the login of before.
            pair = pair if before and after and self._index else found
        if own:
            return await send(basic(pair or own)), None
        is_user = self._asks_first and before is None and given and not is_whole
        if is_user and pair and not pair[1]:
            # Without the password, an index may answer as to a stranger.
            pair = await self._ask_again(url) or pair
        sent = basic(pair) if pair else after
        response = await send(sent)
        if response.status_code not in REFUSALS:
            return response, None
        others: dict[str | None, bool] = {}  # whether another refusal counts
        # Some indexes answer an expired token of the keyring as they answer strangers.
        is_kept = pair == self._in_keyring.get(scope)
        is_guess = pair and (is_kept or (self._asks_first and not is_whole))
        if response.status_code == 401 or is_guess:
            pair = await self._ask_again(url, sent)
            others = dict.fromkeys(_headers(pair), found is None)
        if self._index:
            others |= dict.fromkeys((*_headers(given), *_headers(found)), False)
        if self._index and (before or not self._is_whole(scope)):
            paths, has_user = self._settings.netrc if reads else (), given is not None
            more = find_others_in_netrc(paths, url, has_user=has_user)
            others |= dict.fromkeys(chain.from_iterable(map(_headers, more)), False)
            # After 401, pip sends the user of the URL even without a password.
            user = _headers(given and (given[0], ""))
            others |= dict.fromkeys((after, None, *user), False)
        refusal = None
        for other, counts in others.items():
            if response.status_code in REFUSALS and other != sent:
                again = await send(other)
                if counts or again.status_code not in REFUSALS:
                    may_fail = again.has_redirect_location and other is None
                    refusal = response if may_fail else None
                    response, again = again, response
                await again.aclose()
        return response, refusal

    def _is_whole(self, scope: str) -> bool:
        """Return whether the index of ``scope`` has only the login of its URL.

        The nearest login may be that of another index of the server. uv reads `user:@`
        as a user without a password.
        """
        if not self._whole.get(scope) or self._index is None:
            return self._whole.get(scope, False)
        return scope == self._index and self._given[scope][1] != ""

    def _read_netrc(self, url: str, scope: str) -> Pair | None:
        found = find_netrc(self._settings.netrc, url)
        if found is None:
            self._in_netrc.pop(scope, None)
        elif scope not in self._given:
            self._in_netrc[scope] = found
        return found

    async def _ask_again(self, url: str, refused: str | None = None) -> Pair | None:
        """Return the login that the user gave for ``url``, or that of the keyring.

        :param refused: the header that the server has refused; its token may be old.
        """
        scope = self._scope(url)
        if self._is_whole(scope):
            return self._given[scope]
        # Other users may see what the keyring gets, and the user of the netrc file may
        # be a token. So the keyring gets only a user of a URL.
        user, password = self._given.get(scope, ("", ""))
        url = with_user(url, user) if user and not password else url
        # The nearest login may be that of another index of the server.
        place = self._index if self._index and self.identify(url) else scope
        async with self._lock:
            pair, ask = self._in_keyring.get(place), self._ask
            is_old = pair is None or basic(pair) == refused
            if is_old and ask and monotonic() >= self._next.get(place, 0.0):
                logger.info("%s requires credentials: asking for them", server_of(url))
                found = await call_in_daemon(ask, url)
                if found is None or found in (pair, (user, "")):  # pip would prompt
                    self._next[place] = monotonic() + _PAUSE
                else:
                    self._in_keyring[place] = pair = found
        return pair
