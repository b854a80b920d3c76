"""URLs: rules for reading URLs, errors about URLs, and the files that they name.

This module imports little, because commands that read no URL also import it.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from posixpath import commonpath
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from nvidia_variant_provider.errors import InputError, redacted

# Most URLs match this pattern, which excludes parts that need checks, such as ports.
_PLAIN_URL = re.compile(r"https?://[A-Za-z0-9.-]+/[!$-;=?-~]*")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._~+-]+")
_ODD = re.compile(r"[?#\[\]]|[^\0-\x7f]")
_PLAIN_PATH = re.compile(r"((?:[A-Za-z0-9._~/%+-]*/)?)([A-Za-z0-9_][A-Za-z0-9._~%+-]*)")

_CHARACTERS = "A-Za-z0-9._~!$&'()*+,;=:@%/-"
_REFERENCE = re.compile(
    r"(?!.*%(?![0-9A-Fa-f]{2}))"
    r"(?P<server>(?:https?|ftp)://(?:[\w.~!$&'()*+,;=:%-]*@)?"
    r"(?:[A-Za-z0-9][\w.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?(?=[/?]|\Z)|file://(?=/))?"
    r"(?:/|\./|(?:\.\./)+|\.\.?\Z)?(?!\.\./)"
    rf"(?P<path>[{_CHARACTERS}]*)(?:\?[?{_CHARACTERS}]*)?(?:#[?{_CHARACTERS}]*)?",
    re.ASCII,
)
# Only pip ignores a slash after the name of a file.
_ODD_PATH = re.compile(
    r"\A/|(?:\A|/)\.{1,2}(?:/|\Z)|\.(?:whl|zip|egg|tar|t[a-z]z2?|gz|bz2|[lx]z|lzma)/+\Z",
    re.IGNORECASE,
)

# A hash in a URL, as pip finds it; pip rejects a file with an invalid hash.
HASH = re.compile(r"[#&](sha512|sha384|sha256|sha224|sha1|md5)=([^&]*)")

# To resolve a URL takes 40 times its memory, and quadratic time for a long server name.
_LONGEST = 65_536
_LONGEST_KEPT = 2_000  # for texts in a cache; real URLs have about 100 characters
_LONG_SERVER = re.compile(r"[^/?#]*/[\t\r\n]*/(?=[^/?#]*[^\0-\x7f])[^/?#]{1000}")

JSON_PAGE, HTML_PAGE = "index.json", "index.html"  # of saved pages in a directory

METADATA = ".metadata"  # the suffix of METADATA files (PEP 658), after a wheel's name
LONGEST_NAME = 255  # of a file on common file systems, in characters

REFUSED = "refused:"  # the prefix of a file's URL that the page must not name


@dataclass(frozen=True, kw_only=True, slots=True)
class CompleteResponse:
    """A response with as much of its body as the server sent.

    :param url: the URL after redirects.
    :param headers: the headers, with names in lower case.
    :param raw: the body as sent; ``body`` is decompressed.
    :param is_whole: whether the end of the body was received.
    :param away: the first URL to which a redirect led and whose server gets no
        credentials; empty if there is none.
    """

    status: int
    url: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    raw: bytes = field(default=b"", repr=False)
    is_whole: bool = True
    away: str = ""


class UpstreamError(InputError):
    """An index or a file server did not respond as expected.

    :param url: the URL, which is shown without secrets.
    :param status: the HTTP status that describes the failure best.
    :param reply: the reply of the server, to pass on to an installer.
    :param places: arguments of `InputError`: ``hint``, or ``path`` instead of ``url``.
    """

    status = 502
    usual_hint = "check the URL"
    page: CompleteResponse | None = None  # which this program cannot read

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
            places = {"path": url, "hint": self.usual_hint, **places}
        super().__init__(message, **places)
        self.reply = reply
        if status is not None:
            self.status = status


class NoRangesError(UpstreamError):
    """A server does not support range requests."""

    usual_hint = "download it first"


class TooLargeError(UpstreamError):
    """A response or a file is larger than the limit of its reader."""


class PassingError(UpstreamError):
    """A failure that may be temporary.

    :param wait: the waiting time in seconds that the server requests, or ``None``.
    """

    status = 504
    wait: float | None = None


class TooSlowError(PassingError):
    """A response takes longer than this program waits; an installer may wait longer."""


ALGORITHMS = ("sha256", "sha512", "sha384", "sha224", "sha1", "md5")
"""The hash algorithms that pip checks, in the order of preference."""


def find_other(content: bytes, hashes: Mapping[str, str]) -> str | None:
    """Return the algorithm of the preferred hash unless ``content`` has this hash."""
    name = next((name for name in ALGORITHMS if hashes.get(name)), None)
    if name is None:
        return None
    import hashlib

    found = hashlib.new(name, content, usedforsecurity=False).hexdigest()
    return None if found == hashes[name].lower() else name


def is_http(location: str) -> bool:
    """Return whether ``location`` is an HTTP or HTTPS URL rather than a path."""
    return location[:6].lower().startswith(("http:", "https:"))


def why_no_index(location: str) -> tuple[str, str]:
    """Return why no index can be read at a location, and a hint.

    :param location: a URL that nvp does not read, or a path that is not a directory.
    """
    scheme, mark, _ = location.partition("://")
    if is_http(location):
        message = "plain HTTP is for this machine and for trusted hosts"
        return message, "give an https URL, or --trusted-host"
    if mark and scheme != "file":
        return f"no index is read by {scheme}", "give an https URL or a directory"
    return "there is no such directory", "give an existing directory, or an https URL"


def file_name(url: str) -> str:
    """Return the unquoted file name in ``url``; empty if there is none."""
    folder, _, name = url.rpartition("/")
    # Shortcut: a page can have 40,000 URLs, and splitting each takes 10 µs.
    is_odd = folder.count("/") < 2 or _ODD.search(folder)
    if not is_odd and _PLAIN_NAME.fullmatch(name):
        return name
    try:
        return unquote(urlsplit(url).path.rpartition("/")[2])
    except ValueError:  # for example, in "http://[::1"
        return ""


def identifying_query(url: str, name: str) -> str:
    """Return a hash of the parts of a URL that identify a file and may be secret.

    These are the parameters in the path, and the query, unless the path ends with the
    file name: then the query may be a signature that differs between pages.

    :returns: ``""`` without such parts.
    """
    place, _, query = url.partition("#")[0].partition("?")
    if file_name(url) == name:
        query = ""
    if parameters := place.partition(";")[2]:
        query = f"{parameters}?{query}"
    if not query:
        return ""
    import hashlib

    # Names of local files that are not UTF-8 contain lone surrogates.
    return hashlib.sha256(query.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def with_suffix(url: str, suffix: str) -> str:
    """Add ``suffix`` to the path of ``url`` (PEP 658), before its query."""
    if not suffix:
        return url
    parts = urlsplit(url)
    return parts._replace(path=parts.path + suffix).geturl()


def path_of_file_url(url: str) -> str:
    """Convert a ``file:`` URL to a path of this operating system.

    The path is on this machine: to open a network path (UNC) would make Windows send a
    hash of the user's password to a server that a page names.
    """
    from urllib.request import url2pathname

    path = url2pathname(urlsplit(url).path)
    rest = path.lstrip("/\\")
    return path if len(path) - len(rest) < 2 else path[0] + rest


def is_loopback(host: str) -> bool:
    """Return whether ``host`` can only be this machine."""
    with suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of pip that decide how it connects to an index.

    :param timeout: the maximum number of seconds without data from the server.
    :param deadline: the time limit of a whole page or document in seconds.
    :param retries: the number of retries after a temporary failure such as HTTP 429 or
        503; 0 for installers, which retry themselves.
    :param trusted_hosts: entries of the form ``host`` or ``host:port``; their
        certificates are not verified, and they may use plain HTTP.
    :param plain_http: allow plain HTTP for every host, as pip does for the URL of a
        single file, but not for an index.
    :param trusts_pages: follow pages and redirects to any server, as pip does.
        Otherwise, public pages must not lead to a server that only this machine, or its
        network, can reach, because other users may see the result.
    :param cert: a file or directory of certificate authorities that replaces those of
        ``bundle``, the file of pip's certifi.
    :param trusts_system: also accept the certificates of the system.
    :param client_cert: a file with a certificate and its private key.
    :param proxy: the URL of the proxy for all requests.
    :param trust_env: use the proxy variables of the environment.
    :param no_proxy: the hosts for which these are not used, as in ``no_proxy``.
    :param netrc: the possible paths of a netrc file with users and passwords.
    """

    timeout: float = 15.0
    deadline: float = 120.0
    retries: int = 0
    trusted_hosts: Sequence[str] = ()
    plain_http: bool = False
    trusts_pages: bool = False
    cert: str | None = None
    bundle: str | None = None
    trusts_system: bool = True
    client_cert: str | None = None
    proxy: str | None = None
    trust_env: bool = True
    no_proxy: str | None = None
    netrc: Sequence[str] = ()

    def is_allowed(self, url: str) -> bool:
        """Return whether ``url`` is secure enough to be read, by the rules of pip."""
        parts = urlsplit(url)
        if parts.scheme == "https":
            return True
        if parts.scheme != "http":
            return False
        local = is_loopback(parts.hostname or "")
        # --trusted-host '*' allows plain HTTP, but pip still verifies certificates.
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
    """Return the scheme, host and port of ``url``: the scope of its credentials."""
    start = "/".join(url.split("/", 3)[:3])
    find = _server_of if len(start) <= _LONGEST_KEPT else _server_of.__wrapped__
    return find(start)


