"""Pages in the shapes that index programs write, which must be plain.

The local index judges only plain pages: it passes others on. Projects, hosts and texts
are invented; the tags, attributes, keys and spaces are those of the program.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import pytest
from support.pages import HTML, JSON, SHA, links_of_pip

from nvp.index.http import html_links, pages
from nvp.index.http.pages import find_projects, parse_page, parse_projects
from nvp.index.http.urls import UpstreamError

INDEX, FILES = "https://index.example", "https://files.example/aa"
URL = f"{INDEX}/simple/sample/"
NAME = "sample-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
CUDA, QUOTED = (NAME.replace("1.0", f"1.0{plus}cu128") for plus in ("+", "%2B"))
SDIST = "sample-1.0.tar.gz"
HASH, MD5 = f"#sha256={SHA}", f"#md5={SHA[:32]}"
PYTHON = 'data-requires-python="&gt;=3.10"'
BOTH = f'data-dist-info-metadata="sha256={SHA}" data-core-metadata="sha256={SHA}"'
TITLE, HEADING = "<title>Links for sample</title>", "<h1>Links for sample</h1>"
VERSION = '<meta name="pypi:repository-version" content="1.0">'
OLD_VERSION = '<meta name="api-version" value="2"'
APACHE = '<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 3.2 Final//EN">'
SORTED = (
    '<a href="?C=N;O=D">Name</a>     <a href="?C=M;O=A">Last modified</a>'
    '      <a href="?C=S;O=A">Size</a>  <a href="?C=D;O=A">Description</a>'
)


def html_page(head: str, body: str, doctype: str = "<!DOCTYPE html>") -> str:
    return (
        f'{doctype}\n<html lang="en">\n  <head>\n    {head}\n  </head>\n'
        f"  <body>\n    {body}\n  </body>\n</html>\n"
    )


# fmt: off
HTML_PAGES = {
    # pypi/warehouse: templates/api/simple/detail.html
    "warehouse": (html_page(
        f'{VERSION}<meta name="pypi:project-status" content="active">{TITLE}',
        f"""{HEADING}
<a href="{FILES}/{NAME}{HASH}" {PYTHON} {BOTH} data-provenance="{FILES}/p">x</a><br />
<a href="{FILES}/{SDIST}{HASH}" data-yanked="a &#34;b&#34; &amp; c" >x</a><br />""",
    ) + "<!--SERIAL 123456-->\n", f"{FILES}/{NAME}", f"{FILES}/{SDIST}"),
    # pypa/bandersnatch: src/bandersnatch/simple.py
    "bandersnatch": (html_page(
        VERSION + TITLE,
        f'<a href="../../packages/a/{NAME}{HASH}" {PYTHON} data-yanked="">x</a><br/>',
    ) + "<!--SERIAL 123456-->", f"{INDEX}/packages/a/{NAME}"),
    # devpi/devpi: server/devpi_server/views.py, for installers
    "devpi": (f"""<!DOCTYPE html><html lang="en"><head>{TITLE}</head><body>{HEADING}
<p><strong>INFO:</strong> Because it isn't in the <code>list</code>, none is.</p>\
root/dev <a href="../../+f/012/3456789/{NAME}{HASH}" {PYTHON}>{NAME}</a><br>
</body></html>""", f"{INDEX}/+f/012/3456789/{NAME}"),
    # pypiserver/pypiserver: pypiserver/_app.py, core.py
    "pypiserver": (html_page(
        '<meta charset="utf-8">\n<meta name="viewport" content="initial-scale=1">',
        f'{HEADING}\n<a href="/packages/{CUDA}{MD5}">{CUDA}</a><br>',
    ), f"{INDEX}/packages/{CUDA}"),
    # sonatype/nexus-public: plugins/nexus-repository-pypi, pypi-index.vm
    "nexus": (f"""<html lang="en">
<head>{TITLE}
  {OLD_VERSION}/>
</head>
<body>{HEADING}
  <a href="../../packages/sample/1.0/{NAME}{HASH}" rel="internal" {PYTHON}>x</a><br/>
