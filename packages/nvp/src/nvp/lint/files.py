"""List the files of each release, open them, and count the unchecked ones."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import IO

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata.document import SUFFIX, parse_metadata_name
from nvidia_variant_provider.strict_json import read_bytes

from ..findings import Reported
from ..index.http.urls import IndexFile
from ..wheels.archive import WheelName, parse_wheel_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..gpu_code.inspection import Progress
    from ..index.http.blocking import BlockingClient


@dataclass(frozen=True, kw_only=True, slots=True)
class Unchecked(Reported):
    """A part that was not checked in one or more files, for the same reason.

    :param what: the part, such as ``libraries``; ``everything`` for whole files.
    :param reason: the reason, as a clause.
    :param files: the number of files.
    :param example: the path or the URL of one of the files.
    """

    what: str
    reason: str
    files: int
    example: str

    def __str__(self) -> str:
        wheels = "1 file" if self.files == 1 else f"{self.files} files"
        return f"not checked: {self.what} of {wheels}: {self.reason}"


class UncheckedFiles:
    """Counts the files that were not checked, without listing them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], tuple[int, str]] = {}

    def add(self, what: str, reason: str, example: str, files: int = 1) -> None:
        """Count ``files`` more files whose part ``what`` was not checked."""
        count, first = self._counts.get((what, reason), (0, example))
        self._counts[what, reason] = (count + files, first)

    @property
    def all(self) -> list[Unchecked]:
        """An item for each part and reason, in the order of their first files."""
        return [
            Unchecked(what=what, reason=reason, files=count, example=example)
            for (what, reason), (count, example) in self._counts.items()
        ]


MAX_WHOLE = 4 * 1024**3
"""The largest wheel to download, in bytes. Known wheels have up to about 3 GiB."""

_TOO_LARGE = (
    f"files of more than {MAX_WHOLE >> 30} GiB, or for which there is no room in the "
    "temporary directory, are not downloaded"
)

JOBS = min(4, os.cpu_count() or 1)
"""The default number of members of a wheel that are read in parallel."""


Watch = Callable[[str], AbstractContextManager["Progress | None"]]
"""Given a wheel's name, returns a context manager that shows progress. The context
value is ``None``, or a function to call with the bytes read and the total."""


