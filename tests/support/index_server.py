"""A web server on the loopback interface, for an index in a folder."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import (
    BaseHTTPRequestHandler,
    SimpleHTTPRequestHandler,
    ThreadingHTTPServer,
)
from typing import Any

__all__ = ["serve", "start_server"]


class _Handler(SimpleHTTPRequestHandler):
    # An installer asks for hundreds of small files: it keeps its connections, and
    # the end of an answer does not wait for an acknowledgement of its start.
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: Any) -> None:
        """Say nothing: pytest shows what a test prints."""


class _Server(ThreadingHTTPServer):
    # With the default of 5, an installer that opens many connections at once
    # waits a second and more for those that the system drops.
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report defects, but not that a client has gone away."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serve(folder: str | os.PathLike[str]) -> Iterator[str]:
    """Serve ``folder`` while the context lasts; the value is its URL, with a slash."""
    with start_server(functools.partial(_Handler, directory=os.fspath(folder))) as url:
        yield url


@contextmanager
def start_server(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve with ``handler`` while the context lasts; the value is the URL."""
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
