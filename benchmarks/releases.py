"""`releases torch` from a page as large as PyPI's: its time, and its requests."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import threading
import time
import urllib.request
from typing import ClassVar

from benchmarks.harness import (
    Command,
    Sample,
    fresh_environment,
    options,
    print_machine,
    print_table,
    run,
    time_commands,
    verdict,
)
from nvp.knowledge.builds import build_records

LIMIT = 1.5
KIND = "application/vnd.pypi.simple.v1+json"
TAGS = [f"cp3{minor}-cp3{minor}" for minor in range(8, 15)]
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_28_aarch64",
    "win_amd64",
    "macosx_11_0_arm64",
)


def make_page() -> bytes:
    """Return a page with wheels of each torch release of the table, of 800 MB each."""
    records = [r for r in build_records()["torch"] if r.label is None]
    known = {name: digest for r in records for name, digest in r.wheels.items()}
    files = []
    for version in sorted({record.version for record in records}):
        for tag in TAGS:
            for platform in PLATFORMS:
                name = f"torch-{version}-{tag}-{platform}.whl"
                other = hashlib.sha256(name.encode()).hexdigest()
                files.append(
                    {
                        "filename": name,
                        "url": f"/files/{name}",
                        "hashes": {"sha256": known.get(name, other)},
                        "size": 800_000_000,
                        "requires-python": ">=3.8",
                    }
                )
    page = {"meta": {"api-version": "1.1"}, "name": "torch", "files": files}
    return json.dumps(page).encode()


class Handler(http.server.BaseHTTPRequestHandler):
    """Sends the page, and records the requests."""

    page = b""
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        there = self.path == "/torch/"
        self.send_response(200 if there else 404)
        self.send_header("Content-Type", KIND)
        self.send_header("Content-Length", str(len(self.page) if there else 0))
        self.end_headers()
        if there:
            self.wfile.write(self.page)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def main() -> None:
    runs = options(__doc__, 7).parse_args().runs
    Handler.page = make_page()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    words = ["-m", "nvp", "releases", "torch", "--index-url", url]
    words += ["--cuda-driver", "12.8", "--sm-arch", "8.0"]
    variables = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    with fresh_environment("httpx", "simple-repository", "lxml", "truststore") as env:
        command = Command(words, variables)
        run(env, command)  # This fills the cache.
        Handler.asked.clear()
        run(env, command)
        asked = list(Handler.asked)
        print_machine(runs)
        sample = time_commands(env, {"releases": command}, runs)["releases"]
        page = Sample([download(f"{url}torch/") for _ in range(runs)])
    server.shutdown()
    above = sample.median - page.median
    rows = [
        ["the page alone", str(page), ""],
        ["releases torch", str(sample), ""],
        ["above the page", f"{above * 1e3:.0f}", verdict(above, LIMIT)],
    ]
    title = f"A page of {len(json.loads(Handler.page)['files']):,} files, warm cache"
    print_table(title, ["", "ms", f"budget {LIMIT} s"], rows)
    wheels = [path for path in asked if path != "/torch/"]
    print(f"\nrequests: {len(asked)}, of them for wheels: {len(wheels)}")


def download(url: str) -> float:
    start = time.perf_counter()
    request = urllib.request.Request(url, headers={"Accept": KIND})
    with urllib.request.urlopen(request) as response:
        response.read()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
