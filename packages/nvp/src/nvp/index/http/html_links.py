"""The links of an HTML page, read by lxml in pieces, and their files.

pip's `html.parser` takes quadratic time for a page of unclosed tags or comments, and
pages are untrusted. lxml reports each tag as soon as libxml2 reads it, in linear time,
without building a tree, and by the HTML standard. The results differ from pip's only if
pip violates the standard: if a tag has two ``href`` (here, the first is used), or a
title contains tags.
"""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from email.message import Message
from typing import Any

from simple_repository import model

from nvidia_variant_provider.errors import shown

from .kept_keys import ANNOUNCING, known_keys, private_keys, read_time, read_yanked
from .urls import HASH, absolute_url, file_name, is_file_name, is_plain

_PIECE = 64 * 1024
_PIECES = 4
"""The maximum length of a tag or comment, in pieces of `_PIECE` bytes. Attributes take
25 times as many bytes in memory as in the page."""

_NAMES = 10_000
"""The maximum number of different names of tags and attributes, which libxml2 keeps in
memory. HTML has about 300."""

_TAGS, _BYTES_OF_TAG = 100_000, 20
"""The maximum number of tags: `_TAGS`, plus one for every `_BYTES_OF_TAG` bytes of the
page, because parsing each takes microseconds. Tags on PyPI have about 120 bytes."""

_MOST_LINKS = 1_000_000
"""The maximum number of links. The list of all projects of PyPI has 0.8 million."""

_MOST_METAS = 1000
"""The maximum number of ``<meta>`` elements for clients. Real pages have up to ten."""

_TEXT = 1000
"""The maximum length of the stored text of a link; names of projects are shorter."""

_META = "pypi:"
"""The start of the name of ``<meta>`` elements for clients of an index."""

_BASE = re.compile(rb"<base[\s/>]", re.IGNORECASE)

_SPACE = rb"[ \t\r\n\f]"
_NAME = rb"[a-z][a-z0-9:_.-]*"
_VALUE = rb"""(?:"[^"\0]*"|'[^'\0]*'|[!#-&(-;?-_a-~]+(?<!/))"""
_ATTRIBUTE = re.compile(
    b"%b+(%b)(?:%b*=%b*(%b))?" % (_SPACE, _NAME, _SPACE, _SPACE, _VALUE), re.IGNORECASE
)
_ATTRIBUTES = b"(?:%b+%b(?:%b*=%b*%b)?)*" % (_SPACE, _NAME, _SPACE, _SPACE, _VALUE)
_TOKEN = re.compile(
    b"|".join(
        [
            rb"[^<\0]+",
            rb"<!doctype html[^<>\0]*>",
            rb"<!--(?!>|->)[^-\0]*(?:-(?!-)[^-\0]*)*-->",
            rb"<title>[^<\0]*</title>",
            b"<(?P<raw>script|style)%b%b*>" % (_ATTRIBUTES, _SPACE)
            + rb"(?:[^<\0]|<(?![a/!?]))*</(?P=raw)>",
            b"</h[1-6]/>|</[a-z][a-z0-9]*%b*>" % _SPACE,
            b"<[bh]r/>",
            b"<(?P<element>[a-z][a-z0-9]*)(?P<attributes>%b)" % _ATTRIBUTES
            + b"(?:%b*|%b+/|(?<=[\"'])/)>" % (_SPACE, _SPACE),
        ]
    ),
    re.IGNORECASE,
)
"""The parts of a page that all parsers of HTML read in the same way."""

_ELEMENTS = frozenset(
    b"a abbr address article aside b base body br center code dd div dl dt em font "
    b"footer form h1 h2 h3 h4 h5 h6 head header hr html i img input label li link main "
    b"meta nav ol p pre s section small span strong sub sup table tbody td tfoot th "
    b"thead time tr tt u ul".split()
)
"""The elements of a plain page, in which links are links for all parsers."""

