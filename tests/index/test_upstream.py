"""Pages of indexes: they say here what they say to pip."""

from __future__ import annotations

import asyncio
import html
import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pip._internal.index.collector import IndexContent, parse_links
from pip._internal.models.link import Link
from simple_repository import content_negotiation, errors, model, serializer

from nvidia_variant_provider.index.client import Client, UpstreamError
from nvidia_variant_provider.index.pages import LABEL_KEY, parse_page, parse_projects
from nvidia_variant_provider.index.upstream import (
    FolderUpstream,
    LinksUpstream,
    local_path,
)

URL = "https://index.example/simple/torch/"
JSON = "application/vnd.pypi.simple.v1+json"
HTML = "text/html; charset=utf-8"
_KEYS = (
    *("files", "filename", "url", "hashes", "yanked", "size", "_x", "meta"),
    *("api-version", "name", "versions", "core-metadata"),
)
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


class TestJson:
    def test_everything_is_kept(self) -> None:
        file = json_file(
            **{
                "hashes": {"sha256": SHA, "blake2b": "ff"},
                "requires-python": ">=3.10,<4",
                "core-metadata": {"sha256": SHA},
                "gpg-sig": True,
                "yanked": "broken <b>",
                "size": 12,
                "upload-time": "2025-01-02T03:04:05.123456Z",
                "_private": {"a": [1]},
            }
        )
        body = json_page(file, versions=["1.0", "2.0"], _own=1)
        page = parse_page(body, JSON, URL, "torch")
        assert page.versions == frozenset(["1.0", "2.0"])
        found = only(page)
        assert found == model.File(
            filename=NAME,
            url=f"https://files.example/{NAME}",
            hashes={"sha256": SHA, "blake2b": "ff"},
            requires_python=">=3.10,<4",
            dist_info_metadata={"sha256": SHA},
            gpg_sig=True,
            yanked="broken <b>",
            size=12,
            upload_time=datetime(2025, 1, 2, 3, 4, 5, 123456),  # noqa: DTZ001
            private_metadata=found.private_metadata,
        )
        again = json.loads(
            serializer.serialize(page, content_negotiation.Format.JSON_V1)
        )
        # The library writes no fractions of seconds.
        file["upload-time"] = "2025-01-02T03:04:05Z"
        assert again["files"] == [file]
        assert sorted(again["versions"]) == ["1.0", "2.0"]
        assert (again["_own"], again["meta"]) == (1, {"api-version": "1.1"})

    @pytest.mark.parametrize(
        ("keys", "expected"),
        [
            ({}, None),
            ({"core-metadata": True}, True),
            ({"core-metadata": False}, False),
            ({"dist-info-metadata": {"sha256": SHA}}, {"sha256": SHA}),
            ({"core-metadata": None, "dist-info-metadata": True}, True),
            ({"core-metadata": False, "dist-info-metadata": True}, False),
            ({"core-metadata": {}}, True),
            ({"core-metadata": [1]}, None),
        ],
    )
    def test_metadata_under_both_names(
        self, keys: dict[str, Any], expected: object
    ) -> None:
        # The name of one key in another place is no key.
        other = json_file(filename="core-metadata-1.tar.gz")
        page = read_json(json_file(**keys), other)
        assert page.files[0].dist_info_metadata == expected

    def test_a_project_called_as_a_key(self) -> None:
        name = "dist_info_metadata-1.0.tar.gz"
        url = f"https://files.example/dist-info-metadata/{name}"
        found = only(read_json(json_file(filename=name, url=url)))
        assert (found.filename, found.url) == (name, url)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("2025-01-02T03:04:05Z", datetime(2025, 1, 2, 3, 4, 5)),  # noqa: DTZ001
            ("2025-01-02T03:04:05.1234567Z", "seconds"),
            ("2025-01-02T03:04:05+01:00", None),
            ("yesterday", None),
            ("yesterdayZ", None),
            (1735787045, None),
            (None, None),
        ],
    )
    def test_times(self, text: object, expected: object) -> None:
        found = only(read_json(json_file(**{"upload-time": text}))).upload_time
        if expected == "seconds":
            assert found is not None
            found = found.replace(microsecond=0)
            expected = datetime(2025, 1, 2, 3, 4, 5)  # noqa: DTZ001
        assert found == expected

    @pytest.mark.parametrize(
        "changes",
        [
            {"url": 5},
            {"url": "https://[bad/x.whl"},
            {"url": "http://files.example:99999999/x.whl"},
            {"url": "\ud800.whl"},
            {"filename": 5},
            {"filename": "\ud800.whl"},
        ],
    )
    def test_an_entry_that_names_no_file_is_left_out(self, changes: Any) -> None:
        assert only(read_json(json_file(**changes), json_file())).filename == NAME

    @pytest.mark.parametrize(
        ("changes", "key", "expected"),
        [
            ({"hashes": ["sha256"]}, "hashes", {}),
            ({"hashes": None}, "hashes", {}),
            ({"hashes": {"sha256": 5, "md5": "aa"}}, "hashes", {"md5": "aa"}),
            ({"requires-python": 3}, "requires_python", None),
            ({"requires-python": "\udfff"}, "requires_python", None),
            ({"yanked": ""}, "yanked", False),
            ({"yanked": [1]}, "yanked", True),
            ({"yanked": "\udfff"}, "yanked", True),
            ({"gpg-sig": "yes"}, "gpg_sig", None),
            ({"size": "12"}, "size", None),
            ({"size": -1}, "size", None),
            ({"size": True}, "size", None),
        ],
    )
    def test_a_value_of_another_type_is_left_out(
        self, changes: Any, key: str, expected: object
    ) -> None:
        assert getattr(only(read_json(json_file(**changes))), key) == expected

    def test_sizes_that_are_missing_though_promised(self) -> None:
        page = read_json(json_file(size=None), json_file(), versions=["1.0"])
        assert len(page.files) == 2
        assert page.versions == frozenset(["1.0"])

    def test_our_own_key_is_ours(self) -> None:
        found = only(read_json(json_file(**{LABEL_KEY: "../../x", "_a": 1})))
        assert dict(found.private_metadata.items()) == {"_a": 1}

    @pytest.mark.parametrize("name", ["<script>", None, 5, "other", "Torch"])
    def test_the_name_of_the_page(self, name: Any) -> None:
        body = json_page(name=name)
        found = parse_page(body, JSON, URL, "torch").name
        assert found == ("Torch" if name == "Torch" else "torch")

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b"{}",
            b"null",
            b"{",
            b"\xff\xfe\xff",
            b'{"files": 5, "meta": {"api-version": "1.0"}}',
            b'{"files": [5], "meta": {"api-version": "1.0"}}',
            b'{"files": [{}], "meta": {"api-version": "1.0"}}',
            b'{"files": [], "meta": {"api-version": "2.0"}}',
            b'{"files": [], "meta": {"api-version": "x\x1b"}}',
            b'{"files": [], "meta": 5}',
            b'{"files": [], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"files": [], "x": ' + b"9" * 5000 + b"}",
        ],
    )
    def test_what_is_no_page_is_refused(self, body: bytes) -> None:
        with pytest.raises(UpstreamError) as caught:
            parse_page(body, JSON, URL, "torch")
        assert caught.value.status == 502
        assert str(caught.value).isprintable()


