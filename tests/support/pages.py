"""Pages of an index, as nvp and as pip read them."""

from __future__ import annotations

import json
from typing import Any

from pip._internal.index.collector import IndexContent, parse_links
from pip._internal.models.link import Link
from simple_repository import model

from nvp.index.http.pages import parse_page

__all__ = [
    "HTML",
    "JSON",
    "NAME",
    "SHA",
    "URL",
    "json_file",
    "json_page",
    "links_of_pip",
    "only",
    "read_html",
    "read_json",
]

URL = "https://index.example/simple/torch/"
JSON = "application/vnd.pypi.simple.v1+json"
HTML = "text/html; charset=utf-8"
NAME = "torch-1.0-py3-none-any.whl"
SHA = "0123456789abcdef" * 4


def json_page(*files: Any, version: str = "1.1", **more: Any) -> bytes:
    meta = {"api-version": version}
    document = {"meta": meta, "name": "torch", "files": files, **more}
    return json.dumps(document).encode()


def json_file(**changes: Any) -> dict[str, Any]:
    url = f"https://files.example/{NAME}"
    return {
        "filename": NAME,
        "url": url,
        "hashes": {"sha256": SHA},
        "size": 1,
        **changes,
    }


def read_json(*files: Any, **more: Any) -> model.ProjectDetail:
    return parse_page(json_page(*files, **more), JSON, URL, "torch")


def read_html(text: str, url: str = URL, kind: str = HTML) -> model.ProjectDetail:
    return parse_page(text.encode(), kind, url, "torch")


def only(page: model.ProjectDetail) -> model.File:
    (file,) = page.files
    return file


def links_of_pip(body: bytes, kind: str, url: str = URL) -> list[Link]:
    page = IndexContent(body, kind, "utf-8", url, cache_link_parsing=False)
    return list(parse_links(page))
