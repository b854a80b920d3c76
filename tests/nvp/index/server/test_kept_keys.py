"""Keys for newer clients are kept on a page, in JSON and in HTML."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uv
from hypothesis import given
from hypothesis import strategies as st
from support.documents import TORCH
from support.grids import some_of
from support.loopback import JSON, ask, start
from support.processes import PIPS, Pip, installed_labels
from support.range_server import Answer, serve_answers
from support.serving import serving
from support.wheels import stub_wheel

from nvp.index.http.pages import ACCEPT, parse_page

HTML = "text/html"
PAGE = "/simple/torch/"
URL = f"https://index.example{PAGE}"
PROVENANCE = "https://index.example/integrity/torch/1.0/provenance"
METADATA = "Name: torch\nVersion: 2.8.0\nRequires-Dist: x; 'y' in variant_label\n"
META = {"tracks": ["https://a.example/torch/", "https://b.example/torch/"]}
OTHERS = {
    "alternate-locations": ["https://c.example/torch/"],
    "project-status": {"status": "quarantined", "reason": 'a "b" <c>'},
}
FUTURE = {"of-a-later-pep": {"a": [1, None, {"b": "c"}]}, "flag": True}
FILE = {
    "filename": "torch-1.0.tar.gz",
    "url": "https://files.example/torch-1.0.tar.gz",
    "hashes": {"sha256": "0" * 64},
    "size": 5,
    "upload-time": "2026-01-02T03:04:05.678901Z",
    "provenance": PROVENANCE,
}
DOCUMENT = {
    "meta": {"api-version": "1.4", **META, **FUTURE},
    "name": "torch",
    "files": [{**FILE, **FUTURE}],
    "versions": ["1.0"],
    **OTHERS,
    **FUTURE,
}
PAGE_IN_HTML = f"""<!DOCTYPE html><html><head>
<meta name="pypi:repository-version" content="1.4">
<meta name="pypi:tracks" content="{META["tracks"][0]}">
<meta name="pypi:tracks" content="{META["tracks"][1]}">
<meta name="pypi:alternate-locations" content="https://c.example/torch/">
<meta name="pypi:project-status" content="quarantined">
<meta name="pypi:project-status-reason" content='a "b" &lt;c>'>
<meta name="pypi:later" content="x"><meta name="viewport" content="y">
</head><body><a href="{FILE["url"]}#sha256={"0" * 64}" data-provenance="{PROVENANCE}"
 data-later="z" data-size="7" data-upload-time="{FILE["upload-time"]}"
