"""Indexes of builds that require projects with GPU builds, such as torch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from support.exposed import MACHINE
from support.label_index import Pages
from support.loopback import JSON

from nvp.index.http.client import Client
from nvp.index.selection.component import select
from nvp.index.selection.options import Selection
from nvp.index.selection.reader import Reader

LINUX = "cp311-cp311-manylinux_2_17_x86_64"
OTHER_PYTHON = "cp310-cp310-manylinux_2_17_x86_64"
RUNS, CU13 = "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu13"
"""What builds for CUDA 12, which run on this machine, and for CUDA 13 require."""

Wheels: TypeAlias = Mapping[str, "tuple[str | None, Mapping[str, Any]]"]


def wheel(
    requires: str | None = "", tag: str = LINUX, **keys: Any
) -> tuple[str | None, Mapping[str, Any]]:
    """Return an entry of `index_of`; without ``requires``, there is no METADATA."""
    return requires, {"tag": tag, **keys}


def index_of(number: int, wheels: Wheels, broken: str = "") -> Pages:
    """Return an index.

    :param wheels: keyed by project and version, such as ``torch-99.0``.
    :param broken: the text that the index sends as its page of torch.
    """
    pages: dict[str, list[dict[str, Any]]] = {}
    contents = {}
    for name, (requires, given) in wheels.items():
        project, version = name.split("-")
        keys = {**given}
        file_name = f"{name}-{keys.pop('tag')}.whl"
        file: dict[str, Any] = {
            "filename": file_name,
            "url": f"https://{number}.example/{file_name}",
        }
        file |= {"hashes": {}, "size": 20_000_000, **keys}
        pages.setdefault(project, []).append(file)
        if requires is not None:
            file["core-metadata"] = True
            text = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
            text += f"Requires-Dist: {requires}\n" if requires else ""
            contents[f"{file_name}.metadata"] = text
    documents = {
        name: json.dumps({"meta": {"api-version": "1.0"}, "name": name, "files": files})
        for name, files in pages.items()
    }
    documents |= {"torch": broken} if broken else {}
    url = f"https://{number}.example/simple/"
    return Pages(documents, contents, url=url, kind=JSON)


def find_shown(project: str, *sources: Pages) -> list[str]:
    """Return the versions that are shown on the page of the first index."""
    selection = Selection(machine=lambda: MACHINE, platform="linux_x86_64")
    reader = Reader(Client())
    found = select(sources, selection=selection, reader=reader, warn=lambda _: None)
    page = asyncio.run(found[0].get_project_page(project))
    return [x.filename.split("-")[1] for x in page.files if not x.yanked]
