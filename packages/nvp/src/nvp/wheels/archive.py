"""Parse wheel names, and read a few files from a wheel that may be hostile.

The compression methods and the sizes of each member and of the central directory (the
list of members) are limited, whatever the archive states about them.
"""

from __future__ import annotations

import io
import lzma
import os
import re
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import prod
from typing import IO, Any, TypeAlias
from zipfile import ZipInfo

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.metadata.fields import GRAMMARS, explain
from nvidia_variant_provider.strict_json import open_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.tags import Tag
    from packaging.version import Version

MAX_MEMBER = 4 * 1024 * 1024
"""Maximum size in bytes of a file in ``*.dist-info``."""

MAX_READ = 4 * 1024 * 1024
"""Maximum size in bytes of a central directory. The largest known wheels have 16,000
members, with a central directory of 2 MiB."""

_PARSING = threading.RLock()
"""Held while a central directory of over 256 KiB is parsed, which takes up to 60 MB."""

MAX_REQUIRES = 10_000
"""Maximum number of requirements. Wheels with many extras have about 2,000."""

_CHUNK = 65536
_BROKEN = (
    EOFError,
    IndexError,
    MemoryError,
    # An offset is larger than any file can be.
    OverflowError,
    # A member is encrypted, or compressed with an unknown method.
    RuntimeError,
    # Members overlap, a name is not text, or there is similar damage.
    ValueError,
    lzma.LZMAError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""The exceptions that `zipfile` raises for damaged archives."""


Select: TypeAlias = "Callable[[list[ZipInfo]], list[ZipInfo]]"
"""A function that returns those members of a wheel that its caller needs."""


@contextmanager
def open_wheel(
    source: str | IO[bytes], select: Select = lambda every: every
) -> Iterator[zipfile.ZipFile]:
    """Open the archive of a wheel.

    :param source: a path, or an open file, which stays open.
    :param select: called before another thread may parse a large directory.
    :raises InputError: the archive cannot be read; the error may also occur inside the
        ``with`` block.
    """
    with (
        explained(),
        open_regular(source)
        if isinstance(source, str)
        else nullcontext(source) as file,
    ):
        with ExitStack() as parsing:
            bounded: Any = _Bounded(file, parsing)
            archive = zipfile.ZipFile(bounded)
            bounded.parsing = None
            archive.filelist = select(archive.filelist)
            archive.NameToInfo = {x.filename: x for x in archive.filelist}
        with archive:
            yield archive


@contextmanager
def explained() -> Iterator[None]:
    """Convert `OSError` and the exceptions of `zipfile` to `InputError`.

    :raises InputError: the ``with`` block raised one of these exceptions.
    """
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise InputError(message, hint="check the path") from None
    except _BROKEN as error:
        reason = str(error) or type(error).__name__
        message = f"not a readable archive: {shown(reason, 100)}"
        raise InputError(message, hint="build or upload the wheel again") from None


class _Bounded:
    """A file that refuses large reads.

    `zipfile` reads the whole central directory in one call, with the length from a
    record at the end of the file. Checking this record instead would not be safe: a
    file can have several such records, and hide one of them.

    :param parsing: holds the lock for parsing after a large read.
    """

    def __init__(self, file: IO[bytes], parsing: ExitStack) -> None:
        self._file = file
        self.parsing: ExitStack | None = parsing
        self._size = file.seek(0, io.SEEK_END)
        self.seek = file.seek
        self.tell = file.tell
        self.close = file.close

    def seekable(self) -> bool:
        """Return whether the file can seek: ``True``."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return at most ``size`` bytes.

        :raises InputError: more than `MAX_READ` bytes would be read.
        """
        left = max(0, self._size - self._file.tell())
        if (left if size < 0 else min(size, left)) > MAX_READ:
            message = f"its list of members is larger than {MAX_READ >> 20} MiB"
            raise InputError(message, hint="this is not a wheel")
        data = self._file.read(size)
        if self.parsing and len(data) > MAX_READ // 16:
            self.parsing.enter_context(_PARSING)
        return data


def only(*names: str) -> Select:
    """Return a function that keeps some files of ``*.dist-info``.

    It keeps two files of each name, so that `read_dist_info` can refuse them.
    """
    pattern = re.compile(rf"[^/]+\.dist-info/({'|'.join(map(re.escape, names))})")

    def select(members: list[ZipInfo]) -> list[ZipInfo]:
        found: dict[str, list[ZipInfo]] = {}
        for member in members:
            if match := pattern.fullmatch(member.filename):
                found.setdefault(match[1], []).append(member)
        return [member for group in found.values() for member in group[:2]]

    return select


def read_dist_info(archive: zipfile.ZipFile, name: str) -> bytes | None:
    """Return the bytes of ``*.dist-info/NAME``; ``None`` if the file is missing.

    :raises InputError: the wheel has several such files, or the file is too large or
        compressed with an unusual method.
    """
    pattern = re.compile(rf"[^/]+\.dist-info/{re.escape(name)}")
    members = [m for m in archive.infolist() if pattern.fullmatch(m.filename)]
    if not members:
        return None
    if len(members) > 1:
        message = f"has {len(members)} files *.dist-info/{name}"
        raise InputError(message, hint="build the wheel again")
    return read_member(archive, members[0], name)


def read_member(archive: zipfile.ZipFile, member: ZipInfo, name: str) -> bytes:
    """Return the bytes of a small member.

    :param name: the name of the member in messages.
    :raises InputError: it is too large or compressed with an unusual method.
    """
    # With other methods, zipfile decompresses a whole chunk at once, and the result may
    # be a million times larger. No builder uses these methods.
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        message = f"{name} is compressed with a method that wheels do not use"
        raise InputError(message, hint="build the wheel again")
    data = bytearray()
    # Any amount of data may decompress to nothing, and a server can send it forever.
    is_large = member.compress_size > MAX_MEMBER
    with archive.open(member) as file:
        # The size in the header may be false, so count the decompressed bytes.
        while not is_large and (chunk := file.read(_CHUNK)):
            data += chunk
            is_large = len(data) > MAX_MEMBER
    if is_large:
        message = f"{name} is larger than {MAX_MEMBER >> 20} MiB"
        raise InputError(message, hint="this is not a wheel")
    return bytes(data)


_BODY = re.compile(r"(?:\A|\n|\r(?!\n))(?![!-9;-~]*:|[ \t]|From )")
"""A pattern for the end of the headers: the next line is no part of a header."""

_NEXT = re.compile(r"(?:\r\n|\n|\r(?!\n))(?![ \t])")
"""A pattern for the end of one header: an indented next line would continue it."""


def find_headers(data: bytes, name: str) -> Iterator[str]:
    """Yield the values of a header of METADATA, PKG-INFO or WHEEL.

    The package `email` would need seconds and 250 MB for 4 MiB of short headers, and
    more time for its import than this function for 15 MB.
    """
    text = data.decode("utf-8", "replace")
    wanted = re.compile(rf"(?:\A|\n|\r(?!\n)){name}:", re.ASCII | re.IGNORECASE)
    known = 0
    for match in wanted.finditer(text):
        if _BODY.search(text, known, match.end()):
            return
        known = match.start()
        next_one = _NEXT.search(text, match.end())
        value = text[match.end() : next_one.start() if next_one else None]
        yield value.lstrip(" \t\r\n").rstrip("\r\n")


def parse_requires(metadata: bytes) -> tuple[str, ...]:
    """Return the values of ``Requires-Dist`` in METADATA.

    If METADATA has more than `MAX_REQUIRES` values, the result has one more than this
    limit, so callers can detect the excess.
    """
    return tuple(islice(find_headers(metadata, "Requires-Dist"), MAX_REQUIRES + 1))


def first_header(data: bytes, name: str) -> str:
    """Return the first value of a header, stripped; empty if there is none."""
    return next(find_headers(data, name), "").strip()


MAX_LENGTH = 255
"""Maximum length of a file name, the limit of file systems and indexes."""

MAX_EXPANDED = 100
"""Maximum number of tags to which the tags in a name may expand; real wheels have fewer
than twenty. A name of 255 characters may expand to 50,000, with 16 MB of memory."""


def count_tags(tags: str) -> int:
    """Return the number of combinations of interpreters, ABIs and platforms."""
    return prod(part.count(".") + 1 for part in tags.split("-"))


def expands_too_far(tags: str) -> bool:
    """Return whether tags such as ``py2.py3-none-any`` are more than `MAX_EXPANDED`."""
    return count_tags(tags) > MAX_EXPANDED


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelName:
    """The parts of a wheel's file name.

    :param name: the project, as spelled in normalized file names (``my_project``).
    :param version: the release, normalized.
    :param label: the variant label; ``None`` for a non-variant wheel.
    :param build: the build tag as `packaging` returns it; empty if there is none.
    :param supports: the text of `tags`, such as ``py2.py3-none-any``.
    """

    name: str
    version: str
    label: str | None = None
    build: tuple[()] | tuple[int, str] = ()
    supports: str = ""

    @property
    def tags(self) -> frozenset[Tag]:
        """The interpreters and platforms that the wheel supports.

        A hundred tags take 40 KB, and a page may have 200,000 names, so most wheels
        keep only the text.
        """
        return _tags_of(self.supports)


@lru_cache(maxsize=1024)
def _tags_of(text: str) -> frozenset[Tag]:
    from packaging.tags import parse_tag

    return parse_tag(text)


def parse_wheel_name(file_name: str) -> WheelName:
    """Parse ``{name}-{version}(-{build})-{python}-{abi}-{platform}(-{label}).whl``.

    :raises InputError: the name has a different form.
    """
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    if len(file_name) > MAX_LENGTH:
        message = f"the name has {len(file_name)} characters"
        raise InputError(message, path=shown(file_name), hint="rename the wheel")
    stem, extension = os.path.splitext(file_name)
    parts = stem.split("-")
    # PEP 825: "The Python tag component MUST NOT start with a digit". Every build tag
    # starts with a digit.
    has_build = len(parts) > 2 and parts[2][:1].isdigit()
    label = parts.pop() if len(parts) == 6 + has_build else None
    if label is not None and not GRAMMARS["label"].fullmatch(label):
        message = explain(label, "label")
        raise InputError(message, path=file_name, hint="rename the wheel")
    # With five parts, the third is the Python tag, which `packaging` does not check.
    if has_build and len(parts) == 5:
        message = "its Python tag starts with a digit"
        raise InputError(message, path=file_name, hint="rename the wheel")
    if expands_too_far("-".join(parts[-3:])):
        message = f"names more than {MAX_EXPANDED} tags"
        raise InputError(message, path=shown(file_name), hint="rename the wheel")
    try:
        # `packaging` does not support labels: it rejects a name that has one.
        name, version, build, _ = parse_wheel_filename("-".join(parts) + extension)
    except InvalidWheelFilename:
        message = "not the name of a wheel"
        hint = "build the wheel with a standard name"
        raise InputError(message, path=file_name, hint=hint) from None
    return WheelName(
        name=name.replace("-", "_"),
        version=str(version),  # its normal form has neither - nor _
        label=label,
        build=build,
        supports="-".join(parts[-3:]),
    )


@lru_cache(maxsize=1024)
def platform_of(text: str) -> str | None:
    """Return ``linux_x86_64``, ``linux_aarch64``, ``win_amd64``, or else ``None``.

    :param text: the platform tag, or the end of a wheel's name from the platform tag
        on, such as ``manylinux_2_28_x86_64.manylinux2014_x86_64.whl``.
    """
    for platform in text.removesuffix(".whl").split("."):
        if platform == "win_amd64":
            return platform
        for machine in ("x86_64", "aarch64"):
            if platform.startswith(("manylinux", "linux")) and platform.endswith(
                f"_{machine}"
            ):
                return f"linux_{machine}"
    return None


def without_gpu(project: str, platform: str | None) -> str:
    """Return the message that no build of a project on an index uses a GPU."""
    systems = {"win": "Windows", "linux": "Linux", "macosx": "macOS"}
    system, _, machine = (platform or "").partition("_")
    where = f" for {systems[system]}" if system in systems else ""
    where += " on aarch64" if where and machine == "aarch64" else ""
    return f"{project}{where} on this index does not use a GPU"


@lru_cache(maxsize=1024)
def is_for_platform(text: str, platform: str) -> bool:
    """Return whether the platform tag of a wheel may match a platform.

    The versions of glibc and macOS are ignored; NVIDIA's libraries need glibc.

    :param text: the platform tag, or the end of a wheel's name, as in `platform_of`.
    :param platform: the platform, such as ``linux_x86_64`` or ``win_amd64``.
    """
    system, _, machine = platform.partition("_")
    for tag in text.removesuffix(".whl").split("."):
        if tag in ("any", platform):
            return True
        # such as manylinux_2_28_x86_64, manylinux2014_x86_64
        if tag.startswith((system, f"many{system}")) and tag.endswith(f"_{machine}"):
            return True
        if system == tag.partition("_")[0] == "macosx":
            return True
    return False


_SDIST = re.compile(
    r"(.+)\.(?:zip|tar|tgz|tbz|txz|tlz|tar\.(?:gz|bz2|xz|lz|lzma|zst))", re.DOTALL
)
"""The names of source distributions that pip or uv builds."""


def release_of_sdist(file_name: str, project: str | None = None) -> Version | None:
    """Return the release of a source distribution; ``None`` for any other file.

    A version may have dashes (PEP 440, "Implicit post releases").

    :param project: the normalized name. Otherwise ``kern-2-1.zip``, which may be the
        release 1 of ``kern-2``, is read as the release 2-1 of ``kern``.
    """
    match = _SDIST.fullmatch(file_name)
    match = _sdist_of(project).fullmatch(match[1]) if match else None
    versions = parse_versions(match[1]) if match else None
    return versions[1] if versions else None


@lru_cache(maxsize=64)
def _sdist_of(project: str | None) -> re.Pattern[str]:
    from packaging.version import VERSION_PATTERN

    if project is None:
        return re.compile(rf"(?isx).+?-({VERSION_PATTERN}\s*)")
    name = "[-_.]+".join(map(re.escape, project.split("-")))
    return re.compile(rf"(?is){name}-(.+)")


def versions_of_wheel(file_name: str) -> tuple[Version, Version] | None:
    """Parse the version in the name of a wheel, or of its variant metadata."""
    return parse_versions(file_name.partition("-")[2].partition("-")[0])


def release_of(file_name: str, project: str) -> Version | None:
    """Return the release of a wheel or a source distribution."""
    if not file_name.endswith(".whl"):
        return release_of_sdist(file_name, project)
    versions = versions_of_wheel(file_name)
    return versions[1] if versions else None


@lru_cache(maxsize=16384)
def parse_versions(text: str) -> tuple[Version, Version] | None:
    """Parse a version; return it with and without local label, or ``None``."""
    from packaging.version import Version

    try:
        version = Version(text.replace("_", "-"))
    except ValueError:
        return None
    return version, without_label(version)


def without_label(version: Version) -> Version:
    """Return a version without its local label; to parse a version again is slow."""
    return version.__replace__(local=None) if version.local else version
