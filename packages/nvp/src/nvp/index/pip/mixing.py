"""Builds for different backends that pip took together, such as torch's companions."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ...builds.backends import Backend, parse_backend
from ...knowledge.builds import required_projects
from .reports import Installed

__all__ = ["find_mixed"]


def find_mixed(installed: Iterable[Installed]) -> list[str]:
    """Say which builds were taken for another backend than what they require.

    torchvision for CUDA 12.6 breaks at import with torch for CUDA 13.0. An index may
    have no build of one project for the backend of the other.
    """
    items = list(installed)
    backends = {
        canonicalize_name(item.project): backend
        for item in items
        if (backend := _backend(item.version)) is not None
    }
    sentences = []
    for item in items:
        own = _backend(item.version)
        if own is None:
            continue
        for name in required_projects(item.requires, backends):
            other = backends[canonicalize_name(name)]
            if other.label != own.label and name != canonicalize_name(item.project):
                sentences.append(
                    f"{item.project} {item.version} is a build for {own.label}, and "
                    f"{name}, which it requires, is one for {other.label}: the index "
                    "has no builds of both for one of them, and they may not work "
                    "together"
                )
    return sentences


def _backend(version: str) -> Backend | None:
    try:
        return parse_backend(Version(version).local)
    except InvalidVersion:
        return None
