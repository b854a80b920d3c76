"""A reader of the HTML pages that the command ``matrix`` writes."""

from __future__ import annotations

from html.parser import HTMLParser

__all__ = ["Page"]

VOID = {"meta", "wbr", "br", "link", "img", "input", "hr"}
"""Elements without an end tag."""


class Page(HTMLParser):
    """Checks the balance of tags and collects the cells of both tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.tables: dict[str, list[list[str]]] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows = self.tables.setdefault(dict(attrs)["class"] or "", [])
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if self.open[-1:] in (["td"], ["b"], ["th"]):
            self.rows[-1][-1] += data.strip()
