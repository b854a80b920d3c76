"""Parsing pages of indexes, as pip reads them."""

from __future__ import annotations

import html
import json
from datetime import datetime
from typing import Any

import pytest
from simple_repository import content_negotiation, model, serializer
from support.pages import (
    HTML,
    JSON,
    NAME,
    SHA,
    URL,
    json_file,
    json_page,
    only,
    read_html,
    read_json,
)

from nvp.index.http.kept_keys import LABEL_KEY
from nvp.index.http.pages import find_projects, parse_page, parse_projects
from nvp.index.http.urls import UpstreamError


def refuse_exactly(changes: Any) -> None:
    body = json_page(json_file(url=NAME), json_file(**changes))
    with pytest.raises(UpstreamError, match=r"is not valid|is there twice"):
        parse_page(body, JSON, URL, "torch", exact=True)


class TestJson:
    def test_every_field_is_read(self) -> None:
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
        # The serializer of simple-repository writes no fractions of seconds.
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
        # A value that equals the name of a key must not be read as a key.
        other = json_file(filename="core-metadata-1.tar.gz")
        page = read_json(json_file(**keys), other)
        assert page.files[0].dist_info_metadata == expected

    def test_a_project_with_the_name_of_a_key(self) -> None:
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
    def test_an_entry_without_a_usable_file_is_left_out(self, changes: Any) -> None:
        assert only(read_json(json_file(**changes), json_file())).filename == NAME
        refuse_exactly(changes)

    @pytest.mark.parametrize(
        "changes",
        [
            {"url": f"https://files.example/{NAME}#sha256={'1' * 64}"},
            {"url": f"https://files.example/{NAME}#egg=other"},
            {"data-dist-info-metadata": True},
            {"core-metadata": False, "data-dist-info-metadata": True},
            {"url": f"https://files.example/%zz/{NAME}"},
            {"url": f"b\u00fccher/{NAME}"},
            {"url": f"a//{NAME}"},
            {"size": -1},
            {"url": f"{NAME}?v=1"},
            {"url": f"b/{NAME}", "yanked": True},
            {"filename": f"{'a' * 300}.whl", "url": f"{'a' * 300}.whl"},
            {"filename": "torch-2.0.zip"},
        ],
    )
    def test_an_entry_that_installers_read_differently(self, changes: Any) -> None:
        """pip reads the hash of the URL, and uv a misnamed key (PEP 714)."""
        refuse_exactly(changes)

    @pytest.mark.parametrize(
        "changes",
        [
            {
                "core-metadata": {"sha256": SHA},
                "data-dist-info-metadata": {"sha256": SHA},
            },
            {"url": f"../../a/{NAME.replace('t', '%74')}", "yanked": "why"},
            {
                "url": f"https://files.example:8443/a//b/{NAME}?a=%2F..%2F&b",
                "size": None,
            },
            {"upload-time": "2025-01-02T03:04:05.123456Z", "yanked": False},
            {"filename": "torch-1.0.tar.gz", "url": "/a/torch-1.0.tar.gz"},
        ],
    )
    def test_an_entry_of_a_real_index(self, changes: Any) -> None:
        """PyPI writes the key for METADATA twice, also under the misnamed one."""
        page = parse_page(
            json_page(json_file(**changes)), JSON, URL, "torch", exact=True
        )
        assert only(page).filename == changes.get("filename", NAME)

    @pytest.mark.parametrize(
        "body",
        [
            json_page(json_file()).replace(b'"size"', b'"size": 2, "size"'),
            json_page(json_file()).replace(b"{", b'{"files": [], ', 1),
            json_page(json_file(), a=float("nan")),
            json_page(json_file(a=1)).replace(b'"a": 1', b'"a": 1e999'),
            json_page(json_file()).decode().encode("utf-16"),
            b"\xef\xbb\xbf" + json_page(json_file()),
        ],
    )
    def test_what_is_json_only_for_some(self, body: bytes) -> None:
        with pytest.raises(UpstreamError):
            parse_page(body, JSON, URL, "torch")

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
            ({"yanked": "a\x1b[2J\nb"}, "yanked", "a\\x1b[2J\\nb"),
            ({"gpg-sig": "yes"}, "gpg_sig", None),
            ({"size": "12"}, "size", None),
            ({"size": -1}, "size", None),
            ({"size": True}, "size", None),
        ],
    )
    def test_a_value_of_the_wrong_type_is_left_out(
        self, changes: Any, key: str, expected: object
    ) -> None:
        assert getattr(only(read_json(json_file(**changes))), key) == expected

    @pytest.mark.parametrize(
        "changes",
        [
            {"url": None},
            {"url": f"{NAME} "},
            {"hashes": {"sha256": ""}},
            {"hashes": {"sha256": 5, "md5": "aa"}},
            {"hashes": []},
            {"requires-python": 3},
            {"core-metadata": {"sha256": ""}},
            {"dist-info-metadata": [1]},
        ],
    )
    def test_what_installers_go_by_is_not_lost(self, changes: Any) -> None:
        refuse_exactly(changes)

    @pytest.mark.parametrize("mark", ["#", "#egg=torch&", "?x=1&"])
    def test_a_hash_in_a_url(self, mark: str) -> None:
        """pip uses the hash in the URL, regardless of the key for hashes."""
        url = f"https://files.example/{NAME}{mark}sha256=00"
        found = only(read_json(json_file(url=url, hashes={"sha256": SHA})))
        assert found.hashes == {"sha256": "00"}

    def test_missing_sizes_lower_the_version(self) -> None:
        page = read_json(json_file(size=None), json_file(), versions=["1.0"])
        assert len(page.files) == 2
        assert page.versions == frozenset(["1.0"])

    def test_an_upstream_cannot_set_the_label(self) -> None:
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
            *(b"", b"[]", b"{}", b"null", b"{"),
            b"\xff\xfe\xff",
            b'{"files": 5, "meta": {"api-version": "1.0"}}',
            b'{"files": [5], "meta": {"api-version": "1.0"}}',
            b'{"files": [{}], "meta": {"api-version": "1.0"}}',
            b'{"files": [], "meta": {"api-version": "2.0"}}',
            b'{"files": [], "meta": {"api-version": "x\x1b"}}',
            # Such a version took 2.8 GB.
            b'{"files": [], "meta": {"api-version": "1' + b".1" * 200 + b'"}}',
            b'{"files": [], "meta": 5}',
            b'{"files": [], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"files": [], "x": ' + b"9" * 5000 + b"}",
        ],
    )
    def test_other_documents_are_refused(self, body: bytes) -> None:
        with pytest.raises(UpstreamError) as caught:
            parse_page(body, JSON, URL, "torch")
        assert caught.value.status == 502
        assert str(caught.value).isprintable()


