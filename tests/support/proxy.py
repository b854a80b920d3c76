"""A proxy on the loopback interface, which connects every host name to one server."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from support.index_server import start_server

__all__ = ["Proxy", "serve_proxy"]


class Proxy:
    """A running proxy, with its URL and the targets that clients requested."""

    def __init__(self, url: str, asked: list[str]) -> None:
        self.url = url
        self.asked = asked


@contextmanager
def serve_proxy(server: str) -> Iterator[Proxy]:
    """Run a proxy while the context lasts.

    :param server: the URL of the server that all requests go to.
    """
    asked: list[str] = []
    parts = urlsplit(server)
    place = (parts.hostname or "", parts.port or 0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            asked.append(self.path)
            target = urlsplit(self.path)
            connection = http.client.HTTPConnection(*place)
            with contextlib.closing(connection):
                query = f"?{target.query}" if target.query else ""
                connection.request("GET", target.path + query)
                answer = connection.getresponse()
                body = answer.read()
            self.send_response(answer.status)
            for name in ("Content-Type", "Location"):
                if answer.headers[name]:
                    self.send_header(name, answer.headers[name])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_CONNECT(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            with socket.create_connection(place) as there:
                back = threading.Thread(target=_copy, args=(there, self.connection))
                back.start()
                _copy(self.connection, there)
                back.join()

    with start_server(Handler) as url:
        yield Proxy(url.rstrip("/"), asked)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