class TestHtml:
    def test_everything_is_kept(self) -> None:
        found = only(
            read_html(
                f'<a href="{NAME}#sha256={SHA}" data-requires-python="&gt;=3.10"'
                f' data-core-metadata="sha256={SHA}" data-gpg-sig="false"'
                f' data-yanked="bad &quot;build&quot;">{NAME}</a>'
            )
        )
        assert found == model.File(
            filename=NAME,
            url=URL + NAME,
            hashes={"sha256": SHA},
            requires_python=">=3.10",
            dist_info_metadata={"sha256": SHA},
            gpg_sig=False,
            yanked='bad "build"',
        )

    @pytest.mark.parametrize(
        ("attributes", "expected"),
        [
            ("", None),
            ('data-core-metadata="true"', True),
            ('data-dist-info-metadata="true"', True),
            (f'data-dist-info-metadata="sha256={SHA}"', {"sha256": SHA}),
            ('data-core-metadata="true" data-dist-info-metadata="x"', True),
            ('data-core-metadata="false"', False),
            ("data-core-metadata", None),
        ],
    )
    def test_metadata_under_both_names(self, attributes: str, expected: object) -> None:
        found = only(read_html(f'<a href="{NAME}" {attributes}>x</a>'))
        assert found.dist_info_metadata == expected

    @pytest.mark.parametrize(
        ("attributes", "expected"),
        [
            ("", None),
            ("data-yanked", True),
            ('data-yanked=""', True),
            ('data-yanked="false"', "false"),
        ],
    )
    def test_yanked(self, attributes: str, expected: object) -> None:
        assert (
            only(read_html(f'<a href="{NAME}" {attributes}>x</a>')).yanked == expected
        )

    @pytest.mark.parametrize(
        "text",
        ["Download", "", " \n ", "<b>torch</b>", f"cu129/{NAME}", f"{NAME} (1 MB)"],
    )
    def test_the_url_names_the_file(self, text: str) -> None:
        assert only(read_html(f'<a href="cu129/{NAME}">{text}</a>')).filename == NAME

    @pytest.mark.parametrize(
        ("fragment", "expected"),
        [
            (f"sha256={SHA}", {"sha256": SHA}),
            (f"egg=torch&sha256={SHA}", {"sha256": SHA}),
            (f"sha256={SHA}&egg=torch", {"sha256": SHA}),
            ("md5=abc", {"md5": "abc"}),
            ("egg=torch", {}),
            ("", {}),
        ],
    )
    def test_fragments(self, fragment: str, expected: dict[str, str]) -> None:
        href = html.escape(f"{NAME}#{fragment}")
        assert only(read_html(f'<a href="{href}">x</a>')).hashes == expected

    def test_what_is_no_link_to_a_file(self) -> None:
        page = read_html(
            '<a href="../">up</a><a href="?C=N;O=D">sort</a><a name="x">y</a>'
            '<a href="">z</a><a href="https://[bad/x.whl">w</a><a href>v</a>'
        )
        assert page.files == ()

    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            ("text/html; charset=iso-8859-1", "caf\u00e9".encode("latin-1")),
            ('text/html; charset="windows-1252"', "caf\u00e9".encode("cp1252")),
            ("text/html; charset=nonsense", "caf\u00e9".encode()),
            ("text/html; charset=rot13", "caf\u00e9".encode()),
            ("", "caf\u00e9".encode()),
        ],
    )
    def test_the_header_says_the_encoding(self, kind: str, body: bytes) -> None:
        page = parse_page(
            b'<a data-yanked="' + body + b'" href="a-1.zip">', kind, URL, "a"
        )
        assert only(page).yanked == "caf\u00e9"

    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            ("text/html", b"\xff"),
            ("text/html; charset=unicode_escape", b"<a href=x data-yanked='\\ud800'>"),
            ("text/plain", b"x"),
            ("application/zip", b"PK"),
            ("image/png\x1b[31m", b"x"),
        ],
    )
    def test_what_is_no_page_is_refused(self, kind: str, body: bytes) -> None:
        with pytest.raises(UpstreamError) as caught:
            parse_page(body, kind, URL, "torch")
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "spelled",
    [
        "https://files.example/a%2Bcu129/torch-1.0%2Bcu129-py3-none-any.whl",
        "https://files.example/torch-1.0+cu129-py3-none-any.whl",
        "../../packages/torch-1.0%2Bcu129-py3-none-any.whl",
        "//files.example/torch-1.0-py3-none-any.whl",
        "/files/torch-1.0-py3-none-any.whl",
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
def test_urls_are_those_of_pip(spelled: str, base: str) -> None:
    page = json_page(json_file(url=spelled))
    (link,) = links_of_pip(page, JSON, base)
    mine = only(parse_page(page, JSON, base, "torch"))
    # pip spells some characters anew, of our pages as well.
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
        "https://[bad/",
        "file:///tmp/",
    ],
)
def test_a_base_is_where_urls_start(base: str) -> None:
    text = f'<base href="{base}"><base href="/no/"><a href="{NAME}">x</a>'
    if "[" in base:
        assert only(read_html(text)).url == URL + NAME
        return
    (link,) = links_of_pip(text.encode(), "text/html")
    if base[0] in "hf":  # pip takes a relative one as it is, which leads nowhere
        assert only(read_html(text)).url == link.url
    else:
        assert only(read_html(text)).url.startswith("https://")