>torch-1.0.tar.gz</a></body></html>"""


def read(form: str, body: str | dict[str, Any], kind: str) -> str:
    """Return the page of an index that a client gets.

    :param form: what the client accepts.
    :param kind: the type of the page of the index.
    """
    text = body if isinstance(body, str) else json.dumps(body)
    answers = {PAGE: Answer(body=text.encode(), kind=kind)}
    with (
        serve_answers(answers) as server,
        start(f"{server.url}/simple/") as running,
    ):
        reply = running.page(Accept=form)
        assert reply.status == 200, reply.text
        assert running.warnings == []
        return reply.text


def metas(text: str) -> set[tuple[str, str]]:
    found = re.findall(r'<meta name="(pypi:[^"]*)" content="([^"]*)">', text)
    return {(name, content) for name, content in found}


IN_HTML = {
    ("pypi:repository-version", "1.4"),
    *(("pypi:tracks", url) for url in META["tracks"]),
    ("pypi:alternate-locations", "https://c.example/torch/"),
    ("pypi:project-status", "quarantined"),
    ("pypi:project-status-reason", "a &quot;b&quot; &lt;c&gt;"),
}


def test_json_stays_json() -> None:
    assert json.loads(read(JSON, DOCUMENT, JSON)) == DOCUMENT


def test_a_page_of_links_stays_json() -> None:
    """pip reads more from JSON; uv requests HTML for a page of links."""
    page = Answer(body=json.dumps(DOCUMENT).encode(), kind=JSON, accept=JSON)
    with serve_answers({PAGE: page}) as server:
        with start(f"{server.url}{PAGE}", links=True, local=True) as running:
            url = f"{running.urls[0]}torch/"
            assert json.loads(ask(url, Accept=JSON).body) == DOCUMENT
            assert "<a " in ask(url, Accept=HTML).text
        with start(f"{server.url}{PAGE}", links=True) as running:
            assert ask(f"{running.urls[0]}torch/", Accept=JSON).status == 406


def test_an_empty_reason_stays_an_empty_reason() -> None:
    """The file is yanked for uv, and not for pip."""
    document = {**DOCUMENT, "files": [{**FILE, "yanked": ""}]}
    assert json.loads(read(JSON, document, JSON)) == document
    assert "data-yanked" not in read(HTML, document, JSON)


@pytest.mark.parametrize(
    "keys",
    [
        {"dist-info-metadata": True},
        {"dist-info-metadata": {"sha256": "1" * 64}},
        {"dist-info-metadata": {}},
        {"core-metadata": {}},
        {"core-metadata": None, "dist-info-metadata": True},
        {"dist-info-metadata": True, "data-dist-info-metadata": True},
    ],
)
def test_metadata_is_announced_by_the_keys_of_the_index(keys: dict[str, Any]) -> None:
    """pdm and Poetry know only some keys; otherwise they read the verified wheel."""
    document = {**DOCUMENT, "files": [{**FILE, **keys}]}
    assert json.loads(read(JSON, document, JSON)) == document
    text = read(HTML, document, JSON)
    assert "core-metadata" not in text
    is_announced = bool(keys.get("dist-info-metadata"))
    assert (" data-dist-info-metadata=" in text) is is_announced


@pytest.mark.parametrize("key", ["core-metadata", "dist-info-metadata"])
def test_metadata_is_announced_by_the_attribute_of_the_index(key: str) -> None:
    page = f'<a href="{FILE["url"]}" data-{key}="true">x</a>'
    found = re.findall(r"data-\S*metadata=\S+", read(HTML, page, HTML))
    assert found == [f'data-{key}="true"']
    assert json.loads(read(JSON, page, HTML))["files"][0][key] is True


@pytest.mark.parametrize(
    "time",
    [
        "2026-01-02T03:04:05+00:00",
        "2026-01-02T03:04:05-01:00",
        "2026-01-02T03:04:05",
        "2026-01-02T03:04:05.678901234Z",
        "2026-01-02T03:04:05.000Z",
        "2026-01-02",
        "yesterday",
        0,
    ],
)
def test_every_form_of_a_time_stays_the_same(time: object) -> None:
    """uv --exclude-newer and pip --uploaded-prior-to select files by this time."""
    document = {**DOCUMENT, "files": [{**FILE, "upload-time": time}]}
    assert json.loads(read(JSON, document, JSON)) == document


def test_a_page_without_versions_and_with_other_files() -> None:
    """The model would derive the versions from the names of the files."""
    other = {"filename": "notes.whl", "url": "https://files.example/notes.whl"}
    files = [FILE, {**FILE, **other}]
    document = {"meta": {"api-version": "1.4"}, "name": "torch", "files": files}
    assert json.loads(read(JSON, document, JSON)) == document


def test_json_becomes_html() -> None:
    text = read(HTML, DOCUMENT, JSON)
    assert metas(text) >= IN_HTML
    assert f'data-provenance="{PROVENANCE}"' in text


def test_html_becomes_json() -> None:
    found = json.loads(read(JSON, PAGE_IN_HTML, HTML))
    assert found["meta"] == {"api-version": "1.4", **META}
    assert {key: found[key] for key in (*OTHERS, "later")} == {**OTHERS, "later": "x"}
    (file,) = found["files"]
    assert (file["provenance"], file["later"]) == (PROVENANCE, "z")
    assert (file["size"], file["upload-time"]) == (7, FILE["upload-time"])


@pytest.mark.parametrize("accept", [HTML, ACCEPT])
def test_html_stays_html(accept: str) -> None:
    """Installers read other values of HTML than of JSON: pip reads no times."""
    text = read(accept, PAGE_IN_HTML, HTML)
    assert text.startswith("<!DOCTYPE html>")
    assert metas(text) == {*IN_HTML, ("pypi:later", "x")}
    for key, value in {
        "data-provenance": PROVENANCE,
        "data-later": "z",
        "data-size": "7",
        "data-upload-time": FILE["upload-time"],
    }.items():
        assert f'{key}="{value}"' in text


def test_the_version_of_the_index_stays_where_its_keys_need_it() -> None:
    """PEP 700 requires sizes since version 1.1, but some indexes have no sizes."""
    file = {key: value for key, value in FILE.items() if key != "size"}
    for others, version in ((OTHERS, "1.4"), ({}, "1.4")):
        document = {**DOCUMENT, **others, "files": [file]}
        assert json.loads(read(JSON, document, JSON))["meta"]["api-version"] == version
    plain = {"meta": {"api-version": "1.4"}, "name": "torch"}
    bare = {key: value for key, value in file.items() if key != "provenance"}
    found = json.loads(read(JSON, {**plain, "files": [bare]}, JSON))
    assert found["meta"] == {"api-version": "1.0"}
    assert found["files"][0]["upload-time"] == FILE["upload-time"]


def test_an_index_sets_no_key_of_this_program() -> None:
    own = {
        "_variant-label": "cu128",
        "_nvidia_variant_provider_metadata": True,
        "_nvidia_variant_provider_cut": {"why": "x", "has_length": False},
        "_nvidia_variant_provider_kept": {"yanked": True},
    }
    file = {**FILE, **own}
    document = {**DOCUMENT, **own, "files": [file]}
    assert json.loads(read(JSON, document, JSON)) == {**DOCUMENT, "files": [FILE]}


TEXTS = st.text(st.sampled_from("aé\"'<>&;= x"), max_size=9)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner),
    max_leaves=5,
)
KEYS = st.dictionaries(
    st.from_regex(r"[a-z][a-z-]{0,20}x", fullmatch=True), VALUES, max_size=3
)


@pytest.fixture(scope="module")
def rendering() -> Any:
    """Return the function that renders pages, and its forms."""
    from simple_repository.content_negotiation import Format

    from nvp.index.server.rendering import respond_with

    def render(body: bytes, kind: str, form: str) -> bytes:
        page = parse_page(body, kind, URL, "torch")
        return bytes(respond_with(page, (Format(form),) * 2, lambda _: None).body)

    return render


@given(meta=KEYS, page=KEYS, file=KEYS)
def test_any_keys_pass_through(
    rendering: Any, meta: dict[str, Any], page: dict[str, Any], file: dict[str, Any]
) -> None:
    document = {
        "meta": {"api-version": "1.9", **meta},
        "name": "torch",
        "files": [{**FILE, **file}],
        "versions": ["1.0"],
        **page,
    }
    body = json.dumps(document).encode()
    found = json.loads(rendering(body, JSON, JSON))
    assert found == document
    # Keys with a form in HTML are the same after a second conversion.
    first = rendering(body, JSON, HTML)
    second = rendering(first, HTML, HTML)
    assert sorted(second.splitlines()) == sorted(first.splitlines())


@pytest.fixture
def variants(tmp_path: Path) -> dict[str, Answer]:
    """Return an index with a variant that was attested."""
    answers = {}
    files = []
    name = "torch-2.8.0-variants.json"
    answers[f"{PAGE}{name}"] = Answer(body=json.dumps(TORCH).encode())
    files.append({"filename": name, "url": name, "hashes": {}})
    marker = 'helper; "cu126" in variant_label'
    for label, requires in (("cu128", ()), ("cu126", (marker,)), (None, ())):
        wheel = stub_wheel(tmp_path, "torch", "2.8.0", label, requires=requires)
        answers[f"{PAGE}{wheel.name}"] = Answer(body=wheel.read_bytes())
        url = wheel.name
        file = {"filename": wheel.name, "url": url, "hashes": {}}
        files.append({**file, "provenance": f"{PROVENANCE}/{label}"})
    document = {"meta": {"api-version": "1.3"}, "name": "torch", "files": files}
    answers[PAGE] = Answer(body=json.dumps(document).encode(), kind=JSON)
    return answers


def test_a_renamed_wheel_keeps_its_attestations(variants: dict[str, Answer]) -> None:
    """A rewritten wheel has other bytes than the attested ones."""
    with serve_answers(variants) as server, start(f"{server.url}/simple/") as running:
        files = json.loads(running.page().body)["files"]
    found = {f.get("_variant-label", "-"): f.get("provenance") for f in files}
    assert found["cu128"] == f"{PROVENANCE}/cu128"
    assert found["cu126"] is None
    assert found[None] == f"{PROVENANCE}/None"


def test_a_rewritten_wheel_keeps_no_own_key(variants: dict[str, Answer]) -> None:
    """Installers must read METADATA without markers from here."""
    document = json.loads(variants[PAGE].body)
    for file in document["files"]:
        if (name := file["filename"]).endswith(".whl"):
            file["dist-info-metadata"] = True
            text = METADATA.encode()
            variants[f"{PAGE}{name}.metadata"] = Answer(body=text)
    variants[PAGE] = Answer(body=json.dumps(document).encode(), kind=JSON)
    with serve_answers(variants) as server, start(f"{server.url}/simple/") as running:
        files = json.loads(running.page().body)["files"]
    keys = ("core-metadata", "dist-info-metadata")
    found = {f["filename"]: tuple(map(f.get, keys)) for f in files if "-any" in str(f)}
    assert sorted(set(found.values()), key=str) == [(None, True), (True, None)]
    assert len(found) == 3
    assert found["torch-2.8.0-py3-none-any.whl"] == (None, True)


def test_each_index_has_its_own_page() -> None:
    bare = {"meta": {"api-version": "1.0"}, "name": "torch", "files": [FILE]}
    pages = [Answer(body=json.dumps(x).encode(), kind=JSON) for x in (DOCUMENT, bare)]
    with (
        serve_answers({PAGE: pages[0]}) as first,
        serve_answers({PAGE: pages[1]}) as second,
        start(f"{first.url}/simple/", f"{second.url}/simple/") as running,
    ):
        found = [json.loads(running.page(number=n).body) for n in (0, 1)]
    assert ["project-status" in page for page in found] == [True, False]
    assert ["tracks" in page["meta"] for page in found] == [True, False]


STATUSES = ("active", "archived", "quarantined", "deprecated")


@pytest.mark.parametrize(
    ("status", "kind", "installer"),
    some_of(itertools.product(STATUSES, (JSON, HTML), ("uv", *PIPS[::3])), 25, slow=2),
)
def test_installers_see_the_status_of_a_project(
    status: str,
    kind: str,
    installer: str,
    pip_of: Callable[[str], Pip],
    tmp_path: Path,
) -> None:
    pip = pip_of(PIPS[-1] if installer == "uv" else installer)
    environ = pip.environ
    wheel = stub_wheel(tmp_path, "torch", "1.0")
    if kind == JSON:
        file = {**FILE, "filename": wheel.name, "url": wheel.name, "hashes": {}}
        body = json.dumps(
            {
                **DOCUMENT,
                "files": [{**file, "core-metadata": True}],
                "project-status": {"status": status, "reason": "because"},
            }
        )
    else:
        link = f'<a data-core-metadata="true" href="{wheel.name}">torch</a>'
        body = f'<meta name="pypi:project-status" content="{status}">{link}'
    answers = {
        PAGE: Answer(body=body.encode(), kind=kind),
        f"{PAGE}{wheel.name}": Answer(body=wheel.read_bytes()),
        f"{PAGE}{wheel.name}.metadata": Answer(
            body=b"Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n"
        ),
    }
    command: list[object] = [uv.find_uv_bin(), "pip", "install", "--no-config"]
    if installer != "uv":
        command = [pip.python, "-m", "pip", "install"]
    environ |= {"UV_NO_CACHE": "1", "UV_PYTHON": sys.executable}

    def install(url: str, name: str) -> tuple[int, dict[str, str], list[str]]:
        target = tmp_path / name
        done = subprocess.run(
            [*map(str, command), "--index-url", url, "--target", str(target), "torch"],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        lines = [x for x in done.stderr.splitlines() if "status" in x or "quarant" in x]
        found = installed_labels(target) if target.is_dir() else {}
        return done.returncode, found, lines

    with serve_answers(answers) as server:
        url = f"{server.url}/simple/"
        words = ("-i", url, "--cuda-driver", "12.9", "--sm-arch", "9.0")
        with serving(*words, environ=environ) as running:
            through = install(running.urls[0], "through")
        assert through == install(url, "alone")


def test_a_hostile_page_adds_nothing_to_html() -> None:
    evil = '"><script>x</script>'
    document = {
        **DOCUMENT,
        "project-status": {evil: evil, "status": evil},
        evil: evil,
        "files": [{**FILE, "provenance": evil, evil: evil}],
    }
    text = read(HTML, document, JSON)
    assert "<script" not in text


@pytest.mark.parametrize("key", ["hashes", "core-metadata"])
def test_html_has_a_hash_that_installers_check(key: str) -> None:
    """An HTML link has one hash; pip checks no BLAKE2, and prefers the strongest."""
    hashes = {"blake2b": "0" * 128, "md5": "0" * 32, "sha512": "1" * 128}
    text = read(HTML, {**DOCUMENT, "files": [{**FILE, key: hashes}]}, JSON)
    assert f"sha512={'1' * 128}" in text


def test_an_empty_hash_of_metadata_stays_empty() -> None:
    """pip refuses METADATA that has another hash."""
    page = f'<a href="{FILE["url"]}" data-core-metadata="sha256=">x</a>'
    assert 'data-core-metadata="sha256="' in read(HTML, page, HTML)


@pytest.mark.parametrize(("length", "is_passed_on"), [(40, False), (400, True)])
def test_requirements_on_python_that_take_long(length: int, is_passed_on: bool) -> None:
    """Each is compared with every version of Python."""
    files = [
        {
            "filename": f"torch-{number}-py3-none-any.whl",
            "url": f"torch-{number}-py3-none-any.whl",
            "requires-python": f"!=4.{number},{'!=3.9.99999,' * (length // 12)}>=3",
        }
        for number in range(99)
    ]
    document = {"meta": {"api-version": "1.0"}, "name": "torch", "files": files}
    page = Answer(body=json.dumps(document).encode(), kind=JSON)
    with (
        serve_answers({"/simple/torch/": page}) as server,
        start(f"{server.url}/simple/") as running,
    ):
        reply = running.page()
        assert reply.status == (302 if is_passed_on else 200)
        assert any("on Python" in x for x in running.warnings) is is_passed_on
