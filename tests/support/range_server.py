"""A web server on the loopback interface that sends HTTP ranges, or misbehaves."""

from __future__ import annotations

import base64
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.index_server import start_server

__all__ = ["Answer", "RangeServer", "serve_answers"]


_CONDITIONS = {"ETag": "If-None-Match", "Last-Modified": "If-Modified-Since"}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The response of the server to requests for a path.

    :param ranges: whether the server sends requested ranges.
    :param parts: the body for range requests, if it differs from the whole body.
    :param accept: what the ``Accept`` header must contain; otherwise the status is 406.
    :param agent: the start of the ``User-Agent`` header; otherwise the status is 404.
    :param fault: ``hang`` (send nothing until the server stops), ``interim`` (send
        interim responses until then), ``close`` (send nothing), ``raw`` (send only the
        body, which has a status and headers of its own), ``cut`` (stop after
        half of the body), ``drip`` (send a byte at a time, until the server stops),
        ``lie`` (send a shorter range than the requested one), ``other`` (send the range
        before the requested one, unless the request is for the end), ``whole`` (send
        only ranges at the end of the file).
    """

    body: bytes = b""
    kind: str = "application/octet-stream"
    status: int = 200
    ranges: bool = True
    accept: str = ""
    agent: str = ""
    fault: str = ""
    parts: bytes | None = None
    headers: Mapping[str, str] | None = None


class Requests(list[str]):
    """The requests that a server received, each with its range or ``whole``."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def append(self, request: str) -> None:
        """Add a request, and wake up the threads that wait for one."""
        with self._changed:
            super().append(request)
            self._changed.notify_all()

    def wait_for(self, text: str) -> None:
        """Wait until a request has ``text`` in it."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: any(text in r for r in self), 60)
        assert arrived, list(self)


@dataclass(frozen=True)
class RangeServer:
    """A running server.

    :param url: its URL without a slash.
    :param requests: the requests that it received.
    :param sent: the bytes of the bodies that it sent, by path.
    """

    url: str
    requests: Requests
    sent: Counter[str]


@contextmanager
def serve_answers(
    answers: Mapping[str, Answer],
    *,
    credentials: str | None = None,
    others: Mapping[str, str] | None = None,
) -> Iterator[RangeServer]:
    """Serve ``answers`` by path while the context lasts.

    :param credentials: ``user:password``; requests without them are refused.
    :param others: the same for directories, by the start of their paths. Other users
        get 404 for such a directory, as from GitLab.
    """
    stopped = threading.Event()
    requests = Requests()
    sent: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # The end of a response does not wait for an acknowledgement of its start.
        disable_nagle_algorithm = True

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def say_nothing(self, fault: str) -> None:
            """Send no final response until the server stops, or at all."""
            while fault == "interim" and not stopped.wait(0.05):
                self.send_response_only(100)
                self.end_headers()
            if fault == "hang":
                stopped.wait()

        def do_GET(self) -> None:
            requests.append(f"{self.path} {self.headers.get('Range', 'whole')}")
            answer = answers.get(self.path, Answer(status=404))
            _, _, encoded = self.headers.get("Authorization", "").partition(" ")
            given = base64.b64decode(encoded).decode("latin-1")
            if credentials is not None and given != credentials:
                answer = Answer(status=401)
            for prefix, pair in (others or {}).items():
                if self.path.startswith(prefix) and given != pair:
                    answer = Answer(status=404)
            if answer.accept not in self.headers.get("Accept", ""):
                answer = Answer(status=406)
            is_known = self.headers.get("User-Agent", "").startswith(answer.agent)
            answer = answer if is_known else Answer(status=404)
            body, status = answer.body, answer.status
            headers = {"Content-Type": answer.kind, **(answer.headers or {})}
            if status == 200 and any(
                name in headers and self.headers.get(condition) == headers[name]
                for name, condition in _CONDITIONS.items()
            ):
                body, status = b"", 304
            asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            known = self.headers.get("If-Range", headers.get("ETag"))
            asked = asked if known == headers.get("ETag") else None
            is_wanted = not asked or not asked[1] or answer.fault != "whole"
            if asked and answer.ranges and status == 200 and is_wanted:
                body = body if answer.parts is None else answer.parts
                start, end = _bounds(asked[1], asked[2], len(body), answer.fault)
                headers["Content-Range"] = f"bytes {start}-{end}/{len(body)}"
                body = body[start : end + (0 if answer.fault == "lie" else 1)]
                status = 206
            if answer.fault in ("hang", "interim", "close", "raw"):
                self.wfile.write(body if answer.fault == "raw" else b"")
                self.say_nothing(answer.fault)
                self.close_connection = True
                return
            # The other method adds a date of its own.
            send = self.send_response_only if "Date" in headers else self.send_response
            send(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            sent[self.path] += len(body)
            if answer.fault == "cut":
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
                return
            if answer.fault == "drip":
                for byte in body[:-1]:
                    self.wfile.write(bytes([byte]))
                    if stopped.wait(0.05):
                        break
                # The body stays incomplete, also on a slow machine.
                stopped.wait()
                self.close_connection = True
                return
            self.wfile.write(body)

    with start_server(Handler) as url:
        try:
            yield RangeServer(url.rstrip("/"), requests, sent)
        finally:
            stopped.set()


def _bounds(first: str, last: str, size: int, fault: str) -> tuple[int, int]:
    if not first:
        return max(0, size - int(last)), size - 1
    start, end = int(first), min(int(last), size - 1)
    return (2 * start - end - 1, start - 1) if fault == "other" else (start, end)