@settings(max_examples=100)
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


@settings(max_examples=100)
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
    assert [file.filename for file in page.files[:2]] == [
        "torch-0.0.tar.gz",
        "torch-1.0.tar.gz",
    ]
    assert len(page.files) == 10_010
    text = "".join(f'<a href="torch-{n}.0.tar.gz">x</a>' for n in range(10_000))
    assert len(read_html(text).files) == 10_000


def test_lists_of_projects() -> None:
    bad = ["<script>", "", "a/b", "..", None, 5, "a\n"]
    names = ["torch", "Zope.Interface", *bad]
    body = json.dumps({"projects": [{"name": name} for name in names]}).encode()
    found = parse_projects(body, JSON, URL)
    assert {item.name for item in found.projects} == {"torch", "Zope.Interface"}
    text = '<a href="t/"> torch </a><a href="x">&lt;script&gt;</a><a href="z"></a>'
    found = parse_projects(text.encode(), "text/html", URL)
    assert {item.name for item in found.projects} == {"torch"}
    for body, kind in (
        (b"{}", JSON),
        (b"[", JSON),
        (b"", "image/png"),
        (b"\xff", HTML),
    ):
        with pytest.raises(UpstreamError):
            parse_projects(body, kind, URL)


class TestFolders:
    def read(self, folder: Path, project: str) -> model.ProjectDetail:
        return asyncio.run(FolderUpstream(folder).get_project_page(project))

    def test_files(self, tmp_path: Path) -> None:
        (tmp_path / "torch" / "deeper").mkdir(parents=True)
        (tmp_path / "torch" / "a b+c-1.0.zip").write_bytes(b"xy")
        found = only(self.read(tmp_path, "Torch"))
        assert (found.filename, found.size) == ("a b+c-1.0.zip", 2)
        assert local_path(found.url).read_bytes() == b"xy"

    @pytest.mark.skipif(sys.platform != "linux", reason="names are any bytes there")
    def test_names_that_are_no_text_are_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "torch").mkdir()
        with open(os.fsencode(tmp_path / "torch") + b"/\xff-1.0.zip", "wb"):
            pass
        assert self.read(tmp_path, "torch").files == ()

    @pytest.mark.parametrize(
        "name", ["x" * 5000, "a\0b", "..", "../x", "a/b", "\\\\h\\x"]
    )
    def test_there_is_no_way_out(self, name: str, tmp_path: Path) -> None:
        (tmp_path / "index").mkdir()
        (tmp_path / "x").mkdir()
        with pytest.raises(errors.PackageNotFoundError):
            self.read(tmp_path / "index", name)

    def test_a_page_of_its_own(self, tmp_path: Path) -> None:
        (tmp_path / "torch").mkdir()
        page = tmp_path / "torch" / "index.html"
        page.write_text(f'<a href="{NAME}#sha256={SHA}">x</a><a href="../b-1.zip">')
        files = self.read(tmp_path, "torch").files
        assert [local_path(file.url) for file in files] == [
            tmp_path / "torch" / NAME,
            tmp_path / "b-1.zip",
        ]
        page.write_bytes(b"\xff")
        with pytest.raises(UpstreamError):
            self.read(tmp_path, "torch")

    def test_a_folder_that_is_gone(self, tmp_path: Path) -> None:
        upstream = FolderUpstream(tmp_path / "gone")
        with pytest.raises(UpstreamError):
            asyncio.run(upstream.get_project_list())


class TestLinks:
    def test_projects_are_those_of_the_names(self, tmp_path: Path) -> None:
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
