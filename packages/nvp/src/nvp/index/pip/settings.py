"""How a pip connects to indexes, for requests that are made without it."""

from __future__ import annotations

import logging
import netrc
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from nvidia_variant_provider.errors import InputError

from ..http.blocking import BlockingClient
from ..http.client import AskCredentials, Client
from ..http.urls import Settings
from .command import PipCommand, PipOptions
from .process import Pip, find_python

logger = logging.getLogger(__name__)


def make_settings(
    command: PipCommand,
    environ: Mapping[str, str],
    *,
    plain_http: bool = False,
    trusts_pages: bool = False,
) -> Settings:
    """Return the settings by which this pip connects to indexes.

    :param plain_http: allow plain HTTP, as pip does for the URL of a single file.
    :param trusts_pages: follow pages and redirects to any server, as pip does.
    """
    options = command.options
    # These are the variables of requests, the library that pip contains.
    bundle = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    return Settings(
        timeout=float(options.timeout or 15.0),
        trusted_hosts=tuple(options.trusted_hosts),
        plain_http=plain_http,
        trusts_pages=trusts_pages,
        cert=options.cert or bundle,
        client_cert=options.client_cert,
        proxy=options.proxy or None,
        trust_env=not options.no_proxy_env,
    )


def make_blocking_client(
    environ: Mapping[str, str], *, python: str | None = None, retries: int = 0
) -> BlockingClient:
    """Make a client with the settings of a pip, which the first request asks for them.

    Where there is no pip, the variables of the environment and the netrc file decide.

    :param python: the interpreter whose pip is asked; the running one by default.
    :param retries: how often a request is sent again after a failure that may pass.
    """

    def make_client() -> Client:
        pip = Pip(python or sys.executable, environ)
        try:
            # Any command that uses an index has the options that count here.
            command = pip.understand(["download"])
        except InputError as error:
            logger.info("no pip can be asked for its settings: %s", error)
            command = PipCommand(command=None)
        settings = make_settings(command, environ, plain_http=True)
        return Client(
            replace(settings, retries=retries),
            ask_credentials=_find_credentials(pip, command, environ),
        )

    return BlockingClient(make_client)


@dataclass(frozen=True, kw_only=True, slots=True)
class Indexes:
    """The indexes that a user names; pip's own count where none is named.

    :param url: the main index; pip has ``--index-url`` for it.
    :param extra: other indexes (``--extra-index-url``).
    :param links: folders and pages of links (``--find-links``).
    :param trusted: hosts that are not verified (``--trusted-host``).
    :param python: the interpreter or environment whose pip is asked; the running one
        by default.
    """

    url: str | None = None
    extra: Sequence[str] = ()
    links: Sequence[str] = ()
    trusted: Sequence[str] = ()
    python: str | None = None


def find_indexes(
    environ: Mapping[str, str], indexes: Indexes
) -> tuple[PipCommand, AskCredentials]:
    """Ask pip which indexes it would use.

    Without a pip, the options have to be enough: users of uv often have environments
    that have none.

    :returns: what pip says, and how to find credentials.
    :raises InputError: there is no pip, and no index is given.
    :raises UsageError: there is no such interpreter.
    """
    words = ["download"]
    if indexes.url is not None:
        words += ["--index-url", indexes.url]
    for url in indexes.extra:
        words += ["--extra-index-url", url]
    for place in indexes.links:
        words += ["--find-links", place]
    for host in indexes.trusted:
        words += ["--trusted-host", host]
    pip = Pip(find_python(indexes.python, environ), environ)
    try:
        command = pip.understand(words)
    except InputError:
        if indexes.url is None:
            raise
        given = PipOptions(
            index_url=indexes.url,
            extra_index_urls=indexes.extra,
            find_links=indexes.links,
            trusted_hosts=indexes.trusted,
        )
        command = PipCommand(command=None, options=given)
    return command, _find_credentials(pip, command, environ)


def _find_credentials(
    pip: Pip, command: PipCommand, environ: Mapping[str, str]
) -> AskCredentials:
    """Return what finds credentials; without a pip, the netrc file has to be enough."""
    if command.command is None:
        return lambda url: find_netrc_credentials(url, environ)
    return lambda url: pip.ask_credentials(url, command.options)


def find_netrc_credentials(
    url: str, environ: Mapping[str, str]
) -> tuple[str, str] | None:
    """Find user and password for the server of ``url`` in the user's netrc file.

    The file is ``$NETRC``, or else ``.netrc`` or ``_netrc`` in the home folder.
    """
    home = environ.get("HOME") or os.path.expanduser("~")
    names = [os.path.join(home, name) for name in (".netrc", "_netrc")]
    for path in [environ["NETRC"]] if environ.get("NETRC") else names:
        try:
            entry = netrc.netrc(path).authenticators(urlsplit(url).hostname or "")
        except (OSError, netrc.NetrcParseError) as error:
            logger.debug("%s: cannot be read: %s", path, type(error).__name__)
            continue
        if entry is not None:
            user, _, password = entry
            return user, password or ""
    return None
