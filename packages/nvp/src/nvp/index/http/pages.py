"""Parse pages of indexes (PEP 503, PEP 691) like pip.

The parser of simple-repository (0.11.1) uses the text of a link as the file name,
ignores ``<base>``, quotes quoted URLs again, and rejects a whole page for one bad
entry. This parser omits invalid values, and entries without a usable URL.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from html import escape
from itertools import islice
from typing import Any
from urllib.parse import urldefrag, urljoin

from packaging.utils import canonicalize_name
from simple_repository import model

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.strict_json import (
    LIST_MEMORY,
    OBJECT_MEMORY,
    VALUE_MEMORY,
    check_memory,
)

from .html_links import (
    TooMuchError,
    at_most,
    file_of_link,
    find_base,
    find_plain_base,
    in_utf_8,
    is_plain_link,
    is_plain_page,
    read_links,
)
from .kept_keys import (
    OF_FILES,
    OF_PAGES,
    check_distinct,
    check_hashes,
    count_keys,
    file_of_entry,
    fitting_meta,
    is_plain_entry,
    parse_version,
    private_keys,
    read_metas,
)
from .urls import (
    CompleteResponse,
    TooLargeError,
    UpstreamError,
    absolute_url,
    is_long,
    is_plain,
)

ACCEPT = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
    "text/html;q=0.1"
)
"""The ``Accept`` header of requests for pages, which prefers JSON."""

_TYPES = (
    "text/html",
    "application/vnd.pypi.simple.v1+html",
    "application/vnd.pypi.simple.v1+json",
)
"""The content types of pages; like pip, this parser rejects other types."""

_PROJECT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_FILES, _BYTES_OF_FILE = 25_000, 400
"""The maximum number of files: `_FILES`, plus one for every `_BYTES_OF_FILE` bytes. A
file takes a kilobyte of memory, even if its link is short. The page of PyPI with the
most files (ddtrace, November 2026) has 46,724 in 16.6 MB of HTML or 21.4 MB of JSON.
"""

_KEYS, _BYTES_OF_KEY = 100_000, 64
"""The maximum number of keys of an object, and of all unknown keys of a page, plus one
for each `_BYTES_OF_KEY` bytes. Each takes 400 bytes of memory. The algorithms of hashes
count, too: PyPI has up to four unknown keys for a file, which takes 458 bytes."""

_MOST_TAGS = 1_000_000
"""The maximum number of tags of a page for installers. Real pages have 3 for each file,
and lists of directories as tables have 14."""

_LEAST_MEMORY, _TIMES = 8 * 1024 * 1024, 4
"""The bytes of memory for the values of each JSON page, and for each of its bytes."""

_BYTES_OF_NAME = 64
"""The memory of the URL of a project, in addition to the URL of the index."""

_HINT = "give the URL of a simple index (PEP 503, PEP 691)"

_MOST_PROJECTS = 1_000_000
"""The most projects of an index. PyPI has 0.8 million."""

_PAGE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def parse_page(
    body: bytes, content_type: str, url: str, project: str, *, exact: bool = False
) -> model.ProjectDetail:
    """Parse a project page; its URLs become absolute, but keep their spelling.

    :param url: the URL of the page, after redirects.
    :param project: the normalized name of the project.
    :param exact: reject a page with invalid values that installers use to select or
        check files, instead of omitting the values.
    :raises UpstreamError: the body is not a page of a simple index.
    """
    url = _base(url)
    is_json = _is_json(content_type, url)
    try:
        if is_json:
            page = _read_json(body, url, project, exact=exact)
        else:
            page = _read_html(body, content_type, url, project, exact=exact)
        check_hashes(page.files, project)
    except _PAGE_ERRORS as error:
        raise _page_error(error, url) from None
    return page


def with_absolute_links(reply: CompleteResponse) -> CompleteResponse:
    """Return a reply whose page means the same at another place.

    Otherwise, a link such as ``../f/`` could lead to a file of another index behind
    the local one. If this module cannot read the links, or the base is relative, which
    pip does not resolve, or not the same for all installers, no installer can read the
    page of the result: pip uses the next index after an empty page.
    """
    kind, body = reply.headers.get("content-type", ""), reply.body
    if not kind.lower().startswith(_TYPES):
        return reply
    headers = {k: v for k, v in reply.headers.items() if k != "content-encoding"}
    try:
        url = _base(reply.url)
        if reply.raw and not body:
            raise ValueError("it cannot be decompressed")
        if _is_json(kind, url):
            text = body.decode(json.detect_encoding(body), "surrogatepass")
            check_memory(text, least=_LEAST_MEMORY, times=_TIMES)
            few = _most_files(body)

            def count(item: dict[str, Any]) -> dict[str, Any]:
                if "url" in item:
                    few(1)
                return item

            page = json.loads(text, object_hook=count)
            for item in page["files"]:
                if isinstance(item, dict) and isinstance(item.get("url"), str):
                    if is_long(item["url"], url):  # Python keeps the last ones
                        raise ValueError("a URL is too long")
                    item["url"] = urljoin(url, item["url"])
            # Escaped, a character would take up to six times its memory.
            raw = json.dumps(page, ensure_ascii=False).encode("utf-8", "surrogatepass")
        else:
            given = find_plain_base(body, kind)
            if is_long(given, url) or given not in ("", base := urljoin(url, given)):
                raise ValueError("its <base> is relative or long")
            raw = in_utf_8(f'<base href="{escape(base)}">', body, kind)
            kind = "text/html; charset=utf-8"
    except (*_PAGE_ERRORS, InputError):
        raw, kind = b"", _TYPES[-1]
    return replace(reply, raw=raw, headers={**headers, "content-type": kind})


def parse_projects(body: bytes, content_type: str, url: str) -> model.ProjectList:
    """Parse the list of projects of an index, and omit invalid names.

    :raises UpstreamError: the body is not a list of projects.
    """
    is_json = _is_json(content_type, _base(url))
    try:
        names: Iterable[Any]
        if is_json:
            names = _load_page(body, _name_of_project)["projects"]
        else:
            # Web servers list directories with a trailing slash.
            links = read_links(body, content_type)
            names = {link.text.strip().rstrip("/") for link in links}
        # Count names that are there twice, too: others may follow.
        found = list(islice(filter(_is_project, names), _MOST_PROJECTS + 1))
        if len(found) > _MOST_PROJECTS:
            raise TooMuchError(f"it has more than {_MOST_PROJECTS} projects")
    except _PAGE_ERRORS as error:
        raise _page_error(error, url) from None
    projects = frozenset(map(model.ProjectListElement, found))
    return model.ProjectList(meta=model.Meta("1.0"), projects=projects)


def find_projects(body: bytes, content_type: str, url: str) -> list[str]:
    """Return the URLs of the project pages to which the root page of an index links.

    The result is empty for any other page. In HTML, PEP 503 requires that these URLs
    end with a slash; links that lead out of the root, such as ``../``, are left out.

    :param url: the URL of the page, after redirects.
    :raises UpstreamError: the body is not of its declared type, JSON or HTML.
    """
    url = _base(url)
    root = f"{url.rstrip('/')}/"
    is_json = _is_json(content_type, url)
    # The root is in the URL of each project, and it can be long.
    most = (_LEAST_MEMORY + _TIMES * len(body)) // (len(root) + _BYTES_OF_NAME)
    try:
        found: Iterable[str]
        if is_json:
            document = _load_page(body, _name_of_project)
            if not isinstance(document, dict) or "projects" not in document:
                return []
            names = filter(_is_project, document["projects"])
            found = (f"{root}{canonicalize_name(name)}/" for name in names)
        else:
            base = _find_base(body, content_type, url)
            links = read_links(body, content_type)
            urls = (absolute_url(link.attributes.get("href"), base) for link in links)
            found = (x for x in urls if x and x.endswith("/") and x.startswith(root))
        projects = set(islice(found, most + 1))
        if len(projects) > most:
            raise TooMuchError(f"it has more than {most} projects")
    except _PAGE_ERRORS as error:
        raise _page_error(error, url) from None
    return sorted(projects - {root})


def _base(url: str) -> str:
    """Return the URL of a page without its query, which its links do not inherit.

    :raises UpstreamError: the URL is too long to repeat it in each link.
    """
    base = urldefrag(url).url.partition("?")[0]
    if absolute_url("./", base) is None:
        raise UpstreamError("has a URL that is too long", url[:200], hint=_HINT)
    return base


def _name_of_project(item: dict[str, Any]) -> Any:
    """Return the name in an entry of a project list; return other objects unchanged."""
    return item["name"] if "name" in item and "projects" not in item else item


def _is_project(name: object) -> bool:
    return isinstance(name, str) and bool(_PROJECT.fullmatch(name))


def _load_page(body: bytes, convert: Callable[[dict[str, Any]], Any]) -> Any:
    """Parse a page with limited memory.

    A list or an object of two bytes takes a hundred bytes of memory. So commas and
    brackets are counted first, and complete objects are replaced at once.

    :param convert: returns a replacement for an object, or the object itself.
    :raises ValueError: the page is not JSON.
    :raises TooMuchError: the values of the page would take too much memory.
    """
    left = _LEAST_MEMORY + _TIMES * len(body)
    if LIST_MEMORY * body.count(b"[") + VALUE_MEMORY * body.count(b",") > left:
        raise TooMuchError("it has too many values for its length")

    def keep(pairs: list[tuple[str, Any]]) -> Any:
        nonlocal left
        if len(pairs) > _KEYS:
            raise TooMuchError(f"it has an object with more than {_KEYS} keys")
        item = dict(pairs)
        if len(item) != len(pairs):
            raise ValueError("it has an object with two values for one key")
        kept = convert(item)
        if kept is item:
            left -= OBJECT_MEMORY
            if left < 0:
                raise TooMuchError("it has too many objects for its length")
        return kept

    return json.loads(
        body.decode(),
        object_pairs_hook=keep,
        parse_float=_finite,
        parse_constant=_finite,
    )


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a number in JSON")
    return number


def _is_json(content_type: str, url: str) -> bool:
    """Return whether a page is JSON; otherwise it is HTML.

    :raises UpstreamError: it is neither.
    """
    kind = content_type.lower()
    if not kind.startswith(_TYPES):
        message = f"is {kind[:100]!a}, not a project page"
        raise UpstreamError(message, url, hint=_HINT)
    return kind.startswith(_TYPES[-1])


def _page_error(error: Exception, url: str) -> UpstreamError:
    if isinstance(error, TooMuchError):
        hint = "no real page is like that: report it to the index"
        return TooLargeError(f"is refused: {error}", url, hint=hint)
    message = f"is not a project page: {_describe(error)}"
    return UpstreamError(message, url, hint=_HINT)


def _describe(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no {shown(error.args[0])}"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(error, ValueError):
        return shown(str(error), 150)
    return "its values have the wrong types"


def _read_json(
    body: bytes, url: str, project: str, *, exact: bool
) -> model.ProjectDetail:
    few, few_keys = _most_files(body), _most_keys(body)

    def make_file(item: dict[str, Any]) -> Any:
        few_keys(len(item.keys() - OF_FILES))
        if "filename" not in item or "url" not in item:
            return item
        few(1)
        file = file_of_entry(item, url)
        if exact and not (file and is_plain_entry(item, file)):
            raise ValueError(f"the entry of {shown(item['filename'])} is not valid")
        return file or _OMITTED

    document = _load_page(body, make_file)
    files = tuple(_files_of(document["files"]))
    if exact:
        check_distinct(files)
    given = document.get("meta", {}).get("api-version", "1.0")
    version = parse_version(str(given) if isinstance(given, float | int) else given)
    if version.major != 1:
        raise ValueError(f"version {version} of the API is not supported")
    name = document.get("name")
    if not isinstance(name, str) or canonicalize_name(name) != project:
        name = project
    versions = document.get("versions")
    if not isinstance(versions, list) or not all(map(_is_version, versions)):
        versions = None
    meta = model.Meta(
        str(version), private_keys(document.get("meta", {}), {"api-version"})
    )
    return model.ProjectDetail(
        meta=fitting_meta(meta, files, versions),
        name=name,
        files=files,
        versions=None if versions is None else frozenset(versions),
        private_metadata=private_keys(document, OF_PAGES),
    )


def _files_of(items: Iterable[Any]) -> Iterator[model.File]:
    for item in items:
        if isinstance(item, model.File):
            yield item
        elif item is not _OMITTED:
            # The entry is not an object, or lacks a name or a URL.
            raise KeyError("url" if "filename" in item else "filename")


_OMITTED = object()
"""A placeholder for the file of an invalid entry."""


def _is_version(value: Any) -> bool:
    try:
        return bool(parse_version(value))
    except ValueError:
        return False


def _read_html(
    body: bytes, content_type: str, url: str, project: str, *, exact: bool
) -> model.ProjectDetail:
    if exact and body.count(b"<") > _MOST_TAGS:
        raise TooMuchError(f"it has more than {_MOST_TAGS} tags")
    base = _find_base(body, content_type, url, exact=exact)
    few, few_keys = _most_files(body), _most_keys(body)
    files = []
    metas: list[tuple[str, str]] = []
    for number, link in enumerate(read_links(body, content_type, metas), 1):
        if exact:
            few(1)  # whether or not it is a file, because the check takes long
            if not is_plain_link(link, base):
                raise ValueError(f"link {number} is not the same for all installers")
        file = file_of_link(link, base)
        if file is None:
            continue
        if not exact:
            few(1)
        few_keys(count_keys(file))
        files.append(file)
    if exact and not is_plain_page(body, content_type):
        raise ValueError("not all installers find the same links on it")
    if exact:
        check_distinct(files)
    meta, kept = read_metas(metas)
    return model.ProjectDetail(
        meta=fitting_meta(meta, files, None),
        name=project,
        files=tuple(files),
        private_metadata=private_keys(kept, OF_PAGES),
    )


def _find_base(body: bytes, kind: str, url: str, *, exact: bool = False) -> str:
    given = find_base(body, kind) or ""
    base = absolute_url(given, url)
    base = base and absolute_url("", base)  # a long base has no links
    # pip does not resolve a relative base.
    if base is None or (exact and given and (not is_plain(given) or base != given)):
        raise ValueError("its <base> has no usable URL")
    return base


def _most_files(body: bytes) -> Callable[[int], None]:
    return at_most(_FILES + len(body) // _BYTES_OF_FILE, "files")


def estimate_files(body: bytes) -> int:
    """Return about how many files a page has, from the number of tags and objects."""
    return body.count(b">") // 2 + body.count(b"{") + len(body) // _BYTES_OF_FILE


def _most_keys(body: bytes) -> Callable[[int], None]:
    return at_most(_KEYS + len(body) // _BYTES_OF_KEY, "unknown keys")
