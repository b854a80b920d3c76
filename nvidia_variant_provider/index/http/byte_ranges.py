"""Reading project pages and files of a simple index over HTTP, within bounds.

Pages in HTML (PEP 503) and JSON (PEP 691); wheels by range requests, so that
looking into one does not download it.
"""

from __future__ import annotations

import base64
import http.client
import io
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import InputError, MissingExtraError
from ...strict_json import MAX_BYTES

__all__ = ["ACCEPT", "RangeFile", "RemoteFile", "fetch", "read_page", "redacted"]

TIMEOUT = 20.0
"""Seconds without an answer."""

DEADLINE = 120.0
"""Seconds for the whole of one answer: a server may send a byte at a time."""

ACCEPT = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
    "text/html;q=0.1"
)
"""What a client of a simple index asks for, JSON first."""

AskRange = Callable[[str, int], "tuple[bytes, Mapping[str, str]]"]
"""``bytes=...`` and how many these are at most, to these bytes and the headers of the
answer in small letters."""

_CREDENTIALS = re.compile(r"(https?://)([^/?#]*)@")
_QUERY = re.compile(r"(https?://[^\s?#]*\?)([^\s#]*)")
_VALUE = re.compile(r"(?<==)[^&;]+|(?<![^&;])[^=&;]+(?![^&;])")
"""What follows an equals sign, or a part of a query that has none."""

