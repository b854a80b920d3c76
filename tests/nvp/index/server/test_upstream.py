"""Upstreams of every kind: servers, directories and pages of links."""

from __future__ import annotations

import asyncio
import html
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pip._internal.models.link import Link
from simple_repository import content_negotiation, errors, model, serializer
from support.index_server import serve
from support.pages import (
    HTML,
    JSON,
    NAME,
    SHA,
    URL,
    json_file,
    json_page,
    links_of_pip,
    only,
    read_html,
    read_json,
)
from support.range_server import Answer, serve_answers

from nvp.index.http import pages
from nvp.index.http.client import Client
from nvp.index.http.pages import parse_page, parse_projects
from nvp.index.http.urls import CompleteResponse, Settings, UpstreamError
from nvp.index.selection.pieces import read_local
from nvp.index.server import places, upstream
from nvp.index.server.places import FolderUpstream, LinksUpstream, make_upstream
from nvp.index.server.upstream import UnjudgedError, local_path

HTML_PAGE = f'<!DOCTYPE html><a href="{NAME}">{NAME}</a>'

_KEYS = (
    *("files", "filename", "url", "hashes", "yanked", "size", "_x", "meta"),
    *("api-version", "name", "versions", "core-metadata"),
)


@pytest.mark.parametrize(
    "spelled",
    [
        "https://files.example/a%2Bcu129/torch-1.0%2Bcu129-py3-none-any.whl",
        "https://files.example/torch-1.0+cu129-py3-none-any.whl",
        "../../packages/torch-1.0%2Bcu129-py3-none-any.whl",
        "//files.example/torch-1.0-py3-none-any.whl",
        "/files/torch-1.0-py3-none-any.whl",
        "/torch-1.0-py3-none-any.whl",
        "./torch-1.0-py3-none-any.whl",
        "a/./b/../torch-1.0-py3-none-any.whl",
        "torch-1.0-py3-none-any.whl",
        "HTTPS://files.example/torch-1.0-py3-none-any.whl",
        "https://files.example:8443/torch-1.0-py3-none-any.whl",
        "https://files.example/torch-1.0-py3-none-any.whl?sig=a%2Fb%3D&e=1+2",
        "https://u:p@files.example/torch-1.0-py3-none-any.whl",
        "https://files.example/%7Ea/torch-1.0-py3-none-any.whl",
        "https://files.example/100%25/torch-1.0-py3-none-any.whl",
        "https://files.example/a/../torch-1.0-py3-none-any.whl",
        "https://files.example/caf%C3%A9/torch-1.0-py3-none-any.whl",
    ],
)
@pytest.mark.parametrize("base", [URL, "https://mirror.example/a/b/torch/?x=1"])
def test_urls_are_resolved_as_pip_resolves_them(spelled: str, base: str) -> None:
    page = json_page(json_file(url=spelled))
    (link,) = links_of_pip(page, JSON, base)
    mine = only(parse_page(page, JSON, base, "torch"))
    # pip normalizes some characters, also in the pages of the local index.
    assert links_of_pip(json_page(json_file(url=mine.url)), JSON) == [link]
    text = f'<a href="{html.escape(spelled)}#sha256={SHA}">x</a>'
    (link,) = links_of_pip(text.encode(), "text/html", base)
    mine = only(read_html(text, base))
    assert links_of_pip(json_page(json_file(url=mine.url)), JSON) == [
        Link(link.url_without_fragment)
    ]
    assert mine.filename == link.filename
    assert mine.hashes == {"sha256": link.hash}


@pytest.mark.parametrize(
    "base",
    [
        "https://mirror.example/x/",
        "/y/",
        "z/",
        "//cdn.example/",
        "file:///x/",
    ],
)
def test_urls_are_relative_to_the_base(base: str) -> None:
    text = f'<base href="{base}"><base href="/no/"><a href="{NAME}">x</a>'
    (link,) = links_of_pip(text.encode(), "text/html")
    if base[0] in "hf":  # pip does not resolve a relative base.
        assert only(read_html(text)).url == link.url
    else:
        assert only(read_html(text)).url.startswith("https://")


