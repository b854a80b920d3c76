"""If an index fails, an installer behind nvp acts as without nvp.

An attacker can publish a file of any name and version on a public index. An installer
that passes over the index of a company then installs that file.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uv
from support.authority import HOST, Authority
from support.grids import some_of
from support.index_server import serve
from support.processes import PIPS, Environment, installed_labels, provider
from support.proxy import serve_proxy
from support.range_server import Answer, serve_answers
from support.serving import serving
from support.wheels import stub_wheel

JSON = "application/vnd.pypi.simple.v1+json"
MACHINE = ("--cuda-driver", "12.9", "--sm-arch", "8.0")
PAGE = "/simple/kern/"
# The company has the newer version, so the installed version shows whether its index
# was read.
INNER, OUTER = "10.0", "9.9"
METADATA = "Metadata-Version: 2.1\nName: kern\nVersion: {}\n"


NAME = "kern-{}-py3-none-any.whl"


def json_page(version: str, *, api_version: str = "1.0", **changes: Any) -> bytes:
    name = NAME.format(version)
    file = {"filename": name, "url": name, "hashes": {}, "core-metadata": True}
    meta = {"api-version": api_version}
    files = [{**file, **changes}]
    return json.dumps({"meta": meta, "name": "kern", "files": files}).encode()


def odd_page(**changes: Any) -> Answer:
    return Answer(body=json_page(INNER, **changes), kind=JSON)


def odd_head(name: str, value: str) -> Answer:
    return Answer(body=json_page(INNER), kind=JSON, headers={name: value})


def raw_page(status: str) -> Answer:
    head = f"{status}\r\nContent-Type: {JSON}\r\n\r\n".encode()
    return Answer(body=head + json_page(INNER), fault="raw")


def html_page(version: str) -> bytes:
    link = (
        f'<a data-core-metadata="true" href="kern-{version}-py3-none-any.whl">kern</a>'
    )
    return f"<!DOCTYPE html><html><body>{link}<!--{'x' * 400}--></body></html>".encode()


def odd_link(end: str) -> Answer:
    body = html_page(INNER).replace(b".whl", f".whl{end}".encode())
    return Answer(body=body, kind="text/html")


def moved(where: str) -> Answer:
    return Answer(status=302, headers={"Location": where})


FAULTS: dict[str, Answer | None] = {
    "none": Answer(body=html_page(INNER), kind="text/html"),
    # After 429, pip continues with the next index, and nvp stops (see
    # test_limited_servers).
    **{str(code): Answer(status=code) for code in (400, 401, 403, 404, 407, 410, 418)},
    **{str(code): Answer(status=code) for code in (451, 500, 502, 503, 504, 520)},
    "only JSON": Answer(body=json_page(INNER), kind=JSON, accept=JSON),
    "203": Answer(status=203, body=json_page(INNER), kind=JSON),
    "304": Answer(status=304),
    "304 of JSON": Answer(status=304, kind=JSON),
    "300 of JSON": Answer(status=300, body=json_page(INNER), kind=JSON),
    "600": Answer(status=600, body=html_page(INNER), kind="text/html"),
    "999": Answer(status=999, body=json_page(INNER), kind=JSON),
    "an endless number": Answer(
        body=json_page(INNER)[:-1] + b', "x": 1e999}', kind=JSON
    ),
    "garbage JSON": Answer(body=b"\0{garbage", kind=JSON),
    "empty JSON": Answer(kind=JSON),
    "JSON without files": Answer(body=b"{}", kind=JSON),
    "a login page": Answer(body=b"please <b>log in", kind="text/html"),
    "an unknown encoding": Answer(body=b"x", kind="text/html; charset=nonsense"),
    "bytes": Answer(body=b"\xff\xfe\xfa", kind="text/html"),
    "an image": Answer(body=json_page(INNER), kind="image/png"),
    "another type": Answer(body=json_page(INNER), kind="application/json"),
    "no type": Answer(body=html_page(INNER), kind=""),
    "cut JSON": Answer(body=json_page(INNER), kind=JSON, fault="cut"),
    "cut HTML": Answer(body=html_page(INNER), kind="text/html", fault="cut"),
    "not compressed": Answer(
        body=json_page(INNER), kind=JSON, headers={"Content-Encoding": "gzip"}
    ),
    "unknown coding": Answer(
        body=json_page(INNER), kind=JSON, headers={"Content-Encoding": "br"}
    ),
    "version 2.0": odd_page(api_version="2.0"),
    "a deep page": Answer(
        body=json_page(INNER)[:-1] + b',"x":' + b"[" * 900 + b"]" * 900 + b"}",
        kind=JSON,
    ),
    "a name of no file": odd_page(filename=5),
    "a long name": odd_page(filename=f"{'a' * 300}.whl"),
    "no URL of a file": odd_page(url="http://[bad/x.whl"),
    "another server": odd_page(url=f"ftp://index.example/{NAME.format(INNER)}"),
    "a wrong hash in a URL": odd_page(url=f"{NAME.format(INNER)}#sha256={'0' * 64}"),
    "a hash of nothing": odd_page(hashes={"sha256": ""}),
    "a hash that is no text": odd_page(hashes={"sha256": ["x"]}),
    "METADATA with a hash of nothing": odd_page(**{"core-metadata": {"sha256": ""}}),
    "a Python that is no text": odd_page(**{"requires-python": 3}),
    "yanked without a reason": odd_page(yanked=""),
    "a hash of nothing in a link": odd_link("#sha256="),
    "a hash for uv in a link": odd_link(f"#blake2b={'0' * 128}"),
    "yanked without a value": Answer(
        body=html_page(INNER).replace(b"<a ", b"<a data-yanked "), kind="text/html"
    ),
    "a link of an egg": odd_link(f"#egg=kern&sha256={'0' * 64}"),
    "a blank after a link": odd_link(" "),
    "a relative base": Answer(
        body=b'<base href="../kern/">' + html_page(INNER), kind="text/html"
    ),
    "an open title": Answer(body=b"<title>" + html_page(INNER), kind="text/html"),
    "a loop": moved(PAGE),
    "another scheme": moved("ftp://index.example/"),
    "a local file": odd_page(url=f"file:///nowhere/{NAME.format(INNER)}"),
    "a scheme that nobody reads": odd_page(url=f"s3://x/{NAME.format(INNER)}"),
    "no URL": moved("http://[bad/"),
    "moved to nothing": moved("/nowhere/"),
    **dict.fromkeys(("nobody listens", "no such name", "broken TLS")),
}


def answers(version: str, page: Answer, wheel: Path) -> dict[str, Answer]:
    text = METADATA.format(version).encode()
    return {
        PAGE: page,
        f"{PAGE}{wheel.name}": Answer(body=wheel.read_bytes()),
        f"{PAGE}{wheel.name}.metadata": Answer(body=text),
    }


@contextmanager
def broken(fault: str, folder: Path) -> Iterator[str]:
    """Yield the URL of an index with a fault."""
    answer = FAULTS[fault]
    if answer is not None:
        wheel = stub_wheel(folder, "kern", INNER)
        with serve_answers(answers(INNER, answer, wheel)) as server:
            yield f"{server.url}/simple/"
    elif fault == "nobody listens":
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            yield f"http://127.0.0.1:{unused.getsockname()[1]}/simple/"
    elif fault == "no such name":
        yield "https://nobody.invalid/simple/"
    else:
        with serve(folder, tls=Authority(folder).context) as url:
            yield url


class Result(NamedTuple):
    """Whether an installer failed, and the version that it installed."""

    fails: bool
    installed: str | None


class Case:
    """The two indexes of a case, and installers that use them."""

    def __init__(
        self, urls: Sequence[str], environ: Mapping[str, str], folder: Path
    ) -> None:
        self.urls = urls
        self._folder = folder
        self._environ = {
            **environ,
            # Retries would only take time.
            "PIP_RETRIES": "0",
            "PIP_NO_CACHE_DIR": "1",
            "UV_HTTP_RETRIES": "0",
            "UV_NO_CACHE": "1",
            "UV_PYTHON": sys.executable,
        }

    def run(self, *command: object, target: str) -> Result:
        """Run an installer without a terminal."""
        done = subprocess.run(
            [*map(str, command), "--target", str(self._folder / target), "kern"],
            env=self._environ,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
        )
        return self._result(done.returncode, target)

    def run_nvp(self, python: Path, *words: object, target: str) -> Result:
        """Run ``nvp pip`` for an environment."""
        done = provider(
            *("pip", "--python", python, *MACHINE, *words),
            *("--target", self._folder / target, "kern"),
            environ=self._environ,
            cwd=self._folder,
        )
        return self._result(done.code, target)

    def _result(self, code: int, target: str) -> Result:
        folder = self._folder / target
        found = installed_labels(folder) if folder.is_dir() else {}
        version = found["kern"].split()[0] if found else None
        return Result(code != 0, version)

    @contextmanager
    def served(self) -> Iterator[Sequence[str]]:
        """Yield the URLs by which ``serve`` serves both indexes."""
        words = ("--index-url", self.urls[0], "--extra-index-url", self.urls[1])
        with serving(*words, *MACHINE, environ=self._environ) as server:
            yield server.urls


@pytest.fixture
def case(
    request: pytest.FixtureRequest, environ: dict[str, str], tmp_path: Path
) -> Iterator[Case]:
    """Yield the indexes with a fault in the first or the second one."""
    fault, is_first = request.param
    (tmp_path / "inner").mkdir()
    wheel = stub_wheel(tmp_path, "kern", OUTER)
    page = Answer(body=json_page(OUTER), kind=JSON)
    with (
        broken(fault, tmp_path / "inner") as inner,
        serve_answers(answers(OUTER, page, wheel)) as server,
    ):
        outer = f"{server.url}/simple/"
        urls = (inner, outer) if is_first else (outer, inner)
        yield Case(urls, environ, tmp_path)


EDGES = (PIPS[0], PIPS[-1])
PIP_CASES = [
    ((fault, is_first), version, words)
    for fault in FAULTS
    for version in EDGES
    for is_first in (True, False)
    for words in ((), ("--no-input",))
]


@pytest.mark.parametrize(
    ("case", "version", "words"), some_of(PIP_CASES, 521, slow=17), indirect=["case"]
)
def test_pip(
    case: Case, version: str, words: Sequence[str], pips: dict[str, Environment]
) -> None:
    python = pips[version].python
    indexes = ("--index-url", case.urls[0], "--extra-index-url", case.urls[1])
    install = ("install", *words, *indexes)
    alone = case.run(python, "-m", "pip", *install, target="alone")
    assert case.run_nvp(python, *install, target="through") == alone


@pytest.mark.parametrize(
    ("case", "version"),
    some_of([((f, True), v) for f in ("401", *FAULTS) for v in EDGES], 137, slow=13),
    indirect=["case"],
)
def test_pip_behind_serve(
    case: Case, version: str, pips: dict[str, Environment]
) -> None:
    pip = (pips[version].python, "-m", "pip", "install", "--index-url")
    first, second = case.urls
    alone = case.run(*pip, first, "--extra-index-url", second, target="alone")
    with case.served() as (first, second):
        through = case.run(*pip, first, "--extra-index-url", second, target="through")
    assert through == alone


@pytest.mark.parametrize(
    ("case", "version"),
    some_of([((f, True), v) for f in ("401", *FAULTS) for v in EDGES], 139, slow=13),
    indirect=["case"],
)
def test_links(case: Case, version: str, pips: dict[str, Environment]) -> None:
    """``--find-links`` names a page of links, which fails as an index does."""
    python = pips[version].python
    places = [word for url in case.urls for word in ("--find-links", f"{url}kern/")]
    install = ("install", "--no-index", *places)
    alone = case.run(python, "-m", "pip", *install, target="alone")
    assert case.run_nvp(python, *install, target="through") == alone


# uv reads pages that are not text, and fails here without installing another file.
UV_CASES = [((f, first),) for f in FAULTS if f != "bytes" for first in (True, False)]


@pytest.mark.parametrize(
    "case", some_of([(("410", True),), *UV_CASES], 131, slow=7), indirect=["case"]
)
def test_uv(case: Case) -> None:
    """uv queries the next index if the first one does not have the project."""
    install = (uv.find_uv_bin(), "pip", "install", "--no-config", "--index")
    first, second = case.urls
    alone = case.run(*install, first, "--default-index", second, target="alone")
    with case.served() as (first, second):
        through = case.run(*install, first, "--default-index", second, target="through")
    assert through == alone


@pytest.mark.parametrize(
    ("host", "installed"),
    [("download.pytorch.org", OUTER), pytest.param(HOST, None, marks=pytest.mark.slow)],
)
def test_uv_and_an_index_that_forbids_what_it_does_not_have(
    host: str, installed: str | None, environ: dict[str, str], tmp_path: Path
) -> None:
    """uv recognizes the index of PyTorch by its host, which `serve` hides."""
    wheel = stub_wheel(tmp_path, "kern", OUTER)
    page = Answer(body=json_page(OUTER), kind=JSON)
    install = (uv.find_uv_bin(), "pip", "install", "--no-config", "--index")
    with (
        serve_answers({PAGE: Answer(status=403)}) as inner,
        serve_proxy(inner.url) as proxy,
        serve_answers(answers(OUTER, page, wheel)) as outer,
    ):
        urls = (f"http://{host}/simple/", f"{outer.url}/simple/")
        environ |= {"http_proxy": proxy.url, "PIP_TRUSTED_HOST": host}
        case = Case(urls, environ, tmp_path)
        first, second = urls
        alone = case.run(*install, first, "--default-index", second, target="alone")
        with case.served() as (first, second):
            words = (first, "--default-index", second)
            through = case.run(*install, *words, target="through")
    assert through == alone == Result(installed is None, installed)


@pytest.mark.parametrize(
    "page",
    [
        odd_head("Transfer-Encoding", "gzip, chunked"),
        pytest.param(odd_head("A B", "c"), marks=pytest.mark.slow),
        raw_page("HTTP/1.1  200 OK"),
        pytest.param(raw_page("HTTP/1.1 0200 OK"), marks=pytest.mark.slow),
        pytest.param(raw_page("HTTP/1.1 102 Processing"), marks=pytest.mark.slow),
        Answer(
            body=f"HTTP/1.1 200 OK\r\nContent-Type: {JSON}\r\n".encode(), fault="raw"
        ),
        FAULTS["a local file"],
        pytest.param(FAULTS["a scheme that nobody reads"], marks=pytest.mark.slow),
    ],
)
def test_a_reply_that_only_this_program_rejects(
    page: Answer,
    environ: dict[str, str],
    pips: dict[str, Environment],
    tmp_path: Path,
) -> None:
    """pip reads the page itself, because it accepts more replies than h11."""
    second = Answer(body=json_page(OUTER), kind=JSON)
    with (
        serve_answers({PAGE: page}) as inner,
        serve_answers(answers(OUTER, second, stub_wheel(tmp_path, "kern", OUTER))) as o,
    ):
        case = Case([f"{inner.url}/simple/", f"{o.url}/simple/"], environ, tmp_path)
        python = pips[PIPS[-1]].python
        words = ("--index-url", case.urls[0], "--extra-index-url", case.urls[1])
        through = case.run_nvp(python, "install", *words, target="through")
        alone = case.run(python, "-m", "pip", "install", *words, target="alone")
    assert through == alone


class _LostOnce(dict[str, Answer]):
    """Answers of a server that closes the connection of the first request."""

    def get(self, path: str, default: Any = None) -> Any:
        lost = self.pop("", None)
        return lost if lost is not None else super().get(path, default)


@pytest.mark.parametrize(
    "version", [EDGES[0], *(pytest.param(v, marks=pytest.mark.slow) for v in EDGES[1:])]
)
def test_a_connection_that_is_lost_once(
    version: str, environ: dict[str, str], pips: dict[str, Environment], tmp_path: Path
) -> None:
    """pip queries the same index again, as without nvp."""
    (tmp_path / "inner").mkdir()
    indexes = {
        INNER: stub_wheel(tmp_path / "inner", "kern", INNER),
        OUTER: stub_wheel(tmp_path, "kern", OUTER),
    }
    first, second = (
        answers(number, Answer(body=json_page(number), kind=JSON), wheel)
        for number, wheel in indexes.items()
    )
    lost = _LostOnce({**first, "": Answer(fault="close")})
    with serve_answers(lost) as inner, serve_answers(second) as outer:
        urls = [f"{inner.url}/simple/", f"{outer.url}/simple/"]
        case = Case(urls, environ, tmp_path)
        words = ("--retries", "1", "--index-url", urls[0], "--extra-index-url", urls[1])
        python = pips[version].python
        through = case.run_nvp(python, "install", *words, target="through")
    assert through == Result(False, INNER)


@pytest.mark.parametrize(
    "is_first", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_users_of_two_indexes_on_one_server(
    is_first: bool,
    environ: dict[str, str],
    pips: dict[str, Environment],
    tmp_path: Path,
) -> None:
    """GitLab sends 404 to users without access to a project, and installers then
    continue with the next index."""
    pages: dict[str, Answer] = {}
    for place, version in (("/1", INNER), ("/2", OUTER)):
        (folder := tmp_path / version).mkdir()
        wheel = stub_wheel(folder, "kern", version)
        found = answers(version, Answer(body=json_page(version), kind=JSON), wheel)
        pages |= {f"{place}{path}": answer for path, answer in found.items()}
    with serve_answers(pages, others={"/1": "one:a", "/2": "two:b"}) as server:
        host = server.url.removeprefix("http://")
        urls = [f"http://one:a@{host}/1/simple/", f"http://two:b@{host}/2/simple/"]
        case = Case(urls if is_first else urls[::-1], environ, tmp_path)
        python = pips[PIPS[-1]].python
        first, second = case.urls
        install = ("install", "--index-url", first, "--extra-index-url", second)
        assert case.run_nvp(python, *install, target="nvp").installed == INNER
        words = (uv.find_uv_bin(), "pip", "install", "--no-config", "--index")
        with case.served() as (first, second):
            done = case.run(*words, first, "--default-index", second, target="uv")
    assert done == Result(False, INNER if is_first else OUTER)