</body>
</html>
""", f"{INDEX}/packages/sample/1.0/{NAME}"),
    # pages that users quote: pypa/pip-audit issue 410, pypa/pip issue 10825
    "artifactory": (f"""<!DOCTYPE html>
<html><head><title>Simple Index</title>{OLD_VERSION} /></head><body>
<a href="../../packages/packages/aa/{NAME}{HASH}" {PYTHON} rel="internal">x</a><br />
<a href="../../sample/1.0/{SDIST}{MD5}" rel="internal">{SDIST}</a><br />
</body></html>""",
    f"{INDEX}/packages/packages/aa/{NAME}", f"{INDEX}/sample/1.0/{SDIST}"),
    # GitLab: app/presenters/packages/pypi/simple_presenter_base.rb
    "gitlab": (html_page(
        TITLE,
        f'<a href="{FILES}/api/v4/{NAME}{HASH}" data-requires-python="">x</a>'
        f'<a href="{FILES}/api/v4/{SDIST}{HASH}" {PYTHON}>x</a>',
    ), f"{FILES}/api/v4/{NAME}", f"{FILES}/api/v4/{SDIST}"),
    # go-gitea/gitea (and Forgejo): templates/api/packages/pypi/simple.tmpl
    "gitea": (html_page(
        TITLE,
        f'\n\t<a href="{FILES}/{CUDA.replace("+", "&#43;")}{HASH}" {PYTHON}>x</a><br>',
    ), f"{FILES}/{CUDA}"),
    # pulp/pulp_python: pulp_python/app/utils.py
    "pulp": (html_page(
        TITLE + VERSION,
        f"""{HEADING}
      <a href="{FILES}/{NAME}{HASH}" rel="internal" {PYTHON}  {BOTH}>{NAME}</a><br/>
      <a href="../../{SDIST}{HASH}" rel="internal" >{SDIST}</a><br/>""",
    ), f"{FILES}/{NAME}", f"{INDEX}/{SDIST}"),
    # a page that users quote: astral-sh/uv issue 1388
    "codeartifact": (html_page(
        TITLE,
        f'<a href="1.0/{NAME}{HASH}" {PYTHON} data-gpg-sig="false" >x</a>\n<br/>',
    ), f"{URL}1.0/{NAME}"),
    # stevearc/pypicloud: pypicloud/templates/package.jinja2; astral-sh/uv issue 2099
    "pypicloud": (
        html_page("", f'<a href="{INDEX}/api/package/sample/{NAME}#{SHA}">x</a><br>'),
        f"{INDEX}/api/package/sample/{NAME}",
    ),
    # gorilla-co/s3pypi: s3pypi/index.py; uranusjr/simpleindex: routes.py
    "s3pypi": (html_page(
        '<meta charset="UTF-8">',
        f'<a href="{QUOTED}">{CUDA}</a><br>\n<a href="./{CUDA}">{CUDA}</a>',
    ), f"{URL}{QUOTED}", f"{URL}{CUDA}"),
    # chriskuehl/dumb-pypi: dumb_pypi/templates/package.html
    "dumb-pypi": (html_page(TITLE, f"""<p>Latest version: <input
            type="text"
            style="font-family: monospace; width: 11ch;"
            readonly="readonly"
        /></p>
        <ul>
            <li>
                <a
                    href="../../packages/{NAME}{HASH}"
                        {PYTHON}
                        data-core-metadata="true"
                        data-yanked="broken"
                >{NAME}</a>
            </li>
        </ul>
        <script>
            document.getElementById('x').onfocus = (e) => e.target.select();
        </script>""", "<!doctype html>"), f"{INDEX}/packages/{NAME}"),
    # EpicWink/proxpi: src/proxpi/templates/files.html; simple-repository is similar
    "proxpi": (html_page(
        f'{VERSION}<meta name="generator" content="proxpi">',
        f'<a href="{NAME}{HASH}" {PYTHON} {BOTH} data-gpg-sig="false">x</a><br />',
    ), f"{URL}{NAME}"),
    # pytorch/test-infra: s3_management/manage_v2.py; vLLM, PyG and JAX are similar
    "pytorch": (f"""<!DOCTYPE html>
