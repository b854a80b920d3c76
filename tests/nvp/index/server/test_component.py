"""`VariantRepository` inside a server of another author."""

from __future__ import annotations

import functools
import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
from simple_repository.components.core import SimpleRepository
from simple_repository.components.http import HttpRepository
from simple_repository.components.local import LocalRepository
from simple_repository.components.priority_selected import (
    PrioritySelectedProjectsRepository,
)
from support.documents import TORCH, of_one
from support.index_server import serve, start_server
from support.loopback import H100, JSON, Reply, ask
from support.wheels import publish, stub_wheel, write_page

from nvp.index import RewrittenWheels
from nvp.index.selection.component import VariantRepository
from nvp.index.selection.options import Selection
from nvp.index.server.server import Server

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="simple-repository-server needs Python 3.11"
)

BEST = "torch-2.8.0-3cu128-py3-none-any.whl"
PLAIN = "torch-2.8.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index with variants of torch and without variants of six."""
    found = tmp_path_factory.mktemp("index")
    publish(found, TORCH, "torch", "2.8.0")
    (found / "six").mkdir()
    (found / "six" / "six-1.0.tar.gz").write_bytes(b"sdist")
    publish(found, {"variants": {}}, "six", "1.0")
    return found


@contextmanager
def host(*sources: tuple[str, SimpleRepository]) -> Iterator[str]:
    """Run the server of simple-repository, with a prefix for each source."""
    from fastapi import FastAPI
    from simple_repository_server.routers import simple

    client = httpx.AsyncClient(trust_env=False)
    app = FastAPI()
    for prefix, source in sources:
        router = simple.build_router(source, http_client=client, prefix=f"{prefix}/")
        app.include_router(router, prefix="")
    server = Server()
    # The library's response closes its file after the last byte was sent.
    with server.serve(app, client.aclose, patient=True):
        yield server.url


def select(
    source: SimpleRepository, warnings: list[str] | None = None
) -> VariantRepository:
    warn = None if warnings is None else warnings.append
    return VariantRepository(
        source, selection=Selection(machine=lambda: H100, environ={}), warn=warn
    )


def http_repository(url: str) -> HttpRepository:
    return HttpRepository(
        url, httpx.AsyncClient(trust_env=False, follow_redirects=True)
    )


def over_http(folder: Path) -> AbstractContextManager[SimpleRepository]:
    @contextmanager
    def run() -> Iterator[SimpleRepository]:
        with serve(folder) as url:
            yield http_repository(url)

    return run()


def from_folder(folder: Path) -> AbstractContextManager[SimpleRepository]:
    @contextmanager
    def run() -> Iterator[SimpleRepository]:
        yield LocalRepository(folder)

    return run()


Kind = Callable[[Path], AbstractContextManager[SimpleRepository]]
KINDS = pytest.mark.parametrize("kind", [over_http, from_folder])


def page(url: str, **headers: str) -> Reply:
    return ask(url, **{"Accept": JSON, **headers})


def follow(url: str) -> Reply:
    reply = ask(url)
    if reply.status == 302:
        return ask(reply.headers["location"])
    return reply


@KINDS
def test_pages_and_files(kind: Kind, folder: Path) -> None:
    warnings: list[str] = []
    with kind(folder) as source, host(("/simple", select(source, warnings))) as url:
        found = page(f"{url}/simple/torch/")
        assert found.status == 200
        wheels = [name for name in found.files if name.endswith(".whl")]
        assert sorted(wheels) == [
            "torch-2.8.0-1null-py3-none-any.whl",
            "torch-2.8.0-2cu126-py3-none-any.whl",
            BEST,
            PLAIN,
        ]
        wheel = folder / "torch" / "torch-2.8.0-py3-none-any-cu128.whl"
        # The server replaces the URLs of all files.
        assert follow(found.files[BEST]).body == wheel.read_bytes()
        assert (
            follow(found.files[PLAIN]).body == (folder / "torch" / PLAIN).read_bytes()
        )
        assert ask(f"{url}/simple/torch/", Accept="text/html").status == 200
        assert ask(f"{url}/simple/Torch/").status == 301
        assert "torch" in ask(f"{url}/simple/", Accept=JSON).text
        assert warnings == []


@KINDS
def test_pages_without_variants_are_those_of_the_source(
    kind: Kind, folder: Path
) -> None:
    with kind(folder) as source:
        sources = ("/plain", source), ("/variants", select(source))
        with host(*sources) as url:
            for accept in (JSON, "text/html"):
                one, two = (
                    ask(f"{url}{prefix}/six/", Accept=accept) for prefix, _ in sources
                )
                assert one.status == two.status == 200
                assert one.body == two.body
            for name in ("six-1.0.tar.gz", "six-1.0-py3-none-any.whl"):
                assert follow(page(f"{url}/variants/six/").files[name]).status == 200
            assert page(f"{url}/variants/nothing/").status == 404


