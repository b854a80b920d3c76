"""Cache the result of detection, because some drivers take seconds to reply.

A result is valid only for the boot, the driver, the device nodes and the container in
which it was detected. Forced values are never cached. A file that another user could
have written is ignored. Failing to write the cache is not an error.

`read_own`, `write_own` and `why_no_cache` decide which directories and files are safe
to use. All caches of nvp use these functions.
"""

from __future__ import annotations

import os
import stat
import sys
import time

from ..light import dumps, loads
from ..machine import reasons
from ..machine.environment import Environment, detection_timeout
from .presence import child_variables, kernel_driver_version, system_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NO_CACHE = "NV_VARIANT_PROVIDER_NO_CACHE"

_LIFE = 24 * 3600
"""Seconds for which a complete result is valid."""

_LIFE_WITH_PROBLEMS = 600
"""Seconds for which a result with a reason code is valid."""

_MAX_BYTES = 1024 * 1024
_MOST_KEPT, _BLOCK = 256 * 1024 * 1024, 4096
"""The maximum size of the files with a limited age in a directory, and the size that a
file takes in addition to its content, in bytes."""

_AS_IT_IS: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_AT_ONCE: int = getattr(os, "O_NONBLOCK", 0)
"""Flags for `os.open`; 0 for flags that the platform does not have."""

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOUNTS = "/proc/self/ns/mnt"
_JOBS = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PBS_JOBID", "LSB_JOBID")
"""The variables with which Slurm, PBS and LSF identify a job."""


def cache_file(environ: Mapping[str, str]) -> str | None:
    """Return the path of the cached result, or ``None`` if caching is impossible.

    The directory is that of ``platformdirs.user_cache_dir``. It is computed here,
    because importing `platformdirs` would take twice as long as starting Python.
    Results are cached only on Linux: other systems have no identifier for each boot.
    """
    if sys.platform != "linux" or environ.get(NO_CACHE) == "1":
        return None
    folder = environ.get("XDG_CACHE_HOME", "").strip()
    if not os.path.isabs(folder):
        home = environ.get("HOME")
        # A relative path would depend on the current directory.
        if not home or not os.path.isabs(home):
            return None
        folder = os.path.join(home, ".cache")
    return os.path.join(folder, "nvidia-variant-provider", "detection.json")


def cache_key(environ: Mapping[str, str], traces: Sequence[str]) -> list[str] | None:
    """Return the facts that a result depends on; ``None`` if the boot is unknown."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            boot = file.read().strip()
        # A container shares the boot, the device nodes and often the home directory
        # with its host. The mount namespace differs, and so may the libraries.
        mounts = os.readlink(_MOUNTS)
    except (OSError, ValueError):
        return None
    # The next container may have the same namespace number. If its libraries differ,
    # its loader has another cache. The loader of musl has no cache.
    try:
        status = os.stat(os.path.join(system_root(environ), "etc/ld.so.cache"))
        times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
        loader = f"{status.st_dev} {status.st_ino} {times}"
    except OSError:
        loader = ""
    kernel = kernel_driver_version(environ) or ""
    # A result may be a timeout, which a longer deadline could avoid.
    seconds = f"{detection_timeout(environ):g}"
    # The result may depend on everything that the child gets.
    given = _digest(sorted(child_variables(environ).items()))
    # A batch system gives each job other GPUs, although all device nodes are visible.
    job = " ".join(environ.get(name, "") for name in _JOBS)
    # The package imports this module, so an import of the package would be circular.
    version: str = sys.modules[__name__.partition(".")[0]].__version__
    return [version, boot, mounts, loader, job, kernel, seconds, given, *traces]


def _digest(variables: Sequence[tuple[str, str]]) -> str:
    """Return a hash, because a file must not contain secrets in variables."""
    # Importing `hashlib` takes milliseconds, because it loads OpenSSL.
    name = "_sha2" if sys.version_info >= (3, 12) else "_sha256"
    try:
        module = __import__(name)
    except ImportError:
        module = __import__("hashlib")
    text = "\0".join(map("=".join, variables)).encode("utf-8", "surrogatepass")
    digest: str = module.sha256(text).hexdigest()
    return digest


def load(path: str, key: Sequence[str]) -> Environment | None:
    """Return the cached result for ``key``, if it is valid and fresh."""
    content = read_own(path, _MAX_BYTES)
    if content is None:
        return None
    try:
        document = loads(content.decode("ascii"))
        if document["key"] != list(key):
            return None
        environment = Environment.from_dict(document["environment"])
        age = time.time() - document["time"]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    problems = environment.reason or any(gpu.reason for gpu in environment.gpus)
    life = _LIFE_WITH_PROBLEMS if problems else _LIFE
    # A negative age means that the clock was set back: the real age is unknown.
    return environment if 0 <= age < life else None


def store(path: str, key: Sequence[str], environment: Environment) -> None:
    """Cache a result if possible.

    A failure of this package's own child process is not cached, because the cause might
    not lie in the machine.
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
    """Return why a directory cannot hold a cache, or ``None`` if it can.

    The rule is that of pip's `check_path_owner`: with ``sudo -E``, or in a mounted
    home, the directory belongs to another user, who could plant files in it. The
    directory must not be writable by other users either.

    :param folder: an absolute path. A missing directory is accepted if its nearest
        existing parent allows creating it.
    """
    if sys.platform == "win32":  # On Windows, only the user can write to the profile.
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
        # In a sticky directory, only this user can rename the files of this user, so
        # the directory may belong to root and be writable by others.
        if status.st_mode & stat.S_ISVTX:
            others, owners = 0, owners - {0}
        elif owners == {user}:
            others = 0o002  # The group may write: it often contains only this user.
    if owners - {user}:
        return f"{place} belongs to another user"
    if status.st_mode & others:
        return f"{place} can be written by other users (chmod go-w)"
    return None


