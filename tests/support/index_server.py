"""A web server on the loopback interface, for an index in a directory."""

from __future__ import annotations

import base64
import functools
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import (
    BaseHTTPRequestHandler,
    SimpleHTTPRequestHandler,
    ThreadingHTTPServer,
)
from pathlib import Path
from typing import Any

__all__ = ["run_http_server", "serve", "start_server"]


class _Handler(SimpleHTTPRequestHandler):
    # An installer requests hundreds of small files: connections stay open, and the end
    # of a response does not wait for an acknowledgement of its start.
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, *args: Any, credentials: str | None = None, **more: Any) -> None:
        self._credentials = credentials
        super().__init__(*args, **more)

    def log_message(self, *args: Any) -> None:
        """Print nothing, since pytest would show it."""

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "").partition(" ")[2]
        if self._credentials in (None, base64.b64decode(given).decode("latin-1")):
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="index"')
        self.send_header("Content-Length", "0")
        self.end_headers()


class _Server(ThreadingHTTPServer):
    # With the default of 5, the system drops connections if an installer opens many at
    # once, and the installer waits at least a second before it tries again.
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors, unless a client has closed the connection."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, ssl.SSLError)):
            super().handle_error(request, client_address)


@contextmanager
def serve(
    folder: str | os.PathLike[str],
    *,
    credentials: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """Serve ``folder`` while the context lasts; the value is its URL, with a slash.

    :param credentials: ``user:password``; requests without them are refused.
    """
    handler = functools.partial(
        _Handler, directory=os.fspath(folder), credentials=credentials
    )
    with start_server(handler, tls) as url:
        yield url


@contextmanager
def start_server(
    handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve with ``handler`` while the context lasts; the value is the URL."""
    with _Server(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            # Each TLS handshake is in the thread of its client, because the client may
            # close the connection first.
            server.socket = tls.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}
        )
        thread.start()
        try:
            scheme = "http" if tls is None else "https"
            yield f"{scheme}://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def run_http_server(folder: Path) -> Iterator[str]:
    """Serve a directory with ``python -m http.server``; the value is the URL."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        try:
            port = process.stdout.readline().split(" port ")[1].split()[0]
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.kill()
