"""A web server on the loopback interface that serves parts of files, or misbehaves."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.index_server import start_server

__all__ = ["Answer", "RangeServer", "serve_answers"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a path gets.

    :param ranges: whether parts can be asked for.
    :param fault: ``hang``, ``cut`` (after half of the body), ``drip`` (a byte at a
        time, for ever), ``lie`` (another range than asked for).
    """

    body: bytes = b""
    kind: str = "application/octet-stream"
    status: int = 200
    ranges: bool = True
    fault: str = ""
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True)
class RangeServer:
    """A running server: its URL without a slash, and the requests that it got."""

    url: str
    requests: list[str]


@contextmanager
def serve_answers(
    answers: Mapping[str, Answer], *, credentials: str | None = None
) -> Iterator[RangeServer]:
    """Serve ``answers`` by path while the context lasts.

    :param credentials: ``user:password``, without which all is refused.
    """
    expected = base64.b64encode((credentials or "").encode()).decode()
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            requests.append(f"{self.path} {self.headers.get('Range', 'whole')}")
            answer = answers.get(self.path, Answer(status=404))
            given = self.headers.get("Authorization", "")
            if credentials is not None and given != f"Basic {expected}":
                answer = Answer(status=401)
            body, status = answer.body, answer.status
            headers = {"Content-Type": answer.kind, **(answer.headers or {})}
            asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            if asked and answer.ranges:
                start, end = _bounds(asked[1], asked[2], len(body))
                headers["Content-Range"] = f"bytes {start}-{end}/{len(body)}"
                body = body[start : end + (0 if answer.fault == "lie" else 1)]
                status = 206
            if answer.fault == "hang":
                time.sleep(5)
                return
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if answer.fault == "cut":
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
                return
            if answer.fault == "drip":
                for byte in body:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.05)
                return
            self.wfile.write(body)

    with start_server(Handler) as url:
        yield RangeServer(url.rstrip("/"), requests)


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:
        return max(0, size - int(last)), size - 1
    return int(first), min(int(last), size - 1)
