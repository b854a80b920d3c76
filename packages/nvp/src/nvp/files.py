"""Data files of nvp, and files that are written atomically.

`read_resource` reads the data files of this package. `replacing` writes a file for the
user; a failure is an error. `load` and `store` use the user's cache in `cache_folder`,
for results such as METADATA of a wheel; a failure to write is a warning. The cache of
detection decides which directories and files are safe to use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from functools import cache, partial
from typing import IO

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.strict_json import (
    LARGE_BYTES,
    open_regular,
    read_bytes,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import Distribution
    from netrc import netrc

_FOLDER = os.path.dirname(os.path.abspath(__file__))

_CI_COMMAND = re.compile(r"##(?=\w*\[)")
"""The start of ``##[...]`` of GitHub, ``##vso[...]`` of Azure and ``##teamcity[...]``.
"""

_SHARED = stat.S_ISVTX | stat.S_IWOTH
"""The mode of a shared directory, such as ``/tmp``."""

_ACCESS_LIST = "system.posix_acl_access"
"""The attribute of files on Linux that have an access control list."""


def read_resource(*names: str) -> str:
    """Return the text of a file of the package.

    :param names: the directories below this one, and the name of the file.
    """
    try:
        with open(os.path.join(_FOLDER, *names), encoding="utf-8") as file:
            return file.read()
    except OSError:
        # The package is in a zip file (zipapp). Import late, because the import takes
        # longer than reading a file.
        from importlib.resources import files

        return files(__package__).joinpath(*names).read_text(encoding="utf-8")


def read_installed(distribution: Distribution, name: str) -> str | None:
    """Return a file of a distribution's ``*.dist-info``; ``None`` if unreadable.

    `Distribution.read_text` would wait for the writer of a named pipe.

    :raises UnicodeDecodeError: the file is not UTF-8.
    """
    folder = getattr(distribution, "_path", os.devnull)
    with contextlib.suppress(InputError):
        return read_bytes(os.path.join(folder, name), limit=LARGE_BYTES).decode()
    return None


def read_netrc(path: str) -> netrc:
    """Read a netrc file, and replace bytes that are no UTF-8, as uv does.

    :raises OSError: the file cannot be read.
    :raises NetrcParseError: it is malformed.
    """
    from netrc import netrc

    try:
        return netrc(path)
    except UnicodeDecodeError:
        with open_regular(path) as file:
            text = file.read().decode("utf-8", "replace")
    # `netrc` reads only files, and the disk may have no space for one.
    reader, writer = os.pipe()

    def send() -> None:
        pipe = os.fdopen(writer, "w", encoding="utf-8")
        with contextlib.suppress(BrokenPipeError), pipe:
            pipe.write(text)

    try:
        threading.Thread(target=send, daemon=True).start()
    except RuntimeError as error:  # the system allows no further thread
        os.close(reader)
        os.close(writer)
        raise OSError(str(error)) from None
    return netrc(reader)  # type: ignore[arg-type]


def page_url(page: str) -> str:
    """Return the URL of a page of the documentation.

    The URL of the site comes from the metadata of the distribution, its only source.

    :param page: the path of the page in the site, such as ``rules/#NV310``.
    """
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = metadata(__package__).get_all("Project-URL", [])
    except PackageNotFoundError:  # a zipapp may lack the metadata of the package
        urls = []
    site = [url.partition(", ")[2] for url in urls if url.startswith("Documentation,")]
    return f"{site[0]}{page}" if site else f"the documentation: {page}"


@cache
def resource_file(*names: str) -> str:
    """Return the path of a file of the package, for another program to read.

    If the package is in a zip file, the file is copied to a temporary directory, which
    is removed at the end of this process.

    :param names: the directories below this one, and the name of the file.
    """
    path = os.path.join(_FOLDER, *names)
    if os.path.isfile(path):
        return path
    import atexit
    import tempfile

    folder = tempfile.TemporaryDirectory(prefix="nvp-")
    atexit.register(folder.cleanup)
    copy = os.path.join(folder.name, names[-1])
    with open(copy, "w", encoding="utf-8") as file:
        file.write(read_resource(*names))
    return copy


class CacheWarning(UserWarning):
    """A warning that the cache is not used, with the reason."""


def cache_folder(environ: Mapping[str, str]) -> str | None:
    """Return the cache directory; ``None`` if no cache is used.

    There is no cache if the user disabled it, if a relative ``HOME`` would put it into
    the current directory, or, with a warning, if the directory is not private
    (`why_no_cache`).
    """
    from nvidia_variant_provider.detection.cache import NO_CACHE, why_no_cache

    if environ.get(NO_CACHE) == "1":
        return None
    import platformdirs

    folder = platformdirs.user_cache_dir("nvidia-variant-provider", appauthor=False)
    if not os.path.isabs(folder):
        return None
    reason = why_no_cache(folder)
    if reason is not None:
        _warn(reason, "set XDG_CACHE_HOME to a directory that only you can write")
    return folder if reason is None else None


def _warn(reason: str, hint: str) -> None:
    import warnings

    message = f"no cache is used: {reason}; {hint}"
    warnings.warn(message, CacheWarning, stacklevel=2)


def load(
    path: str | os.PathLike[str] | None, longest: int, life: float | None = None
) -> bytes | None:
    """Return a file of the cache; ``None`` if missing, too long, too old or unsafe.

    :param life: the maximum age in seconds.
    """
    from nvidia_variant_provider.detection.cache import read_own

    content = None if path is None else read_own(os.fspath(path), longest + 1, life)
    return content if content is None or len(content) <= longest else None


def store(
    path: str | os.PathLike[str] | None, content: bytes, life: float | None = None
) -> None:
    """Write a file of the cache atomically, and remove old files; see `write_own`."""
    from nvidia_variant_provider.detection.cache import write_own

    if path is None:
        return
    try:
        write_own(os.fspath(path), content, life)
    except OSError as error:
        hint = "make room there, or set XDG_CACHE_HOME to another directory"
        _warn(f"{os.path.dirname(path)} cannot be written: {error.strerror}", hint)


def file_state(path: str) -> str | None:
    """Return a text that differs after a file was changed; ``None`` if it is missing.

    Everybody can set the time of modification, but not that of the last change.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return f"{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}"


