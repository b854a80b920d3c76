"""One upstream as the server shows it: who reads it, and the URLs of its files."""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from simple_repository import model

from ..http.client import Client
from ..http.pages import LABEL_KEY
from ..selection.component import VariantRepository
from ..selection.core_metadata import METADATA_KEY
from .upstream import LinksUpstream, local_path

LOOPBACK_NAMES = (
    "127.0.0.1",
    "localhost",
    "[::1]",
    # The names by which containers call the machine that they run on.
    "host.docker.internal",
    "host.containers.internal",
)
"""The names by which clients may call a server on the loopback interface."""

ANY_HOST = ("*",)

NO_LABEL = "-"
"""Stands in the path of files that are not shown as a variant."""

_EXTENSIONS = (
    *(".whl", ".metadata", ".json", ".zip", ".egg"),
    *(".gz", ".bz2", ".xz", ".tgz"),
)
"""The file name extensions of what an index serves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Who uses the local index, and what they can reach without it.

    :param direct: installers can download files that need no credentials themselves.
    :param local: the installer is a program of this user: it may open the files of
        this machine, and it has ended when the server stops.
    :param asks: the installer asks its user for credentials that are missing.
    :param secret: the URLs have a secret part, which other programs cannot guess.
    :param hosts: the names by which the server may be called.
    """

    direct: bool = True
    local: bool = False
    asks: bool = False
    secret: bool = True
    hosts: tuple[str, ...] = LOOPBACK_NAMES


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One upstream, as the server shows it.

    :param path: where it is on the server, such as ``/0``; may be empty.
    :param url: the URL of the upstream, without credentials.
    :param repository: the upstream with the variants selected.
    :param client: reads the files of the upstream.
    :param access: what the installer can reach without this server.
    :param links: the upstream itself, if it is a page of links (pip's
        ``--find-links``) rather than an index.
    :param originals: gets the URL of the real file for each path that stands for one.
    :param passing: gets, for each project with files whose URLs are those of this
        server, the reason why.
    :param rewritten: gets, for the SHA-256 of each wheel that was rewritten, that of
        the original.
    :param saved: wheels that were rewritten and saved, by the names that pages show.
    """

    path: str
    url: str
    repository: VariantRepository
    client: Client
    access: Access
    links: LinksUpstream | None = None
    originals: MutableMapping[str, str] | None = None
    passing: MutableMapping[str, str] = field(default_factory=dict)
    rewritten: MutableMapping[str, str] | None = None
    saved: MutableMapping[str, Path] = field(default_factory=dict)

    def is_reachable(self, url: str) -> bool:
        """Return whether an installer can download ``url`` without our credentials."""
        if url.startswith("file:"):
            return self.access.local
        if not self.access.direct or not url.startswith(("http://", "https://")):
            return False
        # Let the installer apply its own policy for plain-HTTP files.
        return not self.client.has_credentials(url)

    def may_send(self, path: Path) -> bool:
        """Return whether a file of this machine belongs to the index.

        A mirror may have been copied from elsewhere, and its pages may name any file
        of this machine. Mirrors often have pages and files in neighbouring folders.
        """
        if self.access.local:
            return True
        root = local_path(self.url).resolve().parent
        return path.resolve().is_relative_to(root) and path.name.endswith(_EXTENSIONS)


def link(
    source: Source,
    file: model.File,
    project: str,
    root: str,
    *,
    shown: str,
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
    if label not in (None, NO_LABEL):
        reason = "variants"
    elif source.is_reachable(file.url):
        reason = "METADATA that its index lacks"
    else:
        reason = (
            "a folder" if file.url.startswith("file:") else "credentials or a proxy"
        )
    source.passing.setdefault(project, reason)
    digest = file.hashes.get("sha256") or hashlib.sha256(file.url.encode()).hexdigest()
    # A path segment that consists of dots would mean another folder.
    named = f"{NO_LABEL}{label}" if label and not label.strip(".") else label
    parts = (project, named or NO_LABEL, digest[:8], file.filename)
    path = f"f/{'/'.join(quote(part, safe='') for part in parts)}"
    if source.originals is not None:
        source.originals[root + path] = file.url
    return replace(file, url=shown + path)
