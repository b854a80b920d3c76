"""Find the distributions and directories of NVIDIA's libraries.

A test compares the table of libraries with the descriptors of cuda-pathfinder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ..files import read_resource
from .distributions import Distribution, Need
from .loader import LIBRARY_PATH, split_library_path
from .loading import is_of_torch
from .model import Stack


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """An NVIDIA library that is available as a wheel.

    :param name: the name, such as ``cublasLt`` for ``libcublasLt.so.13``.
    :param project: the project of the wheel, without a CUDA suffix.
    :param sonames: the file names, for the newest CUDA first.
    :param folders: the directories below ``site-packages``, for the newest CUDA first.
    :param each_cuda: whether projects for CUDA 13 and newer also have a CUDA suffix.
        The soname of such a library has its own major version, not CUDA's.
    :param older: the project for CUDA 12, if different.
    :param source: the source of this record.
    """

    name: str
    project: str
    sonames: tuple[str, ...]
    folders: tuple[str, ...]
    each_cuda: bool = False
    older: str | None = None
    source: str
    date: str

    def soname(self, cuda: int) -> str | None:
        """Return the file name for a CUDA major version; ``None`` if unknown."""
        if self.each_cuda or not self.sonames or self.sonames[-1].endswith(".so"):
            return self.sonames[0] if self.sonames else None
        return self.sonames[0 if cuda > 12 else -1]

    def folder(self, cuda: int) -> str:
        """Return the directory of the library in the wheel for a CUDA major version."""
        return self.folders[0 if cuda > 12 else -1]

    def project_for(self, cuda: int) -> str:
        """Return the project for a CUDA major version."""
        if cuda > 12 and not self.each_cuda:
            return self.project
        return f"{self.older or self.project}-cu{cuda}"


@cache
def libraries() -> Mapping[str, Library]:
    """Return the table of libraries, keyed by name in lower case."""
    records = json.loads(read_resource("knowledge", "nvidia_libraries.json"))
    found = {}
    for record in records:
        for key in ("sonames", "folders"):
            record[key] = tuple(record[key])
        found[record["name"].lower()] = Library(**record)
    return found


_STEM = re.compile(r"lib([a-z0-9-]+(?:_[a-z]+)*?)(?:[-.][0-9a-f]{8,})?\.so.*")
_NAME = re.compile(r"(?P<project>[a-z0-9-]+?)(?:-cu(?P<cuda>[0-9]{2}))?")
_LAYOUT = re.compile(r"nvidia/cu([0-9]{2})/")


def library_of(name: str) -> Library | None:
    """Return the library to which a file belongs; parts of cuDNN belong to cuDNN."""
    match = _STEM.fullmatch(name.lower())
    if match is None:
        return None
    stem = match[1]
    if stem.startswith("cudnn"):
        stem = "cudnn"
    elif stem.startswith("npp"):
        stem = "nppc"
    return libraries().get(stem)


def purpose_of(name: str) -> str | None:
    """Return the purpose of a library, such as ``cublas`` for ``libcublasLt.so.13``."""
    library = library_of(name)
    return None if library is None else _purpose(library.project)


def _purpose(project: str) -> str:
    return project.removeprefix("nvidia-")


def cuda_of_name(distribution: Distribution) -> tuple[str, int] | None:
    """Return the purpose and the CUDA major version of an NVIDIA distribution.

    :returns: ``None`` for a distribution without a CUDA library.
    """
    match = _NAME.fullmatch(distribution.name)
    if match is None or not any(
        item.project == match["project"] for item in libraries().values()
    ):
        return None
    if match["cuda"]:
        return _purpose(match["project"]), int(match["cuda"])
    for item in distribution.files:
        if layout := _LAYOUT.match(item.path):
            return _purpose(match["project"]), int(layout[1])
    return None


def find_installed(stack: Stack, name: str) -> tuple[Distribution, str] | None:
    """Return the distribution that contains a library, and the file's directory.

    Only NVIDIA's distributions are searched, because they provide libraries for other
    distributions. Files that do not exist are skipped.
    """
    for distribution, recorded in stack.nvidia_files.get(name, ()):
        path = distribution.locate(recorded)
        if os.path.isfile(path):
            return distribution, os.path.dirname(path)
    return None


def need_of(stack: Stack, name: str, user: Distribution) -> Need | None:
    """Return the requirement through which a distribution gets a library, if any.

    :param name: the library, such as ``libcublas.so.13``.
    :param user: the distribution that is linked with the library.
    """
    purpose = purpose_of(name)
    return None if purpose is None else stack.need_of(user.name, purpose)


def project_for(
    stack: Stack, name: str, user: Distribution, cuda: int | None
) -> str | None:
    """Return a requirement that installs a library, such as ``nvidia-cublas``.

    :param user: the distribution that is linked with the library.
    :param cuda: the CUDA major version of the library; ``None`` to use the version of
        ``user``, torch or the driver.
    :returns: ``None`` if unknown.
    """
    if is_of_torch(name):
        return "torch"
    purpose = purpose_of(name)
    if cuda is None:
        torch, driver = stack.toolchain.torch, stack.environment.cuda_driver_version
        version = stack.cuda_of(user) or (torch and torch.cuda) or driver
        cuda = None if version is None else version.major
    if purpose is None or cuda is None:
        return None
    library = library_of(name)
    if library is None:
        return None
    # If `each_cuda` is set, the soname has the library's own major version: pin it.
    major = name.rpartition(".so.")[2].partition(".")[0]
    pin = f"=={major}.*" if library.each_cuda and major.isdecimal() else ""
    return f"{library.project_for(cuda)}{pin}"


def folder_of(stack: Stack, name: str, cuda: int | None) -> str | None:
    """Return the directory into which a wheel installs a library, if known."""
    library, folders = library_of(name), stack.installation.folders
    if library is None or not folders:
        return None
    return os.path.join(folders[0], *library.folder(cuda or 12).split("/"))


def find_in_system(stack: Stack, name: str) -> str | None:
    """Return the path that the loader finds for the name of a library, if any."""
    folders = split_library_path(stack.environ.get(LIBRARY_PATH, ""))
    return stack.libraries.system.find(name, folders if stack.is_here else ())