def is_planted(path: str | os.PathLike[str], beside: str | None = None) -> bool:
    """Return whether another user has put a path into a shared directory.

    Only symbolic links count: Linux does not follow them (``fs.protected_symlinks``),
    but cannot prevent that a program, or SQLite, resolves the link itself.

    :param beside: a database to which SQLite adds the content of ``path``, so that any
        file counts, unless it belongs to the owner of the database.
    """
    try:
        status = os.lstat(path)
        owners = {os.stat(beside).st_uid} if beside is not None else set()
    except OSError:
        return False
    is_link = stat.S_ISLNK(status.st_mode)
    return (beside is not None or is_link) and _is_foreign(path, status, owners)


def _is_foreign(
    path: str | os.PathLike[str],
    status: os.stat_result,
    owners: Collection[int] = (),
    dir_fd: int | None = None,
) -> bool:
    """Return whether a path in a shared directory belongs to a user not trusted."""
    if sys.platform == "win32":
        return False
    above = os.path.dirname(os.path.abspath(path))
    folder = os.stat(above if dir_fd is None else dir_fd)
    trusted = {os.geteuid(), folder.st_uid, *owners}
    return folder.st_mode & _SHARED == _SHARED and status.st_uid not in trusted


def real_path(path: str | os.PathLike[str]) -> str:
    """Return a path without links, as `os.path.realpath` does.

    :raises OSError: there are more links in a row than the system follows.
    """
    try:
        return os.path.realpath(path)
    except RecursionError:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None


def _find_target(path: str | os.PathLike[str]) -> str:
    """Return the file to replace: the target of a link, or the path itself.

    In a shared directory, another user can exchange own links and files at any time. So
    look at the path only once, and follow it only if it was a trusted link then.

    :raises InputError: the path is a link of another user.
    """
    try:
        status = os.lstat(path)
    except OSError:
        status = None
    if status is not None and stat.S_ISLNK(status.st_mode):
        if _is_foreign(path, status):
            message = "cannot be written: it is a link of another user"
            raise InputError(message, path=str(path), hint="name another file")
        return real_path(path)
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(real_path(folder), name)


