"""The URLs by which installers get the files of a page."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from simple_repository import model

from ..http.pages import LABEL_KEY
from ..selection.announcing import METADATA_KEY
from .source import Source

__all__ = ["NO_LABEL", "link"]

NO_LABEL = "-"
"""Stands in the path of files that are not shown as a variant."""


def link(
    source: Source,
    file: model.File,
    project: str,
    root: str,
    *,
    shown: str | None = None,
    reads_parts: bool = False,
) -> model.File:
    """Return ``file`` with the URL at which an installer gets it.

    A file keeps its own URL wherever that is possible, since lock files record it and
    outlive this server.

    :param root: what the paths of the source start with.
    :param shown: the same root as a page refers to it.
    :param reads_parts: the installer reads METADATA out of a wheel by ranges.
    """
    label: Any = file.private_metadata.get(LABEL_KEY, NO_LABEL)
    # A file whose METADATA only this server has must not keep its own URL, unless the
    # installer can do without that METADATA.
    ours = METADATA_KEY in file.private_metadata
    if not source.access.local:
        # Requests for a non-variant wheel tell what pip has taken, and what the pip of
        # the verb writes is corrected. Nobody corrects what others write.
        label = label or NO_LABEL
    if label == NO_LABEL and source.is_reachable(file.url):
        if not ours:
            return file
        if reads_parts and not source.access.local:
            return replace(file, dist_info_metadata=None)
    source.passing.setdefault(
        project,
        "variants" if label not in (None, NO_LABEL) else source.why_not_own(file.url),
    )
    digest = file.hashes.get("sha256") or hashlib.sha256(file.url.encode()).hexdigest()
    # A path segment that consists of dots would mean another folder.
    named = f"{NO_LABEL}{label}" if label and not label.strip(".") else label
    parts = (project, named or NO_LABEL, digest[:8], file.filename)
    path = f"f/{'/'.join(map(_segment, parts))}"
    if source.originals is not None:
        source.originals[root + path] = file.url
    return replace(file, url=(root if shown is None else shown) + path)


def _segment(text: str) -> str:
    return quote(text, safe="")
