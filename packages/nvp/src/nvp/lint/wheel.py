"""NV404, NV408, NV411 to NV415, NV417, NV419: whether one wheel is consistent."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from nvidia_variant_provider.errors import InputError, listed, shown
from nvidia_variant_provider.strict_json import parse_lenient

from .. import signals
from ..index.http.urls import METADATA, IndexFile, with_suffix
from ..wheels.archive import WheelName, expands_too_far
from ..wheels.variant_json import WheelContent, read_wheel
from .documents import Scope, check_text
from .files import OpenFile, Reading, SkippedError, open_wheel, read_metadata
from .findings import Checks, Collector, Finding, Problem
from .labels import Told
from .record import RECORD_CHECKS, compare_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..gpu_code.report import WheelReport


WHEEL_CHECKS: Checks[OpenedWheel] = Checks()
"""The checks of the file name and METADATA."""

HASH_CHECKS: Checks[tuple[str | None, str | None]] = Checks()
"""The checks of two hashes: the sha256 on the page, and that of the file."""

PAGE_CHECKS: Checks[ListedWheel] = Checks()
"""The checks of a wheel's entry on a page."""

VARIANT_JSON_CHECKS: Checks[OpenedWheel] = Checks()
"""The checks whose findings point into ``variant.json``."""

_MEMBER = "variant.json"

_MAX_NAMED = 4
"""Maximum number of tags in a message."""

_MANYLINUX = re.compile(r"-(?:many|musl)linux(?:_[0-9]+_[0-9]+|[0-9]*)_")

_NO_HASH = "--no-hash is given, or NV417 is left out"
_LEFT_OUT = "the rules NV5 are left out"

