"""Projects of which installers may find files on a page that nvp cannot read."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from support.loopback import JSON
from support.wheels import stub_wheel

from nvp.index.http.client import Client
from nvp.index.http.kept_keys import may_list
from nvp.index.http.urls import CompleteResponse
from nvp.index.selection.reader import may_find_files
from nvp.index.server.places import find_links_path, join_paths, make_upstream
from nvp.index.server.upstream import UnjudgedError

PLACE = "https://index.example/simple/"


def page(
    text: str | bytes,
    *,
    kind: str = "text/html",
    url: str = f"{PLACE}my-kern/",
    **keys: Any,
) -> CompleteResponse:
    body = text.encode() if isinstance(text, str) else text
    headers = {"content-type": kind}
    keys = {"status": 200, "url": url, "headers": headers, **keys}
    return CompleteResponse(body=body, **keys)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<svg><a href='my-kern/'>my-kern</a>",
        "<base href='/'><a href='other-1.0.whl'>",
        "<a href='%41&#107;ern.zip'>",
        "<button>\\u006by_kern</button>",
    ],
)
@pytest.mark.parametrize("kind", ["text/html", "Text/HTML; Charset=UTF-8"])
def test_an_ordinary_page_lists_no_file(text: str, kind: str) -> None:
    assert not may_list(page(text, kind=kind), "my-kern")


@pytest.mark.parametrize(
    "name",
    [
        "my_kern-1.0-py3-none-any.whl",
        "x/MY.-_KERN-1.tar.gz",
        "my-\u212aern-1.ZIP#x",
        "%6dy%2Dkern-1.whl",
        "%256Dy-kern-1.whl",
        "m&#121;-ker&#x6e;-1.whl",
        "&#109y-kern-1.whl",
        "my-k\nern-1.zip",
        "my-k&#10;ern-1.z&#9;ip",
        "my&lowbar;kern&period;tbz",
        "#egg=my-kern",
        "my-kern-1\\u002fx-py3-none-any.whl",
        "my-kern-1-py3%252Fx-any.whl",
        "my-kern-1&sol;x.whl",
    ],
)
def test_a_page_that_names_a_file(name: str) -> None:
    assert may_list(page(f"<base href='/'><a href='{name}'>"), "my-kern")


@pytest.mark.parametrize(
    "keys",
    [
        {"kind": JSON, "text": '{"files": [{"url": "my-k\\nern-1.whl"}]}'},
        {"kind": "text/html; charset=hz"},
        {"kind": ""},
        {"text": "<svg>".encode("utf-16")},
        {"text": f"&#{5000 * '9'};"},
        {"is_whole": False},
        {"status": 302},
        {"url": f"{PLACE}my-kern-1.whl?x"},
        {"url": f"{PLACE}%256dy-kern-1.whl/x/"},
    ],
)
def test_a_page_that_may_list_all_projects(keys: dict[str, Any]) -> None:
    text = keys.pop("text", "<svg>")
    assert may_list(page(text, **keys), "my-kern")


@pytest.mark.parametrize("lists", [True, False])
def test_an_unreadable_page_takes_no_memory(lists: bool) -> None:
    """600 pages of one megabyte took 600 MB in a run of pip."""
    index = make_upstream(PLACE, None, Client())
    assert index is not None
    text = f"<a x x href='{'my-kern' if lists else 'other'}-1.whl'>" + 1000 * "."
    for read in (index.take(page(text), "my-kern"), index.get_project_page("my-kern")):
        with pytest.raises(UnjudgedError) as caught:
            asyncio.run(read)
        assert asyncio.run(may_find_files(caught.value, "my-kern")) is lists
        assert caught.value.page is None or not caught.value.page.body


def test_pip_reads_a_directory_with_many_pages_itself(tmp_path: Path) -> None:
    """Each page was judged with all others: 600 pages took 46 seconds."""
    for number in range(64):
        (tmp_path / f"{number}.html").touch()
    assert find_links_path(str(tmp_path)) == tmp_path
    (tmp_path / "64.html").touch()
    assert find_links_path(str(tmp_path)) is None


@pytest.mark.skipif(os.name == "nt", reason="only few users can make links there")
def test_a_link_that_cannot_be_followed(tmp_path: Path) -> None:
    """pip passes over the file, but Path.is_file() raised an error."""
    wheel = stub_wheel(tmp_path / "kern", "kern", "1.0+cu126")
    link = wheel.with_name("kern-2.0-py3-none-any.whl")
    link.symlink_to("x" * 300)  # longer than the name of a file
    index = make_upstream(str(tmp_path), None, Client())
    assert index is not None
    page = asyncio.run(index.get_project_page("kern"))
    assert [file.filename for file in page.files] == [wheel.name]
    links, _, joins = join_paths([wheel.parent], Client(), judges=True)
    assert [x.filename for x in asyncio.run(links.read_all()).files] == [wheel.name]
    assert not joins  # pip may find the link by its name
