"""The file that pip selects alone, and the one that it selects behind ``serve``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from packaging.version import Version
from pip._internal.index.package_finder import CandidateEvaluator
from pip._internal.models.candidate import InstallationCandidate
from pip._internal.models.link import Link
from pip._internal.models.release_control import ReleaseControl
from pip._vendor.packaging.specifiers import SpecifierSet
from pip._vendor.packaging.tags import Tag
from simple_repository import model
from support.builds import machine
from support.label_index import Pages
from support.loopback import JSON

from nvp.index.http.client import Client
from nvp.index.selection.component import select
from nvp.index.selection.options import Selection, Target, allows_python
from nvp.index.selection.reader import Reader

VERSION = "3.11.7"
TAGS = ("cp311-cp311-manylinux_2_28_x86_64", "py3-none-any")
OTHER_TAGS = (
    "cp312-cp312-manylinux_2_28_x86_64",
    "cp39-cp39-manylinux_2_28_x86_64",
    "cp313-cp313t-manylinux_2_28_x86_64",
    "cp311-cp311-win_amd64",
    "cp311-cp311-macosx_11_0_arm64",
)
"""The tags of other machines than that of ``serve``."""
MACHINE = machine("12.9", "8.0")  # builds for CUDA 13 cannot run here


class Item(NamedTuple):
    """A file on the page of an index, which may have yanked it."""

    name: str
    yanked: bool = False
    python: str | None = None  # the limit of Python's version

    @property
    def version(self) -> Version:
        return Version(self.name.removesuffix(".tar.gz").split("-")[1])


Page = Sequence[Item]


def wheel(version: str, *, yanked: bool = False, tag: str = TAGS[0]) -> Item:
    return Item(f"kern-{version}-{tag}.whl", yanked)


def anywhere(version: str, *, yanked: bool = False) -> Item:
    return wheel(version, yanked=yanked, tag=TAGS[1])


def source(version: str, *, yanked: bool = False) -> Item:
    return Item(f"kern-{version}.tar.gz", yanked)


def index_of(number: int, page: Page) -> Pages:
    files: list[dict[str, object]] = [
        {
            "filename": name,
            "url": f"https://files.example/{number}/{name}",
            "hashes": {},
            "size": 2_000_000 if "linux" in name else 900,
            "yanked": "CVE" if yanked else False,
            **({} if python is None else {"requires-python": python}),
        }
        for name, yanked, python in page
    ]
    document = {"meta": {"api-version": "1.0"}, "name": "kern", "files": files}
    url = f"https://{number}.example/simple/"
    return Pages({"kern": json.dumps(document)}, kind=JSON, url=url)


def selection_for(target: Target | None, named: Mapping[str, set[str]]) -> Selection:
    return Selection(
        machine=lambda: MACHINE,
        platform="linux_x86_64",
        environ={},
        target=target,
        named=named,
        several_platforms=target is None,
    )


def show(
    indexes: Sequence[Pages],
    target: Target | None,
    named: Mapping[str, set[str]],
    project: str = "kern",
) -> list[model.File]:
    """Return the files of all indexes as the installer sees them."""
    selection = selection_for(target, named)
    components = select(
        indexes, selection=selection, reader=Reader(Client()), warn=lambda _: None
    )
    pages = [asyncio.run(each.get_project_page(project)) for each in components]
    return [file for page in pages for file in page.files]


def pick(
    files: Iterable[model.File],
    pin: str,
    *,
    pre: bool,
    sources: bool,
    tags: Sequence[str] = TAGS,
) -> str | None:
    """Return the URL of the file that pip selects."""
    candidates = [
        InstallationCandidate(
            "kern",
            file.filename.removesuffix(".tar.gz").split("-")[1],
            Link(file.url, yanked_reason=str(file.yanked) if file.yanked else None),
        )
        for file in files
        if allows_python(file.requires_python, VERSION)
        and file.filename.endswith(".whl" if not sources else (".whl", ".tar.gz"))
        and (file.filename.endswith("gz") or file.filename[:-4].endswith(tuple(tags)))
    ]
    evaluator = CandidateEvaluator(
        "kern",
        [Tag(*tag.split("-")) for tag in tags],
        SpecifierSet(pin),
        release_control=ReleaseControl(all_releases={":all:"} if pre else set()),
    )
    found = evaluator.get_applicable_candidates(candidates)
    # The resolver of pip has these two lines, but no function for them.
    pinned = any(
        part.operator == "===" or (part.operator == "==" and "*" not in part.version)
        for part in SpecifierSet(pin)
    )
    takes_all = pinned and all(each.link.is_yanked for each in found)
    left = [each for each in found if takes_all or not each.link.is_yanked]
    return left[-1].link.url if left else None


def compare(
    pages: Sequence[Page],
    pin: str = "",
    *,
    pre: bool = False,
    sources: bool = True,
    known: bool = True,
    user: bool = True,
    tags: Sequence[str] = TAGS,
) -> tuple[Item | None, Item | None]:
    """Return the file that pip selects alone, and the one that it selects here.

    :param known: whether the target of the installation is known.
    :param user: whether the user wrote the pin, instead of another project.
    :param tags: the tags that pip supports, perhaps on another machine than ``serve``.
    """
    indexes = [index_of(number, page) for number, page in enumerate(pages)]
    alone = [
        file
        for index in indexes
        for file in asyncio.run(index.get_project_page("kern")).files
    ]
    label = pin.partition("+")[2]
    named = {"kern": {label}} if label and user else {}
    target = Target(
        version=VERSION,
        tags=dict.fromkeys(TAGS),
        pre=pre,
        only_binary=frozenset(() if sources else {"kern"}),
    )
    judged = show(indexes, target if known else None, named)
    items = {
        f"https://files.example/{number}/{item.name}": item
        for number, page in enumerate(pages)
        for item in page
    }
    one, other = (
        pick(files, pin, pre=pre, sources=sources, tags=tags)
        for files in (alone, judged)
    )
    return items.get(one or ""), items.get((other or "").replace("%2B", "+"))
