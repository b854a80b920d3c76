"""Many clients of servers in front of one index: this project's, and its peers.

Every server starts again for each run, and 50 clients request one page at once. The
index responds at once, or takes half a second for each page, one after the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import statistics
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.harness import (
    Environment,
    fresh_environment,
    options,
    print_machine,
    print_table,
)
from benchmarks.loopback import CLEAN, FORCED, free_port, process, wait_for

PEERS = ("simple-repository-server>=0.9", "proxpi>=1.3", "gunicorn")


def main() -> None:
    runs = options(__doc__, 3).parse_args().runs
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as name,
        fresh_environment(*PEERS) as environment,
    ):
        CLEAN["TMPDIR"] = name
        print_machine(runs)
        for files, delay, requests in (
            (300, 0.0, 200),
            (300, 0.45, 200),
            (20_000, 0.0, 1),
        ):
            compare(environment, files, delay, requests, runs)


def compare(
    environment: Environment, files: int, delay: float, requests: int, runs: int
) -> None:
    """Let 50 clients request one page of an index from new servers.

    :param delay: the seconds of the index for a page; the index sends one at a time.
    """
    count, one = [0], threading.Lock()
    names = [f"p-1.{n // 10}-cp3{n % 10 + 5}-none-any.whl" for n in range(files)]
    links = "".join(
        f'<a href="{n}#sha256={hashlib.sha256(n.encode()).hexdigest()}">{n}</a><br/>\n'
        for n in names
    )

    class Index(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            with one:
                count[0] += 1
                time.sleep(delay)
            # proxpi leaves out the slash at the end.
            is_page = self.path.rstrip("/").endswith("/p")
            found = links if is_page else '<a href="p/">p</a>'
            body = f"<!DOCTYPE html><html><body>{found}</body></html>".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

    def fetch(url: str) -> bool:
        # proxpi sends nothing to a client without the header Accept.
        request = urllib.request.Request(url, headers={"Accept": "text/html"})
        with contextlib.suppress(OSError), urllib.request.urlopen(request) as answer:
            return int(answer.read().count(b".whl<")) == files
        return False

    ThreadingHTTPServer.request_queue_size = 256
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url, port = f"http://127.0.0.1:{server.server_port}/simple/", str(free_port())
    there = f"127.0.0.1:{port}"
    sides = {
        "the index itself": (["-c", "import time; time.sleep(600)"], url),
        "simple-repository-server": (
            ["-m", "simple_repository_server", "--host", "127.0.0.1"],
            f"http://{there}/simple/",
        ),
        "proxpi": (
            ["-m", "gunicorn", "--bind", there, "--threads", "8", "proxpi.server:app"],
            f"http://{there}/index/",
        ),
        "nvp serve": (["-m", "nvp", "serve", "-i", url], f"http://{there}/simple/"),
    }
    sides["simple-repository-server"][0].extend(["--port", port, url])
    sides["nvp serve"][0].extend(["--port", port])
    taken: dict[str, list[tuple[float, int, int]]] = {name: [] for name in sides}
    for _, (name, (words, root)) in itertools.product(range(runs), sides.items()):
        with process(environment, words, {**FORCED, "PROXPI_INDEX_URL": url}):
            wait_for(root)
            time.sleep(0.5)
            count[0], start = 0, time.perf_counter()
            with ThreadPoolExecutor(50) as pool:
                good = sum(pool.map(fetch, [f"{root}p/"] * requests))
            taken[name].append((time.perf_counter() - start, good, count[0]))
    server.shutdown()
    rows = [
        [
            name,
            f"{statistics.median(times) * 1e3:.0f} ({min(times) * 1e3:.0f})",
            f"{requests / statistics.median(times):.1f}",
            str(min(good)),
            str(max(asked)),
        ]
        for name, results in taken.items()
        for times, good, asked in [tuple(zip(*results, strict=True))]
    ]
    title = f"A page of {files:,} files, {requests} requests, index of {delay:g} s"
    header = ["", "ms (shortest)", "per second", "right answers", "asked of the index"]
    print_table(title, header, rows)


if __name__ == "__main__":
    main()