@lru_cache(maxsize=1024)
def _server_of(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    if len(host) <= _LONGEST_KEPT and (":" in host or not host.isascii()):
        import httpx

        # Responses have the URL in this form: in ASCII, and without a default port.
        with suppress(httpx.InvalidURL, ValueError):
            host = httpx.URL(url).netloc.decode("ascii")
    return f"{parts.scheme}://{host}"


def nearest_url(url: str, known: Iterable[str]) -> str | None:
    """Return the URL on the server of ``url`` that shares most directories with it.

    By the same rule, pip chooses a login: the indexes of a server may have several.
    """
    server, path = server_of(url), directory_of(url)
    return max(
        (other for other in known if server_of(other) == server),
        key=lambda other: (
            len(commonpath([path, directory_of(other)])),
            path == directory_of(other),
        ),
        default=None,
    )


def directory_of(url: str) -> str:
    """Return the path of ``url``, with one slash at its end."""
    return f"{urlsplit(url).path.rstrip('/')}/"


def split_credentials(url: str) -> tuple[str, tuple[str, str] | None]:
    """Split ``url`` into the URL without credentials, and the user and password.

    :raises ValueError: it is not a URL; the message has no part of it.
    """
    try:
        parts = urlsplit(url)
        pair, at, host = parts.netloc.rpartition("@")
        if not at:
            return url, None
        bare = urlunsplit(parts._replace(netloc=host))
        urlsplit(bare)  # a bracket may have been in the password
    except ValueError:
        raise ValueError("its server is malformed") from None
    user, _, password = pair.partition(":")
    return bare, (unquote(user), unquote(password))


def is_plain(reference: str) -> bool:
    """Return whether all clients read a URL of a page or of a redirect in the same way.

    They refuse or correct other characters, slashes and dots, each in its own way.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None or _ODD_PATH.search(unquote(match["path"])):
        return False
    is_absolute, first = match["server"], match["path"].partition("/")[0]
    return bool(is_absolute) or not ("//" in match["path"] or ":" in first)


def absolute_url(reference: Any, base: str) -> str | None:
    """Return the absolute URL of a link; ``None`` if it is not a URL."""
    if not isinstance(reference, str) or is_long(reference, base):
        return None
    if _PLAIN_URL.fullmatch(reference):
        return reference
    if match := _PLAIN_PATH.fullmatch(reference):
        find = _folder if len(reference) + len(base) <= _LONGEST_KEPT else _join
        folder = find(match[1] or "./", base)
        return None if folder is None else folder + match[2]
    return _join(reference, base)


def is_long(reference: str, base: str) -> bool:
    """Return whether it would take too much time or memory to resolve a link."""
    is_large = len(reference) + 32 * len(base) > _LONGEST  # each may repeat the base
    return is_large or any(map(_LONG_SERVER.match, (reference, base)))


def _join(reference: str, base: str) -> str | None:
    try:
        url = urljoin(base, reference.strip())
        parts = urlsplit(url)
        valid = parts.port is None or parts.port >= 0
        split_credentials(url)  # what is left must be a URL, too
    except ValueError:
        return None
    return url if valid and parts.scheme and is_text(url) else None


_folder = lru_cache(maxsize=1024)(_join)


def is_text(value: Any) -> bool:
    """Return whether a value is text without lone surrogates, which JSON allows."""
    with suppress(UnicodeEncodeError):
        return isinstance(value, str) and (value.isascii() or bool(value.encode()))
    return False


def is_file_name(name: str) -> bool:
    """Return whether a file system, and Python for its version, allow this name."""
    return len(name) <= LONGEST_NAME and is_text(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFile:
    """A file that a project page or a directory lists.

    :param url: the URL of the file including secrets, or the path of a local file.
    :param page: the URL of the page, after redirects; ``None`` if no server lists the
        file.
    :param near: the `Nearness` of the page, for a process that resolves names again.
    :param time: the time of the upload or modification, in seconds since 1970; ``None``
        if unknown.
    :param sha256: the SHA-256 on the page, if any.
    :param size: the size in bytes; ``None`` if unknown.
    :param requires_python: the ``Requires-Python`` of the file, from the page.
    :param yanked: whether installers select the file only for an exact pin.
    :param core_metadata: the SHA-256 of the METADATA file (PEP 658); empty if unknown,
        and ``None`` without such a file.
    """

    name: str
    url: str = field(repr=False)
    page: str | None = None
    near: int = 0
    time: float | None = None
    sha256: str | None = None
    size: int | None = None
    requires_python: str | None = None
    yanked: bool = False
    core_metadata: str | None = None

    @property
    def path(self) -> str:
        """The path of the file, or its URL without secrets, for messages."""
        return redacted(self.url)


def local_file(path: str, sha256: str | None = None) -> IndexFile:
    """Return the entry of a local file; errors are reported when the file is read."""
    time = size = None
    with suppress(OSError, ValueError):
        status = os.stat(path)
        time, size = status.st_mtime, status.st_size
    name = os.path.basename(path)
    return IndexFile(name=name, url=path, time=time, sha256=sha256, size=size)
