"""The result of detection, kept for a while: drivers can be slow to ask.

It counts only for the boot, the driver, the device nodes and the container that
it was found in. Forced values are never in it. A file that somebody else could
have written is ignored, and one that cannot be written is no error.
"""

from __future__ import annotations

import os
import sys
import time

from ..machine import reasons
from ..machine.environment import Environment
from ..machine.overrides import detection_timeout
from .presence import kernel_driver_version, library_path
from .quick_json import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["NO_CACHE", "cache_file", "cache_key", "clear", "load", "store"]

NO_CACHE = "NV_VARIANT_PROVIDER_NO_CACHE"

_LIFE = 24 * 3600
_LIFE_WITH_PROBLEMS = 600
"""Seconds."""

_MAX_BYTES = 1024 * 1024
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOUNTS = "/proc/self/ns/mnt"


def cache_file(environ: Mapping[str, str]) -> str | None:
    """Where the result is kept: below the user's cache folder; ``None``: nowhere.

    The folder is that of ``platformdirs.user_cache_dir``, whose import costs
    twice what starting Python does. Results are kept on Linux only: the others
    tell no boot from the next.
    """
    if sys.platform != "linux" or environ.get(NO_CACHE) == "1":
        return None
    folder = environ.get("XDG_CACHE_HOME", "").strip()
    if not os.path.isabs(folder):
        home = environ.get("HOME")
        if not home:
            return None
        folder = os.path.join(home, ".cache")
    return os.path.join(folder, "nvidia-variant-provider", "detection.json")


def cache_key(environ: Mapping[str, str], traces: Sequence[str]) -> list[str] | None:
    """What a result depends on; ``None`` when the boot cannot be told."""
    from .._version import __version__

    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            boot = file.read().strip()
        # A container shares boot, nodes and home with its host, but not libraries.
        mounts = os.readlink(_MOUNTS)
    except (OSError, ValueError):
        return None
    kernel = kernel_driver_version(environ) or ""
    # With more time, a driver that was too slow may answer.
    seconds = f"{detection_timeout(environ):g}"
    libraries = library_path(environ) or ""
    return [__version__, boot, mounts, kernel, seconds, libraries, *traces]


def load(path: str, key: Sequence[str]) -> Environment | None:
    """The result that is kept for ``key``, if it is valid and fresh."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.getuid() or status.st_mode & 0o177777 != 0o100600:
                return None
            text = os.read(descriptor, _MAX_BYTES).decode("ascii")
        finally:
            os.close(descriptor)
        document = loads(text)
        if document["key"] != list(key):
            return None
        found = Environment.from_dict(document["environment"])
        age = time.time() - document["time"]
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ):
        return None
    problems = found.reason or any(gpu.reason for gpu in found.gpus)
    # A file from the future is a clock that was set back: its age is unknown.
    return found if 0 <= age < (_LIFE_WITH_PROBLEMS if problems else _LIFE) else None


def store(path: str, key: Sequence[str], found: Environment) -> None:
    """Keep a result; where that is not possible, do nothing.

    What failed on this side says nothing of the machine, and is not kept.
    """
    if found.reason in (reasons.NO_BINDINGS, reasons.PROBE_FAILED):
        return
    document = {
        "key": list(key),
        "time": int(time.time()),
        "environment": found.to_dict(),
    }
    unfinished = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(unfinished, flags, 0o600)
    except OSError:
        return
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(dumps(document))
        os.replace(unfinished, path)
    except OSError:
        _remove(unfinished)


def clear(path: str) -> None:
    """Forget the result.

    :raises OSError: it is there and cannot be removed.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
