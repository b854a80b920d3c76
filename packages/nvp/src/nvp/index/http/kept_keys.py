"""Keys of pages: those of files, and those that are copied unchanged.

The model of simple-repository 0.11.1 lacks the keys of newer PEPs, but installers that
use them must still get them.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urldefrag

from packaging.utils import canonicalize_name
from packaging.version import Version
from simple_repository import model

from nvidia_variant_provider.errors import printable, shown

from ...wheels.archive import release_of_sdist, versions_of_wheel
from .urls import (
    HASH,
    CompleteResponse,
    absolute_url,
    file_name,
    is_file_name,
    is_plain,
    is_text,
)

LABEL_KEY = "_variant-label"
"""The key for the variant label of a file on a page of the local index.

It is set for variant wheels, which are shown under other names, and null for regular
wheels of the same release. PEP 700: "Keys (at any level) with a leading underscore are
reserved as private for index server use."
"""

KEPT_KEY = "_nvidia_variant_provider_kept"
"""The key under which unknown keys at any level of a page are stored: keys that the
model of simple-repository lacks, such as ``provenance`` (PEP 740), ``tracks`` (PEP 708)
and ``project-status`` (PEP 792), and keys of future PEPs."""

LINKS = "_links"
"""The name of a page with the files of all projects. No project has this name."""

_MOST_PYTHON, _PARSING = 10_000, 50
"""The maximum length of all different requirements on Python of a page, each of which
is compared with every version of Python, and the length that takes as long as parsing
the shortest one. Real pages have some hundred characters."""

_MANY_DIGITS, _MOST_EQUAL = re.compile("(?:[0-9][^0-9]*){14}"), 64
"""The digits that versions need for a chosen hash; the most versions with one hash.

Python hashes numbers and tuples without a secret, so an index can give all its versions
the same hash. For such versions, dictionaries take quadratic time. A hash has 64 bits:
with fewer digits and dots, there are not enough versions for 65 with the same one."""

_MOST_VERSIONS = 20_000
"""The most versions of a project. Versions with different hashes may take quadratic
time, too: here up to a second for each dictionary. Real projects have some thousand."""

_MOST_HASHES = 16
"""The maximum number of hashes of a file, which are sorted for each request. Real pages
have up to 6."""

_ORDINARY = ("text/html", *(f"text/html;charset={x}" for x in ("utf-8", "iso-8859-1")))
_ARCHIVE = re.compile(r"\.(?:whl|zip|tar|t?gz|t?bz2?|t?xz|t?lz|lzma)", re.IGNORECASE)

_LONGEST_VERSION = 200
"""The maximum length of a version, which takes fifty times its memory when parsed."""

_OWN = (LABEL_KEY, "_nvidia_variant_provider_")
"""The prefixes of this program's own keys, which are ignored on upstream pages."""

ANNOUNCING = (
    *("core-metadata", "dist-info-metadata"),
    "data-dist-info-metadata",  # a mistake of some indexes (PEP 714)
)
"""The keys that announce METADATA, of which each installer knows only some."""

OF_FILES = frozenset(
    (
        *("filename", "url", "hashes", "size", "upload-time", "requires-python"),
        *("gpg-sig", "yanked", *ANNOUNCING),
    )
)
OF_PAGES = frozenset(("meta", "name", "files", "versions"))
_STATUS = "project-status"

_NOTHING = model.PrivateMetadataMapping()
_NOT_ATTESTED = {"provenance": None}
_WITHOUT = model.PrivateMetadataMapping.from_any_mapping({KEPT_KEY: _NOT_ATTESTED})
_JSON: Any = type(_WITHOUT[KEPT_KEY])


def private_keys(
    item: Mapping[str, Any], known: Collection[str], url: str | None = None
) -> model.PrivateMetadataMapping:
    """Return the private keys in a part of a page, and unknown keys under `KEPT_KEY`.

    :param known: the keys that the model has.
    :param url: the base of relative URLs in the part.
    """
    private, kept = {}, {}
    for key, value in item.items():
        if key.startswith("_"):
            if not key.startswith(_OWN):
                private[key] = value
        elif key not in known:
            kept[key] = value
    if "provenance" in kept and url is not None:
        kept["provenance"] = absolute_url(kept["provenance"], url)
    if not private and kept.keys() == _NOT_ATTESTED.keys():
        # Shortcut: a page may have many files, most of which have no other key to keep.
        if kept == _NOT_ATTESTED:
            return _WITHOUT
        return model.PrivateMetadataMapping({KEPT_KEY: _JSON(kept)})
    if kept:
        private[KEPT_KEY] = kept
    if not private:
        return _NOTHING
    return model.PrivateMetadataMapping.from_any_mapping(private)


