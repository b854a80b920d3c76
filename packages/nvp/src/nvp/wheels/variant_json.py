"""Read ``variant.json``, METADATA and WHEEL of wheels.

`combine` merges the metadata of the wheels of one release.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, BinaryIO

from nvidia_variant_provider.errors import InputError, join, shown
from nvidia_variant_provider.metadata import VariantsMetadata
from nvidia_variant_provider.metadata.document import read_parsed
from nvidia_variant_provider.metadata.model import Properties
from nvidia_variant_provider.strict_json import parse_json

from ..metadata.requirements import PLAIN_LIMIT, has_variant_markers, is_clear
from .archive import (
    MAX_LENGTH,
    find_headers,
    first_header,
    only,
    open_wheel,
    parse_requires,
    read_dist_info,
)

MAX_TAGS = 1000
"""The maximum number of tags to read; real wheels have fewer than twenty."""

MAX_VARIANT = 256 * 1024
"""The maximum size in bytes of a ``variant.json``, which has one variant. To parse it
takes 20 times its size in memory. Real ones have some KiB."""

MAX_LINES = 20_000
"""The maximum number of lines before the description in METADATA that is evaluated:
4 MiB of short lines, of 20 KB when compressed, take a second. Real ones have a few
hundred, or several thousand with an old form of the description."""

_READ = r"(?:Name|Version|Requires-Dist|Requires-Python)"
_ODD = re.compile(
    rf"\r|(?:\A|\n(?![ \t]))(?!{_READ}: \S(?:.*\S)?(?:\n(?![ \t])|\Z)"
    rf"|(?!(?i:{_READ}):)[A-Za-z-]+:|\Z)"
)
"""A line of METADATA with another form than ``Name: value``, as far as installers need
its value, which is then not folded."""


def is_plain(metadata: bytes, file_name: str) -> bool:
    """Return whether pip and uv read METADATA of a wheel in the same way.

    The requirements are not checked; see `is_clear`. METADATA with over `MAX_LINES` is
    not plain.
    """
    try:
        text = metadata.decode().replace("\r\n", "\n")
    except UnicodeError:
        return False
    head = text.partition("\n\n")[0]
    if head.count("\n") > MAX_LINES or _ODD.search(head):
        return False
    if not is_of(metadata, file_name, local=True):
        return False
    keys = ("Name", "Version", "Requires-Python")
    name, version, python = (first_header(metadata, key) for key in keys)
    return is_clear(f"{name}=={version}") and (
        not python or (bool(PLAIN_LIMIT.fullmatch(python)) and is_clear(name + python))
    )


def is_of(metadata: bytes, file_name: str, *, local: bool) -> bool:
    """Return whether METADATA has the name and the version of a wheel.

    :param local: compare local version labels, as pip does; some publishers only rename
        the file of a wheel.
    """
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    def parse(text: str) -> Version | str:
        try:
            version = Version(text.replace("_", "-"))
            return version if local else Version(version.public)
        except ValueError:
            return text  # of an old wheel, which old releases of pip install

    project, own = (*file_name.split("-"), "")[:2]
    name, version = (first_header(metadata, key) for key in ("Name", "Version"))
    is_short = max(len(name), len(version)) <= MAX_LENGTH  # others take much memory
    is_own = is_short and canonicalize_name(name) == canonicalize_name(project)
    return is_own and parse(version) == parse(own)


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelContent:
    """The content of the metadata files of a wheel, which is not validated.

    :param variant_json: the bytes of ``*.dist-info/variant.json``; ``None`` if the file
        is missing.
    :param folder: the name of the ``*.dist-info`` directory that contains METADATA.
    :param name: the project in METADATA; empty if missing.
    :param version: the release in METADATA; empty if missing.
    :param requires: the values of ``Requires-Dist`` in METADATA.
    :param requires_python: ``Requires-Python`` in METADATA; empty if missing.
    :param metadata_sha256: the SHA-256 of METADATA.
    :param tags: the tags in WHEEL, such as ``py3-none-any``; ``None`` if the file is
        missing, as in wheels of older builders.
    """

    variant_json: bytes | None
    folder: str = ""
    name: str = ""
    version: str = ""
    requires: Sequence[str] = ()
    requires_python: str = ""
    metadata_sha256: str = ""
    tags: Sequence[str] | None = None

    @property
    def markers(self) -> Sequence[str]:
        """The requirements that use variant markers."""
        return [text for text in self.requires if has_variant_markers(text)]


def read_wheel(source: str | IO[bytes]) -> WheelContent:
    """Return the content of the metadata files of a wheel.

    :param source: a path, or an open file.
    :raises InputError: the archive cannot be read or has no METADATA.
    """
    with open_wheel(source, only("METADATA", "WHEEL", "variant.json")) as archive:
        return read_content(archive)


def read_content(archive: zipfile.ZipFile) -> WheelContent:
    """Return the content of the metadata files of an open wheel.

    :raises InputError: the archive has no METADATA. Callers must handle the exceptions
        of `zipfile` for damaged archives; see `archive.explained`.
    """
    metadata = read_dist_info(archive, "METADATA")
    if metadata is None:
        hint = "build the wheel again"
        raise InputError("has no *.dist-info/METADATA", hint=hint)
    wheel = read_dist_info(archive, "WHEEL")
    tags = None if wheel is None else islice(find_headers(wheel, "Tag"), MAX_TAGS)
    return WheelContent(
        variant_json=read_dist_info(archive, "variant.json"),
        folder=next(filter(None, map(_metadata_folder, archive.namelist())), ""),
        name=first_header(metadata, "Name"),
        version=first_header(metadata, "Version"),
        requires=parse_requires(metadata),
        requires_python=first_header(metadata, "Requires-Python"),
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
        tags=None if tags is None else [tag.strip() for tag in tags],
    )


def _metadata_folder(member: str) -> str | None:
    folder, _, name = member.partition("/")
    return folder if name == "METADATA" and folder.endswith(".dist-info") else None


def read_own_metadata(name: str, file: BinaryIO) -> bytes:
    """Return METADATA of a wheel for an installer; it is empty if the file is missing.

    After METADATA of another project, pip tries an older release. But pip alone ends if
    the directory has the name of the other project, too.

    :param name: the file name of the wheel.
    :raises InputError: the wheel does not have one ``.dist-info`` directory of its own
        project, or METADATA cannot be read.
    """
    from packaging.utils import canonicalize_name

    def select(members: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
        tops = {member.filename.partition("/")[0] for member in members}
        own = [top for top in tops if top.endswith(".dist-info")]
        project = canonicalize_name(name.partition("-")[0])
        if len(own) != 1 or not canonicalize_name(own[0]).startswith(project):
            message = f"does not have one directory {project}-VERSION.dist-info"
            raise InputError(message, path=name, hint="report it to the index")
        return only("METADATA")(members)

    with open_wheel(file, select) as archive:
        return read_dist_info(archive, "METADATA") or b""


def read_wheel_metadata(
    path: str | os.PathLike[str], label: str, file: IO[bytes] | None = None
) -> tuple[VariantsMetadata, Mapping[str, Any]]:
    """Return the variant metadata of a wheel, and the parsed ``variant.json``.

    :param label: the label in the name of the wheel.
    :param file: the open wheel; ``path`` is then used only in messages.
    :raises InputError: the archive cannot be read or has no ``variant.json``, or the
        ``variant.json`` is invalid or for another label.
    """
    name = str(path)
    try:
        opened = name if file is None else file
        with open_wheel(opened, only("variant.json")) as archive:
            data = read_dist_info(archive, "variant.json")
    except InputError as error:
        error.path = name
        raise
    if data is None:
        message = "no file *.dist-info/variant.json in a wheel with a label"
        raise InputError(message, path=name, hint="build the wheel again")
    if len(data) > MAX_VARIANT:
        message = f"variant.json is larger than {MAX_VARIANT >> 10} KiB"
        raise InputError(message, path=name, hint="keep only this variant in it")
    document = parse_json(data, f"{name}/variant.json")
    metadata = read_parsed(document, path=f"{name}/variant.json")
    # PEP 825: "it MUST contain exactly one entry, whose key is the variant label
    # present in that wheel's filename."
    if list(metadata.variants) != [label]:
        labels = ", ".join(map(shown, list(metadata.variants)[:5])) or "no label"
        message = f"it is for {labels}, but the wheel's name says {shown(label)}"
        hint = "build the wheel again, or rename it"
        raise InputError(message, path=name, place="variants", hint=hint)
    return metadata, document


def combine(
    parts: Iterable[tuple[str, VariantsMetadata]],
) -> tuple[VariantsMetadata, list[InputError]]:
    """Return the union of the metadata of several wheels, and their contradictions.

    The order of ``parts`` does not matter. If there are contradictions, the union must
    not be used.

    :param parts: the name of each wheel with its metadata; at least one. All wheels
        are of the same release and schema version.
    """
    listed = sorted(parts, key=lambda part: part[0])
    longest, first = listed[0]
    namespaces: tuple[str, ...] = ()
    declared = frozenset[str]()
    # For each key of a section: the first wheel with it, the value, and the value in
    # the form in which it is compared.
    sections: dict[str, dict[str, tuple[str, Any, object]]]
    sections = {section: {} for section in _PLACES}
    errors: list[InputError] = []
    for name, metadata in listed:
        # PEP 825: "the lists MUST either be identical, or the longer MUST start with
        # the elements of the shorter one, in the same order. Combining them MUST yield
        # the longer list."
        short, long = sorted((namespaces, metadata.namespaces), key=len)
        if long[: len(short)] != short:
            place = "default-priorities.namespace"
            errors.append(_contradiction(place, longest, name))
        for section, known in sections.items():
            given: Mapping[str, Any] = getattr(metadata, section)
            # PEP 825: "the same variant label MUST always map to the same set of
            # properties."
            forms = given
            if section == "variants":
                forms = {label: _as_sets(item) for label, item in given.items()}
            wrong = [x for x in given if x in known and known[x][2] != forms[x]]
            if section.endswith("priorities"):
                # Priorities that only one wheel has for a shared namespace contradict.
                shared = [x for x in metadata.namespaces if x in declared]
                wrong += [x for x in shared if (x in given) != (x in known)]
            errors += [
                _contradiction(
                    join(_PLACES[section], key), known.get(key, listed[0])[0], name
                )
                for key in sorted(wrong)
            ]
            for key, value in given.items():
                known.setdefault(key, (name, value, forms[key]))
        if len(metadata.namespaces) > len(namespaces):
            longest, namespaces = name, metadata.namespaces
            declared = frozenset(namespaces)
    merged = {
        section: {key: value for key, (_, value, _) in known.items()}
        for section, known in sections.items()
    }
    return first.replace(namespaces=namespaces, **merged), errors


_PLACES = {
    "feature_priorities": "default-priorities.feature",
    "property_priorities": "default-priorities.property",
    "providers": "providers",
    "variants": "variants",
}
"""The sections that are merged by key, as attributes, with their places."""


def _as_sets(properties: Properties) -> object:
    """Return properties in a form that does not depend on the order of values."""
    return {
        namespace: {name: frozenset(values) for name, values in features.items()}
        for namespace, features in properties.items()
    }


def _contradiction(place: str, one: str, two: str) -> InputError:
    message = f"{one} and {two} contradict each other"
    return InputError(message, place=place, hint="build one of the wheels again")
