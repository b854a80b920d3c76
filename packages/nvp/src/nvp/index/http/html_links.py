"""The links of an HTML page, read by lxml in pieces.

pip's `html.parser` takes quadratic time for a page of unclosed tags or comments, and
pages are untrusted. lxml reports each tag as libxml2 reads it, in linear time and
without a tree, by the rules of the HTML standard. Results differ only if pip
violates the standard: for a duplicate ``href`` (the first one counts here), and tags in
the text of a title.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

_PIECE = 64 * 1024
_PIECES = 4
"""The maximum number of pieces of a tag or comment. The attributes of a tag take 25
times as much memory as its text."""

_NAMES = 10_000
"""The maximum number of different names of tags and attributes, which libxml2 keeps in
memory. HTML has about 300."""

_TAGS, _BYTES_OF_TAG = 100_000, 20
"""The maximum number of tags: `_TAGS`, plus one for every `_BYTES_OF_TAG` bytes of the
page, because parsing a tag takes some microseconds. Tags on PyPI have 120 bytes."""

_TEXT = 1000
"""The number of characters of a link's text to keep; names of projects are shorter."""

_META = "pypi:"
"""The prefix of the names of ``<meta>`` elements for clients of an index."""

_BASE = re.compile(rb"<base[\s/>]", re.IGNORECASE)
_CHARSET = re.compile(r"charset=\"?([\w.:-]+)", re.IGNORECASE)

_NOT_OF_PAGES = ("idna", "punycode")
"""Encodings of host names, which Python decodes in quadratic time."""


class TooMuchError(ValueError):
    """A page has more of something than any real page."""


class Link:
    """A link of a page: its attributes, and the start of its text."""

    __slots__ = ("attributes", "text")

    def __init__(self, attributes: dict[str, str]) -> None:
        self.attributes = attributes
        self.text = ""


class _Target:
    """Receives the events of the parser, and collects links."""

    def __init__(self, metas: list[tuple[str, str]]) -> None:
        self.metas = metas
        self.links: list[Link] = []
        self.base: str | None = None
        self.names: set[str] = set()
        self.moves = False
        self._open: Link | None = None

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Add a link or ``<meta>``, or set the base: HTML uses the first ``<base>``."""
        self.moves = True
        self.names.add(tag)
        if attributes:
            self.names.update(attributes)
        if tag == "a":
            self._open = None
            if attributes.get("href"):
                self._open = Link(dict(attributes))
                self.links.append(self._open)
        elif tag == "base" and self.base is None:
            self.base = attributes.get("href")
        elif tag == "meta" and attributes.get("name", "").startswith(_META):
            name = attributes["name"].removeprefix(_META)
            self.metas.append((name, attributes.get("content", "")))

    def end(self, tag: str) -> None:
        """End the text of a link."""
        self.moves = True
        if tag == "a":
            self._open = None

    def data(self, text: str) -> None:
        """Add to the text of a link."""
        self.moves = True
        if self._open is not None and len(self._open.text) < _TEXT:
            self._open.text += text[:_TEXT]

    def comment(self, _: str) -> None:
        """Record that the parser has passed a comment."""
        self.moves = True

    def close(self) -> None:
        """End the page."""


def find_base(body: bytes, content_type: str) -> str | None:
    """Return the ``href`` of the first ``<base>`` of a page.

    :raises ValueError: the page is not text.
    """
    # The search fails for encodings such as UTF-16, which have NUL bytes.
    if not _BASE.search(body) and b"\0" not in body:
        return None
    target = _Target([])
    for _ in _parse(body, content_type, target):
        target.links.clear()
        if target.base is not None:
            break
    return target.base


def read_links(
    body: bytes, content_type: str, metas: list[tuple[str, str]] | None = None
) -> Iterator[Link]:
    """Yield the links of a page that have an ``href``, in their order.

    :param content_type: the header that names the encoding; UTF-8 by default.
    :param metas: receives the name and content of each ``<meta name="pypi:NAME">``.
    :raises ValueError: the page is not text.
    :raises TooMuchError: the page exceeds a limit.
    """
    target = _Target([] if metas is None else metas)
    for _ in _parse(body, content_type, target):
        # The text of the last link may continue in the next piece.
        yield from target.links[:-1]
        del target.links[:-1]
    yield from target.links


def _parse(body: bytes, content_type: str, target: _Target) -> Iterator[None]:
    """Parse a page, and yield after each piece."""
    from lxml import etree  # imported here, since most pages are JSON

    most = _TAGS + len(body) // _BYTES_OF_TAG
    if body.count(b"<") > most:
        raise TooMuchError(f"it has more than {most} tags")
    parser = etree.HTMLParser(target=target, encoding="utf-8")
    standing = 0
    for piece in _decode(body, content_type):
        target.moves = False
        try:
            parser.feed(piece)
        except etree.LxmlError as error:
            raise ValueError(str(error)) from None
        standing = 0 if target.moves else standing + 1
        if standing > _PIECES:
            longest = _PIECES * _PIECE // 1024
            raise TooMuchError(f"it has a tag or comment of more than {longest} KiB")
        if len(target.names) > _NAMES:
            raise TooMuchError(f"it has more than {_NAMES} kinds of tags")
        yield
    parser.close()
    yield


def _decode(body: bytes, content_type: str) -> Iterator[bytes]:
    """Decode a page, and yield it in UTF-8."""
    match = _CHARSET.search(content_type)
    decoder: codecs.IncrementalDecoder = codecs.getincrementaldecoder("utf-8")()
    try:
        if match and (name := codecs.lookup(match[1]).name) not in _NOT_OF_PAGES:
            b"x".decode(name, "replace")  # not every codec is for text
            decoder = codecs.getincrementaldecoder(name)()
    except LookupError:
        pass
    view = memoryview(body)
    for start in range(0, len(body), _PIECE):
        end = start + _PIECE
        try:
            yield decoder.decode(view[start:end], end >= len(body)).encode()
        except UnicodeEncodeError:
            raise ValueError("it has half of a character") from None
    if not body:
        yield b" "  # the parser rejects an empty page
