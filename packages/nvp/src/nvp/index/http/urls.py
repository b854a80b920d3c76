"""What the modules of `nvp.index` share about URLs.

This module imports nothing but the standard library, so that it loads quickly.
"""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.redaction import redacted

__all__ = [
    "NoRangesError",
    "UpstreamError",
    "is_http",
    "is_loopback",
    "path_of_file_url",
    "redacted",
    "server_of",
    "split_credentials",
    "why_no_index",
    "with_user",
]


class UpstreamError(InputError):
    """An index or a file server did not respond as expected.

    :param status: the HTTP status that describes the failure best.
    """

    def __init__(self, message: str, *, status: int = 502, **places: Any) -> None:
        super().__init__(message, **places)
        self.status = status


class NoRangesError(UpstreamError):
    """A server does not send the parts of a file that it was asked for."""


def is_http(location: str) -> bool:
    """Return whether ``location`` is an HTTP or HTTPS URL rather than a path."""
    return location.startswith(("http:", "https:"))


def why_no_index(location: str) -> tuple[str, str]:
    """Say why no index can be read at a place, and what to do about it.

    :param location: a URL of a server that is not allowed, or no URL and no folder.
    """
    scheme, mark, _ = location.partition("://")
    if is_http(location):
        message = "plain HTTP is for this machine and for trusted hosts"
        return message, "give an https URL, or --trusted-host"
    if mark and scheme != "file":
        return f"no index is read by {scheme}", "give an https URL or a folder"
    return "there is no such folder", "give an existing folder, or an https URL"


def path_of_file_url(url: str) -> str:
    """Return the path of a ``file:`` URL, in the form of this system."""
    from urllib.request import url2pathname

    return url2pathname(urlsplit(url).path)


def is_loopback(host: str) -> bool:
    """Return whether ``host`` can only be this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def server_of(url: str) -> str:
    """Return scheme, host and port of ``url``: the scope of its credentials."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


def split_credentials(url: str) -> tuple[str, tuple[str, str] | None]:
    """Split ``url`` into the URL without user and password, and these two."""
    parts = urlsplit(url)
    pair, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    user, _, password = pair.partition(":")
    bare = urlunsplit(parts._replace(netloc=host))
    return bare, (unquote(user), unquote(password))


def with_user(url: str, user: str) -> str:
    """Return ``url``, which has no credentials, with a user."""
    parts = urlsplit(url)
    netloc = f"{quote(user, safe='')}@{parts.netloc}"
    return urlunsplit(parts._replace(netloc=netloc))
