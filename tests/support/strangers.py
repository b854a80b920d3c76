"""Files, processes and URLs that another user of this machine can read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

__all__ = ["ROOT", "STRANGER", "needs_root", "visible_urls"]

ROOT, STRANGER = 0, 61234
"""Root, and a user who has no account, no files and no processes."""

needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != ROOT,
    reason="only root can run programs as another user",
)

# Import before changing users: the other user may not be able to read the interpreter.
_AS_USER = """
import encodings.idna, json, os, sys
user = int(sys.argv[1])
os.setgroups([])
os.setgid(user)
os.setuid(user)
"""

_LIST = """
lines = []
for number in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{number}/cmdline", errors="replace") as file:
            lines.append(file.read())
    except OSError:
        pass
print(json.dumps(lines))
"""


def visible_urls(pattern: str, mark: str) -> list[str]:
    """Return the URLs of indexes that another user sees in command lines.

    :param pattern: matches the whole URL.
    :param mark: a text that only command lines of this test have.
    """
    lines = [line for line in _run_as(STRANGER, _LIST) if line and mark in line]
    words = {word for line in lines for word in line.split("\0")}
    return sorted(word for word in words if re.fullmatch(pattern, word))


def _run_as(user: int, code: str, *arguments: str) -> list[str | None]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", _AS_USER + code, str(user), *arguments],
        cwd="/",
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: list[str | None] = json.loads(done.stdout)
    return result