<html>
  <meta http-equiv="Content-Type" content="text/html; charset=utf-8">
  <body>
    <a href="/whl/{QUOTED}{HASH}" {BOTH} data-upload-time="2026-01-02T03:04:05Z">x</a>
    <a href="../cpu/{NAME}">cpu/{NAME}</a><br/>
  </body>
</html>
<!--TIMESTAMP 1767323045-->""", f"{INDEX}/whl/{QUOTED}", f"{INDEX}/simple/cpu/{NAME}"),
    # wheelnext/mockhouse: mockhouse_lib/mockhouse/templates/project_index.html.j2
    "mockhouse": (html_page(
        """<link rel="icon" type="image/x-icon" href="static/x.ico" sizes="32x32">
    <style>
        .cta:hover {
            background: #005a99;
        }
    </style>""",
        f"""<header><a href="/" style="color: white;"><h1>Index</h1></a></header>
    <ul>
        <li><a href="sample-1.0-variants.json">sample-1.0-variants.json</a><br></li>
        <li>
            <a href="{NAME}">
                {NAME}
            </a>
            <div class="code-block">nvidia :: cuda_version_lower_bound :: 12.8<br></div>
        </li>
    </ul>
    <footer><a href="{INDEX}/" class="x">\u00a9 2026 Index | Text.</a></footer>""",
    ), f"{URL}{NAME}"),
    # nginx/nginx: src/http/modules/ngx_http_autoindex_module.c
    "nginx": (f"""<html>\r
<head><title>Index of /simple/sample/</title></head>\r
<body>\r
<h1>Index of /simple/sample/</h1><hr><pre><a href="../">../</a>\r
<a href="{QUOTED}">sample-1.0+cu128-cp312-cp312-manylinux_2_..&gt;</a> 02-Jan-2026\r
</pre><hr></body>\r
</html>\r
""", f"{URL}{QUOTED}"),
    # apache/httpd: modules/generators/mod_autoindex.c, without and with FancyIndexing
    "apache": (html_page(TITLE, f"""<ul><li><a href="/a/"> Parent Directory</a></li>
<li><a href="{CUDA}"> {CUDA}</a></li>
</ul>
<address>Apache/2.4.62 (Debian) Server at index.example Port 443</address>""", APACHE),
    f"{URL}{CUDA}"),
    "apache-fancy": (html_page(
        TITLE, f"""<pre><img src="/icons/blank.gif" alt="Icon "> {SORTED}<hr>\
<img src="/icons/back.gif" alt="[PARENTDIR]" /> <a href="/simple/">Parent Directory</a>
<img src="/icons/unknown.gif" alt="[   ]"> <a href="{CUDA}">sample-1.0+..&gt;</a> 1.2G
<hr /></pre>""", APACHE), f"{URL}{CUDA}"),
    "apache-table": (html_page(TITLE, f"""<table>
   <tr><th valign="top"><img src="/icons/a.gif" alt="[ICO]"></th><th>{SORTED}</th></tr>
   <tr><th colspan="5"><hr></th></tr>
<tr class="odd"><td><a href="{CUDA}">{CUDA}</a></td><td align="right">2026</td>\
<td>&nbsp;</td></tr>
</table>""", APACHE), f"{URL}{CUDA}"),
    # python/cpython: Lib/http/server.py
    "http.server": (html_page(
        '<meta charset="utf-8">',
        f"""<hr>
<ul>
<li><a href="old/">old/</a></li>
<li><a href="{QUOTED}">{CUDA}</a></li>
</ul>""", "<!DOCTYPE HTML>"), f"{URL}{QUOTED}"),
    "http.server-3.14": (html_page(
        '<style type="text/css">\n:root {\ncolor-scheme: light dark;\n}\n</style>',
        f'<ul>\n<li><a href="{QUOTED}">{CUDA}</a></li>\n</ul>',
    ), f"{URL}{QUOTED}"),
    # devpi/devpi: server/devpi_server/views.py, for browsers and unknown clients
    "devpi-form": (html_page(TITLE, f"""<form action="{URL}refresh" method="post">\
