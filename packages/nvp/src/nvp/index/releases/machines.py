"""The releases of a project on an index, judged for many machines at once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
)
from packaging.version import InvalidVersion, Version
from simple_repository import model
from simple_repository.components.core import RepositoryContainer, SimpleRepository

from nvidia_variant_provider.errors import InputError, UsageError, shown
from nvidia_variant_provider.machine.environment import Environment

from ...builds.releases import ReleaseTable
from ...wheels.names import parse_wheel_name
from ..http.client import Client
from ..pip.command import find_python
from ..pip.interpreter import find_interpreter
from ..pip.settings import find_indexes, make_settings
from ..selection.options import Selection
from .reading import make_indexes, read_tables

__all__ = ["judge_project", "parse_project"]

_METADATA = re.compile(r".+-(?P<version>[^-]+)-variants\.json")


def parse_project(text: str) -> tuple[str, str | None]:
    """Read ``torch`` or ``torch==2.15.0``.

    :returns: the normalized name, and the version or ``None``.
    :raises UsageError: the text is anything else.
    """
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        requirement = None
    specifiers = list(requirement.specifier) if requirement else []
    if (
        requirement is None
        or requirement.extras
        or requirement.url
        or requirement.marker
        or len(specifiers) > 1
        or any(item.operator != "==" or "*" in item.version for item in specifiers)
    ):
        message = f"{shown(text)} is not a project, or a project with one version"
        raise UsageError(message, hint="give NAME or NAME==VERSION")
    version = specifiers[0].version if specifiers else None
    return canonicalize_name(requirement.name), version


def judge_project(
    project: str,
    version: str | None,
    environments: Sequence[Environment],
    *,
    environ: Mapping[str, str],
    index_url: str | None = None,
    every_gpu: bool = False,
    cache: str | None = None,
) -> list[ReleaseTable]:
    """Read a project once, and judge its builds for each machine.

    The verdicts are those of `list_releases`, for the interpreter and the platform of
    this machine.

    :param version: the only release that counts; ``None`` for all.
    :raises InputError: no index has the project or the release, or none can be read.
    :raises UsageError: there is no index.
    """
    path = find_python(None, environ)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(find_indexes, environ, index_url=index_url)
        interpreter = find_interpreter(path, environ)
        command, ask_credentials = asked.result()
    client = Client(make_settings(command, environ), ask_credentials=ask_credentials)
    selections = [
        Selection(
            machine=lambda environment=environment: environment,  # type: ignore[misc]
            cache=cache,
            every_gpu=every_gpu,
            environ=environ,
        )
        for environment in environments
    ]
    indexes = make_indexes(command, client)
    if version is not None:
        indexes = [_OneRelease(item, project, Version(version)) for item in indexes]
    tables = read_tables(
        project,
        indexes,
        client=client,
        selections=selections,
        interpreter=interpreter,
        first_links=len(command.indexes),
    )
    if version is not None and tables and not any(t.releases for t in tables):
        message = f"no index has {project} {version}"
        hint = f"list what there is: nvidia-variant-provider releases {project}"
        raise InputError(message, hint=hint)
    return tables


class _OneRelease(RepositoryContainer):
    """Shows one release of a project, and everything of the others."""

    def __init__(
        self, source: SimpleRepository, project: str, version: Version
    ) -> None:
        super().__init__(source)
        # The rules for the folder of an index look at its place.
        self.url = getattr(source, "url", None)
        self.folder = getattr(source, "folder", "")
        self._project = project
        self._version = version
        self._pages: dict[str, asyncio.Task[model.ProjectDetail]] = {}

    async def get_project_page(
        self,
        project_name: str,
        *,
        request_context: model.RequestContext | None = None,
    ) -> model.ProjectDetail:
        """Return the page of a project."""
        if canonicalize_name(project_name) != self._project:
            return await self.source.get_project_page(
                project_name, request_context=request_context
            )
        if project_name not in self._pages:
            work = self._read(project_name)
            self._pages[project_name] = asyncio.ensure_future(work)
        return await self._pages[project_name]

    async def _read(self, project_name: str) -> model.ProjectDetail:
        page = await self.source.get_project_page(project_name)
        kept = [file for file in page.files if _release(file) == self._version]
        return replace(page, files=tuple(kept))


def _release(file: model.File) -> Version | None:
    """Return the version that a file is of, without its label."""
    name = file.filename
    try:
        if name.endswith(".whl"):
            text = parse_wheel_name(name).version.replace("_", "-")
            return Version(Version(text).public)
        if match := _METADATA.fullmatch(name):
            return Version(match["version"])
        return parse_sdist_filename(name)[1]
    except (InputError, InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None
