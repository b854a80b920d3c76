"""Keep the result of detection for a while: some drivers take seconds to reply.

A result counts only for the boot, the driver, the device nodes and the container
in which it was detected. Forced values are never kept. A file that another user
could have written is ignored. A file that cannot be written is not an error.
"""

from __future__ import annotations

import os
import sys
import time

from ..light import dumps, loads
from ..machine import reasons
from ..machine.environment import Environment, detection_timeout
from .presence import kernel_driver_version, library_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NO_CACHE = "NV_VARIANT_PROVIDER_NO_CACHE"

_LIFE = 24 * 3600
"""Seconds for which a complete result counts."""

_LIFE_WITH_PROBLEMS = 600
"""Seconds for which a result with a reason code counts."""

_MAX_BYTES = 1024 * 1024
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOUNTS = "/proc/self/ns/mnt"


def cache_file(environ: Mapping[str, str]) -> str | None:
    """Return the path of the kept result, or ``None`` if none may be kept.

    The folder is that of ``platformdirs.user_cache_dir``, whose import takes twice
    as long as starting Python. Results are kept on Linux only: other systems do
    not give each boot a name of its own.
    """
    if sys.platform != "linux" or environ.get(NO_CACHE) == "1":
        return None
    folder = environ.get("XDG_CACHE_HOME", "").strip()
    if not os.path.isabs(folder):
        home = environ.get("HOME")
        # A relative path would mean another folder wherever the program is called.
        if not home or not os.path.isabs(home):
            return None
        folder = os.path.join(home, ".cache")
    return os.path.join(folder, "nvidia-variant-provider", "detection.json")


def cache_key(environ: Mapping[str, str], traces: Sequence[str]) -> list[str] | None:
    """Return what a result depends on, or ``None`` if the boot is unknown."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            boot = file.read().strip()
        # A container shares the boot, the device nodes and often the home folder
        # with its host, but it has libraries of its own.
        mounts = os.readlink(_MOUNTS)
    except (OSError, ValueError):
        return None
    kernel = kernel_driver_version(environ) or ""
    # A driver that was too slow for a short deadline may meet a longer one.
    seconds = f"{detection_timeout(environ):g}"
    libraries = library_path(environ) or ""
    # The package itself imports this module, so that an import would be a circle.
    version: str = sys.modules[__name__.partition(".")[0]].__version__
    return [version, boot, mounts, kernel, seconds, libraries, *traces]


def load(path: str, key: Sequence[str]) -> Environment | None:
    """Return the result that is kept for ``key``, if it is valid and fresh."""
    if sys.platform == "win32":
        return None
    try:
        # O_NONBLOCK: opening a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            # Accept a regular file of this user with the mode 0600 only.
            if status.st_uid != os.getuid() or status.st_mode & 0o177777 != 0o100600:
                return None
            text = os.read(descriptor, _MAX_BYTES).decode("ascii")
        finally:
            os.close(descriptor)
        document = loads(text)
        if document["key"] != list(key):
            return None
        environment = Environment.from_dict(document["environment"])
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
    problems = environment.reason or any(gpu.reason for gpu in environment.gpus)
    life = _LIFE_WITH_PROBLEMS if problems else _LIFE
    # A negative age means that the clock was set back: the real age is unknown.
    return environment if 0 <= age < life else None


def store(path: str, key: Sequence[str], environment: Environment) -> None:
    """Keep a result if that is possible.

    A failure of this package's own process says nothing about the machine, so that
    it is not kept.
    """
    if sys.platform == "win32":
        return
    if environment.reason in (reasons.NO_BINDINGS, reasons.PROBE_FAILED):
        return
    document = {
        "key": list(key),
        "time": int(time.time()),
        "environment": environment.to_dict(),
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
    """Remove the kept result, if there is one.

    :raises OSError: the file exists and cannot be removed.
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