class TestHtml:
    def test_every_field_is_read(self) -> None:
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
            ('data-core-metadata="sha256=-"', {"sha256": "-"}),
            ('data-core-metadata="false"', False),
            ("data-core-metadata", None),
            # Installers read METADATA from the wheel instead.
            ('data-core-metadata="True"', None),
            ('data-core-metadata="yes"', None),
            ('data-core-metadata="sha256"', None),
            (f'data-core-metadata="SHA256={SHA}"', None),
            (f'data-core-metadata="sha1={SHA}"', None),
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
            ('data-yanked="a&#27;[2J\nb"', "a\\x1b[2J\\nb"),
            ('data-yanked="a\x1b]8;;\x07"', "a\\x1b]8;;\\x07"),
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
    def test_the_name_of_a_file_is_in_its_url(self, text: str) -> None:
        assert only(read_html(f'<a href="cu129/{NAME}">{text}</a>')).filename == NAME

    @pytest.mark.parametrize(
        ("fragment", "expected"),
        [
            (f"sha256={SHA}", {"sha256": SHA}),
            (f"egg=torch&sha256={SHA}", {"sha256": SHA}),
            (f"sha256={SHA}&egg=torch", {"sha256": SHA}),
            ("md5=abc", {"md5": "abc"}),
            ("sha256=", {"sha256": ""}),
            ("sha256=-x", {"sha256": "-x"}),
            ("egg=torch", {}),
            ("", {}),
        ],
    )
    def test_fragments(self, fragment: str, expected: dict[str, str]) -> None:
        href = html.escape(f"{NAME}#{fragment}")
        assert only(read_html(f'<a href="{href}">x</a>')).hashes == expected

    @pytest.mark.parametrize(
        "href",
        [
            *("https://[bad/x.whl", f" {NAME}", f"{NAME}\n"),
            *(f"{NAME}#blake2b=00", f"{NAME}#sha256%3D00"),
        ],
    )
    def test_what_installers_go_by_is_not_lost(self, href: str) -> None:
        """uv checks both hashes, and strips a URL; pip does neither."""
        body = f'<a href="{NAME}">x</a><a href="{href}">x</a>'.encode()
        with pytest.raises(UpstreamError, match="not the same for all installers"):
            parse_page(body, "text/html", URL, "torch", exact=True)

    def test_links_that_are_not_files_are_left_out(self) -> None:
        page = read_html(
            '<a href="../">up</a><a href="?C=N;O=D">sort</a><a name="x">y</a>'
            '<a href="https://h.example">u</a><a href="#top">t</a>'
            '<a href="">z</a><a href="https://[bad/x.whl">w</a><a href>v</a>'
        )
        assert page.files == ()

    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            ("text/html; charset=iso-8859-1", "caf\u00e9".encode("latin-1")),
            ('text/html; charset="windows-1252"', "caf\u00e9".encode("cp1252")),
            ("text/html; xcharset=latin-1", "caf\u00e9".encode()),
            ("text/html", "caf\u00e9".encode()),
        ],
    )
    def test_the_encoding_is_in_the_header(self, kind: str, body: bytes) -> None:
        page = parse_page(
            b'<a data-yanked="' + body + b'" href="a-1.zip">', kind, URL, "a"
        )
        assert only(page).yanked == "caf\u00e9"

    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            ("text/html", b"\xff"),
            ("text/html", b"<base href='http://[::1/'><a href=x>"),
            ("text/html; charset=unicode_escape", b"<a href=x data-yanked='\\ud800'>"),
            ("text/html; " + ";" * 1024, b"<a href=x>"),
            ("text/plain", b"x"),
            ("application/zip", b"PK"),
            ("image/png\x1b[31m", b"x"),
        ],
    )
    def test_other_documents_are_refused(self, kind: str, body: bytes) -> None:
        with pytest.raises(UpstreamError) as caught:
            parse_page(body, kind, URL, "torch")
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("kind", [HTML, JSON])
def test_a_page_with_a_long_url(kind: str) -> None:
    """Each link would repeat it, after a redirect for example."""
    url = f"https://index.example/{'a' * 3000}/"
    for read in (parse_projects, find_projects):
        with pytest.raises(UpstreamError, match="too long") as caught:
            read(b'{"projects": []}', kind, url)
        assert len(str(caught.value)) < 500
    with pytest.raises(UpstreamError, match="too long"):
        parse_page(json_page(json_file()), kind, url, "torch")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (JSON, json.dumps({"projects": [{"name": f"a{n}"} for n in range(30_000)]})),
        (HTML, "".join(f"<a href=a{n}/>" for n in range(30_000))),
    ],
)
def test_a_list_of_projects_with_a_long_url(kind: str, body: str) -> None:
    """The URLs of all projects repeat that of the list, but not its query."""
    root = "https://index.example/"
    found = find_projects(body.encode(), kind, f"{root}?sig={'x' * 1900}")
    assert (len(found), found[0]) == (30_000, f"{root}a0/")
    with pytest.raises(UpstreamError, match=r"more than [45].* projects"):
        find_projects(body.encode(), kind, f"{root}{'x' * 1900}/")


@pytest.mark.parametrize("exact", [True, False])
def test_a_long_base(exact: bool) -> None:
    page = f'<base href="https://a.example/{"a" * 3000}/"><a href="x.whl">x</a>'
    with pytest.raises(UpstreamError, match="its <base> has no usable URL"):
        parse_page(page.encode(), HTML, URL, "torch", exact=exact)