def test_metadata_is_that_of_the_wheel(folder: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in (folder / "torch").iterdir())
    for name in names:
        if name.endswith((".whl", ".json")):
            target = tmp_path / "torch" / name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes((folder / "torch" / name).read_bytes())
            if name.endswith(".whl"):
                metadata = target.with_name(f"{name}.metadata")
                metadata.write_text(f"Name: torch\nSummary: of {name}\n")
    links = (
        f'<a href="{name}" data-core-metadata="true">{name}</a>'
        for name in names
        if name != "index.html"
    )
    (tmp_path / "torch" / "index.html").write_text("".join(links))
    with over_http(tmp_path) as source, host(("/simple", select(source))) as url:
        found = page(f"{url}/simple/torch/")
        files = {item["filename"]: item for item in json.loads(found.body)["files"]}
        assert files[BEST]["core-metadata"] is True
        reply = follow(f"{found.files[BEST]}.metadata")
        assert "Summary: of torch-2.8.0-py3-none-any-cu128.whl" in reply.text
        reply = follow(f"{found.files[PLAIN]}.metadata")
        assert f"Summary: of {PLAIN}" in reply.text


def test_a_wheel_with_markers_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, TORCH, "torch", "2.8.0")
    stub_wheel(
        tmp_path / "torch",
        "torch",
        "2.8.0",
        "cu128",
        variant_json=of_one("cu128"),
        requires=["a; 'cu128' in variant_label"],
    )
    warnings: list[str] = []
    source = LocalRepository(tmp_path)
    with host(("/simple", select(source, warnings))) as url:
        reply = ask(page(f"{url}/simple/torch/").files[BEST])
        assert reply.status == 502  # The library sends this for such packages.
        assert "variant markers" in reply.text
        assert "refused" in warnings[0]


@KINDS
def test_a_wheel_with_markers_is_written_without_them(
    kind: Kind, tmp_path: Path
) -> None:
    index, written = tmp_path / "index", tmp_path / "written"
    publish(index, TORCH, "torch", "2.8.0")
    wheel = stub_wheel(
        index / "torch",
        "torch",
        "2.8.0",
        "cu128",
        variant_json=of_one("cu128"),
        requires=["a; 'cu128' in variant_label", "b; variant_label == 'null'"],
    )
    write_page(index / "torch")
    selection = Selection(machine=lambda: H100, environ={}, rewrites=True)
    with kind(index) as source:
        selected = VariantRepository(source, selection=selection)
        with host(("/simple", RewrittenWheels(selected, written))) as url:
            found = page(f"{url}/simple/torch/")
            assert found.status == 200, found.text
            place = found.files[BEST]
            for _ in range(2):
                reply = ask(place)
                assert reply.status == 200
                with zipfile.ZipFile(io.BytesIO(reply.body)) as archive:
                    assert archive.testzip() is None
                    metadata = archive.read("torch-2.8.0.dist-info/METADATA")
                assert b"Requires-Dist: a\n" in metadata
                assert b"Requires-Dist: b" not in metadata
                assert len(list(written.iterdir())) == 1
            assert ask(f"{place}.metadata").body == metadata
            # The page does not name the other wheel at this URL.
            (next(written.iterdir())).unlink()
            if kind is over_http:
                wheel.write_bytes(wheel.read_bytes()[:-30] + b"x" * 30)
                assert ask(place).status >= 500
                assert list(written.iterdir()) == []


class _WithoutHeads(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self.send_error(405)


def test_a_source_that_cannot_send_the_metadata_file(folder: Path) -> None:
    # HttpRepository sends a HEAD request before each file.
    warnings: list[str] = []
    with start_server(functools.partial(_WithoutHeads, directory=str(folder))) as base:
        source = select(http_repository(base), warnings)
        with host(("/simple", source)) as url:
            found = page(f"{url}/simple/torch/")
            assert [n for n in found.files if n.endswith(".whl")] == [PLAIN]
            (warning,) = warnings
            assert "ignored" in warning


def test_it_can_be_combined_with_other_components(folder: Path, tmp_path: Path) -> None:
    publish(tmp_path, {"variants": {}}, "other", "1.0")
    merged = PrioritySelectedProjectsRepository(
        [select(LocalRepository(folder)), LocalRepository(tmp_path)]
    )
    with host(("/simple", merged)) as url:
        found = page(f"{url}/simple/torch/")
        assert BEST in found.files
        assert ask(found.files[BEST]).status == 200
        assert page(f"{url}/simple/other/").status == 200
