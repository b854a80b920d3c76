"""The options of a census, a wheel with its outcome, and the summary of a project."""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias

from packaging.version import Version

from nvidia_variant_provider.errors import redacted

from ..gpu_code.report import WheelReport, target_key
from ..index.http.urls import IndexFile

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")

Status: TypeAlias = Literal["inspected", "skipped", "failed"]
"""``inspected``: the wheel was read. ``skipped``: it was left out on purpose, for
example without native libraries. ``failed``: it could not be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The arguments of `nvp.api.census` with the same names."""

    projects: Sequence[str] = ()
    releases: int | None = None
    platforms: Sequence[str] = ()
    every_wheel: bool = False
    jobs: int | None = None
    dask: str | None = None
    deadline: float = 900.0
    per_host: int = 8
    max_bytes: int | None = None

    def allows(self, platform: str) -> bool:
        """Return whether wheels for a platform are selected."""
        if not self.platforms:
            return True
        return any(fnmatch.fnmatchcase(platform, p) for p in self.platforms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """A wheel that an index lists.

    :param project: the normalized name.
    :param version: the public version, normalized, such as ``2.15.0``.
    :param label: the variant label or the local version label; ``None`` without one.
    :param tags: the tags in the file name, such as ``cp312-cp312-linux_x86_64``.
    :param url: the URL of the wheel, or the path of a local file.
    :param sha256: the hash of the wheel, as the page lists it.
    :param size: the size in bytes, if the page contains it.
    :param upload_time: the time in ISO 8601, if the page contains it; the modification
        time of a local file.
    :param page: the URL of the page that lists the wheel.
    :param near: the location of the server of the page, as in `IndexFile`.
    :param index: the URL of the index without credentials, or its path.
    """

    project: str
    version: str
    filename: str
    tags: str
    url: str
    label: str | None = None
    sha256: str | None = None
    size: int | None = None
    upload_time: str | None = None
    page: str | None = field(default=None, compare=False, repr=False)
    near: int = field(default=0, compare=False, repr=False)
    index: str = field(default="", compare=False, repr=False)

    @property
    def file(self) -> IndexFile:
        """The file as the index lists it."""
        return IndexFile(
            name=self.filename,
            url=self.url,
            page=self.page,
            near=self.near,
            sha256=self.sha256,
            size=self.size,
        )

    @property
    def hash(self) -> str | None:
        """The SHA-256 that the page lists, in lower case; ``None`` if invalid.

        Two wheels may have the same invalid hash, so it cannot identify a wheel.
        """
        given = self.sha256 or ""
        return given.lower() if _SHA256.fullmatch(given) else None

    @property
    def has_secrets(self) -> bool:
        """Whether the URL without secrets may also be that of another file."""
        return "****" in redacted(self.url)

    @property
    def key(self) -> str:
        """The store key of a wheel whose bytes were not hashed: its location.

        The location excludes secrets: signatures vary. But a secret may also name one
        of several tenants of a server, so the index identifies a URL with secrets. The
        hash on the page is added, but is no key of its own, because a page can list any
        hash. So is the file name, because a page can give any name to a file.
        """
        place = [redacted(self.url), self.filename]
        if self.has_secrets:
            index = self.index.encode("utf-8", "surrogatepass")
            place.append(hashlib.sha256(index).hexdigest()[:16])
        return "#".join([*place, f"sha256={self.hash}"] if self.hash else place)

    @property
    def hash_key(self) -> str | None:
        """The store key of a wheel whose bytes have the hash on the page."""
        return self.hash and f"sha256:{self.hash}#{self.filename}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A wheel and the result of inspecting it.

    :param reason: why the wheel was skipped or failed, as a sentence without a period.
    :param may_pass: whether the next census may find something else, for example after
        a timeout, or without the damage of bytes that were not hashed.
    :param report: the result of the inspection.
    :param claims: the properties that the wheel could declare, for each kind of driver
        bound: ``strict`` and ``relaxed``.
    :param bytes_read: the number of bytes read from the index.
    :param hashed: whether all bytes were read and have the hash of the page.
    """

    wheel: Wheel
    status: Status
    reason: str | None = None
    may_pass: bool = False
    report: WheelReport | None = None
    claims: Mapping[str, Claimed] = field(default_factory=dict)
    cuda: str | None = None
    bytes_read: int = 0
    seconds: float = 0.0
    hashed: bool = False

    @property
    def key(self) -> str:
        """The key of the wheel in the store: its hash or its location."""
        return (self.hashed and self.wheel.hash_key) or self.wheel.key


@dataclass(frozen=True, kw_only=True, slots=True)
class Claimed:
    """The properties that a wheel could declare under one kind of driver bound.

    :param lower_bound: the minimum CUDA version of the driver, or ``None``.
    :param reason: the reason for the bound; may be empty.
    :param sm_arch: the values of ``sm_arch``.
    """

    lower_bound: str | None
    reason: str
    sm_arch: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseSummary:
    """One build of a release: the wheel for one platform and label.

    :param platform: the platform tag of the wheel.
    :param cuda: the CUDA toolkit that the build needs, or ``None`` if unknown.
    :param targets: the targets of the build's own libraries, such as ``90_real``.
    :param gained: targets that the previous release did not have.
    :param lost: targets that only the previous release had.
    :param status: ``inspected``, ``skipped`` or ``failed``.
    :param reason: why the build was skipped or failed.
    """

    version: str
    label: str | None
    platform: str
    cuda: str | None
    targets: tuple[str, ...]
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    status: str = "inspected"
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectSummary:
    """The builds of a project, newest release first."""

    project: str
    releases: tuple[ReleaseSummary, ...]

    @property
    def with_gpu_code(self) -> tuple[ReleaseSummary, ...]:
        """The builds that have kernels."""
        return tuple(item for item in self.releases if item.targets)

    @property
    def cuda(self) -> tuple[str, ...]:
        """The CUDA toolkits of all builds, ascending."""
        versions = {item.cuda for item in self.releases if item.cuda}
        return tuple(sorted(versions, key=Version))

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of all builds: machine code first, then PTX, both ascending."""
        # Mostly sorted, which makes sorting fast.
        union = dict.fromkeys(t for item in self.releases for t in item.targets)
        return tuple(sorted(union, key=target_key))

    def to_dict(self) -> dict[str, object]:
        """Return the element for ``projects`` in the report of ``census``."""
        return {
            "project": self.project,
            "cuda": list(self.cuda),
            "targets": list(self.targets),
            "releases": [asdict(item) for item in self.releases],
        }