<input name="refresh" type="submit" value="Refresh"></form>
root/dev <a href="../../+f/012/{NAME}{HASH}" {PYTHON}>{NAME}</a><br>"""),
    f"{INDEX}/+f/012/{NAME}"),
    # the signed URLs of storage services
    "signed": (
        html_page("", f'<a href="{FILES}/{NAME}?X-Amz-Expires=60&amp;sig=a%2Fb">x</a>'),
        f"{FILES}/{NAME}?X-Amz-Expires=60&sig=a%2Fb",
    ),
    # vllm-project/vllm in 2025: .buildkite/generate_index.py
    "vllm": (
        html_page("", f'<h1>Links for x</h1/>\n<a href="../{QUOTED}">{CUDA}</a><br/>'),
        f"{INDEX}/simple/{QUOTED}",
    ),
}


def file(name: str, url: str, **more: Any) -> dict[str, Any]:
    return {"filename": name, "url": url + name, "hashes": {"sha256": SHA}, **more}


HASHES = {"sha256": SHA}
PRESENT = {"core-metadata": HASHES, "data-dist-info-metadata": HASHES}
ABSENT = {"core-metadata": False, "data-dist-info-metadata": False}
TIME = {"upload-time": "2026-01-02T03:04:05.123456Z", "size": 1, "provenance": None}
JSON_PAGES: dict[str, tuple[dict[str, Any], ...]] = {
    # pypi/warehouse: warehouse/packaging/utils.py
    "warehouse": (
        file(NAME, f"{FILES}/", **PRESENT, **TIME, **{"requires-python": ">=3.10"}),
        file(SDIST, f"{FILES}/", **ABSENT, **TIME, yanked="broken"),
    ),
    # pypa/bandersnatch: src/bandersnatch/simple.py
    "bandersnatch": (
        file(NAME, "../../packages/aa/", **{"requires-python": "", "yanked": True}),
        file(SDIST, "../../packages/aa/", **{"upload-time": "", "yanked": False}),
    ),
    # devpi/devpi: server/devpi_server/views.py
    "devpi": (file(NAME, "../../+f/0/", yanked=True), file(SDIST, "../../", hashes={})),
    # pulp/pulp_python: pulp_python/app/utils.py
    "pulp": (
        file(NAME, f"{FILES}/", **PRESENT, **{"requires-python": None}, size=1),
        file(SDIST, f"{FILES}/", **ABSENT, **{"upload-time": None}, size=None),
    ),
    # simple-repository: simple_repository/serializer.py; EpicWink/proxpi: _cache.py
    "simple-repository": (
        file(NAME, f"{FILES}/", **{"core-metadata": True, "gpg-sig": False}, size=None),
    ),
}
# fmt: on


@pytest.mark.parametrize("name", HTML_PAGES)
def test_html(name: str) -> None:
    text, *urls = HTML_PAGES[name]
    check(text.encode(), HTML, urls)


@pytest.mark.parametrize("name", JSON_PAGES)
def test_json(name: str) -> None:
    files = JSON_PAGES[name]
    meta = {"api-version": "1.4", "_last-serial": 123}
    page = {"meta": meta, "name": "sample", "files": files, "versions": ["1.0"]}
    urls = [item["url"].replace("../..", INDEX) for item in files]
    check(json.dumps(page).encode(), JSON, urls)


def keys_of(number: int) -> str:
    return ",".join(f'"k{n}":1' for n in range(number))


def files_with(number: int, keys: str) -> str:
    entry = f'{{"filename":"?{NAME}","url":"?{NAME}",{keys}}}'
    files = (entry.replace("?", str(n)) for n in range(number))
    return f'{{"files":[{",".join(files)}]}}'


ATTRIBUTES = " ".join(f"data-a{n}=x" for n in range(10))
MANY_KEYS = {
    "file": (files_with(1, keys_of(101)), "an object with more than 100 keys"),
    "page": ('{"files":[],' + keys_of(100) + "}", "an object with more than 100 keys"),
    "files": (files_with(20, keys_of(9)), "unknown keys"),
    "hashes": (files_with(15, f'"hashes":{{{keys_of(14)}}}'), "unknown keys"),
    "meta": ("<meta name=pypi:x content=y>" * 1001, "more than 1000 keys in <meta>"),
    "links": ("".join(f"<a href=p-{n} {ATTRIBUTES}>" for n in range(20)), "unknown"),
}


@pytest.mark.parametrize("name", MANY_KEYS)
def test_no_page_has_so_many_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key that this program keeps takes 400 bytes: 3.3 million took 1.6 GB."""
    text, most = MANY_KEYS[name]
    monkeypatch.setattr(pages, "_KEYS", 100)
    with pytest.raises(UpstreamError, match=f"is refused: it has .*{most}"):
        parse_page(text.encode(), HTML if "<" in text else JSON, URL, "sample")


