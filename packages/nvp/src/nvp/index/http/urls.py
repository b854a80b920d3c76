"""URLs: which of them may be read, errors about them, and the files that they name.

This module imports little, because commands import it that may read no URL at all.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from nvidia_variant_provider.errors import InputError, redacted

# Most references match this, and need no parsing: their port, for example, cannot be
# wrong.
_PLAIN_URL = re.compile(r"https?://[A-Za-z0-9.-]+/[!$-;=?-~]*")
# A file, possibly in another directory: only the directory has to be resolved, and
# once.
_PLAIN_PATH = re.compile(r"((?:[A-Za-z0-9._~/%+-]*/)?)([A-Za-z0-9_][A-Za-z0-9._~%+-]*)")

LONGEST_NAME = 255
"""Characters of a file name: the limit of the usual file systems."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompleteResponse:
    """A response that was read to its end, or as far as it went.

    :param url: the URL after redirects.
    :param headers: the headers, their names in small letters.
    :param raw: the body as it was sent; ``body`` has no compression.
    :param is_whole: the end of the body has arrived.
    """

    status: int
    url: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    raw: bytes = field(default=b"", repr=False)
    is_whole: bool = True


class UpstreamError(InputError):
    """An index or a file server did not respond as expected.

    :param url: what was to be read; its secrets are left out.
    :param status: the HTTP status that describes the failure best.
    :param reply: what the server sent, with which an installer does as it does alone.
    :param places: ``path`` where there is no URL, and ``hint``.
    """

    status = 502
    usual_hint = "check the URL"

    def __init__(
        self,
        message: str,
        url: str | None = None,
        *,
        status: int | None = None,
        reply: CompleteResponse | None = None,
        **places: Any,
    ) -> None:
        if url is not None:
            places = {"path": redacted(url), "hint": self.usual_hint, **places}
        super().__init__(message, **places)
        self.reply = reply
        if status is not None:
            self.status = status


class NoRangesError(UpstreamError):
    """A server does not send the parts of a file that it was asked for."""

    usual_hint = "download it first"


class TooLargeError(UpstreamError):
    """A response or a file is larger than the limit of its reader."""


class PassingError(UpstreamError):
    """A failure that may be gone when the same request is sent again.

    :param wait: how many seconds the server asks to wait; ``None`` if it does not say.
    """

    status = 504
    wait: float | None = None


class TooSlowError(PassingError):
    """A response takes longer than this program waits; an installer might go on."""


ALGORITHMS = ("sha256", "sha512", "sha384", "sha224", "sha1", "md5")
"""The hashes that pip checks. An index may give one of them alone."""


def find_other(content: bytes, hashes: Mapping[str, str]) -> str | None:
    """Return the algorithm of the hash that a file should have, and does not have."""
    name = next((name for name in ALGORITHMS if hashes.get(name)), None)
    if name is None:
        return None
    import hashlib

    found = hashlib.new(name, content, usedforsecurity=False).hexdigest()
    return None if found == hashes[name].lower() else name


def is_http(location: str) -> bool:
    """Return whether ``location`` is an HTTP or HTTPS URL rather than a path."""
    return location.startswith(("http:", "https:"))


def why_no_index(location: str) -> tuple[str, str]:
    """Say why no index can be read at a place, and what to do about it.

    :param location: a URL of a server that is not allowed, or no URL and no directory.
    """
    scheme, mark, _ = location.partition("://")
    if is_http(location):
        message = "plain HTTP is for this machine and for trusted hosts"
        return message, "give an https URL, or --trusted-host"
    if mark and scheme != "file":
        return f"no index is read by {scheme}", "give an https URL or a directory"
    return "there is no such directory", "give an existing directory, or an https URL"


