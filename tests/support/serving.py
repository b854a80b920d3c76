"""The command ``serve`` in a process of its own."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["Serving", "fetch", "serving"]


class Serving:
    """The process that serves, and the URLs that it printed."""

    def __init__(self, process: subprocess.Popen[str], urls: list[str]) -> None:
        self.process = process
        self.urls = urls

    def stop(self, signal_number: int) -> tuple[int, str]:
        """Stop the process; return its exit status and its stderr."""
        self.process.send_signal(signal_number)
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


@contextmanager
def serving(
    *arguments: object,
    environ: Mapping[str, str],
    python: object = sys.executable,
    cwd: Path | None = None,
) -> Iterator[Serving]:
    """Run ``serve`` while the context lasts."""
    command = [str(python), "-m", "nvp", "serve", "--json"]
    with subprocess.Popen(
        [*command, *map(str, arguments)],
        env=dict(environ),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            report = json.loads(_read_report(process))
            indexes = report["data"]["indexes"]
            yield Serving(process, [item["url"] for item in indexes])
        finally:
            process.kill()


def fetch(
    url: str, path: str | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of ``url``, without following redirects.

    :param path: a path that is sent as it is, instead of the path of ``url``.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        connection.putrequest(
            "GET", path or parts.path or "/", skip_host="Host" in (headers or {})
        )
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, fields, answer.read()
    finally:
        connection.close()


def _read_report(process: subprocess.Popen[str]) -> str:
    """Read the report, which is JSON and ends with a brace in the first column."""
    lines = []
    for line in process.stdout or ():
        lines.append(line)
        if line == "}\n":
            return "".join(lines)
    error = process.stderr.read() if process.stderr else ""
    raise OSError("".join(lines) + error)
