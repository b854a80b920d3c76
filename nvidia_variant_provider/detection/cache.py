"""Keep the result of detection for a while: some drivers take seconds to reply.

A result counts only for the boot, the driver, the device nodes and the container
in which it was detected. Forced values are never kept. A file that another user
could have written is ignored. A file that cannot be written is not an error.

`read_own`, `write_own` and `why_no_cache` say which directories and files may be a
cache. All caches of nvp go by them too.
"""

from __future__ import annotations

import os
import stat
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
_AS_IT_IS: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_AT_ONCE: int = getattr(os, "O_NONBLOCK", 0)
"""Windows has other flags than the rest."""

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOUNTS = "/proc/self/ns/mnt"


def cache_file(environ: Mapping[str, str]) -> str | None:
    """Return the path of the kept result, or ``None`` if none may be kept.

    The directory is that of ``platformdirs.user_cache_dir``, whose import takes twice
    as long as starting Python. Results are kept on Linux only: other systems do
    not give each boot a name of its own.
    """
    if sys.platform != "linux" or environ.get(NO_CACHE) == "1":
        return None
    folder = environ.get("XDG_CACHE_HOME", "").strip()
    if not os.path.isabs(folder):
        home = environ.get("HOME")
        # A relative path would mean another directory wherever the program is called.
        if not home or not os.path.isabs(home):
            return None
        folder = os.path.join(home, ".cache")
    return os.path.join(folder, "nvidia-variant-provider", "detection.json")


def cache_key(environ: Mapping[str, str], traces: Sequence[str]) -> list[str] | None:
    """Return what a result depends on, or ``None`` if the boot is unknown."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            boot = file.read().strip()
        # A container shares the boot, the device nodes and often the home directory
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
    try:
        document = loads((read_own(path, _MAX_BYTES) or b"").decode("ascii"))
        if document["key"] != list(key):
            return None
        environment = Environment.from_dict(document["environment"])
        age = time.time() - document["time"]
    except (
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
    try:
        write_own(path, dumps(document).encode("ascii"))
    except OSError:
        return


def why_no_cache(folder: str) -> str | None:
    """Say why nothing may be kept in a directory; ``None`` if it may.

    pip's `check_path_owner` decides in the same way: with ``sudo -E``, or in a mounted
    home, the directory belongs to another user, who could have this one read, and
    write, what they like. Nobody else may write the directory either.

    :param folder: an absolute path. A directory that is missing may be made where the
        nearest one that exists allows it.
    """
    if sys.platform == "win32":  # Only the user can write the user's own profile.
        return None
    user = os.geteuid()
    place = folder
    while not os.path.lexists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    try:
        owners = {os.lstat(place).st_uid, os.stat(place).st_uid}
        status = os.stat(place)
    except OSError as error:
        return f"{place}: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{place} is not a directory"
    others = 0o022
    if place != folder:
        if not os.access(place, os.W_OK | os.X_OK):
            return f"{place} cannot be written"
        # What is made in such a directory belongs to this user, and nobody else can
        # rename it.
        if status.st_mode & stat.S_ISVTX:
            others, owners = 0, owners - {0}
        elif owners == {user}:
            others = 0o002  # The group is often that of this user alone.
    if owners - {user}:
        return f"{place} belongs to another user"
    if status.st_mode & others:
        return f"{place} can be written by other users (chmod go-w)"
    return None


def read_own(path: str, most: int, life: float | None = None) -> bytes | None:
    """Return what this user has kept in a file; ``None`` if there is nothing.

    :param most: the bytes that are read at most.
    :param life: the seconds after which the file counts as missing.
    """
    try:
        # O_NONBLOCK: opening a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | _AS_IT_IS | _AT_ONCE)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            # A clock that was set back makes the age negative.
            if life is not None and not 0 <= time.time() - status.st_mtime < life:
                return None
            # Accept a regular file of this user with the mode 0600 only.
            if sys.platform != "win32" and (
                status.st_uid != os.geteuid() or status.st_mode & 0o177777 != 0o100600
            ):
                return None
            if why_no_cache(os.path.dirname(path)) is not None:
                return None
            return file.read(most)
    except OSError:
        return None


def write_own(path: str, content: bytes) -> None:
    """Write a file that `read_own` returns, completely or not at all.

    :raises OSError: it cannot be written, or `why_no_cache` says why it must not be.
    """
    _make_folder(os.path.dirname(path))
    unfinished = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _AS_IT_IS
    descriptor = os.open(unfinished, flags, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(unfinished, path)
    except OSError:
        _remove(unfinished)
        raise


def _make_folder(folder: str) -> None:
    """Make a directory, and those above it, for this user alone.

    The mode that `os.makedirs` takes is that of the last directory only.

    :raises OSError: as `write_own` does.
    """
    missing = []
    place = folder
    while not os.path.lexists(place) and place != os.path.dirname(place):
        missing.append(place)
        place = os.path.dirname(place)
    _check(folder)
    for place in reversed(missing):
        try:
            os.mkdir(place, 0o700)
        except FileExistsError:  # noqa: PERF203  # of few
            _check(place)  # Another process has made it, maybe of another user.


def _check(folder: str) -> None:
    if (reason := why_no_cache(folder)) is not None:
        raise PermissionError(1, reason)


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
