"""Pages of a directory of files, for a web server that runs no code.

The page of a project links to its files wherever they are: in the directory of the
project, in another one, or in the root. New files are written before the pages that
link to them, and obsolete files are removed after the pages are written.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from simple_repository import model
from simple_repository.content_negotiation import Format

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.metadata.document import SUFFIX
from nvidia_variant_provider.strict_json import LARGE_BYTES, read_stream

from ...directories import Root, list_folders
from ...findings import Reported
from ...signals import map_in_threads
from ...upgrading.releases import UpgradedFile, upgrade_files
from ...upgrading.remarks import Remark
from ..http.pages import parse_page
from ..http.urls import METADATA
from .rendering import render
from .static_files import (
    PAGES,
    SDISTS,
    ListedFile,
    metadata_hash,
    parse_file,
    read_file,
    stat_of,
)

logger = logging.getLogger(__name__)

_MARKS = {
    Format.JSON_V1: '"_generator": "nvp"',
    Format.HTML_V1: '<meta name="generator" content="nvp">',
}
"""The text that marks a page as one that nvp may replace."""

_GENERATOR = model.PrivateMetadataMapping({"_generator": "nvp"})
_NOTHING = model.PrivateMetadataMapping()

_THREADS = 4
"""The number of files that are read or written at a time."""

_SETTLED = 2.0
"""The hash on a page is reused only for a file that is at least this many seconds older
than the page, because some file systems round times to two seconds."""

_Entries: TypeAlias = Mapping[str, "list[tuple[ListedFile, model.File]]"]
"""The files of each project in the order of its page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticPage(Reported):
    """The page of a project.

    :param path: the path of the page in HTML; the one in JSON is beside it.
    :param project: the normalized name of the project.
    :param files: the number of files to which the page links.
    :param change: ``written``, ``unchanged`` or ``removed``.
    """

    path: str
    project: str
    files: int
    change: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticIndex:
    """An index of static pages.

    :param files: the metadata files; if there are problems, only the files with
        problems, and no file was written.
    :param pages: the pages of all projects, sorted by project.
    :param notes: remarks on files that were left out or belong to no page.
    """

    files: tuple[UpgradedFile, ...]
    pages: tuple[StaticPage, ...] = ()
    notes: tuple[Remark, ...] = ()


@dataclass(kw_only=True, slots=True)
class _Old:
    """The previous content of the pages of a directory.

    :param pages: ``{path: content}`` of each page.
    :param time: the time of writing the page in JSON, in seconds since 1970.
    :param files: the entries of the page in JSON.
    :param yanked: the files that are yanked on a page, with the reasons.
    :param meta: keys of the page for newer clients, such as ``tracks``.
    :param kept: other keys of the page, such as ``project-status``.
    """

    pages: dict[str, bytes] = field(default_factory=dict)
    time: float = 0.0
    files: dict[str, model.File] = field(default_factory=dict)
    yanked: dict[str, bool | str] = field(default_factory=dict)
    meta: model.PrivateMetadataMapping = _GENERATOR
    kept: model.PrivateMetadataMapping = _NOTHING


def write_index(place: str, *, write: bool = True, for_uv: bool = False) -> StaticIndex:
    """Write the pages of a directory, as `nvp.api.write_index` does."""
    root = Root(place)
    folders = dict(list_folders(place, root.dir_fd))
    upgraded = [
        file
        for name, names in folders.items()
        for file in upgrade_files(root, os.path.join(place, name), names, for_uv)
    ]
    index = _Index(root, place, upgraded)
    for name in folders:
        index.read_old(name)
    listed = index.list_files(folders)
    if not (listed or index.problems or any(x.pages for x in index.old.values())):
        message = f"the directory has no wheel, *{SUFFIX} or source distribution"
        raise InputError(message, path=place, hint="name the directory of an index")
    entries, texts = index.read(listed)
    if index.problems:
        problems = sorted(index.problems.values(), key=lambda file: file.path)
        return StaticIndex(files=tuple(problems))
    pages = index.make_pages(entries)
    gone = [name for name, x in index.old.items() if x.pages and name not in entries]
    gone = [name for name in gone if name]
    stale = [path for name in gone for path in index.old[name].pages]
    stale += index.find_stale(folders)
    if write:
        texts += [(f.path, f.text.encode()) for f in upgraded if f.changed and f.text]
        # Use threads, because each write waits for the disk.
        map_in_threads(_THREADS, lambda text: root.write(*text), texts)
        for path, data in pages.items():
            root.write(path, data)
        for path in stale:
            root.remove(path)
    described = []
    for project in sorted({*entries, *gone}):
        paths = [os.path.join(place, project, name) for name in PAGES]
        change = "written" if pages.keys() & paths else "unchanged"
        described.append(
            StaticPage(
                path=paths[-1],
                project=project,
                files=len(entries.get(project, ())),
                change="removed" if project in gone else change,
            )
        )
    return StaticIndex(
        files=tuple(sorted(upgraded, key=lambda file: file.path)),
        pages=tuple(described),
        notes=tuple(index.notes),
    )