_MAX_VERSION = 255
"""Maximum length of a version; file names allow no more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedWheel:
    """A wheel that could be opened.

    :param file_name: the name of the file.
    :param document: the ``variant.json``; ``None`` if it is missing or not JSON.
    """

    file_name: str
    name: WheelName
    content: WheelContent
    document: Mapping[str, Any] | None

    @property
    def is_of_another_label(self) -> bool:
        """Whether ``variant.json`` has other labels than the file name."""
        labels = self.document.get("variants") if self.document is not None else None
        return isinstance(labels, dict) and list(labels) != [self.name.label]


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedWheel:
    """A wheel that a page lists.

    :param size: the size of the file in bytes.
    :param metadata: the METADATA file next to the wheel, or the error of reading it;
        ``None`` if the page does not announce such a file.
    """

    file: IndexFile
    content: WheelContent
    size: int
    metadata: bytes | InputError | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedWheel:
    """The findings about a wheel, and the data for the rules of its release.

    :param document: the ``variant.json``; ``None`` if it is not for the label of the
        file name.
    :param requires: ``Requires-Dist`` in METADATA; ``None`` if unreadable.
    :param size: the size of the wheel in bytes; 0 if unknown.
    """

    findings: list[Finding]
    document: Mapping[str, Any] | None = None
    requires: Sequence[str] | None = None
    size: int = 0


def check_wheel(
    file: IndexFile,
    name: WheelName,
    reading: Reading,
    told: Told = MappingProxyType({}),
) -> CheckedWheel:
    """Check one wheel by itself: ``variant.json``, METADATA and GPU code.

    :param told: properties that were already checked in other wheels; see `Scope`.
    """
    size = file.size if file.page is None else None
    try:
        with signals.reading(file.path, size or 0):
            return _check(file, name, reading, told)
    except InputError as error:
        collector = Collector(file.path)
        collector.add_error("NV411", error)
        return CheckedWheel(findings=collector.findings)


def _check(
    file: IndexFile, name: WheelName, reading: Reading, told: Told
) -> CheckedWheel:
    outside = Collector(file.path)
    content = report = sha256 = unhashed = skipped = differences = None
    size = 0
    try:
        with open_wheel(file, reading) as opened:
            sha256, unhashed = opened.sha256, opened.unhashed
            size = opened.size
            content = read_wheel(opened.source)
            differences = compare_record(opened.source, opened.jobs, whole=opened.whole)
            report = _inspect(file, opened, reading, outside)
    except SkippedError as error:
        unhashed, skipped = error.unhashed, error.reason
    except InputError as error:
        outside.add_error("NV411", error)
    if file.sha256 is not None and sha256 is None and not reading.hashes:
        unhashed = _NO_HASH
    if unhashed is not None:
        reading.unchecked.add("the sha256", unhashed, file.path)
    if skipped is not None:
        reading.unchecked.add("everything", skipped, file.path)
        return CheckedWheel(findings=[])
    HASH_CHECKS.run((file.sha256, sha256), outside)
    if content is None:
        return CheckedWheel(findings=outside.findings, size=size)
    if differences is not None:
        RECORD_CHECKS.run(differences, outside)
    if file.page is not None:
        metadata = _served_metadata(file, reading)
        listed_wheel = ListedWheel(
            file=file, content=content, size=size, metadata=metadata
        )
        PAGE_CHECKS.run(listed_wheel, outside)
    if not reading.content:
        reading.unchecked.add("libraries", _LEFT_OUT, file.path)
    text = content.variant_json
    member = None if text is None else _MEMBER
    inside = Collector(file.path, document=text, member=member)
    document = None
    if text is not None and name.label is None:
        # For installers, this is a non-variant wheel, so the text is not checked.
        with suppress(InputError):
            document = parse_lenient(text)[0]
    elif text is not None:
        scope = _scope(report, name, told)
        document = check_text(text, inside, scope)
    wheel = OpenedWheel(
        file_name=file.name,
        name=name,
        content=content,
        document=document if isinstance(document, dict) else None,
    )
    WHEEL_CHECKS.run(wheel, outside)
    VARIANT_JSON_CHECKS.run(wheel, inside)
    own = None if wheel.is_of_another_label else wheel.document
    if report is not None:
        from .content_rules import check_content

        check_content(report, name, own, outside=outside, inside=inside)
    return CheckedWheel(
        findings=outside.findings + inside.findings,
        document=own,
        requires=content.requires,
        size=size,
    )


def _served_metadata(file: IndexFile, reading: Reading) -> bytes | InputError | None:
    """Return the METADATA file that a page announces (PEP 658), or the error."""
    if file.core_metadata is None:
        return None
    url = with_suffix(file.url, METADATA)
    try:
        return read_metadata(replace(file, url=url), reading)
    except InputError as error:
        return error


def _scope(report: WheelReport | None, name: WheelName, told: Told) -> Scope:
    """Return the scope in which the ``variant.json`` of a wheel is checked.

    :param report: the GPU code of the wheel; ``None`` if it was not read.
    """
    if report is None:
        return Scope(whole_release=False, floor=_nobody_knows, told=told)
    # Import late, because importing the readers of binaries takes a while.
    from .content import has_library_by_cuda
    from .content_rules import find_floor

    return Scope(
        whole_release=False,
        by_cuda=has_library_by_cuda(report),
        floor=partial(find_floor, report, name),
        told=told,
    )


def _nobody_knows(_: Mapping[str, Any]) -> None:
    """Return ``None``: without its code, the oldest driver for a wheel is unknown."""


def _inspect(
    file: IndexFile, opened: OpenFile, reading: Reading, collector: Collector
) -> WheelReport | None:
    """Return the GPU code of a wheel, if it is requested and can be read."""
    if not reading.content:
        return None
    # Import late, because importing the readers of binaries takes a while.
    from ..gpu_code.inspection import inspect_path

    try:
        with reading.watch(file.path) as progress:
            return inspect_path(
                opened.source, name=file.path, jobs=opened.jobs, progress=progress
            )
    except InputError as error:
        collector.add_error("NV411", error)
        return None


@WHEEL_CHECKS.rule("NV404")
def check_nv404(wheel: OpenedWheel) -> Iterator[Problem]:
    """Report a labeled wheel without ``variant.json``."""
    if wheel.name.label is not None and wheel.content.variant_json is None:
        yield Problem(
            "",
            f"the file name has the label {wheel.name.label}, but there is no "
            "variant.json",
            "build the wheel with variant metadata",
        )


@WHEEL_CHECKS.rule("NV408")
def check_nv408(wheel: OpenedWheel) -> Iterator[Problem]:
    """Report requirements whose markers use variables of wheel variants."""
    for requirement in wheel.content.markers:
        yield Problem(
            "METADATA",
            f"uv and pip accept no wheel with the marker of {shown(requirement, 100)}",
            "resolve the marker when the wheel is built, or install with `nvp pip`",
        )


@WHEEL_CHECKS.rule("NV413")
def check_nv413(wheel: OpenedWheel) -> Iterator[Problem]:
    """Report METADATA, or its directory, for a release other than the file name's."""
    name, content = wheel.name, wheel.content
    release = f"{name.name}-{name.version}"
    hint = "build the wheel again: renaming does not change what is inside"
    if not _is_release(content.name, content.version, name):
        said = f"{shown(content.name)} {shown(content.version)}"
        message = f"METADATA is of {said}, and the file name says {release}"
        yield Problem("METADATA", message, hint)
    project, _, version = content.folder.removesuffix(".dist-info").partition("-")
    if not _is_release(project, version, name):
        message = f"the directory is {shown(content.folder)}, and the file name says "
        yield Problem("METADATA", f"{message}{release}", hint)


