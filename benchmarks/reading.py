"""The requests of installers to an index without METADATA files (PEP 658).

The index is that of the first argument, such as a mirror. A server on this machine is
between the client and the index: it counts requests and bytes, passes range requests
on, and removes PEP 658. Each client resolves a requirement from an empty cache, and
installs nothing. Without nvp, pip downloads all files that it would install, some
gigabytes for torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urljoin

from benchmarks.harness import Environment, fresh_environment, options, print_table
from benchmarks.loopback import CLEAN, EXTRAS

JSON = "application/vnd.pypi.simple.v1+json"
MACHINE = ("--cuda-driver", "12.8", "--sm-arch", "8.0")
CHUNK = 1 << 20


@dataclass
class Counts:
    """The requests and bytes since the last `reset`."""

    pages: int = 0
    page_bytes: int = 0
    parts: int = 0
    wholes: int = 0
    file_bytes: int = 0

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]


class Front:
    """A server in front of an index, which counts its responses and their bytes."""

    def __init__(self, index: str) -> None:
        self.index = f"{index.rstrip('/')}/"
        self.counts = Counts()
        self.files: dict[str, str] = {}
        self.lock = threading.Lock()

    def page(self, path: str) -> bytes:
        project = path.strip("/").rpartition("/")[2]
        url = f"{self.index}{project}/"
        request = urllib.request.Request(url, headers={"Accept": JSON})
        with urllib.request.urlopen(request) as response:
            document = json.loads(response.read())
        for file in document["files"]:
            # A name is unique on a page, and the hash distinguishes files with the same
            # name.
            path = f"/files/{file['hashes'].get('sha256', '')}/{file['filename']}"
            self.files[path] = urljoin(url, file["url"])
            file["url"] = path
            # The names of PEP 714, and of PEP 658 before it.
            for key in ("core-metadata", "data-dist-info-metadata"):
                file.pop(key, None)
        return json.dumps(document).encode()


@contextmanager
def serve_front(front: Front) -> Iterator[str]:
    """Run the server while the context lasts; the value is the URL of the index."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            """Print nothing."""

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            try:
                if self.path.startswith("/simple/"):
                    self.send_page(front.page(self.path))
                else:
                    self.send_file(front.files[self.path], body=body)
            except (KeyError, urllib.error.HTTPError):
                self.send_error(404)

        def send_page(self, data: bytes) -> None:
            with front.lock:
                front.counts.pages += 1
                front.counts.page_bytes += len(data)
            self.send_response(200)
            self.send_header("Content-Type", JSON)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def send_file(self, url: str, *, body: bool) -> None:
            wanted = {k: v for k, v in self.headers.items() if k.lower() == "range"}
            method = "GET" if body else "HEAD"
            request = urllib.request.Request(url, headers=wanted, method=method)
            with urllib.request.urlopen(request) as response:
                with front.lock:
                    if wanted or not body:
                        front.counts.parts += 1
                    else:
                        front.counts.wholes += 1
                self.send_response(response.status)
                for key in ("Content-Length", "Content-Range", "Content-Type"):
                    if key in response.headers:
                        self.send_header(key, response.headers[key])
                self.send_header("Accept-Ranges", "bytes")
                self.end_headers()
                while data := response.read(CHUNK):
                    self.wfile.write(data)
                    with front.lock:
                        front.counts.file_bytes += len(data)

        def handle(self) -> None:
            # A client may close the connection in the middle of a file.
            try:
                super().handle()
            except ConnectionError:
                self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple/"
        finally:
            server.shutdown()
            thread.join()


def main() -> None:
    parser = options(__doc__, 1)
    parser.add_argument("index", help="the URL of an index with pages in JSON")
    parser.add_argument("--requirement", default="torch")
    parser.add_argument("--without-pip", action="store_true", help="omit pip alone")
    given = parser.parse_args()
    front = Front(given.index)
    rows = []
    # Older versions of pip download the files also in a dry run.
    with (
        fresh_environment(*EXTRAS, "pip>=26") as environment,
        serve_front(front) as url,
    ):
        pip = ["-m", "pip"]
        command = ["-m", "nvp", "pip"]
        sides: dict[str, Sequence[str]] = {
            "pip": pip,
            "nvp pip, first": [*command, *MACHINE],
            "nvp pip, again": [*command, *MACHINE],
        }
        if given.without_pip:
            del sides["pip"]
        for name, start in sides.items():
            front.counts.reset()
            words = ["install", "--dry-run", "--ignore-installed", "--no-cache-dir"]
            words += ["--index-url", url, given.requirement]
            last = resolve(environment, [*start, *words])
            rows.append([name, *describe(front.counts), last])
    header = ["", "pages", "MB", "parts", "whole files", "MB"]
    print_table(f"reading {given.requirement}", header, [row[:-1] for row in rows])
    for name, *_, last in rows:
        print(f"{name}: {last}")


def describe(counts: Counts) -> list[str]:
    return [
        str(counts.pages),
        f"{counts.page_bytes / 1e6:.1f}",
        str(counts.parts),
        str(counts.wholes),
        f"{counts.file_bytes / 1e6:.1f}",
    ]


def resolve(environment: Environment, words: Sequence[str]) -> str:
    """Run pip, and return the distributions that it would install."""
    cache = environment.folder / "cache"
    variables: Mapping[str, str] = {**CLEAN, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [str(environment.python), *words],
        cwd=environment.folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{words} exited with {done.returncode}:\n{done.stderr}")
    lines = [line for line in done.stdout.splitlines() if "Would install" in line]
    return " ".join(word for word in lines[0].split() if "torch" in word)


if __name__ == "__main__":
    main()