@given(
    st.lists(
        st.fixed_dictionaries(
            {"href": st.text(max_size=30)},
            optional={
                "data-yanked": st.text(max_size=5),
                "data-requires-python": st.text(max_size=5),
                "data-core-metadata": st.sampled_from(["true", f"sha256={SHA}"]),
            },
        ),
        max_size=4,
    )
)
def test_any_html_is_read_or_refused(links: list[dict[str, str]]) -> None:
    text = "".join(
        "<a {}>x</a>".format(
            " ".join(f'{key}="{html.escape(value)}"' for key, value in link.items())
        )
        for link in links
    )
    page = read_html(text)
    for form in content_negotiation.Format:
        serializer.serialize(page, form).encode()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(_KEYS),
                inner,
                max_size=5,
            )
        ),
    ),
    st.booleans(),
)
def test_any_json_is_read_or_refused(document: Any, nested: bool) -> None:
    if nested:
        document = {"meta": {"api-version": "1.0"}, "files": [json_file(x=document)]}
    try:
        page = parse_page(json.dumps(document).encode(), JSON, URL, "torch")
    except UpstreamError:
        return
    for form in content_negotiation.Format:
        serializer.serialize(page, form).encode()


def test_ten_thousand_files_and_duplicates() -> None:
    files = [json_file(filename=f"torch-{n}.0.tar.gz") for n in range(10_000)]
    page = read_json(*files, *files[:10])
    names = [file.filename for file in page.files[:2]]
    assert names == ["torch-0.0.tar.gz", "torch-1.0.tar.gz"]
    assert len(page.files) == 10_010
    text = "".join(f'<a href="torch-{n}.0.tar.gz">x</a>' for n in range(10_000))
    assert len(read_html(text).files) == 10_000


def test_lists_of_projects(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = ["<script>", "", "a/b", "..", None, 5, "a\n"]
    names = ["torch", "Zope.Interface", *bad]
    body = json.dumps({"projects": [{"name": name} for name in names]}).encode()
    found = parse_projects(body, JSON, URL)
    assert {item.name for item in found.projects} == {"torch", "Zope.Interface"}
    text = '<a href="t/"> torch </a><a href="x">&lt;script&gt;</a><a href="z"></a>'
    found = parse_projects(text.encode(), "text/html", URL)
    assert {item.name for item in found.projects} == {"torch"}
    monkeypatch.setattr(pages, "_MOST_PROJECTS", 2)
    body = json.dumps({"projects": [{"name": name} for name in "abc"]}).encode()
    with pytest.raises(UpstreamError, match="more than 2 projects"):
        parse_projects(body, JSON, URL)
    other = (b"{}", JSON), (b"[", JSON), (b"", "image/png"), (b"\xff", HTML)
    for body, kind in other:
        with pytest.raises(UpstreamError):
            parse_projects(body, kind, URL)


class TestFolders:
    def read(self, folder: Path, project: str) -> model.ProjectDetail:
        return asyncio.run(FolderUpstream(folder, Client()).get_project_page(project))

    def test_files(self, tmp_path: Path) -> None:
        (tmp_path / "torch" / "deeper").mkdir(parents=True)
        (tmp_path / "torch" / "a b+c-1.0.zip").write_bytes(b"xy")
        found = only(self.read(tmp_path, "Torch"))
        assert (found.filename, found.size) == ("a b+c-1.0.zip", 2)
        assert local_path(found.url).read_bytes() == b"xy"

    @pytest.mark.skipif(sys.platform != "linux", reason="names are any bytes there")
    def test_names_that_are_not_utf_8_are_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "torch").mkdir()
        with open(os.fsencode(tmp_path / "torch") + b"/\xff-1.0.zip", "wb"):
            pass
        assert self.read(tmp_path, "torch").files == ()

    @pytest.mark.parametrize(
        "name", ["x" * 5000, "a\0b", "..", "../x", "a/b", "\\\\h\\x"]
    )
    def test_names_cannot_lead_out_of_the_folder(
        self, name: str, tmp_path: Path
    ) -> None:
        (tmp_path / "index").mkdir()
        (tmp_path / "x").mkdir()
        with pytest.raises(errors.PackageNotFoundError):
            self.read(tmp_path / "index", name)

    def test_only_distributions_are_listed(self, tmp_path: Path) -> None:
        """A directory may be a stranger's link to private files."""
        private = tmp_path / "private"
        private.mkdir()
        for name in ("id_rsa", "backup.tar.gz", "demo-1.0.tar.gz"):
            (private / name).write_bytes(b"x")
        index = tmp_path / "index"
        index.mkdir()
        (index / "demo").symlink_to(private, target_is_directory=True)
        page = self.read(index, "demo")
        assert [file.filename for file in page.files] == ["demo-1.0.tar.gz"]

    def test_a_folder_with_a_page(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "torch").mkdir()
        page = tmp_path / "torch" / "index.html"
        page.write_text(f'<a href="{NAME}#sha256={SHA}">x</a><a href="../b-1.zip">')
        files = self.read(tmp_path, "torch").files
        assert [local_path(file.url) for file in files] == [
            tmp_path / "torch" / NAME,
            tmp_path / "b-1.zip",
        ]
        monkeypatch.setattr(places, "_LOOKING", -1.0)  # the links take too long
        with pytest.raises(UpstreamError, match="in too many directories"):
            self.read(tmp_path, "torch")
        page.write_bytes(b"\xff")
        with pytest.raises(UpstreamError, match="not UTF-8"):
            self.read(tmp_path, "torch")

    @pytest.mark.parametrize("has_page", [True, False])
    def test_files_outside(self, has_page: bool, tmp_path: Path) -> None:
        """The index may be a copy of a stranger's; pip opens such files itself."""
        folder = tmp_path / "mirrors" / "simple"
        (folder / "torch").mkdir(parents=True)
        (private := tmp_path / "private" / NAME).parent.mkdir()
        private.write_bytes(b"x")
        if has_page:
            page = f'<!DOCTYPE html><a href="{private.as_uri()}">{NAME}</a>'
            (folder / "torch" / "index.html").write_text(page)
        else:
            (folder / "torch" / NAME).symlink_to(private)
        assert only(self.read(folder, "torch")).url.startswith("refused:file:")
        upstream = FolderUpstream(folder, Client())
        upstream.is_of_pip = True
        found = only(asyncio.run(upstream.get_project_page("torch")))
        assert local_path(found.url).read_bytes() == b"x"

    @pytest.mark.skipif(sys.platform != "linux", reason="Linux tells what was opened")
    def test_a_file_that_is_exchanged_for_a_link(self, tmp_path: Path) -> None:
        """The owner of the directory must not get METADATA of another user's wheel."""
        folder = tmp_path / "mirrors" / "simple"
        (folder / "torch").mkdir(parents=True)
        (private := tmp_path / "private" / NAME).parent.mkdir()
        private.write_bytes(b"secret")
        file = folder / "torch" / NAME
        file.write_bytes(b"fine")
        upstream = FolderUpstream(folder, Client())
        resource = asyncio.run(upstream.get_resource("torch", NAME))
        assert isinstance(resource, model.LocalResource)
        assert read_local(resource) == b"fine"
        file.unlink()
        file.symlink_to(private)
        with pytest.raises(errors.ResourceUnavailable):
            read_local(resource)

    def test_a_missing_folder(self, tmp_path: Path) -> None:
        upstream = FolderUpstream(tmp_path / "gone", Client())
        with pytest.raises(UpstreamError):
            asyncio.run(upstream.get_project_list())