def fitting_meta(
    meta: model.Meta, files: Iterable[model.File], versions: Collection[str] | None
) -> model.Meta:
    """Return ``meta``, with version 1.0 of the API if sizes or versions are missing.

    PEP 700 requires both since version 1.1, but some indexes omit them. Without the
    versions, the model would fail for a file that is no distribution. The version that
    the index gives is stored under `KEPT_KEY`, because other keys may require it.
    """
    version = meta.api_version
    is_complete = versions is not None and all(f.size is not None for f in files)
    if version == "1.0" or is_complete:
        return meta
    kept = {"api-version": version, **kept_keys(meta)}
    return model.Meta("1.0", meta.private_metadata | {KEPT_KEY: kept})


def kept_keys(
    item: model.Meta | model.ProjectDetail | model.File,
) -> Mapping[str, Any]:
    """Return the unknown keys, which are for newer clients; see `KEPT_KEY`."""
    kept: Any = item.private_metadata.get(KEPT_KEY, _NOTHING)
    return kept  # type: ignore[no-any-return]


def count_keys(item: model.File) -> int:
    """Return the number of unknown and private keys."""
    return len(item.private_metadata) + len(kept_keys(item))


def first_keys(
    items: Sequence[model.Meta | model.ProjectDetail],
) -> model.PrivateMetadataMapping:
    """Return the unknown keys of combined pages; of each key, the first value."""
    kept: dict[str, Any] = {}
    for item in reversed(items):
        kept.update(kept_keys(item))
    return model.PrivateMetadataMapping.from_any_mapping({KEPT_KEY: kept})


def is_yanked(file: model.File) -> bool:
    """Return whether any installer counts a file as yanked.

    An empty reason yanks it for uv, but not for pip.
    """
    return bool(file.yanked) or kept_keys(file).get("yanked") == ""


def read_metas(
    metas: Iterable[tuple[str, str]],
) -> tuple[model.Meta, dict[str, Any]]:
    """Convert ``<meta name="pypi:...">`` elements to the keys of a JSON page.

    :param metas: the names without ``pypi:``, and the contents.
    :returns: the object ``meta``, and the other keys of the page.
    """
    version = "1.0"
    found: dict[str, list[str]] = {}
    kept: dict[str, Any] = {}
    for name, text in metas:
        if name == "repository-version":
            # Replace an invalid version: installers read HTML pages of any version.
            version = text if re.fullmatch(r"1\.[0-9]{1,4}", text) else "1.0"
        elif f"{name}-".startswith(f"{_STATUS}-"):
            key = name.removeprefix(_STATUS).removeprefix("-") or "status"
            kept.setdefault(_STATUS, {}).setdefault(key, text)
        else:
            found.setdefault(name, []).append(text)
    meta = {key: found.pop(key) for key in ("tracks",) if key in found}
    for key, texts in found.items():
        is_list = key == "alternate-locations" or len(texts) > 1
        kept[key] = texts if is_list else texts[0]
    return model.Meta(version, private_keys(meta, ())), kept


def write_metas(page: model.ProjectDetail) -> Iterator[tuple[str, str]]:
    """Yield the name and content of each ``<meta>`` element for `read_metas`."""
    for key, value in (*kept_keys(page.meta).items(), *kept_keys(page).items()):
        if key == "api-version":
            continue
        if key == _STATUS and isinstance(value, Mapping):
            for part, text in value.items():
                if is_text(text):
                    yield key if part == "status" else f"{key}-{part}", text
            continue
        for text in value if isinstance(value, tuple) else (value,):
            if is_text(text):
                yield key, text


def api_version(page: model.ProjectDetail) -> str:
    """Return the API version of a page: the index's own if unknown keys may need it."""
    own = page.meta.api_version
    of_meta = kept_keys(page.meta)
    wanted = str(of_meta.get("api-version", own))  # `parse_version` limits its length
    needs = bool(of_meta.keys() - {"api-version"} or kept_keys(page))
    needs = needs or any(map(kept_keys, page.files))
    return max(own, wanted, key=Version) if needs else own