@pytest.mark.parametrize("key", ["hashes", "core-metadata", "dist-info-metadata"])
def test_no_file_has_so_many_hashes(key: str) -> None:
    """They are sorted between other requests: 3.3 million took 5 s."""
    for number in (16, 17):
        hashes = ",".join(f'"k{n}":"aa"' for n in range(number))
        text = files_with(1, f'"{key}":{{{hashes}}}')
        if number == 16:
            assert parse_page(text.encode(), JSON, URL, "sample").files
            continue
        with pytest.raises(UpstreamError, match="more than 16 hashes of a file"):
            parse_page(text.encode(), JSON, URL, "sample")


def test_files_may_have_some_unknown_keys() -> None:
    hashes = ",".join(f'"a{n}":"{SHA}"' for n in range(6))
    text = files_with(20_000, f'"hashes":{{{hashes}}},{keys_of(5)}')
    files = parse_page(text.encode(), JSON, URL, "sample", exact=True).files
    assert (len(files), len(files[0].hashes)) == (20_000, 6)


@pytest.mark.parametrize("names", ["abcdefgh", "aaaaaaaa"])
def test_a_list_of_very_many_projects(
    names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are looked at until there are too many: 2.5 million took 9 s."""
    looked_at: list[object] = []

    def is_project(name: object) -> bool:
        looked_at.append(name)
        return True

    monkeypatch.setattr(pages, "_MOST_PROJECTS", 4)
    monkeypatch.setattr(pages, "_is_project", is_project)
    body = json.dumps({"projects": [{"name": name} for name in names]}).encode()
    with pytest.raises(UpstreamError, match="more than 4 projects"):
        parse_projects(body, JSON, URL)
    assert looked_at == [*names[:5]]


@pytest.mark.parametrize("read", [parse_projects, find_projects])
def test_a_list_of_very_many_links(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_links, "_MOST_LINKS", 2)
    with pytest.raises(UpstreamError, match="more than 2 links"):
        read(b"<a href=x/>x</a>" * 4, HTML, URL)


def check(body: bytes, kind: str, urls: list[str]) -> None:
    """Check that the page is plain, and that pip finds the same files on it."""
    page = parse_page(body, kind, URL, "sample", exact=True)
    found = [
        (
            unquote(file.url),
            file.requires_python or None,
            bool(file.yanked),
            file.hashes or None,
            bool(file.dist_info_metadata),
        )
        for file in page.files
        if file.filename.endswith((".whl", ".tar.gz"))
    ]
    assert found == [
        (
            unquote(link.url_without_fragment),
            link.requires_python or None,
            link.is_yanked,
            link.hash_name and {link.hash_name: link.hash},
            link.metadata_link() is not None,
        )
        for link in links_of_pip(body, kind, URL)
        if link.filename.endswith((".whl", ".tar.gz"))
    ]
    assert [url for url, *_ in found] == [unquote(url) for url in urls]