def _find_old(
    target: str, name: str, dir_fd: int | None = None
) -> os.stat_result | None:
    """Return the status of the file to replace; ``None`` if there is no trusted one.

    :param name: the path of the file, for errors.
    :raises InputError: the path is not that of a regular file or a link.
    """
    try:
        status = os.lstat(target, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(status.st_mode):
        return None if _is_foreign(target, status, dir_fd=dir_fd) else status
    if stat.S_ISLNK(status.st_mode):
        return None
    message = "cannot be written: not a regular file"
    raise InputError(message, path=name, hint="name another file")


def _keep_access(new: int, old: os.stat_result, target: str) -> None:
    """Give a new file the group and the permissions of the old one.

    The permissions of the group are left out if they would be those of another group.
    With an access control list, they are the most that the list grants to anybody, so
    the new file also loses the list that it has from its directory.

    :param new: a descriptor: a stranger may have put a link in place of the path.
    """
    if sys.platform == "win32":
        return
    names: list[str] = []
    with contextlib.suppress(OSError):
        os.fchown(new, -1, old.st_gid)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            names = os.listxattr(target, follow_symlinks=False)
        with contextlib.suppress(OSError):
            os.removexattr(new, _ACCESS_LIST)
    is_same = os.fstat(new).st_gid == old.st_gid and _ACCESS_LIST not in names
    os.fchmod(new, old.st_mode & (0o777 if is_same else 0o707))


def harmless(text: str) -> str:
    """Escape what CI services read as a command inside a line, in the form of JSON."""
    return _CI_COMMAND.sub(r"\\u0023#", text) if "##" in text else text


def replace_file(path: str | os.PathLike[str], text: str) -> None:
    """Write `harmless` text in UTF-8 atomically, because CI services print such files.

    The parameters and the exception are those of `replacing`.
    """
    with replacing(path) as file:
        file.write(harmless(text).encode())


def path_of(file: int, path: str | os.PathLike[str]) -> str:
    """Return the path of an open file without links, which others may have exchanged.

    Only Linux tells the path of an open file.
    """
    try:
        return os.readlink(f"/proc/self/fd/{file}").removesuffix(" (deleted)")
    except OSError:
        return real_path(path)


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], *, follows: bool = True, dir_fd: int | None = None
) -> Iterator[IO[bytes]]:
    """Open a new file that atomically replaces ``path`` at the end of the block.

    The new file gets the permissions of the old one, but not those that a stranger has
    set, and never those of a program that runs as the owner of its file.

    :param follows: whether the target of a symbolic link is replaced, not the link.
        The links in a directory may be those of a stranger, and lead to any file.
    :param dir_fd: a descriptor of the directory of ``path``; see `Root`.
    :raises InputError: the file cannot be written; the old file has not changed.
    """
    name = str(path)
    try:
        target = _find_target(path) if follows else os.fspath(path)
        if dir_fd is not None:
            target = os.path.basename(path)
        # Do not use the process id: in containers, a killed process often had the same.
        part = os.path.join(os.path.dirname(target), f".{os.urandom(8).hex()}.part")
        old = _find_old(target, name, dir_fd)
        # Others must not open the file while it is empty, and read it later.
        mode = 0o666 if old is None else old.st_mode & 0o707
        try:
            # Mode "x" fails for an existing name, so no other file is lost.
            opener = partial(os.open, mode=mode, dir_fd=dir_fd)
            with open(part, "xb", opener=opener) as file:
                if old is not None:
                    folder = "" if dir_fd is None else f"/proc/self/fd/{dir_fd}"
                    _keep_access(file.fileno(), old, os.path.join(folder, target))
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, target, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=dir_fd)
            raise
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        # A path with a NUL byte raises ValueError, which has no strerror.
        reason = getattr(error, "strerror", None) or str(error)
        message = f"cannot be written: {reason}"
        raise InputError(message, path=name, hint="check the path") from None
