"""`serve` under load: 200 clients at the same time, 40 of them hostile."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.harness import options
from benchmarks.loopback import CLEAN, FORCED, free_port, peak_of, wait_for

PAGES, DOWNLOADS, HALF_SENT, SLOW = 150, 10, 20, 20
"""The numbers of clients that read pages, download wheels, send half of a request, and
do not read their response. The last two kinds are hostile."""

PER_HALF_SENT, PER_SLOW = 60, 4
"""The number of connections of each hostile client, which opens closed ones again."""

FILES = 20
MOST = 15.0
"""The seconds before a client gives up, as pip does."""

WHEEL = bytes(8 << 20)
DESCRIPTORS = 1024


class Upstream(BaseHTTPRequestHandler):
    """An index with one page for any project, and wheels that need credentials."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path.endswith(".whl"):
            body, kind = WHEEL, "application/octet-stream"
        else:
            name = self.path.strip("/").split("/")[-1]
            links = (f"<a href={name}-1.{n}-py3-none-any.whl>x" for n in range(FILES))
            body, kind = "\n".join(links).encode(), "text/html"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)


class UpstreamServer(ThreadingHTTPServer):
    """A server that reports no errors about connections that the client has closed."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def upstream() -> Iterator[str]:
    server = UpstreamServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://user:secret@127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


class Load:
    """The clients, and their counts."""

    def __init__(self, port: int, seconds: float) -> None:
        self.port = port
        self.until = time.monotonic() + seconds
        self.times: list[float] = []
        self.downloads = self.failures = self.unanswered = 0

    async def run(self) -> None:
        work = [self.read_pages(number) for number in range(PAGES)]
        work += [self.download() for _ in range(DOWNLOADS)]
        half = b"GET /simple/p/ HTTP/1.1\r\nHost: local"
        work += [self.hold(half) for _ in range(HALF_SENT * PER_HALF_SENT)]
        whole = self.request(self.wheel())
        work += [self.hold(whole) for _ in range(SLOW * PER_SLOW)]
        await asyncio.gather(*work)

    def request(self, path: str) -> bytes:
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        return head.encode()

    def wheel(self) -> str:
        name = "p-1.0-py3-none-any.whl"
        return f"/f/p/-/00000000/{name}"

    async def fetch(self, path: str) -> int:
        """Return the number of bytes of a response."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self.request(path))
            status = await reader.readline()
            if b" 200 " not in status:
                raise OSError(f"not served: {status!r}")
            size = 0
            while piece := await reader.read(1 << 16):
                size += len(piece)
            return size
        finally:
            writer.close()

    async def read_pages(self, number: int) -> None:
        while (left := self.until - time.monotonic()) > 0:
            start = time.monotonic()
            try:
                await asyncio.wait_for(
                    self.fetch(f"/simple/p{number % 50}/"), min(left, MOST)
                )
            except asyncio.TimeoutError:
                self.unanswered += left > MOST
            except OSError:
                self.failures += 1
                await asyncio.sleep(0.1)
            else:
                self.times.append(time.monotonic() - start)

    async def download(self) -> None:
        while (left := self.until - time.monotonic()) > 0:
            with suppress(OSError, asyncio.TimeoutError):
                size = await asyncio.wait_for(self.fetch(self.wheel()), left)
                self.downloads += size >= len(WHEEL)
            await asyncio.sleep(0.1)

    async def hold(self, text: bytes) -> None:
        """Send ``text``, read nothing, and start again when the server closes."""
        while (left := self.until - time.monotonic()) > 0:
            with suppress(OSError, asyncio.TimeoutError):
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", self.port, limit=1024
                )
                writer.write(text)
                closed = asyncio.ensure_future(writer.wait_closed())
                await asyncio.wait([closed], timeout=left)
                writer.transport.abort()
                with suppress(OSError):
                    await closed
            await asyncio.sleep(2.0)


def watch(number: int, peak: list[int], stop: threading.Event) -> None:
    while not stop.wait(0.25):
        with suppress(OSError):
            peak[0] = max(peak[0], len(os.listdir(f"/proc/{number}/fd")))


def main() -> None:
    parser = options(__doc__, 1)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    port = free_port()
    words = ["-m", "nvp", "serve", "--port", str(port), "-i"]
    with upstream() as url, tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [
                *("/bin/sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh"),
                *(sys.executable, *words, url),
            ],
            env={**os.environ, **CLEAN, **FORCED},
            stdout=log,
            stderr=log,
        )
        peak, stop = [0], threading.Event()
        thread = threading.Thread(target=watch, args=[server.pid, peak, stop])
        try:
            wait_for(f"http://127.0.0.1:{port}/")
            thread.start()
            load = Load(port, seconds)
            asyncio.run(load.run())
            report(load, seconds, peak[0], peak_of(server.pid))
            print(f"log:                 {os.fstat(log.fileno()).st_size} bytes")
        finally:
            stop.set()
            start = time.monotonic()
            server.terminate()
            try:
                server.wait(timeout=20)
                print(f"end after SIGTERM:   {time.monotonic() - start:.1f} s")
            except subprocess.TimeoutExpired:
                server.kill()
                print("end after SIGTERM:   not within 20 s")
            server.wait()


def report(load: Load, seconds: float, descriptors: int, memory: float) -> None:
    times = sorted(load.times)
    slowest = f"{times[len(times) * 99 // 100] * 1000:.0f} ms" if times else "none"
    print(f"pages per second:    {len(times) / seconds:.1f}")
    print(f"99th percentile:     {slowest}")
    print(f"pages refused:       {load.failures}")
    print(f"pages late by {MOST:g} s:  {load.unanswered}")
    print(f"wheels of 8 MiB:     {load.downloads}")
    print(f"descriptors at most: {descriptors} of {DESCRIPTORS}")
    print(f"memory at most:      {memory:.0f} MiB")


if __name__ == "__main__":
    main()