def test_pages_that_pip_has_read() -> None:
    """nvp does without the others, until pip has read them."""
    index = make_upstream("http://127.0.0.1:1/simple/", None, Client())
    assert index is not None
    reply = CompleteResponse(
        status=200,
        url="http://127.0.0.1:1/simple/demo/",
        headers={"content-type": "text/html"},
        body=HTML_PAGE.encode(),
    )
    index.miss("demo")
    with pytest.raises(errors.PackageNotFoundError):
        asyncio.run(index.get_project_page("demo"))
    index.miss("demo", "pip alone has read it")
    with pytest.raises(UnjudgedError, match="pip alone"):
        asyncio.run(index.get_project_page("demo"))
    asyncio.run(index.take(reply, "demo"))
    assert only(asyncio.run(index.get_project_page("demo"))).filename == NAME


@pytest.mark.parametrize("name", ["_parse", "parse_projects"])
def test_large_pages_are_parsed_one_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty pages of 1 MB, which are small if compressed, took 1.5 GB."""
    active: list[int] = []
    most: list[int] = []
    parse = getattr(upstream, name)

    def record(*args: Any) -> Any:
        active.append(1)
        time.sleep(0.05)
        most.append(len(active))
        try:
            return parse(*args)
        finally:
            active.pop()

    async def read(url: str) -> None:
        client = Client()
        index = make_upstream(f"{url}/simple/", None, client)
        assert index is not None
        details = map(index.get_project_page, "abc")
        lists = (index._read_names() for _ in "abc")
        await asyncio.gather(*(details if name == "_parse" else lists))
        await client.close()

    monkeypatch.setattr("nvp.index.http.client.LARGE", 200_000)
    monkeypatch.setattr(upstream, name, record)
    page = Answer(body=HTML_PAGE.encode() + b" " * 300_000, kind="text/html")
    with serve_answers(
        {f"/simple/{x}": page for x in ("", "a/", "b/", "c/")}
    ) as server:
        asyncio.run(read(server.url))
    assert most == [1] * 3


class TestLinks:
    def test_projects_come_from_file_names(self, tmp_path: Path) -> None:
        names = [
            "Zope.Interface-5.0.tar.gz",
            "zope_interface-6.0-py3-none-any.whl",
            "zope-1.0.tar.gz",
            "zopeinterface-1.0.tar.gz",
        ]
        for name in names:
            (tmp_path / name).touch()
        upstream = LinksUpstream(str(tmp_path), Client())
        page = asyncio.run(upstream.get_project_page("zope.interface"))
        assert [file.filename for file in page.files] == names[:2]
        resource = asyncio.run(upstream.get_resource("zope-interface", names[0]))
        assert isinstance(resource, model.LocalResource)

    def test_a_page_in_a_file(self, tmp_path: Path) -> None:
        page = tmp_path / "links.html"
        page.write_text('<a href="a-1.zip">x</a><a href="https://h.example/a-2.zip">')
        upstream = LinksUpstream(page.as_uri(), Client())
        found = asyncio.run(upstream.read_all())
        assert [file.filename for file in found.files] == ["a-1.zip", "a-2.zip"]

    @pytest.mark.parametrize("name", ["a-1.0-py3-none-any.whl", "a-1.0.tar.gz"])
    @pytest.mark.parametrize(
        ("answer", "others"),
        [
            (Answer(body=b"x" * 999), []),
            (Answer(status=404), []),
            (Answer(body=b'<a href="a-2.zip">x</a>', kind="text/html"), ["a-2.zip"]),
            (Answer(body=json_page(json_file()), kind=JSON), [NAME]),
        ],
    )
    def test_a_file_on_a_server(
        self, answer: Answer, others: list[str], name: str
    ) -> None:
        """pip takes every URL for a file, and reads pages, too."""
        with serve_answers({f"/f/{name}?key=1": answer}) as server:
            url = f"{server.url}/f/{name}?key=1"

            async def read() -> model.ProjectDetail:
                client = Client()
                try:
                    return await LinksUpstream(f"{url}#sha256={SHA}", client).read_all()
                finally:
                    await client.close()

            *linked, file = asyncio.run(read()).files
        assert [each.filename for each in linked] == others
        assert (file.filename, file.url, file.hashes) == (name, url, {"sha256": SHA})


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://a.example/", True),
        ("http://a.example/", False),
        ("http://127.0.0.1:1/", True),
        ("http://127.9.9.9/", True),
        ("http://[::1]/", True),
        ("http://localhost/", True),
        # This name only looks like a loopback address.
        ("http://127.evil.example/", False),
        ("http://trusted.example/", True),
        ("ftp://a.example/", False),
    ],
)
def test_plain_http_is_for_this_machine_and_trusted_hosts(
    url: str, allowed: bool
) -> None:
    client = Client(Settings(trusted_hosts=("trusted.example",)))
    assert client.is_allowed(url) == allowed


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize(
    ("own", "known"),
    [
        ("user:word@", None),
        ("user:word@", ("user", "another")),
        ("user@", ("user", "word")),
        ("", ("user", "word")),
    ],
)
def test_a_password_that_pip_knows_completes_the_user_of_a_url(
    links: bool, own: str, known: tuple[str, str] | None, tmp_path: Path
) -> None:
    """The first request has the password, so no user is prompted after a refusal."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "index.html").write_text(HTML_PAGE)

    async def read(url: str) -> list[str]:
        client = Client(Settings(timeout=30, deadline=60, trust_env=False))
        given = f"{url.replace('://', f'://{own}')}{'torch/' if links else ''}"
        upstream = make_upstream(given, known, client, links=links)
        assert upstream is not None
        try:
            page = await upstream.get_project_page("torch")
        finally:
            await client.close()
        return [file.filename for file in page.files]

    with serve(tmp_path, credentials="user:word") as url:
        assert asyncio.run(read(url)) == [NAME]