def nobody_watches(_: str) -> AbstractContextManager[Progress | None]:
    """Return a context manager that shows no progress."""
    return nullcontext()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The options for reading wheels.

    :param content: whether the GPU code of wheels is read.
    :param hashes: whether wheels on a page are read whole, to compare their sha256.
    :param jobs: the number of members of a wheel that are read in parallel.
    :param watch: shows the progress of reading a wheel.
    :param unchecked: counts the files that are not checked.
    :param client: reads the files that a page on a server lists.
    """

    content: bool = True
    hashes: bool = True
    jobs: int = JOBS
    watch: Watch = nobody_watches
    unchecked: UncheckedFiles = field(default_factory=UncheckedFiles)
    client: BlockingClient | None = None


class SkippedError(Exception):
    """A wheel cannot be read, for a reason other than a defect of the wheel.

    :param reason: the reason, as a clause.
    :param unhashed: why the sha256 is unknown; ``None`` if it was not requested.
    """

    def __init__(self, reason: str, unhashed: str | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.unhashed = unhashed


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenFile:
    """A wheel that can be read.

    :param source: the path, or a seekable file.
    :param sha256: the hash; ``None`` if it was not computed.
    :param unhashed: why the hash was not computed, although the page gives a hash.
    :param jobs: the number of members that are read in parallel.
    """

    source: str | IO[bytes]
    sha256: str | None = None
    unhashed: str | None = None
    jobs: int = JOBS

    @property
    def whole(self) -> bool:
        """Whether the whole file is local, so reading it needs no requests."""
        return isinstance(self.source, str) or self.sha256 is not None

    @property
    def size(self) -> int:
        """The size of the wheel in bytes; 0 if unknown."""
        try:
            if isinstance(self.source, str):
                return os.path.getsize(self.source)
            return self.source.seek(0, os.SEEK_END)
        except (OSError, ValueError):
            return 0


def read_metadata(file: IndexFile, reading: Reading) -> bytes:
    """Return the bytes of a metadata file.

    :raises InputError: the file cannot be read.
    """
    if reading.client is None or file.page is None:
        return read_bytes(file.url)
    return reading.client.read(file.url, page=file.page)


@contextmanager
def open_wheel(file: IndexFile, reading: Reading) -> Iterator[OpenFile]:
    """Open a wheel. To verify its hash, a wheel on an index is downloaded completely.

    :raises SkippedError: the server sends only whole files, and this one is too large.
    :raises InputError: the wheel cannot be read.
    """
    client = reading.client
    if client is None or file.page is None:
        yield OpenFile(source=file.url, jobs=reading.jobs)
        return
    from ..index.http.urls import TooLargeError

    hashed = file.sha256 is not None and reading.hashes
    with ExitStack() as stack:
        try:
            source, sha256 = stack.enter_context(
                client.provide(
                    file,
                    whole=hashed,
                    most=MAX_WHOLE,
                    watch=lambda: reading.watch(file.path),
                )
            )
        except TooLargeError:
            reason = f"{_TOO_LARGE}, and the server does not send parts"
            raise SkippedError(reason, _TOO_LARGE if hashed else None) from None
        jobs = reading.jobs
        if isinstance(source, io.RawIOBase):
            # Use one job: the buffer helps only if the wheel is read sequentially.
            source, jobs = stack.enter_context(io.BufferedReader(source)), 1
        yield OpenFile(
            source=source,
            sha256=sha256,
            unhashed=_TOO_LARGE if hashed and sha256 is None else None,
            jobs=jobs,
        )


@dataclass(kw_only=True, slots=True)
class Release:
    """The files of one version of a project.

    :param name: the project and the version, such as ``torch-2.9.1``.
    """

    name: str
    metadata: IndexFile | None = None
    wheels: list[tuple[IndexFile, WheelName]] = field(default_factory=list)

    @property
    def is_checked(self) -> bool:
        """Whether the release has variants; other releases are not checked."""
        return self.metadata is not None or any(n.label for _, n in self.wheels)

    @property
    def files(self) -> list[IndexFile]:
        """The metadata file, if any, and the wheels."""
        metadata = [] if self.metadata is None else [self.metadata]
        return [*metadata, *(file for file, _ in self.wheels)]

    @property
    def labeled(self) -> list[tuple[IndexFile, WheelName, str]]:
        """The wheels with a label: each file, its parsed name and its label."""
        return [
            (file, name, name.label)
            for file, name in self.wheels
            if name.label is not None
        ]

    @property
    def plain(self) -> list[tuple[IndexFile, WheelName]]:
        """The non-variant wheels."""
        return [(file, name) for file, name in self.wheels if name.label is None]

    @property
    def offered(self) -> frozenset[str | None]:
        """The labels that installers find, and ``None`` for a non-variant wheel.

        Installers skip yanked files, unless the whole release is yanked.
        """
        shown = [name.label for file, name in self.wheels if not file.yanked]
        return frozenset(shown or [name.label for _, name in self.wheels])


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The contents of a directory or a page.

    :param releases: the releases, sorted by name.
    :param unnormalized: metadata files whose names clients do not look for.
    :param not_wheels: files that end in ``.whl`` but have no valid wheel name, each
        with the error.
    """

    releases: Sequence[Release]
    unnormalized: Sequence[IndexFile]
    not_wheels: Sequence[tuple[IndexFile, InputError]]

    @property
    def is_empty(self) -> bool:
        """Whether the listing has neither wheels nor metadata files."""
        return not (self.releases or self.unnormalized or self.not_wheels)


def list_files(files: Iterable[IndexFile]) -> Listing:
    """Group wheels and metadata files by release; ignore other files."""
    releases: dict[tuple[str, str], Release] = {}
    unnormalized: list[IndexFile] = []
    not_wheels: list[tuple[IndexFile, InputError]] = []

    def release(project: str, version: str) -> Release:
        name = f"{project}-{version}"
        return releases.setdefault((project, version), Release(name=name))

    for file in files:
        if file.name.endswith(SUFFIX):
            given = parse_metadata_name(file.name)
            parts = given.normalized() if given is not None else None
            # Installers do not find a metadata file whose name is malformed or has
            # upper case, so the file belongs to no release.
            if given is None or parts is None or given.name != given.name.lower():
                unnormalized.append(file)
                continue
            normalized = parts == given
            if not normalized:
                unnormalized.append(file)
            own = release(parts.name, parts.version)
            if normalized or own.metadata is None:
                own.metadata = file
        elif file.name.endswith(".whl"):
            try:
                wheel = parse_wheel_name(file.name)
            except InputError as error:
                not_wheels.append((file, error))
            else:
                release(wheel.name, wheel.version).wheels.append((file, wheel))
    return Listing(
        releases=[item for _, item in sorted(releases.items(), key=lambda x: x[0])],
        unnormalized=unnormalized,
        not_wheels=not_wheels,
    )
