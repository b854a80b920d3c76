"""What the pages of a project on several indexes share: verdicts and requirements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from ...builds.needs import Backend
from ...builds.page import Build

Required = Mapping[Version, Mapping[str, str]]
"""Maps each release of a project to its requirements on projects with GPU builds."""

BUILD = 1100
"""The memory of a verdict on a build in bytes, without its reasons."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Known(ABC):
    """What pages share about a project.

    :param is_late: whether some evidence is missing, because an index is late.
    """

    is_late: bool

    @property
    @abstractmethod
    def memory(self) -> int:
        """The estimated memory in bytes."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part(Known):
    """The judged wheels of a project on one index.

    :param builds: the wheels for this platform or any platform, newest first.
    :param judged: all wheels.
    """

    builds: Sequence[Build]
    judged: Sequence[Build]
    required: Required

    @property
    def is_silent(self) -> bool:
        """Whether nothing says that any of the wheels has GPU code."""
        return all(build.is_silent for build in self.builds)

    @property
    def memory(self) -> int:
        """The estimated memory in bytes."""
        texts = [text for each in self.required.values() for text in each.values()]
        texts += [text for build in self.judged for text in build.judgement.reasons]
        return BUILD * (1 + len(self.judged)) + sum(map(len, texts))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Followed(Known):
    """The backend that each release of a project must match.

    :param name: the project, such as torch, that decides the backends, if there is one.
    :param parts: the wheels of the project whose releases these are.
    """

    name: str | None
    backends: Mapping[Version, Backend]
    parts: Sequence[Part]

    @property
    def memory(self) -> int:
        """The estimated memory in bytes."""
        parts = sum(part.memory for part in self.parts)
        return BUILD * (1 + len(self.backends)) + parts
