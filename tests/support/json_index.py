"""simple-repository-server: an index in JSON, with METADATA next to its wheels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["JsonIndex", "serve_json"]

_REQUEST = re.compile(r'"GET (\S+) HTTP/1.1"')


class JsonIndex:
    """A running server, with its URL and the requests that it received."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log

    def requests(self) -> list[str]:
        """Return the paths that clients requested."""
        return _REQUEST.findall(self._log.read_text(encoding="utf-8"))


@contextmanager
def serve_json(folder: Path, log: Path) -> Iterator[JsonIndex]:
    """Serve ``folder`` while the context lasts.

    :param log: the file that the server writes its log to.
    """
    if sys.version_info < (3, 11):
        pytest.skip("simple-repository-server needs Python 3.11")
    # With port 0, the server uses a free port and prints its number.
    command = [sys.executable, "-m", "simple_repository_server", "--port", "0"]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, "--host", "127.0.0.1", str(folder)],
            env={**os.environ, "NETRC": os.devnull},
            stdout=output,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        ) as process,
    ):
        try:
            yield JsonIndex(f"{_find_url(process)}/simple/", log)
        finally:
            process.terminate()


def _find_url(process: subprocess.Popen[str]) -> str:
    said = []
    for line in process.stderr or ():
        said.append(line)
        if match := re.search(r"running on (http://[\d.:]+)", line):
            return match[1]
    raise OSError("".join(said))
