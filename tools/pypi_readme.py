"""The README as PyPI shows it: a hook that hatchling runs when it builds the package.

PyPI shows no files of the repository, so links to them would lead nowhere. Where
``[project.urls]`` has a ``Source``, they become links to the file there; without one,
only their text stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["ReadmeHook", "with_absolute_links"]

_RELATIVE_LINK = re.compile(
    r"\[(?P<text>[^\]]+)\]\((?!https?:)(?P<target>[^)\s]+)\)", re.DOTALL
)


class ReadmeHook(MetadataHookInterface):
    """Sets the field ``readme`` of the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the text of README.md to the metadata, with links that work on PyPI."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, metadata.get("urls", {})),
        }


def with_absolute_links(text: str, urls: Mapping[str, str]) -> str:
    """Return the text of the README without relative links.

    :param urls: the table ``[project.urls]``.
    """
    source = urls.get("Source")

    def replace(match: re.Match[str]) -> str:
        if source is None:
            return match["text"]
        return f"[{match['text']}]({source}/blob/main/{match['target']})"

    return _RELATIVE_LINK.sub(replace, text)
