"""Files that come with nvp, and files that are written completely or not at all.

`read_resource` reads the files of this package. Two kinds of files are written. A file
that the user has asked for is written by `replacing`, and a file that cannot be written
is an error. `load` and `store` serve the user's cache in `cache_folder`: what was read
once, such as METADATA of a wheel. What a cache cannot hold is read again. Which
directories and files may be a cache is decided where detection keeps its result.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import IO

from nvidia_variant_provider.errors import InputError

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def read_resource(*names: str) -> str:
    """Return the text of a file of the package.

    :param names: the directories below this one, and the name of the file.
    """
    try:
        with open(os.path.join(_FOLDER, *names), encoding="utf-8") as file:
            return file.read()
    except OSError:
        # The package is in a zip file (zipapp). Otherwise this import would take
        # longer than reading the file.
        from importlib.resources import files

        return files(__package__).joinpath(*names).read_text(encoding="utf-8")


def page_url(page: str) -> str:
    """Return the address of a page of the documentation.

    The metadata of the distribution has the address of the site, which no other file
    repeats.

    :param page: the path of the page in the site, such as ``rules/#NV310``.
    """
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = metadata(__package__).get_all("Project-URL", [])
    except PackageNotFoundError:  # A zip file may have the modules alone.
        urls = []
    site = [url.partition(", ")[2] for url in urls if url.startswith("Documentation,")]
    return f"{site[0]}{page}" if site else f"the documentation: {page}"


@cache
def resource_file(*names: str) -> str:
    """Return the path of a file of the package, for another program to read.

    Where the package is in a zip file, it is the path of a copy, which is removed when
    this process ends.

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
    """Nothing is kept for later runs, and why; the command line says it once."""


def cache_folder(environ: Mapping[str, str]) -> str | None:
    """Return the directory for what is read once, unless the user wants no cache.

    There is none either where a relative ``HOME`` would put it into the current
    directory, and where the directory is not this user's alone (`why_no_cache`), which
    is warned of.
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
    """Return a file of the cache; ``None`` if it is missing, too long or not our own.

    :param life: the seconds for which it counts.
    """
    from nvidia_variant_provider.detection.cache import read_own

    content = None if path is None else read_own(os.fspath(path), longest + 1, life)
    return content if content is None or len(content) <= longest else None


def store(path: str | os.PathLike[str] | None, content: bytes) -> None:
    """Write a file of the cache, completely or not at all; warn if it cannot be."""
    from nvidia_variant_provider.detection.cache import write_own

    if path is None:
        return
    try:
        write_own(os.fspath(path), content)
    except OSError as error:
        place = os.path.dirname(path)
        hint = "make room there, or set XDG_CACHE_HOME to another directory"
        _warn(f"{place} cannot be written: {error.strerror}", hint)


def replace_file(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` in UTF-8 so that readers see the whole old file or the new one.

    :raises InputError: as `replacing` does.
    """
    with replacing(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of another one when the block has ended.

    When the path is a symbolic link, the file that the link names is replaced. The new
    file has the permissions of the old one.

    :raises InputError: the file cannot be written; the old file has not changed.
    """
    import shutil

    name = str(path)
    try:
        target = os.path.realpath(path)
        folder, base = os.path.split(target)
        part = os.path.join(folder, f".{base}.{os.getpid()}.part")
        if os.path.exists(target) and not os.path.isfile(target):
            message = "cannot be written: not a regular file"
            raise InputError(message, path=name, hint="name another file")
        try:
            # Mode "x" refuses a name that exists, so that no other file is lost.
            with open(part, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(target, part)
            os.replace(part, target)
        except BaseException as error:
            if not isinstance(error, FileExistsError):
                with contextlib.suppress(OSError):
                    os.unlink(part)
            raise
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        # A path with a NUL byte raises ValueError, which has no strerror.
        reason = getattr(error, "strerror", None) or str(error)
        message = f"cannot be written: {reason}"
        raise InputError(message, path=name, hint="check the path") from None
