"""Pages of the local index in JSON and HTML, and the links on them.

The serializers of simple-repository 0.11.1 drop keys that its model lacks, and the
HTML serializer does not escape most text of a page.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from packaging.version import Version
from simple_repository import content_negotiation, errors, model, serializer
from simple_repository.content_negotiation import Format
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from nvidia_variant_provider.errors import InputError

from ..http.kept_keys import (
    KEPT_KEY,
    LABEL_KEY,
    announced_keys,
    api_version,
    kept_keys,
    write_metas,
    write_time,
)
from ..http.urls import ALGORITHMS, METADATA, is_text
from ..selection.kept import METADATA_KEY, SIZE_KEY, mark_of
from ..selection.shown import ShownRelease
from .kept_pages import CUT_KEY, HTML_KEY
from .responses import HEADERS, NO_LABEL, Source, break_off

_HIDDEN = (KEPT_KEY, CUT_KEY, HTML_KEY, SIZE_KEY)

_KEY = re.compile(r"[a-z][a-z0-9-]{0,63}")
"""A key that can be a part of the name of an HTML attribute."""


def find_forms(request: Request) -> tuple[Format, Format]:
    """Return the form of pages for a client, and that of pages that were HTML before.

    These stay HTML if the client accepts HTML. Otherwise it could read more of a page
    than without this server: pip reads upload times only in JSON.

    :raises UnsupportedSerialization: the client accepts none of the forms.
    """
    accept = request.headers.get("accept", "")
    try:
        form = content_negotiation.select_response_format(accept)
        return form, Format.HTML_LEGACY if "html" in accept else form
    except ValueError:
        raise errors.UnsupportedSerialization(ascii(accept[:100])) from None


def respond_with(
    page: model.ProjectDetail | model.ProjectList,
    forms: tuple[Format, Format],
    warn: Callable[[str], None],
) -> Response:
    """Return the response with a page.

    :param forms: the result of `find_forms`.
    :param warn: called with the reason if the page is truncated, like the original.
    """
    form = forms[HTML_KEY in page.private_metadata]
    body = render(page, form)
    cut: Any = page.private_metadata.get(CUT_KEY)
    if cut is None:
        return Response(body, media_type=form.value, headers=HEADERS)
    headers = {**HEADERS, "content-type": form.value}
    if cut["has_length"]:
        headers["content-length"] = str(len(body) + 1)
    return break_off(body, InputError(cut["why"]), headers, warn)


def render(page: model.ProjectDetail | model.ProjectList, form: Format) -> bytes:
    """Return the bytes of a page, including its keys for newer clients."""
    if isinstance(page, model.ProjectList):
        text = serializer.serialize(page, form)
    elif form is Format.JSON_V1:
        text = json.dumps(_as_json(page), default=serializer.to_json_serializable)
    else:
        text = "\n".join(_as_html(page))
    # Unknown keys may have lone surrogates, which cannot be encoded.
    return text.encode(errors="replace")


def _as_json(page: model.ProjectDetail) -> dict[str, Any]:
    document = {
        "meta": {**_others(page.meta), "api-version": api_version(page)},
        "name": page.name,
        "files": [*map(_json_file, page.files)],
        **_others(page),
    }
    if page.versions is not None:
        document["versions"] = sorted(page.versions)
    return document


def _json_file(file: model.File) -> dict[str, Any]:
    values = {
        "requires-python": file.requires_python,
        **announced_keys(file, "core-metadata"),  # renamed by PEP 714
        "gpg-sig": file.gpg_sig,
        "yanked": file.yanked,
        "size": file.size,
        "upload-time": write_time(file.upload_time),
    }
    return {
        "filename": file.filename,
        "url": file.url,
        "hashes": file.hashes,
        **{key: value for key, value in values.items() if value is not None},
        **_others(file),
    }


def _others(item: model.Meta | model.ProjectDetail | model.File) -> dict[str, Any]:
    """Return the private keys of an item, and its keys for newer clients."""
    private = item.private_metadata
    if not private:
        return {}
    return {k: v for k, v in private.items() if k not in _HIDDEN} | dict(
        kept_keys(item)
    )


def _as_html(page: model.ProjectDetail) -> Iterator[str]:
    name = html.escape(page.name)
    yield "<!DOCTYPE html>\n<html>\n<head>"
    for key, text in (("repository-version", api_version(page)), *write_metas(page)):
        attributes = {"name": f"pypi:{key}", "content": text}
        yield f"<meta {_write(attributes)}>"
    yield f"<title>Links for {name}</title>\n</head>\n<body>"
    yield f"<h1>Links for {name}</h1>"
    for file in page.files:
        attributes = _html_file(file)
        yield f"<a {_write(attributes)}>{html.escape(file.filename)}</a><br>"
    yield "</body>\n</html>\n"


def _html_file(file: model.File) -> dict[str, str]:
    # PEP 714: older installers look for the former name only. Of these, pip 22.3 to
    # 23.1 pass over a wheel whose METADATA spells the project's name in another way
    # than the requirement, so they get only METADATA that they would get alone.
    is_ours = METADATA_KEY in file.private_metadata
    former = () if is_ours else ("dist-info-metadata",)
    announced = announced_keys(file, *former, "core-metadata")
    known = {
        "href": f"{file.url}{_hash(file.hashes, '#')}",
        "data-requires-python": file.requires_python,
        **{f"data-{key}": _html_metadata(value) for key, value in announced.items()},
        "data-yanked": "" if file.yanked is True else file.yanked or None,
        "data-gpg-sig": None if file.gpg_sig is None else str(file.gpg_sig).lower(),
        "data-size": None if file.size is None else str(file.size),
    }
    kept = {f"data-{k}": v for k, v in kept_keys(file).items() if _KEY.fullmatch(k)}
    kept.setdefault("data-upload-time", write_time(file.upload_time))
    return {key: value for key, value in {**kept, **known}.items() if is_text(value)}


def _html_metadata(value: bool | Mapping[str, str] | None) -> str | None:
    if isinstance(value, Mapping):
        return _hash(value) or None
    return "true" if value else None


def _hash(hashes: Mapping[str, str], mark: str = "") -> str:
    """Return one hash as ``{mark}NAME=VALUE``, preferably one that pip checks."""
    name = next((name for name in (*ALGORITHMS, *hashes) if name in hashes), None)
    return "" if name is None else f"{mark}{name}={hashes[name]}"


def _write(attributes: Mapping[str, str]) -> str:
    return " ".join(f'{k}="{html.escape(text)}"' for k, text in attributes.items())


def link(
    source: Source,
    file: model.File,
    project: str,
    root: str,
    *,
    shown: str,
    reads_parts: bool = False,
    direct: bool = False,
) -> model.File:
    """Return ``file`` with the URL at which an installer gets it.

    If possible, a file keeps its own URL, because lock files record it and outlive this
    server.

    :param root: the path prefix of the source on this server.
    :param shown: this prefix as it appears on the page: a relative path or a URL.
    :param reads_parts: whether the installer reads METADATA by range requests.
    :param direct: whether the installer has the credentials for the file.
    """
    is_reachable = direct or source.is_reachable(file.url)
    label: Any = file.private_metadata.get(LABEL_KEY, NO_LABEL)
    if not source.access.local:
        # Only our own pip gets local URLs for non-variant wheels: its requests show
        # what it selects, and its output gets the original URLs afterwards.
        label = label or NO_LABEL
    if label == NO_LABEL and is_reachable:
        # A file whose METADATA only this server has must not keep its own URL, unless
        # the installer can do without that METADATA.
        if METADATA_KEY not in file.private_metadata:
            return file
        if reads_parts and not source.access.local:
            return replace(file, dist_info_metadata=None)
    if label not in (None, NO_LABEL):
        reason = "variants"
    elif is_reachable:
        reason = "METADATA that its index lacks"
    else:
        reason = (
            "a directory" if file.url.startswith("file:") else "credentials or a proxy"
        )
    source.passing.setdefault(project, reason)
    # A path segment of only dots would mean another directory.
    named = f"{NO_LABEL}{label}" if label and not label.strip(".") else label
    parts = [project, named or NO_LABEL, mark_of(file), file.filename]
    path = f"f/{'/'.join(quote(part, safe='') for part in parts)}"
    if source.originals is not None:
        source.originals[root + path] = file.url
    return replace(file, url=shown + path)


def respond_renamed(
    shown_releases: Iterable[ShownRelease], label: str, name: str
) -> Response | None:
    """Respond to a request for a variant wheel whose name this machine's page lacks.

    The URL contains the wheel's label and the rank of the label, which depends on the
    machine, as do added tags. A lock file of another machine may therefore have a
    different URL.

    :param shown_releases: the shown releases of the project.
    :param name: the name in the URL, which the page does not have.
    :returns: a redirect to the wheel's name on this machine, or an error that names the
        build for this machine; ``None`` for an unknown file.
    """
    wheel = name.removesuffix(METADATA)
    try:
        version = Version(wheel.split("-")[1])
    except (IndexError, ValueError):
        return None
    shown = next((c for c in shown_releases if Version(c.version) == version), None)
    if shown is None or any(offer.name == wheel for offer in shown.offers):
        return None
    # Of wheels with the same first tags, the one with most tags counts.
    for offer in sorted(shown.offers, key=lambda x: -len(x.wheel.parts.supports)):
        # The file has a different rank on this machine, and perhaps other added tags.
        if offer.label == label and _has_tags(wheel, offer.wheel.parts.supports):
            location = quote(name.replace(wheel, offer.name))
            return RedirectResponse(location, status_code=302, headers=HEADERS)
    if label not in shown.available:
        return None
    resolution = shown.resolution
    reasons = resolution.rejected.get(label, ()) if resolution else ()
    why = "is not shown to this machine"
    if reasons:
        why = f"does not fit this machine: {reasons[0].sentence}"
    gets = "the non-variant wheel" if shown.plain else "no build of this release"
    if shown.labels:
        gets = f"variant {shown.labels[0]}"
    release = f"{shown.project} {shown.version}"
    text = f"{name}: variant {label} of {release} {why}; this machine gets {gets}\n"
    return PlainTextResponse(text, 404, headers=HEADERS)


def _has_tags(name: str, tags: str) -> bool:
    """Return whether a wheel has been renamed from one with these tags."""
    parts, own = name.removesuffix(".whl").split("-")[-3:], tags.split("-")
    # Tags are added at the end.
    return len(parts) == len(own) and all(
        f"{new}.".startswith(f"{old}.") for new, old in zip(parts, own, strict=True)
    )
