"""Asking a program of CUDA for its version."""

from __future__ import annotations

import errno
import logging
import os
import re
import subprocess
import threading
from dataclasses import dataclass
from typing import IO, Literal, TypeAlias, cast

from ...errors import shown
from ...machine.environment import CudaVersion
from ..children import end_family, pipe_name, started

__all__ = ["DEADLINE", "Program", "ask_version"]

logger = logging.getLogger(__name__)

DEADLINE = 10.0
"""Seconds that a program has to say its version. They take a twentieth of one, and
longer on a file system that is far away."""

_MOST = 64 * 1024
"""The most bytes that are read of what it prints; five lines are usual."""

_RELEASE = re.compile(rb"release ([0-9]{1,3}\.[0-9]{1,3})(?:, V([0-9][0-9.]{0,30}))?")


Failure: TypeAlias = Literal["missing", "refused", "foreign", "hangs", "garbled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A program of CUDA.

    :param named_by: the variable or the distribution that names it, or ``PATH``.
    :param cuda: the CUDA version that it is of; ``None`` where nobody knows.
    :param release: its full version, such as ``12.9.86``.
    :param problem: why its version is not known, as a clause.
    :param failure: the kind of the problem. ``foreign`` is a program for another
        processor or system, and ``garbled`` is one that prints something else.
    """

    path: str
    named_by: str
    cuda: CudaVersion | None = None
    release: str | None = None
    problem: str | None = None
    failure: Failure | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the program as it stands in the JSON report."""
        return {
            "path": self.path,
            "named_by": self.named_by,
            "cuda": None if self.cuda is None else str(self.cuda),
            "release": self.release,
            "problem": self.problem,
        }


def ask_version(path: str, named_by: str, *, deadline: float = DEADLINE) -> Program:
    """Run ``PATH --version`` and read the CUDA version that it prints.

    :param deadline: seconds after which the program is ended, with what it started.
    :returns: a program with a ``problem`` where it cannot be run, hangs, or prints
        something else.
    """
    if "\0" in path or not os.path.exists(path):
        return _failed(path, named_by, "missing", "there is no such file")
    if os.path.isdir(path):
        return _failed(path, named_by, "refused", "it is a folder")
    try:
        output = _run(path, deadline)
    except OSError as error:
        if error.errno == errno.ENOEXEC or getattr(error, "winerror", 0) == 216:
            problem = "it is not a program for this machine"
            return _failed(path, named_by, "foreign", problem)
        problem = f"it cannot be run: {error.strerror or error}"
        return _failed(path, named_by, "refused", problem)
    if output is None:
        problem = f"it did not reply in {deadline:g} seconds"
        return _failed(path, named_by, "hangs", problem)
    match = _RELEASE.search(output)
    if match is None:
        lines = output.decode("utf-8", "replace").splitlines()
        first = next((line.strip() for line in lines if line.strip()), "")
        printed = shown(first) if first else "nothing"
        problem = f"it prints {printed} instead of its version"
        return _failed(path, named_by, "garbled", problem)
    cuda = CudaVersion.parse(match[1].decode())
    logger.info("%s --version says CUDA %s", path, cuda)
    release = match[2].decode().rstrip(".") if match[2] else None
    return Program(path=path, named_by=named_by, cuda=cuda, release=release)


def _failed(path: str, named_by: str, failure: Failure, problem: str) -> Program:
    logger.info("%s --version says nothing: %s", path, problem)
    return Program(path=path, named_by=named_by, problem=problem, failure=failure)


def _run(path: str, deadline: float) -> bytes | None:
    """Return the first bytes that a program prints; ``None`` where it hangs.

    :raises OSError: it cannot be started.
    """
    output: list[bytes] = []
    pipes: set[str] = set()
    # Nothing bounds what the program prints, and no other way to wait for output with a
    # deadline works on Windows as well.
    with started(
        [path, "--version"],
        lambda process: end_family(process, pipes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        stream = cast("IO[bytes]", process.stdout)
        pipes.add(pipe_name(stream))
        reader = threading.Thread(
            target=lambda: output.append(stream.read(_MOST)), daemon=True
        )
        reader.start()
        reader.join(deadline)
        hangs = reader.is_alive()
    reader.join(1.0)
    if not reader.is_alive():
        # Otherwise a process that has left the session holds the pipe, and closing it
        # would wait for that process.
        stream.close()
    return None if hangs else b"".join(output)