_READ = (b"a", b"base", b"meta")
"""The elements whose attributes are read."""

_ENTITY = re.compile(
    "&(?:amp|lt|gt|quot|#(?:3[2-9]|[4-9][0-9]|1[01][0-9]|12[0-6])"
    "|#[xX](?:2[0-9a-fA-F]|[3-6][0-9a-fA-F]|7[0-9a-eA-E]));"
)
"""The references to characters that all parsers resolve in the same way."""

_FRAGMENT = re.compile("[A-Za-z0-9_-]*|(?:sha256|sha384|sha512|md5)=[0-9A-Fa-f]+")
"""The fragments of URLs that mean the same to pip and uv. Only pip or only uv checks
other hashes, and ``egg=`` makes pip skip a file."""

_SIZE = re.compile("[0-9]{1,18}")
_TIME = re.compile(
    r"[0-9-]{10}T[0-9:]{8}(?:\.[0-9]{1,9})?(Z|[+-][01][0-9]:[0-5][0-9])?"
)

_ANNOUNCING = ("data-core-metadata", "data-dist-info-metadata")
"""The attributes that announce METADATA (PEP 714); the first one counts."""

_CHARSETS = ("ascii", "iso8859-1", "cp1252")
"""The encodings in which ASCII has the same bytes as in UTF-8."""

_NOT_OF_PAGES = frozenset(
    ("idna", "punycode", "utf-7", "unicode-escape", "raw-unicode-escape")
)
"""Encodings that no page has, and that Python decodes in quadratic time."""


class TooMuchError(ValueError):
    """A page exceeds a limit that no real page reaches."""


class Link:
    """A link of a page: its attributes, and the start of its text."""

    __slots__ = ("attributes", "text")

    def __init__(self, attributes: dict[str, str]) -> None:
        self.attributes = attributes
        self.text = ""


