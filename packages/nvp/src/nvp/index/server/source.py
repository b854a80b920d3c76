"""One upstream of the local index, as the server shows it."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from ..http.client import Client
from ..selection.component import VariantRepository
from .access import Access
from .upstream import LinksUpstream, local_path

__all__ = ["Source"]

_EXTENSIONS = (
    *(".whl", ".metadata", ".json", ".zip", ".egg"),
    *(".gz", ".bz2", ".xz", ".tgz"),
)
"""The file name extensions of what an index serves."""


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

    def why_not_own(self, url: str) -> str:
        """Say why a file that is no variant does not keep its own URL."""
        if self.is_reachable(url):
            return "METADATA that its index lacks"
        return "a folder" if url.startswith("file:") else "credentials or a proxy"

    def may_send(self, path: Path) -> bool:
        """Return whether a file of this machine belongs to the index.

        A mirror may have been copied from elsewhere, and its pages may name any file
        of this machine. Mirrors often have pages and files in neighbouring folders.
        """
        if self.access.local:
            return True
        root = local_path(self.url).resolve().parent
        return path.resolve().is_relative_to(root) and path.name.endswith(_EXTENSIONS)