def read_own(path: str, most: int, life: float | None = None) -> bytes | None:
    """Return the content of a cache file of this user; ``None`` if unusable.

    :param most: the maximum number of bytes to read.
    :param life: the age in seconds from which the file is ignored.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | _AS_IT_IS | _AT_ONCE)
    except OSError:
        return None
    try:
        with open(descriptor, "rb", closefd=False) as file:
            status = os.fstat(descriptor)
            # A clock that was set back makes the age negative.
            if life is not None and not 0 <= time.time() - status.st_mtime < life:
                return None
            # Accept only a regular file that this user owns and that has the mode 0600.
            if sys.platform != "win32" and (
                status.st_uid != os.geteuid() or status.st_mode & 0o177777 != 0o100600
            ):
                return None
            if why_no_cache(os.path.dirname(path)) is not None:
                return None
            return file.read(most)
    except OSError:
        return None
    finally:
        os.close(descriptor)  # `open` does not close it if it is a directory


def write_own(path: str, content: bytes, life: float | None = None) -> None:
    """Atomically write a file that `read_own` accepts.

    :param life: the age in seconds from which all files of the directory are removed.
        If these files are too large together, the oldest are removed earlier.
    :raises OSError: the file cannot be written, or `why_no_cache` forbids it.
    """
    _make_folder(os.path.dirname(path))
    unfinished = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _AS_IT_IS
    try:
        # A signal may arrive while the file is made, so make it in this block.
        with open(os.open(unfinished, flags, 0o600), "wb") as file:
            file.write(content)
        os.replace(unfinished, path)
    except BaseException:  # such as KeyboardInterrupt
        _remove(unfinished)
        raise
    if life is not None:
        _remove_old(os.path.dirname(path), life, len(content))


_cleared: dict[str, tuple[float, int]] = {}
"""When each directory was last cleared, and the bytes written since then."""


def _remove_old(folder: str, life: float, size: int) -> None:
    """Remove the files of a directory that are too old, and the oldest of too many.

    This is done once a day, and after many bytes were written.

    :param size: the size of the file that was written.
    """
    now = time.time()
    last, written = _cleared.get(folder, (0.0, 0))
    written += size + _BLOCK
    _cleared[folder] = last, written
    if now - last < _LIFE and written < _MOST_KEPT // 16:
        return
    _cleared[folder] = now, 0
    files = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    files.append((status.st_mtime, status.st_size, entry.path))
    except OSError:  # such as that of a file that another process has removed
        return
    left = _MOST_KEPT
    for since, length, path in sorted(files, reverse=True):
        left -= length + _BLOCK
        if left < 0 or now - since >= life:
            _remove(path)


def _make_folder(folder: str) -> None:
    """Create a directory and its parents, accessible to this user only.

    `os.makedirs` would apply the mode only to the last directory.

    :raises OSError: a directory cannot be created, or belongs to another user.
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
        except FileExistsError:  # noqa: PERF203  # few iterations
            _check(place)  # Another user's process may have created the directory.


def _check(folder: str) -> None:
    if (reason := why_no_cache(folder)) is not None:
        raise PermissionError(1, reason)


def clear(path: str) -> None:
    """Remove the cached result if it exists.

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
