"""Pages of indexes: what they say, as pip reads them.

The parser of simple-repository reads the text of a link for the name of its file,
knows no ``<base>``, spells URLs anew, and refuses a page for one bad entry; pip,
whose user waits for an answer, does none of that. Here what an entry cannot mean is
left out, and so is an entry without a usable URL.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from simple_repository import model

from ...errors import shown
from .byte_ranges import redacted
from .client import UpstreamError

__all__ = ["LABEL_KEY", "parse_page", "parse_projects"]

LABEL_KEY = "_variant-label"
"""On the files of a page that are shown under another name, and on the non-variant
wheels beside them, where it is null. PEP 700: "Keys (at any level) with a leading
underscore are reserved as private for index server use."
"""

# URLs that need no second look; others may have no port that is one, and the like.
_PLAIN_URL = re.compile(r"https?://[A-Za-z0-9.-]+/[!$-;=?-~]*")
# A file, maybe in another folder: only the folder has to be looked for, once.
_PLAIN_PATH = re.compile(r"((?:[A-Za-z0-9._~/%+-]*/)?)([A-Za-z0-9_][A-Za-z0-9._~%+-]*)")
_HASH = re.compile(r"(?:^|&)(sha512|sha384|sha256|sha224|sha1|md5)=([0-9A-Za-z]+)")
_PROJECT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_NO_PAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def parse_page(
    body: bytes, content_type: str, url: str, project: str
) -> model.ProjectDetail:
    """A project page with absolute URLs, spelled as the index spelled them.

    :param url: where it was found, after redirects.
    :raises UpstreamError: it is no page of a simple index.
    """
    is_json = _is_json(content_type, url)
    try:
        if is_json:
            return _read_json(json.loads(body), url, project)
        return _read_html(_decode(body, content_type), url, project)
    except _NO_PAGE as error:
        raise _no_page(error, url) from None


def parse_projects(body: bytes, content_type: str, url: str) -> model.ProjectList:
    """The projects of an index, but for names that are none.

    :raises UpstreamError: it is no list of projects.
    """
    is_json = _is_json(content_type, url)
    try:
        names: Iterable[Any]
        if is_json:
            names = [item.get("name") for item in json.loads(body)["projects"]]
        else:
            links = _Links(_decode(body, content_type))
            # Web servers list folders with a slash.
            names = [link.text.strip().rstrip("/") for link in links.found]
    except _NO_PAGE as error:
        raise _no_page(error, url) from None
    return model.ProjectList(
        meta=model.Meta("1.0"),
        projects=frozenset(
            model.ProjectListElement(name)
            for name in names
            if isinstance(name, str) and _PROJECT.fullmatch(name)
        ),
    )


def _is_json(content_type: str, url: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    if kind and not kind.endswith(("json", "html")):
        message = f"is {kind[:100]!a}, not a project page"
        raise _refusal(message, url)
    return kind.endswith("json")


def _no_page(error: Exception, url: str) -> UpstreamError:
    return _refusal(f"is no project page: {_defect(error)}", url)


def _defect(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no {shown(error.args[0])}"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(error, ValueError):
        return shown(str(error), 150)
    return "its parts have other types than those of a page"


def _refusal(message: str, url: str) -> UpstreamError:
    hint = "name an index (PEP 503, PEP 691)"
    return UpstreamError(message, path=redacted(url), hint=hint)


def _decode(body: bytes, content_type: str) -> str:
    """The text of a page; in UTF-8 unless its header says otherwise."""
    match = re.search(r"charset=\"?([\w.:-]+)", content_type, re.IGNORECASE)
    try:
        charset = codecs.lookup(match[1]).name if match else "utf-8"
        text = body.decode(charset)
    except LookupError:
        text = body.decode("utf-8")
    if not _is_text(text):
        raise ValueError("half characters")
    return text


def _read_json(document: Any, url: str, project: str) -> model.ProjectDetail:
    files = tuple(
        file
        for item in document["files"]
        if (file := _json_file(item, url)) is not None
    )
    version = Version(str(document.get("meta", {}).get("api-version", "1.0")))
    if version.major != 1:
        raise ValueError(f"version {version} of the interface")
    name = document.get("name")
    if not isinstance(name, str) or canonicalize_name(name) != project:
        name = project
    versions = document.get("versions")
    if not isinstance(versions, list) or not all(map(_is_version, versions)):
        versions = None
    # PEP 700 has all sizes from 1.1 on; some indexes claim that and do not.
    complete = all(file.size is not None for file in files)
    return model.ProjectDetail(
        meta=model.Meta(
            str(version) if complete else "1.0",
            private_metadata=_private(document.get("meta", {})),
        ),
        name=name,
        files=files,
        versions=None if versions is None else frozenset(versions),
        private_metadata=_private(document),
    )


def _json_file(item: Mapping[str, Any], url: str) -> model.File | None:
    name = item["filename"]
    found = _absolute(item["url"], url)
    if found is None or not isinstance(name, str) or not _is_text(name):
        return None
    requires = item.get("requires-python")
    # PEP 714: the new name of the key goes before the old one.
    metadata = item.get("core-metadata")
    if metadata is None:
        metadata = item.get("dist-info-metadata")
    yanked = item.get("yanked")
    size = item.get("size")
    signed = item.get("gpg-sig")
    return model.File(
        filename=name,
        url=urldefrag(found).url if "#" in found else found,
        hashes=_hashes(item.get("hashes")),
        requires_python=requires if _is_text(requires) else None,
        dist_info_metadata=_hashes(metadata) or True
        if isinstance(metadata, dict)
        else metadata
        if isinstance(metadata, bool)
        else None,
        gpg_sig=signed if isinstance(signed, bool) else None,
        yanked=yanked
        if yanked is None or (yanked and _is_text(yanked))
        else bool(yanked),
        size=size if type(size) is int and size >= 0 else None,
        upload_time=_time(item.get("upload-time")),
        private_metadata=_private(item),
    )


def _hashes(found: Any) -> dict[str, str]:
    if not isinstance(found, dict):
        return {}
    return {
        key: text
        for key, text in found.items()
        if _is_text(key) and _is_text(text) and text
    }


def _is_text(found: Any) -> bool:
    """Is it a text, and one that can be written down: JSON can halve a character."""
    if not isinstance(found, str):
        return False
    try:
        return found.isascii() or bool(found.encode())
    except UnicodeEncodeError:
        return False


def _is_version(found: Any) -> bool:
    try:
        return bool(Version(found))
    except (InvalidVersion, TypeError):
        return False


def _time(found: Any) -> datetime | None:
    if not isinstance(found, str) or not found.endswith("Z"):
        return None
    try:
        return datetime.fromisoformat(found[:-1])
    except ValueError:
        pass  # before Python 3.11 not with any number of digits
    try:
        return datetime.fromisoformat(found[:19])
    except ValueError:
        return None


def _private(found: Mapping[str, Any]) -> model.PrivateMetadataMapping:
    own = {key: found[key] for key in found if key.startswith("_")}
    own.pop(LABEL_KEY, None)  # ours
    if not own:
        return _NOTHING
    return model.PrivateMetadataMapping.from_any_mapping(own)


_NOTHING = model.PrivateMetadataMapping()


def _absolute(found: Any, base: str) -> str | None:
    """The URL that a page names; ``None`` when it is none."""
    if not isinstance(found, str):
        return None
    if _PLAIN_URL.fullmatch(found):
        return found
    if match := _PLAIN_PATH.fullmatch(found):
        folder = _folder(match[1] or "./", base)
        return None if folder is None else folder + match[2]
    return _join(found, base)


@lru_cache(maxsize=1024)
def _folder(found: str, base: str) -> str | None:
    return _join(found, base)


def _join(found: str, base: str) -> str | None:
    try:
        url = urljoin(base, found.strip())
        parts = urlsplit(url)
        valid = parts.port is None or parts.port >= 0
    except ValueError:
        return None
    return url if valid and parts.scheme and _is_text(url) else None


def _read_html(text: str, url: str, project: str) -> model.ProjectDetail:
    links = _Links(text)
    base = url if links.base is None else _absolute(links.base, url) or url
    files = (_html_file(link, base) for link in links.found)
    return model.ProjectDetail(
        meta=model.Meta("1.0"),
        name=project,
        files=tuple(file for file in files if file is not None),
    )


def _html_file(link: _Link, base: str) -> model.File | None:
    href, _, fragment = (link.attributes.get("href") or "").partition("#")
    url = _absolute(href, base)
    if not href or url is None:
        return None
    # The text of a link is anything, as "Download"; only its URL counts for pip.
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    if not name or not _is_text(name):
        return None
    get = link.attributes.get
    metadata = get("data-core-metadata")
    if metadata is None:
        metadata = get("data-dist-info-metadata")
    match = _HASH.search(fragment)
    signed = get("data-gpg-sig")
    return model.File(
        filename=name,
        url=url,
        hashes={match[1]: match[2]} if match else {},
        requires_python=get("data-requires-python"),
        dist_info_metadata=None if metadata is None else _html_metadata(metadata),
        gpg_sig=signed == "true" if signed in ("true", "false") else None,
        yanked=get("data-yanked") or True if "data-yanked" in link.attributes else None,
    )


def _html_metadata(text: str) -> bool | dict[str, str]:
    match = _HASH.fullmatch(text)
    return {match[1]: match[2]} if match else text != "false"


class _Link:
    def __init__(self, attributes: dict[str, str | None]) -> None:
        self.attributes = attributes
        self.text = ""


class _Links(HTMLParser):
    """The links of a page, and what their URLs are relative to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.base: str | None = None
        self.found: list[_Link] = []
        self._open = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a link, or the first base."""
        if tag == "a":
            self.found.append(_Link(dict(attrs)))
            self._open = True
        elif tag == "base" and self.base is None:
            self.base = dict(attrs).get("href")

    def handle_endtag(self, tag: str) -> None:
        """What follows is no text of a link."""
        if tag == "a":
            self._open = False

    def handle_data(self, data: str) -> None:
        """The text of a link."""
        if self._open:
            self.found[-1].text += data