class _Index:
    """The directory of an index.

    :param place: the path of the directory, which was opened as ``root``.
    :param upgraded: the metadata files, which are not written yet.
    """

    def __init__(self, root: Root, place: str, upgraded: list[UpgradedFile]) -> None:
        self.root, self.place = root, place
        self.problems = {file.path: file for file in upgraded if file.problems}
        self.notes: list[Remark] = []
        self.old: dict[str, _Old] = {}
        self._texts = {file.path: file.text.encode() for file in upgraded if file.text}
        # Do not report files, such as wheels, that these problems already name.
        self._told = {
            remark.place.split(":")[0].split("/")[0]
            for file in self.problems.values()
            for remark in file.problems
        }

    def _add_problem(self, path: str, error: InputError) -> None:
        name = os.path.basename(path)
        if name not in self._told:
            remark = Remark.from_error(InputError(error.message, hint=error.hint))
            remark = Remark(place=name, message=remark.message, hint=remark.hint)
            file = UpgradedFile(path=path, problems=(remark,))
            self.problems.setdefault(path, file)

    def read_old(self, folder: str) -> None:
        """Read the pages of a directory; report pages of other programs as problems."""
        if folder in self.old:
            return
        old = self.old[folder] = _Old()
        for name, form in PAGES.items():
            path, mark = os.path.join(self.place, folder, name), _MARKS[form]
            try:
                if not self.root.has(path):
                    continue
                with self.root.open(path) as file:
                    time = os.fstat(file.fileno()).st_mtime
                    data = read_stream(file, path, limit=LARGE_BYTES)
                old.pages[path] = data
                page = None
                if folder:
                    page = parse_page(data, form.value, "http://localhost/", folder)
            except InputError as error:
                self._add_problem(path, error)
                continue
            if mark.encode() not in data:
                hint = f"move it away, or add {mark} to let nvp replace it"
                foreign = InputError("is not a page that nvp has written", hint=hint)
                self._add_problem(path, foreign)
            if page is None:
                continue
            old.yanked |= {x.filename: x.yanked for x in page.files if x.yanked}
            old.meta |= page.meta.private_metadata
            old.kept |= page.private_metadata
            if form is Format.JSON_V1:
                old.time = time
                old.files = {file.filename: file for file in page.files}

    def list_files(self, folders: Mapping[str, list[str]]) -> list[ListedFile]:
        """Return the files for pages, sorted by project, version and name."""
        found: dict[tuple[object, ...], ListedFile] = {}
        made = [os.path.split(os.path.relpath(p, self.place)) for p in self._texts]
        present = [(folder, name) for folder in folders for name in folders[folder]]
        for folder, name in dict.fromkeys((*present, *made)):
            path = os.path.join(self.place, folder, name)
            try:
                file = parse_file(folder, name)
            except InputError as error:
                if not name.endswith(SDISTS):
                    self._add_problem(path, error)
                    continue
                message = f"is left out: {error.message}"
                remark = Remark(place=path, message=message, hint=error.hint or "")
                self.notes.append(remark)
                continue
            if file is None:
                continue
            first = found.setdefault(file.same, file)
            if first is not file:
                other = os.path.join(self.place, first.folder, first.name)
                message = f"is the same file for installers as {other}"
                self._add_problem(path, InputError(message, hint="keep one of them"))
        return sorted(found.values(), key=lambda x: (x.project, x.version, x.name))

    def read(self, files: list[ListedFile]) -> tuple[_Entries, list[tuple[str, bytes]]]:
        """Return the entries of the pages, and the METADATA files to write."""
        for project in {file.project for file in files}:
            self.read_old(project)
        read = map_in_threads(_THREADS, self._read, files)
        entries: dict[str, list[tuple[ListedFile, model.File]]] = {}
        writes = []
        for file, result in zip(files, read, strict=True):
            if result is None:
                continue
            path, before, entry, metadata = result
            if before is not None:
                with suppress(InputError), self.root.open(path) as opened:
                    if stat_of(opened.fileno()) == before:
                        before = None
            if before is not None:
                error = InputError("has changed while it was read", hint="run again")
                self._add_problem(path, error)
            if metadata is not None:
                writes.append((path + METADATA, metadata))
            entries.setdefault(file.project, []).append((file, entry))
        return entries, writes

    def _read(
        self, file: ListedFile
    ) -> tuple[str, tuple[int, int, float] | None, model.File, bytes | None] | None:
        path = os.path.join(self.place, file.folder, file.name)
        old = self.old[file.project]
        text = self._texts.get(path)
        entry = model.File(
            filename=file.name,
            url=file.url,
            hashes={},
            yanked=old.yanked.get(file.name),
        )
        try:
            if text is not None:
                hashes = {"sha256": hashlib.sha256(text).hexdigest()}
                entry = replace(entry, hashes=hashes, size=len(text))
                return path, None, entry, None
            last = old.files.get(file.name)
            with self.root.open(path) as opened:
                before = stat_of(opened.fileno())
                size, _, time = before
                settled = last is not None and time + _SETTLED < old.time
                same = settled and last and last.size == size and last.hashes
                known = last if same else None
                entry = replace(entry, size=size)
                entry, metadata = read_file(self.root, opened, known, entry)
            ours = (None, last.dist_info_metadata if last else None)
            if metadata is not None and metadata_hash(self.root, path) not in ours:
                error = InputError(
                    f"differs from METADATA of {file.name}", hint="delete the file"
                )
                self._add_problem(path + METADATA, error)
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            self._add_problem(path, InputError(message, hint="check the file"))
            return None
        except InputError as error:
            self._add_problem(path, error)
            return None
        return path, before, entry, metadata

    def make_pages(self, entries: _Entries) -> dict[str, bytes]:
        """Return ``{path: content}`` of changed pages; pages of the root come last."""
        pages: dict[str, bytes] = {}
        for project, files in entries.items():
            old = self.old[project]
            page = model.ProjectDetail(
                meta=model.Meta("1.1", old.meta),
                name=project,
                files=tuple(entry for _, entry in files),
                versions=frozenset(str(file.version) for file, _ in files),
                private_metadata=old.kept,
            )
            self._add_pages(pages, project, page)
        # Use a tuple: the model's set has a different order in each process.
        projects: Any = tuple(map(model.ProjectListElement, sorted(entries)))
        meta = model.Meta("1.1", _GENERATOR)
        self._add_pages(pages, "", model.ProjectList(meta, projects))
        return pages

    def _add_pages(
        self,
        pages: dict[str, bytes],
        folder: str,
        page: model.ProjectDetail | model.ProjectList,
    ) -> None:
        for name, form in PAGES.items():
            path, mark = os.path.join(self.place, folder, name), _MARKS[form]
            text = render(page, form).decode()
            if form is Format.HTML_V1:
                text = text.replace("<head>", f"<head>\n{mark}", 1)
            data = f"{text.rstrip()}\n".encode()
            if self.old[folder].pages.get(path) != data:
                pages[path] = data

    def find_stale(self, folders: Mapping[str, list[str]]) -> Iterator[str]:
        """Yield METADATA files of missing wheels if nvp wrote them; else add a note."""
        last = {name: x for old in self.old.values() for name, x in old.files.items()}
        for folder, names in folders.items():
            present = set(names)
            for name in names:
                wheel = name.removesuffix(METADATA)
                if wheel == name or not wheel.endswith(".whl") or wheel in present:
                    continue
                path = os.path.join(self.place, folder, wheel)
                with suppress(InputError, OSError):
                    if wheel in last and (
                        last[wheel].dist_info_metadata == metadata_hash(self.root, path)
                    ):
                        yield path + METADATA
                        continue
                message = "there is no such wheel, and nvp did not write the file"
                place = path + METADATA
                remark = Remark(place=place, message=message, hint="remove it")
                self.notes.append(remark)