def file_name(url: str) -> str:
    """Return the name of the file that ``url`` is of, without its quoting.

    It is empty where there is none, or where this is no URL.
    """
    try:
        return unquote(urlsplit(url).path.rpartition("/")[2])
    except ValueError:  # such as "http://[::1"
        return ""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of pip that decide how it connects to an index.

    :param timeout: how many seconds a server may send nothing.
    :param deadline: how many seconds a whole page or document may take.
    :param retries: how often a request is sent again after a failure that may pass,
        such as HTTP 429 and 503. Installers have their own retries, which need none
        here.
    :param trusted_hosts: entries of the form ``host`` or ``host:port``; their
        certificates are not verified, and they may use plain HTTP.
    :param plain_http: allow plain HTTP for every host. pip refuses an index that is
        not secure, but accepts the URL of a single file.
    :param trusts_pages: follow pages and redirects to any server, as pip does.
        Otherwise those from elsewhere must not lead to a server that only this machine,
        or its network, can reach: other people may see what is read.
    :param cert: a file or directory of certificate authorities that replaces those of
        the system.
    :param client_cert: a file with a certificate and its private key.
    :param proxy: the URL of the proxy for all requests.
    :param trust_env: use the proxy variables of the environment.
    """

    timeout: float = 15.0
    deadline: float = 120.0
    retries: int = 0
    trusted_hosts: Sequence[str] = ()
    plain_http: bool = False
    trusts_pages: bool = False
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    trust_env: bool = True

    def is_allowed(self, url: str) -> bool:
        """Return whether ``url`` may be read; pip ignores insecure indexes as well."""
        parts = urlsplit(url)
        if parts.scheme == "https":
            return True
        if parts.scheme != "http":
            return False
        local = is_loopback(parts.hostname or "")
        # pip verifies the certificates of other hosts in spite of --trusted-host '*'.
        everywhere = self.plain_http or "*" in self.trusted_hosts
        return everywhere or local or self.is_trusted(url)

    def is_trusted(self, url: str) -> bool:
        """Return whether the server of ``url`` is one of the trusted hosts."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        with suppress(ValueError):
            port = f":{parts.port}" if parts.port else ""
            names = {name + end for name in (host, f"[{host}]") for end in ("", port)}
            return not names.isdisjoint(map(str.lower, self.trusted_hosts))
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


def absolute_url(reference: Any, base: str) -> str | None:
    """Return the absolute URL of a link; ``None`` if it is not a URL."""
    if not isinstance(reference, str):
        return None
    if _PLAIN_URL.fullmatch(reference):
        return reference
    if match := _PLAIN_PATH.fullmatch(reference):
        folder = _folder(match[1] or "./", base)
        return None if folder is None else folder + match[2]
    return _join(reference, base)


@lru_cache(maxsize=1024)
def _folder(reference: str, base: str) -> str | None:
    return _join(reference, base)


def _join(reference: str, base: str) -> str | None:
    try:
        url = urljoin(base, reference.strip())
        parts = urlsplit(url)
        valid = parts.port is None or parts.port >= 0
    except ValueError:
        return None
    return url if valid and parts.scheme and is_text(url) else None


def is_text(value: Any) -> bool:
    """Return whether a value is text without lone surrogates, which JSON may have."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def is_file_name(name: str) -> bool:
    """Return whether a file system could have a file of that name.

    A version in a longer name may have more digits than Python converts.
    """
    return len(name) <= LONGEST_NAME and is_text(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFile:
    """A file that a project page or a directory lists.

    :param url: its URL with everything secret in it, or the path of a local file.
    :param page: the URL of the page, after redirects; ``None`` where no server lists
        the file.
    :param time: when it was uploaded or written, in seconds since 1970; ``None`` if
        unknown.
    :param sha256: its hash, if the page gives it.
    :param size: its bytes; ``None`` if unknown.
    :param requires_python: the versions of Python for which the page offers it.
    :param yanked: whether installers take it only where its version is pinned.
    :param core_metadata: the sha256 of its METADATA file (PEP 658), empty where there
        is such a file without one, and ``None`` where there is none.
    """

    name: str
    url: str = field(repr=False)
    page: str | None = None
    time: float | None = None
    sha256: str | None = None
    size: int | None = None
    requires_python: str | None = None
    yanked: bool = False
    core_metadata: str | None = None

    @property
    def path(self) -> str:
        """The path of the file, or its URL without secrets, for messages."""
        return redacted(self.url) if is_http(self.url) else self.url


def local_file(path: str, sha256: str | None = None) -> IndexFile:
    """Return a file of a directory; what is wrong with it shows when it is read."""
    time = size = None
    try:
        status = os.stat(path)
        time, size = status.st_mtime, status.st_size
    except (OSError, ValueError):
        pass
    name = os.path.basename(path)
    return IndexFile(name=name, url=path, time=time, sha256=sha256, size=size)


def list_names(folder: str) -> list[str]:
    """Return the names in a directory, sorted.

    :raises InputError: it cannot be read.
    """
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise InputError(message, path=folder, hint="check the directory") from None