_CHUNK = 65536
_BLOCK = 256 * 1024
_AHEAD = 16
"""Blocks that are asked for at once, at most, while a file is read in its order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFile:
    """A file that a project page lists.

    :param time: when it was uploaded, in seconds since 1970; ``None``: unknown.
    """

    name: str
    url: str
    time: float | None


def read_page(url: str) -> list[RemoteFile]:
    """The files of a project page.

    :raises InputError: there is no such page, or it is none.
    :raises MissingExtraError: the extra ``index`` is not installed.
    """
    try:
        from .pages import parse_page
    except ImportError:
        hint = "pip install 'nvidia-variant-provider[index]'"
        message = "reading a page needs the extra index"
        raise MissingExtraError(message, hint=hint) from None
    data, headers, base = _get(url, {"Accept": ACCEPT})
    page = parse_page(data, headers.get("content-type", ""), base, "project")
    return [
        RemoteFile(
            name=file.filename,
            url=_with_credentials(file.url, url),
            time=file.upload_time.timestamp() if file.upload_time else None,
        )
        for file in page.files
    ]


def fetch(url: str) -> bytes:
    """The bytes of a file of at most 64 MiB.

    :raises InputError: it cannot be had.
    """
    return _get(url, {})[0]


def redacted(url: str) -> str:
    """``url`` as it may be shown: without the user and password in it.

    Nor the values of its query: a URL that is signed is as good as a password.
    """
    bare = _CREDENTIALS.sub(r"\1****@", url, count=1)
    return _QUERY.sub(lambda match: match[1] + _VALUE.sub("****", match[2]), bare)


def _with_credentials(url: str, page: str) -> str:
    """``url`` with the user and password of ``page``, on the same server."""
    match = _CREDENTIALS.match(page)
    if match is None:
        return url
    bare = _CREDENTIALS.sub(r"\1", page, count=1)
    here, there = map(urllib.parse.urlsplit, (bare, url))
    if (here.scheme, here.netloc) != (there.scheme, there.netloc):
        return url
    return match[0] + url[len(match[1]) :]


def _get(url: str, headers: Mapping[str, str]) -> tuple[bytes, Mapping[str, str], str]:
    """Body, headers with small names, and the URL after redirects."""
    try:
        with _open(url, headers) as answer:
            found = {key.lower(): value for key, value in answer.headers.items()}
            return _read(answer, url, MAX_BYTES), found, answer.url
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, InputError):
            raise
        raise _failure(error, url) from None


def _open(url: str, headers: Mapping[str, str]) -> Any:
    if not url.startswith(("http://", "https://")):
        message = "only http and https are read"
        raise InputError(message, path=url, hint="check the page's links")
    match = _CREDENTIALS.match(url)
    bare = _CREDENTIALS.sub(r"\1", url, count=1)
    request = urllib.request.Request(bare, headers=dict(headers))  # noqa: S310
    if match is not None:
        # Not to be sent along to where a redirect leads.
        pair = urllib.parse.unquote_to_bytes(match[2])
        pair = pair if b":" in pair else pair + b":"
        basic = base64.b64encode(pair).decode("ascii")
        request.add_unredirected_header("Authorization", f"Basic {basic}")
    return urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310


def _read(answer: Any, url: str, limit: int) -> bytes:
    data = bytearray()
    end = time.monotonic() + DEADLINE
    while chunk := answer.read(_CHUNK):
        data += chunk
        if len(data) > limit:
            message = f"larger than {limit // 1024 // 1024} MiB"
            raise InputError(message, path=url, hint="this is not what was asked for")
        if time.monotonic() > end:
            message = f"not complete after {DEADLINE:g} s"
            raise InputError(message, path=url, hint="try again, or ask the index")
    expected = answer.headers.get("Content-Length")
    if expected is not None and expected.isdecimal() and len(data) < int(expected):
        message = f"cut off after {len(data)} of {expected} bytes"
        raise InputError(message, path=url, hint="try again")
    return bytes(data)


def _failure(error: Exception, url: str) -> InputError:
    reason = getattr(error, "reason", None) or str(error) or type(error).__name__
    if isinstance(error, urllib.error.HTTPError):
        reason = f"HTTP {error.code} {error.reason}"
    elif isinstance(error, TimeoutError):
        reason = f"no answer within {TIMEOUT:g} s"
    return InputError(f"cannot be read: {reason}", path=url, hint="check the URL")


class RangeFile(io.RawIOBase):
    """A remote file that is read in pieces, where they are asked for.

    :param ask: how to ask for a range, instead of over a connection of its own.
    :raises InputError: by any read, when the server does not serve ranges.
    """

    def __init__(self, url: str, ask: AskRange | None = None) -> None:
        super().__init__()
        self._url = url
        self._request = ask or self._ask
        self._position = 0
        self._blocks: dict[int, bytes] = {}
        self._following, self._count = -1, 0
        self._size = self._find_size()

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be read from anywhere."""
        return True

    def tell(self) -> int:
        """Where the next read starts."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set where the next read starts."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = max(0, base[whence] + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``; less only at the end of the file."""
        end = min(self._position + len(buffer), self._size)
        start = self._position
        while self._position < end:
            block, skip = divmod(self._position, _BLOCK)
            piece = self._block(block)[skip : skip + end - self._position]
            at = self._position - start
            buffer[at : at + len(piece)] = piece
            self._position += len(piece)
        return self._position - start

    def _find_size(self) -> int:
        # The end is what a zip file is read from: ask for it at once.
        _, headers = self._request(f"bytes=-{_CHUNK}", _CHUNK)
        match = re.fullmatch(
            r"bytes \d+-\d+/(\d{1,18})", headers.get("content-range", "")
        )
        if match is None:
            message = "the server does not say how long it is"
            raise InputError(message, path=self._url, hint="download it first")
        return int(match[1])

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            # A list is read here and there, a large member from end to end.
            ahead = 2 * self._count if number == self._following else 1
            self._count = min(ahead, _AHEAD)
            self._following = number + self._count
            start = number * _BLOCK
            end = min(self._following * _BLOCK, self._size) - 1
            data, _ = self._request(f"bytes={start}-{end}", end - start + 1)
            if len(data) != end - start + 1:
                message = "the server sent another range than it was asked for"
                raise InputError(message, path=self._url, hint="download it first")
            if len(self._blocks) > 32:
                self._blocks.clear()
            for index in range(self._count):
                piece = data[index * _BLOCK : (index + 1) * _BLOCK]
                self._blocks[number + index] = piece
        return self._blocks[number]

    def _ask(self, asked: str, limit: int) -> tuple[bytes, Mapping[str, str]]:
        try:
            with _open(self._url, {"Range": asked}) as answer:
                if answer.status != 206:
                    message = "the server does not serve parts of files"
                    raise InputError(message, path=self._url, hint="download it first")
                headers = {k.lower(): v for k, v in answer.headers.items()}
                return _read(answer, self._url, limit), headers
        except (OSError, ValueError, http.client.HTTPException) as error:
            if isinstance(error, InputError):
                raise
            raise _failure(error, self._url) from None
