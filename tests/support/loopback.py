"""A running loopback index in front of a test's upstreams, and requests to it."""

from __future__ import annotations

import html
import http.client
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from support.range_server import Answer, RangeServer

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)
from nvp.index.http.client import Client
from nvp.index.http.logins import AskCredentials
from nvp.index.http.urls import Settings
from nvp.index.selection.options import Pins, Selection
from nvp.index.server.kept_pages import KeptPages
from nvp.index.server.local_index import LocalIndex
from nvp.index.server.responses import Access

__all__ = [
    "H100",
    "JSON",
    "PLAIN",
    "Reply",
    "Running",
    "answers_of",
    "ask",
    "links",
    "page_of",
    "passed_over",
    "start",
    "start_with_limits",
    "wheels",
]

JSON = "application/vnd.pypi.simple.v1+json"

PLAIN = "torch-2.8.0-py3-none-any.whl"

H100 = Environment(
    cuda_driver_version=CudaVersion(12, 9),
    gpus=(Gpu(index=0, compute_capability=ComputeCapability(9, 0)),),
)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A response as the server sent it, without the changes of an HTTP client."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def files(self) -> dict[str, str]:
        """The names and absolute URLs of a page in JSON, in the order of the page."""
        files = json.loads(self.body)["files"]
        return {item["filename"]: urljoin(self.url, item["url"]) for item in files}


def ask(
    url: str,
    method: str = "GET",
    *,
    path: str | None = None,
    **headers: str,
) -> Reply:
    """Send one request, without following redirects.

    :param path: a path that is sent as it is, instead of the path of ``url``.
    :param headers: the headers, with ``_`` instead of ``-`` in their names.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    try:
        if path is None:
            path = parts.path + (f"?{parts.query}" if parts.query else "")
        # Python must not check the path: the server must refuse an invalid path.
        connection._validate_path = lambda _: None  # type: ignore[attr-defined]
        connection.putrequest(method, path, skip_host="Host" in headers)
        for key, value in headers.items():
            connection.putheader(key.replace("_", "-"), value)
        connection.endheaders()
        with connection.getresponse() as response:
            received = {key.lower(): value for key, value in response.getheaders()}
            return Reply(
                url=url,
                status=response.status,
                headers=received,
                body=response.read(),
            )
    finally:
        connection.close()


@dataclass(frozen=True, kw_only=True)
class Running:
    """A running loopback index.

    :param urls: the local URL of each upstream.
    :param warnings: the warnings for the user.
    :param picks: the project and label of each file that was fetched.
    :param waits: the projects whose pages took long.
    """

    urls: Sequence[str]
    warnings: list[str]
    picks: list[tuple[str, str | None]]
    waits: list[str]
    local_index: LocalIndex

    def ask(self, url: str) -> Reply:
        """Send a request as pip does, with the token."""
        return ask(url, Nvp_Proof=self.local_index.token or "")

    def page(self, project: str = "torch", number: int = 0, **headers: str) -> Reply:
        return ask(f"{self.urls[number]}{project}/", **{"Accept": JSON, **headers})


@contextmanager
def start(
    *upstreams: str,
    machine: Environment = H100,
    settings: Settings | None = None,
    ask_credentials: AskCredentials | None = None,
    asks_first: bool = False,
    pins: Pins | None = None,
    prepare: Callable[[Client], object] | None = None,
    links: bool = False,
    unchecked: bool = False,
    vendor_indexes: bool = False,
    every_gpu: bool = False,
    cache: str | None = None,
    host: str = "127.0.0.1",
    kept: KeptPages | None = None,
    **access: Any,
) -> Iterator[Running]:
    """Serve ``upstreams`` while the context lasts.

    :param prepare: a function that takes the client; called before the first request.
    :param kept: a cache of pages, as with ``serve``.
    :param access: the fields of `Access`. Without ``secret``, as with ``serve``, all
        requests are accepted; with ``secret``, requests need the token, which
        `Running.ask` sends.
    """
    warnings: list[str] = []
    picks: list[tuple[str, str | None]] = []
    waits: list[str] = []
    client = Client(
        settings
        or Settings(timeout=30, deadline=60, trust_env=False, trusts_pages=True),
        ask_credentials=ask_credentials,
        asks_first=asks_first,
    )
    local_index = LocalIndex(
        client,
        Selection(
            machine=lambda: machine,
            pins=pins or Pins(),
            environ={},
            unchecked=unchecked,
            vendor_indexes=vendor_indexes,
            every_gpu=every_gpu,
            cache=cache,
        ),
        Access(**{"secret": False, **access}),
        host=host,
        kept=kept,
        warn=warnings.append,
        on_pick=lambda choice, label: picks.append((choice.project, label)),
        on_wait=waits.append,
    )
    add = local_index.add_links if links else local_index.add_index
    joined = local_index.join_links(upstreams) if links else {}
    urls = [(joined.get(url) or [add(url)])[0] for url in upstreams]
    urls += local_index.add_vendors()
    if prepare is not None:
        prepare(client)
    with local_index.serve():
        yield Running(
            urls=urls,
            warnings=warnings,
            picks=picks,
            waits=waits,
            local_index=local_index,
        )


# A server sends nothing, or sends without end. Only the tested limit is short, so these
# tests also pass on a slow machine.
IMPATIENT = {
    "hang": Settings(timeout=0.2, deadline=60, trust_env=False),
    "drip": Settings(timeout=60, deadline=0.4, trust_env=False),
}


def start_with_limits(
    server: RangeServer, answer: Answer
) -> AbstractContextManager[Running]:
    """Start the local index, with a short limit if ``answer`` never ends."""
    settings = IMPATIENT.get(answer.fault)
    return start(f"{server.url}/simple/", settings=settings)


def answers_of(folder: Path, project: str = "torch") -> dict[str, Answer]:
    """Return the files of `publish` for `serve_answers`, below ``/simple/``."""
    answers = {}
    for path in (folder / project).iterdir():
        is_page = path.name == "index.html"
        answers[f"/simple/{project}/{'' if is_page else path.name}"] = Answer(
            body=path.read_bytes(),
            kind="text/html" if is_page else "application/octet-stream",
        )
    return answers


def page_of(*files: Mapping[str, Any]) -> dict[str, Answer]:
    """Return an upstream whose page of torch has these files."""
    document = {"meta": {"api-version": "1.0"}, "name": "torch", "files": files}
    return {"/simple/torch/": Answer(body=json.dumps(document).encode(), kind=JSON)}


def links(text: str) -> list[dict[str, str]]:
    """Return the attributes of each link of an HTML page, which has little else."""
    allowed = {"html", "head", "meta", "title", "body", "h1", "a", "br"}
    anchors: list[dict[str, str]] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            assert tag in allowed, html.escape(tag)
            if tag == "a":
                anchors.append({key: value or "" for key, value in attrs})

    Parser().feed(text)
    return anchors


def wheels(running: Running) -> list[str]:
    """Return the names of the wheels on the page of torch."""
    reply = running.page()
    assert reply.status == 200, reply.text
    return [name for name in reply.files if name.endswith(".whl")]


def passed_over(running: Running) -> str:
    """Assert that only the non-variant wheel is shown; return the warning about it."""
    assert wheels(running) == [PLAIN]
    assert ask(running.page().files[PLAIN]).status in (200, 302)
    warning = running.warnings[0]
    assert warning.startswith("torch 2.8.0: its variants are ignored: ")
    assert warning.isprintable()
    return warning
