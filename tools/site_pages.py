"""A hook of mkdocs that adds pages from the top of the repository to the site.

GitHub looks for the changelog and for the rules of contributing and of security at the
top of the repository. The site shows the same files. All pages link to files, so the
links also work on GitHub. The hook turns them into links to pages of the site, or to
the repository if the site does not have the file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]

PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "STYLE.md": "project/style.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "benchmarks/RESULTS.md": "project/benchmark-results.md",
}
"""Files of the repository, each with its path on the site."""

_SOURCES = {place: name for name, place in PAGES.items()}

_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)(?P<path>[^)\s#]+)")
_CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to those of the directory ``docs``."""
    from mkdocs.structure.files import File

    for name, place in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        # The changelog has every word, so each search would find it first.
        if name == "CHANGELOG.md":
            text = f"---\nsearch:\n  boost: 0.1\n---\n\n{text}"
        page = File.generated(config, place, content=text)
        page.edit_uri = f"../{name}"
        files.append(page)
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, **_: object
) -> str:
    """Turn links to files into links of the site."""
    place = page.file.src_uri
    folder = posixpath.dirname(_SOURCES.get(place, f"docs/{place}"))

    def lead(link: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join(folder, link["path"]))
        if name in PAGES:
            target = PAGES[name]
        elif name.startswith("docs/"):
            target = name.removeprefix("docs/")
        else:
            return f"{config.repo_url}/blob/main/{name}"
        return posixpath.relpath(target, posixpath.dirname(place))

    parts, start = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(lead, markdown[start : code.start()]), code[0]]
        start = code.end()
    return "".join([*parts, _LINK.sub(lead, markdown[start:])])


def on_post_page(output: str, **_: object) -> str:
    """Keep the link to the repository from requesting stars and releases of GitHub."""
    return output.replace(' data-md-component="source"', "")
