"""A package index such as PyTorch's own, with the builds of the table of builds.

The pages are only in HTML. The files are on another host, and their URLs spell the
``+`` of local version labels as ``%2B``. The root page is the union of one directory
for each backend.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from simple_repository import errors, model
from simple_repository.components.core import SimpleRepository

from nvp.index.http.pages import parse_page
from nvp.knowledge.builds import BuildRecord, build_records

__all__ = [
    "FILES",
    "OTHERS",
    "Pages",
    "html_page",
    "torch_records",
    "union_names",
    "wheel_file",
]

FILES = "https://files.example/whl"
"""The host of the files, which is not that of the pages."""

OTHERS = ("cpu", "xpu", "rocm6.4", "rocm7.2")
"""The labels of each release that no NVIDIA GPU uses."""


def torch_records(platform: str = "linux_x86_64") -> dict[str, BuildRecord]:
    """Return the builds of torch in the table by version, with the label."""
    return {
        f"{item.version}+{item.label}" if item.label else item.version: item
        for item in build_records()["torch"]
        if item.platform == platform
    }


def wheel_file(project: str, version: str, build: str = "") -> str:
    """Return the name of a wheel for the platform of the tests."""
    tag = f"-{build}" if build else ""
    return f"{project}-{version}{tag}-cp311-cp311-manylinux_2_28_x86_64.whl"


def union_names(*, plain: bool = False) -> list[str]:
    """Return the wheels of torch on the union page.

    :param plain: return the wheels without a label instead, as PyPI has them.
    """
    records = torch_records().values()
    versions = dict.fromkeys(item.version for item in records)
    if plain:
        return [wheel_file("torch", version) for version in versions]
    labels: dict[str, list[str]] = {version: [*OTHERS] for version in versions}
    for item in records:
        if item.label is not None:
            labels[item.version].append(item.label)
    # The real page also has wheels with build tags.
    return [
        wheel_file("torch", f"{version}+{label}", "3" if version == "2.10.0" else "")
        for version, found in labels.items()
        for label in found
    ]


def html_page(
    names: Iterable[str],
    *,
    base: str = FILES,
    metadata: Callable[[str], str | None] = lambda _: "true",
    hashes: bool = True,
) -> str:
    """Return the page of a project as PyTorch's index writes it.

    :param metadata: the value of the attribute of PEP 658 for a file.
    :param hashes: whether to write invented hashes, which the table of builds lacks.
    """
    links = []
    for name in names:
        digest = hashlib.sha256(name.encode()).hexdigest()
        fragment = f"#sha256={digest}" if hashes else ""
        offered = metadata(name)
        attributes = (
            ""
            if offered is None
            else f' data-dist-info-metadata="{offered}" data-core-metadata="{offered}"'
        )
        links.append(
            f'    <a href="{base}/{quote(name)}{fragment}"{attributes} '
            f'data-upload-time="2026-01-01T00:00:00">{name}</a><br/>'
        )
    return "\n".join(["<!DOCTYPE html>", "<html>", "<body>", *links, "</body></html>"])


@dataclass(eq=False)
class Pages(SimpleRepository):
    """An upstream in memory.

    :param pages: the pages by project.
    :param contents: the bytes of files and of METADATA files; other files are missing.
    :param kind: the content type of the pages.
    """

    pages: Mapping[str, str]
    contents: Mapping[str, str] = field(default_factory=dict)
    url: str = "https://wheels.example/whl/"
    kind: str = "text/html"
    asked: list[str] = field(default_factory=list)

    async def get_project_page(
        self,
        project_name: str,
        *,
        request_context: model.RequestContext | None = None,  # noqa: ARG002
    ) -> model.ProjectDetail:
        if project_name not in self.pages:
            raise errors.PackageNotFoundError(project_name)
        url = f"{self.url}{project_name}/"
        return parse_page(
            self.pages[project_name].encode(), self.kind, url, project_name
        )

    async def get_resource(
        self,
        project_name: str,
        resource_name: str,
        *,
        request_context: model.RequestContext | None = None,  # noqa: ARG002
    ) -> model.Resource:
        self.asked.append(resource_name)
        if project_name not in self.pages or resource_name not in self.contents:
            raise errors.ResourceUnavailable(resource_name)
        return model.TextResource(text=self.contents[resource_name])