def parse_version(value: Any) -> Version:
    """Parse a version that a page gives.

    :raises ValueError: it is invalid, or too long.
    """
    if not isinstance(value, str) or len(value) > _LONGEST_VERSION:
        raise ValueError("a version is not text, or too long")
    return Version(value)


def read_time(value: Any) -> datetime | None:
    """Return the time of a file in UTC, without a zone; ``None`` if it is invalid."""
    if not isinstance(value, str) or not value.endswith("Z"):
        return None
    try:
        return datetime.fromisoformat(value[:-1])
    except ValueError:
        pass  # Python 3.10 rejects most fractions of a second: omit them
    try:
        return datetime.fromisoformat(value[:19])
    except ValueError:
        return None


def write_time(time: datetime | None) -> str | None:
    """Return the usual text for a result of `read_time`."""
    return None if time is None else f"{time.isoformat()}Z"


def known_keys(time: Any) -> frozenset[str]:
    """Return the keys that the model has, except for a time that it would change."""
    is_same = time in (None, write_time(read_time(time)))
    return OF_FILES if is_same else OF_FILES - {"upload-time"}


def told_metadata(item: Mapping[str, Any]) -> Any:
    """Return the value by which an entry announces METADATA.

    PEP 714: "core-metadata" takes precedence over "dist-info-metadata".
    """
    value = item.get("core-metadata")
    return item.get("dist-info-metadata") if value is None else value


def read_metadata(item: Mapping[str, Any]) -> bool | dict[str, str] | None:
    """Return the hashes of METADATA, or whether there is METADATA, if it is known."""
    value = told_metadata(item)
    if isinstance(value, dict):
        return read_hashes(value) or True
    return value if isinstance(value, bool) else None


def announced_keys(file: model.File, *usual: str) -> Mapping[str, Any]:
    """Return the keys that announce METADATA: the ``usual`` ones, or the index's own.

    With other keys, installers would get METADATA from the server of the file that they
    would read from the wheel, whose hash they check.
    """
    own = {k: v for k, v in kept_keys(file).items() if k in ANNOUNCING}
    return own or dict.fromkeys(usual, file.dist_info_metadata)


def read_hashes(value: Any) -> dict[str, str]:
    """Return the hashes in an object of a page, without invalid ones.

    :raises ValueError: there are more than `_MOST_HASHES`.
    """
    if not isinstance(value, dict):
        return {}
    if len(value) > _MOST_HASHES:
        raise ValueError(f"it has more than {_MOST_HASHES} hashes of a file")
    return {
        key: text
        for key, text in value.items()
        if is_text(key) and is_text(text) and text
    }


def read_yanked(value: Any) -> bool | str | None:
    """Return whether a file is yanked, or the reason; ``None`` if that is unknown."""
    if value is None:
        return None
    # Installers print the reason, so escape its control characters.
    return printable(value) if value and is_text(value) else bool(value)


def file_of_entry(item: Mapping[str, Any], url: str) -> model.File | None:
    """Return the file of an entry in JSON; ``None`` if its name or URL is invalid.

    :param url: the base of relative URLs in the entry.
    """
    name = item["filename"]
    target = absolute_url(item["url"], url)
    if target is None or not isinstance(name, str) or not is_file_name(name):
        return None
    requires = item.get("requires-python")
    size = item.get("size")
    signed = item.get("gpg-sig")
    metadata = read_metadata(item)
    known = known_keys(item.get("upload-time"))
    if metadata and item.get("core-metadata") != metadata:
        known = known.difference(ANNOUNCING)
    if item.get("yanked") == "":  # It yanks the file for uv, but not for pip.
        known -= {"yanked"}
    return model.File(
        filename=name,
        url=urldefrag(target).url if "#" in target else target,
        hashes=read_hashes(item.get("hashes")) | dict(HASH.findall(target)[:1]),
        requires_python=requires if is_text(requires) else None,
        dist_info_metadata=metadata,
        gpg_sig=signed if isinstance(signed, bool) else None,
        yanked=read_yanked(item.get("yanked")),
        size=size if type(size) is int and size >= 0 else None,
        upload_time=read_time(item.get("upload-time")),
        private_metadata=private_keys(item, known, url),
    )