class _Target:
    """Receives the events of the parser, and collects the links of a page."""

    def __init__(self, metas: list[tuple[str, str]]) -> None:
        self.metas = metas
        self.links: list[Link] = []
        self.base: str | None = None
        self.names: set[str] = set()
        self.moves = False
        self._open: Link | None = None

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Record a link, a ``<meta>``, or the first ``<base>``, which HTML uses."""
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
        """End the text of the current link."""
        self.moves = True
        if tag == "a":
            self._open = None

    def data(self, text: str) -> None:
        """Add to the text of the current link, if any."""
        self.moves = True
        if self._open is not None and len(self._open.text) < _TEXT:
            self._open.text += text[:_TEXT]

    def comment(self, _: str) -> None:
        """Record that the parser has passed a comment."""
        self.moves = True

    def close(self) -> None:
        """End the page; lxml requires this method."""


def find_base(body: bytes, content_type: str) -> str | None:
    """Return the ``href`` of the first ``<base>`` of a page.

    :raises ValueError: the page is not text.
    """
    # The search misses tags in encodings such as UTF-16, whose text has NUL bytes.
    if not _BASE.search(body) and b"\0" not in body:
        return None
    target = _Target([])
    for _ in _parse(body, content_type, target):
        target.links.clear()
        if target.base is not None:
            break
    return target.base


def find_plain_base(body: bytes, content_type: str) -> str:
    """Return the ``href`` of the only ``<base>`` of a page, or an empty text.

    :raises ValueError: not all installers find the same one.
    """
    page = b"".join(_decode(body, content_type))
    _, tag, rest = page.lower().partition(b"<base")
    if not tag:
        return ""
    end = len(page) - len(rest.partition(b">")[2])
    if tag in rest or not is_plain_page(page[:end], "text/html"):
        raise ValueError("not all installers find the same <base> on it")
    return find_base(page, "text/html") or ""


def read_links(
    body: bytes, content_type: str, metas: list[tuple[str, str]] | None = None
) -> Iterator[Link]:
    """Yield the links of a page that have an ``href``, in the order of the page.

    :param content_type: the header with the encoding, which is UTF-8 by default.
    :param metas: receives the name and content of each ``<meta name="pypi:NAME">``.
    :raises ValueError: the page is not text, or its encoding is unknown.
    :raises TooMuchError: the page exceeds a limit.
    """
    target = _Target([] if metas is None else metas)
    few = at_most(_MOST_LINKS, "links")
    for _ in _parse(body, content_type, target):
        # The text of the last link may continue in the next piece.
        few(len(links := target.links[:-1]))
        yield from links
        del target.links[:-1]
    yield from target.links


def at_most(most: int, what: str) -> Callable[[int], None]:
    """Return a function that counts parts of a page, and raises `TooMuchError`."""
    left = most

    def few(number: int) -> None:
        nonlocal left
        left -= number
        if left < 0:
            raise TooMuchError(f"it has more than {most} {what}")

    return few


def _is_for_all(reference: str) -> bool:
    """Return whether all installers read the reference of a link in the same way."""
    url, _, fragment = reference.partition("#")
    return (
        is_plain(reference)
        and bool(_FRAGMENT.fullmatch(fragment))
        # uv takes the text after the last slash for the name, and pip such a hash.
        and "/" not in url.partition("?")[2]
        and not HASH.search(url)
    )


def is_plain_page(body: bytes, content_type: str) -> bool:
    """Return whether pip, browsers and this module find the same links on a page.

    pip's parser violates the HTML standard, for example for comments, two attributes of
    one name, and entities without a semicolon. No list of such cases would be complete,
    so a plain page has only the parts that all parsers read in the same way.
    """
    charset = codecs.lookup(_charset(content_type)).name
    if charset != "utf-8" and not (charset in _CHARSETS and body.isascii()):
        return False  # uv reads every page as UTF-8
    page = b"".join(_decode(body, content_type))
    if len(_BASE.findall(page)) > 1:
        return False
    position, can_move = 0, True
    while position < len(page):
        token = _TOKEN.match(page, position, position + _PIECES * _PIECE)
        if token is None:
            return False
        position = token.end()
        element = (token["element"] or b"br").lower()
        if element not in _ELEMENTS:
            return False
        if element in _READ and not _are_plain(token["attributes"]):
            return False
        if element == b"base" and not can_move:
            return False  # uv looks for a base only before the first link
        can_move = can_move and element not in (b"a", b"link")
    return True


def _are_plain(attributes: bytes) -> bool:
    found = _ATTRIBUTE.findall(attributes)
    if not all(value for _, value in found):
        return False  # pip ignores ``data-yanked`` without a value, but uv does not
    if len(found) != len({name.lower() for name, _ in found}):
        return False
    text = _ENTITY.sub(" ", attributes.decode())
    return html.unescape(text) == text


def in_utf_8(start: str, body: bytes, content_type: str) -> bytes:
    """Return a page in UTF-8 that begins with a tag; other parsers read the rest.

    :raises ValueError: the page is not text, or its encoding is unknown.
    """
    return start.encode() + b"".join(_decode(body, content_type))


def _parse(body: bytes, content_type: str, target: _Target) -> Iterator[None]:
    """Parse a page in pieces; after each, yield so the caller can read ``target``."""
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
        if len(target.metas) > _MOST_METAS:
            raise TooMuchError(f"it has more than {_MOST_METAS} keys in <meta>")
        yield
    parser.close()
    yield


def _charset(content_type: str) -> str:
    if len(content_type) > 1024:  # Python's parser takes quadratic time
        raise ValueError("its Content-Type is too long")
    message = Message()
    message["content-type"] = content_type
    return str(message.get_param("charset") or "utf-8")


def _decode(body: bytes, content_type: str) -> Iterator[bytes]:
    """Decode a page like pip, and yield it in pieces of UTF-8."""
    charset = _charset(content_type)
    try:
        if codecs.lookup(charset).name in _NOT_OF_PAGES:
            raise LookupError(charset)  # noqa: TRY301
        b"x".decode(charset, "replace")  # fails for codecs that are not for text
        decoder: codecs.IncrementalDecoder = codecs.getincrementaldecoder(charset)()
    except LookupError:
        raise ValueError(f"its encoding {shown(charset)} is unknown") from None
    view = memoryview(body)
    for start in range(0, len(body), _PIECE):
        end = start + _PIECE
        try:
            yield decoder.decode(view[start:end], end >= len(body)).encode()
        except UnicodeEncodeError:
            raise ValueError("it has half of a character") from None
    if not body:
        yield b" "  # the parser rejects an empty page


def is_plain_link(link: Link, base: str) -> bool:
    """Return whether all installers read a link in the same way."""
    get = link.attributes.get
    href, url = _places(link, base)
    announced = {link.attributes[x] for x in _ANNOUNCING if x in link.attributes}
    return (
        url is not None
        and _is_for_all(link.attributes["href"])
        and is_file_name(file_name(url))
        and bool(href or not file_name(base))  # only for pip, "#" is the base
        # pip reads "false" as true, and each pip only some of the attributes.
        and (not announced or (len(announced) == 1 and bool(_announced(link))))
        and bool(_SIZE.fullmatch(get("data-size") or "0"))
        and _is_time(get("data-upload-time", "2000-01-01T00:00:00Z"))
    )


def _places(link: Link, base: str) -> tuple[str, str | None]:
    """Return the reference of a link without its fragment, and its URL, if any."""
    href = link.attributes["href"].partition("#")[0]
    return href, absolute_url(href, base)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text[:19])
    except ValueError:
        return False
    return _TIME.fullmatch(text) is not None


def _announced(link: Link) -> bool | dict[str, str] | None:
    """Return the hash of METADATA (PEP 714), or whether there is METADATA.

    :returns: ``None`` without the attribute, or if pip or uv ignores its value.
    """
    text = next((link.attributes[x] for x in _ANNOUNCING if x in link.attributes), "")
    name, mark, value = text.partition("=")
    if mark and name in ("sha256", "sha384", "sha512", "md5"):
        return {name: value}
    return {"true": True, "false": False}.get(text)


def file_of_link(link: Link, base: str) -> model.File | None:
    """Return the file to which a link leads, if any."""
    get = link.attributes.get
    href, url = _places(link, base)
    match = _TIME.fullmatch(get("data-upload-time", ""))
    time = match[0] if match and match[1] else None  # uv ignores times without a zone
    size, yanked = get("data-size"), get("data-yanked")
    if not href or url is None:
        return None
    name = file_name(url)  # as pip does, whatever the text of the link is
    if not name or not is_file_name(name):
        return None
    metadata, known = _announced(link), known_keys(time)
    told: dict[str, Any] = dict.fromkeys(link.attributes.keys() & _ANNOUNCING, metadata)
    # Keep no keys for METADATA with a hash, which every installer may as well use.
    if metadata is True and len(told) < len(_ANNOUNCING):
        known = known.difference(ANNOUNCING)
    return model.File(
        filename=name,
        url=url,
        hashes=dict(HASH.findall(link.attributes["href"])[:1]),
        requires_python=get("data-requires-python"),
        dist_info_metadata=metadata,
        size=int(size) if size and _SIZE.fullmatch(size) else None,
        upload_time=read_time(time),
        gpg_sig={"true": True, "false": False}.get(get("data-gpg-sig", "")),
        yanked=read_yanked(True if yanked == "" else yanked),
        private_metadata=private_keys(
            {
                key.removeprefix("data-"): value
                for key, value in (link.attributes | told).items()
                if key.startswith("data-") and not key.startswith("data-_")
            },
            known,
            base,
        ),
    )
