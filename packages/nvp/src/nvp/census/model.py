"""What a census is asked to read, one wheel of an index, and what became of it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from nvidia_variant_provider.errors import redacted

from ..gpu_code.report import WheelReport
from ..index.http.urls import IndexFile

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")

Status: TypeAlias = Literal["inspected", "skipped", "failed"]
"""``inspected``: it was read. ``skipped``: it was not read on purpose, such as a wheel
without native libraries. ``failed``: it could not be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What to read, and by what: the arguments of `nvp.api.census` of these names."""

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
        """Return whether wheels for a platform are wanted."""
        if not self.platforms:
            return True
        return any(fnmatch.fnmatchcase(platform, p) for p in self.platforms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """A wheel that an index lists.

    :param project: the normalized name.
    :param version: the public version, normalized, such as ``2.15.0``.
    :param label: the variant label or the local version label; ``None`` without one.
    :param tags: the interpreters and platforms of its name, such as
        ``cp312-cp312-manylinux_2_28_x86_64``.
    :param url: where it is, or the path of a local file.
    :param sha256: its hash, as the page gives it.
    :param size: its bytes, if the page gives them.
    :param upload_time: in ISO 8601, if the page gives it; of a local file, when it was
        changed.
    :param page: the URL of the page that lists it.
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

    @property
    def file(self) -> IndexFile:
        """The file as the index lists it."""
        return IndexFile(
            name=self.filename,
            url=self.url,
            page=self.page,
            sha256=self.sha256,
            size=self.size,
        )

    @property
    def hash(self) -> str | None:
        """The hash of the page in small letters; ``None`` where it is no sha256.

        Two wheels may not pass for one because their page gives them the same word.
        """
        given = self.sha256 or ""
        return given.lower() if _SHA256.fullmatch(given) else None

    @property
    def key(self) -> str:
        """What the wheel is known by where its bytes were not hashed: its place.

        The place has no credentials and no signature, which may differ every time. It
        has the hash of the page: any page may claim any hash.
        """
        place = redacted(self.url)
        if self.hash is not None:
            return f"{place}#{self.filename}#sha256={self.hash}"
        return place if place == self.url else f"{place}#{self.filename}"

    @property
    def hash_key(self) -> str | None:
        """What the wheel is known by where all its bytes have the hash of the page."""
        return self.hash and f"sha256:{self.hash}#{self.filename}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a wheel.

    :param reason: why it was skipped or failed, in a sentence without a full stop.
    :param may_pass: whether the reason may be gone the next time, as a time-out may.
    :param report: what was found in it.
    :param claims: what it could declare, by the name of the bound, ``strict`` or
        ``relaxed``.
    :param bytes_read: what was read from the index for it.
    :param hashed: all its bytes were read, and have the hash of the page.
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
        """What the row of the wheel counts for: its hash, or its place."""
        return (self.hashed and self.wheel.hash_key) or self.wheel.key


@dataclass(frozen=True, kw_only=True, slots=True)
class Claimed:
    """What a wheel could declare under one bound of the driver.

    :param lower_bound: the CUDA version of the driver, or ``None`` without a bound.
    :param reason: what the bound follows from; may be empty.
    :param sm_arch: the values of ``sm_arch``.
    """

    lower_bound: str | None
    reason: str
    sm_arch: Sequence[str]