@WHEEL_CHECKS.rule("NV414")
def check_nv414(wheel: OpenedWheel) -> Iterator[Problem]:
    """Report tags in WHEEL that differ from those in the file name."""
    from packaging.tags import parse_tag

    if not wheel.content.tags:
        return
    inside: set[str] = set()
    for text in wheel.content.tags:
        if text.count("-") == 2 and not expands_too_far(text):
            try:
                inside |= {str(tag) for tag in parse_tag(text)}
                continue
            except ValueError:
                pass  # The text is no tag: for example, the interpreter is missing.
        inside.add(shown(text, 50))
    outside = {str(tag) for tag in wheel.name.tags}
    # cupy and torchvision rename linux_* wheels that fit a manylinux platform. Accept
    # the tags in their WHEEL files, which remain valid for installed packages.
    generic = {_MANYLINUX.sub("-linux_", tag) for tag in outside}
    if inside not in (outside, generic):
        yield Problem(
            "WHEEL",
            f"it has the tags {listed(sorted(inside), _MAX_NAMED)}, and the file name "
            f"has {listed(sorted(outside), _MAX_NAMED)}",
            "rename wheels with `wheel tags`, which writes both",
        )


@WHEEL_CHECKS.rule("NV415")
def check_nv415(wheel: OpenedWheel) -> Iterator[Problem]:
    """Report a project or a version that is not normalized in the file name."""
    given = wheel.file_name.split("-")[:2]
    normalized = [wheel.name.name, wheel.name.version]
    if given != normalized:
        yield Problem(
            "",
            f"the file name begins with {shown('-'.join(given))}, whose normal form "
            f"is {'-'.join(normalized)}",
            "build the wheel with a tool that normalizes the name",
        )


@HASH_CHECKS.rule("NV417")
def check_nv417(hashes: tuple[str | None, str | None]) -> Iterator[Problem]:
    """Report a file whose hash on the page is wrong."""
    given, actual = hashes
    if given is not None and actual is not None and given.lower() != actual:
        yield Problem(
            "",
            f"the page gives sha256 {shown(given, 80)}, and the file has {actual}",
            "find out which of the two is right before anybody installs the file",
        )


@PAGE_CHECKS.rule("NV419")
def check_nv419(wheel: ListedWheel) -> Iterator[Problem]:
    """Report wrong statements of a page about a wheel."""
    file, content = wheel.file, wheel.content
    hint = "write the page from the wheel: installers believe the page"
    given = file.requires_python
    if given and not _same_specifiers(given, content.requires_python):
        says = shown(content.requires_python, 80) if content.requires_python else "none"
        message = f"the page gives requires-python {shown(given, 80)}, and METADATA"
        yield Problem("METADATA", f"{message} {says}", hint)
    if file.size is not None and wheel.size and file.size != wheel.size:
        message = f"the page gives {file.size} bytes, and the file has {wheel.size}"
        yield Problem("", message, hint)
    if isinstance(wheel.metadata, InputError):
        message = f"the page announces a METADATA file: {wheel.metadata.message}"
        yield Problem("METADATA", message, "serve the file, or do not announce it")
    elif wheel.metadata is not None:
        served = hashlib.sha256(wheel.metadata).hexdigest()
        if served != content.metadata_sha256:
            message = "the METADATA file next to the wheel is not the one inside it"
            yield Problem("METADATA", message, hint)
        elif file.core_metadata and file.core_metadata.lower() != served:
            message = f"the page gives {shown(file.core_metadata, 80)} for the METADATA"
            yield Problem("METADATA", f"{message} file, whose sha256 is {served}", hint)


def _same_specifiers(one: str, other: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(one) == SpecifierSet(other)
    except InvalidSpecifier:
        return one.replace(" ", "") == other.replace(" ", "")


@VARIANT_JSON_CHECKS.rule("NV412")
def check_nv412(wheel: OpenedWheel) -> Iterator[Problem]:
    """Report a ``variant.json`` for a label other than the file name's."""
    if wheel.is_of_another_label and wheel.document is not None:
        labels = ", ".join(map(shown, wheel.document["variants"])) or "no label"
        hint = f"the label of the file name is {wheel.name.label}; they have to agree"
        if wheel.name.label is None:
            hint = "the file name has no label: build the wheel again with one"
        yield Problem("variants", f"variant.json is for {labels}", hint)


def _is_release(project: str, version: str, name: WheelName) -> bool:
    """Return whether a project and a version equal those of a file name."""
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    if len(version) > _MAX_VERSION:
        return False
    try:
        same = Version(version.replace("_", "-")) == Version(name.version)
    except ValueError:
        return False
    return same and canonicalize_name(project) == canonicalize_name(name.name)
