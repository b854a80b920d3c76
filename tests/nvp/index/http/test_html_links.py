"""HTML pages: the links that pip finds, in linear time and in little memory."""

from __future__ import annotations

import html
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.grids import some_of
from support.memory import MIB, peak_of_reading
from support.pages import HTML, JSON, NAME, SHA, URL, links_of_pip, only, read_html

from nvidia_variant_provider.errors import printable
from nvp.index.http.html_links import is_plain_page
from nvp.index.http.pages import parse_page, parse_projects, with_absolute_links
from nvp.index.http.urls import CompleteResponse, UpstreamError

_TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12
)
_HREF = st.sampled_from(
    [
        NAME,
        f"{NAME}#sha256={SHA}",
        f"../../packages/a%2Bb/{NAME}",
        f"/files/{NAME}?a=1&amp=2&b=3",
        f"//files.example/{NAME}",
        f"HTTPS://files.example:8443/{NAME}#egg=torch&sha256={SHA}",
        f"caf\u00e9/{NAME}",
        "?C=N;O=D",
        "#top",
        "../",
    ]
)
_SPACE = st.sampled_from([" ", "\n", "\t", "  \n  "])


def _cased(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from([text, text.upper(), text.title()])


@st.composite
def _attributes(draw: st.DrawFn, *names: str) -> str:
    """Return attributes in any order, case and quoting."""
    pairs = draw(
        st.fixed_dictionaries(
            dict.fromkeys(names, _HREF),
            optional={
                "data-requires-python": st.sampled_from([">=3.8", ">3,<4", "==3.*"]),
                "data-yanked": _TEXT.filter(bool),
                "data-core-metadata": st.sampled_from(["true", f"sha256={SHA}"]),
                "data-gpg-sig": st.sampled_from(["true", "false"]),
                "rel": st.sampled_from(["internal", "homepage"]),
                "data-x.y:z_1": _TEXT,
                "download": st.just(None),
            },
        )
    )
    text = ""
    for name, value in draw(st.permutations(sorted(pairs.items()))):
        text += draw(_SPACE) + draw(_cased(name))
        if value is not None:
            text += draw(st.sampled_from(["=", " = ", "=\n"])) + draw(_quoted(value))
    return text


@st.composite
def _quoted(draw: st.DrawFn, value: str) -> str:
    form = draw(st.sampled_from(["'", '"', "", "#"]))
    if form == "#":
        return '"' + "".join(f"&#x{ord(letter):x};" for letter in value) + '"'
    plain = value and not set(value) & set(" \t\n\r\f\"'=<>`&/") and value.isascii()
    if form == "" and plain:
        return value
    return f"{form or chr(34)}{html.escape(value)}{form or chr(34)}"


_LINK = st.builds(
    "<{}{}>{}</{}>".format,
    _cased("a"),
    _attributes("href") | _attributes(),
    st.sampled_from([NAME, "", "a <b>bold</b> text", "&lt;a href=x&gt;", "1 &amp; 2"]),
    _cased("a"),
)
_AROUND = st.sampled_from(
    [
        "<br/>\n",
        "<!-- <a href='commented.whl'>x</a> -->",
        "<!DOCTYPE html>",
        "<script>var a = '<a href=script.whl>';</script>",
        "<style>a > b { color: red }</style>",
        "<p>1 < 2 && 3 > 2</p>",
        "<ul><li>",
        "</p></div>",
        "<img src=x.png>",
        "text &copy; \u00e9",
        "<table><tr><td>",
        "<abbr href=abbr.whl>x</abbr>",
    ]
)
# pip does not resolve a relative base, which the test below tries.
_BASE = st.sampled_from(
    ["", "<base>", '<BASE HREF="https://cdn.example/x/">', "<base href=https://a.b/>"]
)


@given(st.lists(_LINK | _AROUND, max_size=8), _BASE, st.integers(0, 8))
def test_the_links_are_those_of_pip(parts: list[str], base: str, at: int) -> None:
    parts.insert(min(at, len(parts)), base)
    body = "".join(parts).encode()
    expected = [
        (
            link.filename,
            unquote(link.url_without_fragment),
            link.requires_python,
            link.yanked_reason and printable(link.yanked_reason),
            link.hash_name and {link.hash_name: link.hash},
            link.metadata_link() is not None,
        )
        for link in links_of_pip(body, HTML)
        # Links that are not files: pip ignores them later.
        if link.url_without_fragment.rpartition("/")[2].partition("?")[0]
    ]
    assert [
        (
            file.filename,
            unquote(file.url),  # pip quotes letters, and nvp keeps the spelling.
            file.requires_python,
            file.yanked,
            file.hashes or None,
            bool(file.dist_info_metadata),
        )
        for file in parse_page(body, HTML, URL, "torch").files
    ] == expected


def test_a_base_after_the_links_counts_for_all() -> None:
    page = read_html(f"<a href={NAME}>x</a><base href=/b/><base href=/c/>")
    assert only(page).url == f"https://index.example/b/{NAME}"
    page = read_html(f"<base><base href=/b/><a href={NAME}>")
    assert only(page).url.endswith(f"/b/{NAME}")


def test_tags_that_go_over_the_pieces_of_a_page() -> None:
    line = f'<a href="{NAME}#sha256={SHA}" data-yanked="&eacute;\u00e9\U0001f600">x</a>'
    for shift in range(0, len(line.encode()), 7):
        body = " " * shift + line * 2000
        files = read_html(body).files
        assert len(files) == 2000
        found = {(file.url, file.yanked) for file in files}
        assert found == {(URL + NAME, "\u00e9\u00e9\U0001f600")}


@pytest.mark.parametrize("charset", ["utf-16", "utf-16-le", "utf-32", "shift_jis"])
def test_encodings_with_other_bytes_than_ascii(charset: str) -> None:
    text = f"<base href=/b/><a href={NAME} data-yanked='\u8868'>x</a>" * 2000
    page = parse_page(
        text.encode(charset), f"text/html; charset={charset}", URL, "torch"
    )
    assert len(page.files) == 2000
    assert {(file.url, file.yanked) for file in page.files} == {
        (f"https://index.example/b/{NAME}", "\u8868")
    }


# html.parser needs hours for some of these pages, because it searches the whole page
# for the end of each tag.
MALFORMED = {
    "quotes": "<a x='" * 300_000,
    "comments": "<!--" * 500_000,
    "ends": "</" * 100_000,
    "questions": "<?" * 100_000,
    "declarations": "<!" * 100_000,
    "sections": "<![CDATA[" * 100_000,
    "scripts": "<script><!--<script>" * 10_000,
    "ends of scripts": "<script>" + "</scrip" * 100_000,
    "references": '<a href="' + "&amp" * 60_000 + '">',
    "letters": "<a" + "a" * 4_000_000,
    "slashes": "<a" + "/" * 4_000_000,
    "open": "<" * 100_000,
    "attributes": "<a " + " ".join(f"a{n}" for n in range(400_000)),
    "nesting": "<div>" * 100_000 + "<a><b>" * 10_000,
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_malformed_pages_are_read_or_refused(text: str) -> None:
    outcome = ""
    try:
        files = parse_page(text.encode(), HTML, URL, "torch").files
    except UpstreamError as error:
        outcome = str(error)
    else:
        assert len(files) <= 1
    assert not outcome or "is refused: it has" in outcome


@pytest.mark.parametrize("charset", ["x", "hex", "idna", "utf-7", "unicode-escape"])
def test_other_encodings_are_refused(charset: str) -> None:
    """pip stops at an unknown encoding, so it must get the page as it is."""
    body = b"+" + b"a" * 4_000_000 + f"<a href={NAME}>".encode()
    with pytest.raises(UpstreamError, match=f"encoding '{charset}' is unknown"):
        parse_page(body, f"text/html; charset={charset}", URL, "torch")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("<a href=x/>" * 40_000, "more than 26100 files"),  # each takes as long
        ("<b>" * 1_000_001 + " " * 16_000_000, "more than 1000000 tags"),
        ("<b>" * 200_000, "more than 130000 tags"),
        ("".join(f"<b{n}>" for n in range(20_000)), "more than 10000 kinds of tags"),
        ("<!--" + "x" * 600_000, "a tag or comment of more than 256 KiB"),
    ],
)
def test_limits_say_what_and_where_and_what_to_do(text: str, what: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        parse_page(text.encode(), HTML, URL, "torch", exact=True)
    message = str(caught.value)
    assert message.startswith(f"{URL}: is refused: it has {what}")
    assert message.endswith("; no real page is like that: report it to the index")


def test_lists_of_projects_are_short_texts() -> None:
    body = b"<a href=torch/>torch</a><a href=y/>" + b"y" * 300_000
    listed = parse_projects(body, HTML, URL).projects
    assert min(project.name for project in listed) == "torch"


PREPARE = """
import lxml.etree
from nvp.index.http.pages import parse_page, parse_projects
def read(path):
    body = open(path, "rb").read()
    kind = "text/html"
    if path.endswith("json"):
        kind = "application/vnd.pypi.simple.v1+json"
    if "projects" in path:
        return len(parse_projects(body, kind, "https://index.example/").projects)
    return len(parse_page(body, kind, "https://index.example/torch/", "torch").files)
"""

LINK = (
    '<a href="https://files.example/packages/aa/bb/{n:060x}/torch-1.{v}-{n}-cp312-cp312-'
    'manylinux_2_28_x86_64.whl#sha256={n:064x}" data-requires-python="&gt;=3.10" '
    'data-core-metadata="sha256={n:064x}">torch-1.{n}.whl</a><br />\n'
)
ENTRY = (
    '{{"core-metadata":{{"sha256":"{n:064x}"}},"data-dist-info-metadata":{{"sha256":'
    '"{n:064x}"}},"filename":"torch-1.{v}-{n}-cp312-cp312-manylinux_2_28_x86_64.whl",'
    '"hashes":{{"sha256":"{n:064x}"}},"provenance":null,"requires-python":">=3.10",'
    '"size":{n},"upload-time":"2025-01-02T03:04:05.123456Z","url":"https://files.'
    'example/{n:060x}/torch-1.{n}.whl","yanked":false}}'
)
# The largest pages of PyPI have the same shape: that of ddtrace, with 46,724 files, and
# the list of all projects.
LARGE = {
    "tags.html": lambda: "<a>" * (20 * MIB // 3),
    "links.html": lambda: "<a href=x>" * (2 * MIB),
    "attributes.html": lambda: "<a " + " ".join(f"x{n:x}" for n in range(3 * MIB)),
    "names.html": lambda: "".join(f"<x{n:x}>" for n in range(2 * MIB)),
    "astral.html": lambda: "\U0001f600" * (5 * MIB),
    "real.html": lambda: "".join(LINK.format(n=n, v=n // 50) for n in range(46_724)),
    "lists.json": lambda: '{"files":[' + "[]," * (32 * MIB // 3) + "[]]}",
    "objects.json": lambda: '{"files":[' + "{}," * (20 * MIB // 3) + "{}]}",
    "keys.json": lambda: '{"files":[' + '{"a":1},' * (2 * MIB) + "{}]}",
    "numbers.json": lambda: '{"files":[' + "1000," * (4 * MIB) + "1]}",
    "files.json": lambda: '{"files":[' + '{"filename":"a","url":"b"},' * MIB + "{}]}",
    "real.json": lambda: (
        '{"meta":{"api-version":"1.4"},"name":"torch","files":['
        + ",".join(ENTRY.format(n=n, v=n // 50) for n in range(46_724))
        + "]}"
    ),
    "projects.json": lambda: (
        '{"meta":{"api-version":"1.4"},"projects":['
        + ",".join(
            f'{{"_last-serial":{10**7 + n},"name":"name-{n}"}}' for n in range(886_000)
        )
        + "]}"
    ),
}


@pytest.mark.skipif(sys.platform == "win32", reason="has no module resource")
@pytest.mark.parametrize("name", some_of(((name,) for name in LARGE), 5))
def test_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(LARGE[name]())
    peak, outcome = peak_of_reading(path, PREPARE)
    assert peak <= 6.5 * path.stat().st_size, outcome
    expected = {"real": "46724", "projects": "886000", "astral": "0"}
    assert expected.get(path.stem, "is refused: it has more than") in outcome or (
        "is refused: it has" in outcome
    )


PLAIN = f'<a href="{NAME}">x</a>'
ODD = [
    "<!-->", "<!--->", "<!---- >", "<!-- a -- >", "<!--a--!>", "<![CDATA[ >", "<?x >",
    "<textarea>", "<select>", "<svg><style>", "<title><b></title>", "<script/>",
    "<style/>", "<noscript>", "<template>", "</script/>", '</script x="y">', "\0",
    "<script></p>", "<plaintext>", "<frameset>", "<base href=/b/>",
    "<base target=x><base href=https://x.example/>",
    f'<a href="{NAME}/">', f"<a href={NAME}/>", f'<a href="{NAME[:-3]}%77hl/">',
    f'<a href="{NAME} #sha256={SHA}">', f'<a href="{NAME}\u00a0#sha256={SHA}">',
    f'<a href="{NAME}" href="{NAME}#sha256={SHA}">', f'<a href="{NAME}" href>',
    f'<a href="{NAME}" HREF="x">', f'<a href="{NAME}#egg=x">',
    "<link rel=x><base href=https://x.example/>", "<a></a><base href=/x/>",
    f'<base href=https://x.example/{NAME}><a href="#">',
    '<a href="javascript:alert(1)">',
    f'<a href="a/{NAME}?a"><a href="a/{NAME}?b">', f'<a href="{"a" * 300}.whl">',
    f'<a href="a/{NAME}#a"><a href="a/{NAME}#b" data-yanked=x>',
    f'<a href="a/{NAME}#md5=1"><a href="a/{NAME}#md5=2">',
    f'<a href="a/{NAME}#a"><a href="a/%74{NAME[1:]}" data-yanked=x>',
    f'<a href="{NAME}?x=/y">', f'<a href="{NAME}?a&amp;sha256={SHA}">',
    f'<a href="{NAME}" data-upload-time="2024-13-01T00:00:00Z">',
    '<a href="a//b">', '<a href="\u00e9.whl">',
    f'<a href="{NAME}#sha1={SHA[:40]}">', f'<a href="{NAME}#sha224={SHA[:56]}">',
    f'<a href="{NAME}" data-yanked>', f'<a href="{NAME}" data-core-metadata="">',
    f'<a href="{NAME}" data-core-metadata="0">', f'<a href="{NAME}" data-size="x">',
    f'<a href="{NAME}" data-core-metadata="false">',
    f'<a href="{NAME}" data-core-metadata="true" data-dist-info-metadata="md5=1">',
    f'<a href="{NAME}" data-upload-time="x">',
    f'<a href="{NAME}" data-requires-python="&gt3">', "< a>",
    f'<a href="{NAME}" data-requires-python="&gt=3">',
    f'<a href="{NAME}" data-requires-python="&#60=3">',
    f'<a href="{NAME}" data-requires-python="&comma;">', f'<a\vhref="{NAME}">',
    f"<a href={NAME}\u0085>",
]  # fmt: skip
"""Parts of pages that pip, uv or browsers read in different ways."""

COMMON = [
    PLAIN, "<!DOCTYPE html>", "<!--TIMESTAMP 1-->", "<br/>", "<hr>", "<p class='a'>",
    "<title>Links</title>", "<script>if (1 < 2) a()</script>", "</p>", "</A>",
    '<meta name="pypi:repository-version" content="1.0" />', "text &copy; > ' \u00e9",
    f'<a href="../{NAME}#sha256={SHA}" data-yanked="" rel=internal>', "<td nowrap>",
    f'<A HREF = "{NAME}?a=1&b=2" data-requires-python=\'&gt;=3.8,<4\' >', "</a >",
    f'<a href="{NAME}" data-size="1" data-upload-time="2024-01-01T00:00:00Z"/>',
    '<a href="../">..</a>', "</li>", "<tr><td>", f"<a href=/a/{NAME}>",
    "<style>a > b {}</style>",
]  # fmt: skip
"""Parts of pages that all installers read in the same way."""


@pytest.mark.parametrize("odd", ODD)
def test_a_page_that_installers_read_differently_is_refused(odd: str) -> None:
    """So the installer gets the page of the index, and not what is left of it."""
    for text in (odd + PLAIN, PLAIN + odd):
        with pytest.raises(UpstreamError):
            parse_page(text.encode(), HTML, URL, "torch", exact=True)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize(
    ("kind", "body", "part"),
    [
        (
            JSON,
            b'{"files": [{"filename": "a"}, 5, {"url": "../f/a.whl"}]}',
            '{"url": "https://index.example/simple/f/a.whl"}',
        ),
        (
            HTML,
            b'<a href="../f/a.whl" a a>',
            f'<base href="{URL}"><a href="../f/a.whl"',
        ),
    ],
)
def test_no_relative_link_is_passed_on(
    kind: str, body: bytes, part: str, is_whole: bool
) -> None:
    """It could lead to a file of another index behind the local one."""
    for end in ("", f"?sig={'x' * 3000}"):
        page = passed_on(body, kind, URL + end, is_whole=is_whole)
        assert part in page.raw.decode()


@pytest.mark.parametrize(
    ("kind", "body", "end"),
    [
        (JSON, b'{"files": []}', "x" * 3000),
        (JSON, b'{"files": [{"url": "../f/a.whl"}], "x": %s1%s}', ""),
        (JSON, b'{"files": [{"url": "//["}]}', ""),
        (JSON, b'{"files": [' + b'{"x": {"x": {"x": {}}}}, ' * 10**5 + b"1]}", ""),
        (JSON, b'{"files": [' + b'{"url": "a"}, ' * 30_000 + b"1]}", ""),
        (HTML, b'<a href="a.whl">', "x" * 3000),
        (HTML, b'<base href="../"><a href="a.whl" a a>', ""),
        ("text/html; charset=idna", b'<a href="../f/a.whl">', ""),
    ],
)
def test_no_installer_reads_a_page_whose_links_cannot_be_read(
    kind: str, body: bytes, end: str
) -> None:
    """pip would use the next index after an empty page."""
    if b"%s" in body:  # a newer Python reads more than this one
        body %= (b"[" * 10**5, b"]" * 10**5)
    page = passed_on(body, kind, URL + end)
    assert page.headers == {"content-type": JSON}
    assert page.raw == b""


def passed_on(
    body: bytes, kind: str, url: str, *, is_whole: bool = True
) -> CompleteResponse:
    head = {"content-type": kind}
    return with_absolute_links(
        CompleteResponse(
            status=200, url=url, headers=head, body=body, raw=body, is_whole=is_whole
        )
    )


def test_latin_1_is_plain_only_without_other_characters() -> None:
    """uv reads every page as UTF-8."""
    for text, is_plain in (("x", True), ("\xa0", False)):
        body = f'<a href="{NAME}" data-requires-python=">=3.8{text}">x</a>'
        kind = "text/html; charset=latin1"
        assert is_plain_page(body.encode("latin1"), kind) is is_plain


@given(st.lists(st.sampled_from(COMMON), max_size=12))
def test_common_pages_are_plain(parts: list[str]) -> None:
    # A file that is there twice must be the same each time.
    named = [part.replace(NAME, f"{n}{NAME}") for n, part in enumerate(parts)]
    body = "\n".join(named).encode()
    files = parse_page(body, HTML, URL, "torch", exact=True).files
    assert [file.url for file in files] == pip_files(body)


@given(
    st.lists(st.sampled_from([*COMMON, *ODD, "<", ">", '"', "'", "--", "&", "/", "="])),
    st.sampled_from(["", " ", "\n"]),
)
def test_an_accepted_page_has_the_files_of_pip(parts: list[str], between: str) -> None:
    body = between.join(parts).encode()
    try:
        page = parse_page(body, HTML, URL, "torch", exact=True)
    except UpstreamError:
        return
    assert [file.url for file in page.files] == pip_files(body)


def pip_files(body: bytes) -> list[str]:
    """Return the URLs of the wheels that pip finds on a page."""
    found = links_of_pip(body, HTML)
    return [link.url_without_fragment for link in found if link.filename.endswith(NAME)]