def is_plain_entry(item: Mapping[str, Any], file: model.File) -> bool:
    """Return whether pip and uv read an entry in the same way, and nothing was lost.

    pip reads a hash in the URL, and uv another key for METADATA, which PyPI sets, too.
    """
    hashes, metadata = item.get("hashes"), told_metadata(item)
    return (
        is_plain(item["url"])
        and "#" not in item["url"]
        and not HASH.search(item["url"])
        and file_name(file.url) == file.filename  # pip goes by the URL
        and hashes in (None, read_hashes(hashes))
        and item.get("data-dist-info-metadata", metadata) == metadata
        and metadata in (None, {}, file.dist_info_metadata)
        and item.get("requires-python") == file.requires_python
        and item.get("size") == file.size
        and isinstance(item.get("yanked"), bool | str | None)
    )


def check_hashes(files: Iterable[model.File], project: str) -> None:
    """Check that dictionaries with the versions of a project as keys are fast.

    :raises ValueError: there are too many versions, or too many with the same hash.
    """
    names: dict[str, str] = {}
    for name in (file.filename for file in files):
        is_wheel = name.endswith(".whl")
        names[name.partition("-")[2].partition("-")[0] if is_wheel else name] = name
    if project != LINKS and len(names) > _MOST_VERSIONS:
        raise ValueError(f"it has more than {_MOST_VERSIONS} versions")
    hashes: dict[str, int] = {}
    for name in (name for text, name in names.items() if _MANY_DIGITS.search(text)):
        release = release_of_sdist(name, project)
        for version in (release,) if release else versions_of_wheel(name) or ():
            hashes[str(version)] = hash(version)
    # Sort the hashes, because a dictionary of them would be slow, too.
    each = sorted(hashes.values())
    if any(one == other for one, other in zip(each, each[_MOST_EQUAL:], strict=False)):
        raise ValueError("it has too many versions with the same hash")


def may_list(page: CompleteResponse, project: str) -> bool:
    """Return whether installers may find a file of a project on a page.

    They take a file by its name, or by ``egg=``, in a URL whose parts are from the page
    or from its own URL. A page in JSON, or in an odd encoding, may list all projects.
    """
    kind = page.headers.get("content-type", "").lower()
    kind = kind.translate(dict.fromkeys(b' "')).rstrip(";")
    if kind not in _ORDINARY or page.status != 200 or not page.is_whole:
        return True
    stages = _decode(page.body, page.url)
    return stages is None or any(project in text for text in stages)


@lru_cache(maxsize=2)
def _decode(body: bytes, url: str) -> Sequence[str] | None:
    """Return the forms of a page in HTML that may name files, with normalized names.

    :returns: ``None`` if installers may read other forms.
    """
    try:
        text = html.unescape(body.decode(errors="replace"))
    except ValueError:  # a number has thousands of digits
        return None
    # URLs lose tabs and line ends, and pip decodes the paths of URLs twice.
    forms = [text.translate(dict.fromkeys(b"\t\r\n")), url]
    forms += map(unquote, forms[:2])
    forms += map(unquote, forms[2:])
    named = (x for x in forms if "egg=" in x or _ARCHIVE.search(x))
    return None if b"\0" in body else list(map(canonicalize_name, named))


def check_distinct(files: Collection[model.File]) -> None:
    """Check that each file is only once on a page, or always the same.

    Which of the entries with one URL counts depends on the installer and on the format.
    The local index has one URL for the entries with one hash.

    :raises ValueError: it is not, or the requirements on Python take long to parse.
    """
    limits = {file.requires_python or "" for file in files}
    if sum(map(len, limits)) + _PARSING * len(limits) > _MOST_PYTHON:
        raise ValueError("it has too many requirements on Python")
    known: dict[tuple[str, str], model.File] = {}
    for file in files:
        place = unquote(file.url.partition("?")[0])
        digest = file.hashes.get("sha256", place)
        for key in {place, digest}:
            other = known.setdefault((file.filename, key), file)
            if other is file:
                continue
            is_same = key != place or unquote(other.url) == unquote(file.url)
            if not is_same or replace(other, url=file.url) != file:
                raise ValueError(f"{shown(file.filename)} is there twice")
