"""NV401 to NV410, NV416, NV418, NV421: whether the files of a release agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvidia_variant_provider.errors import InputError, join, shown
from nvidia_variant_provider.metadata.document import SUFFIX

from .. import signals
from ..index.http.urls import IndexFile, NoRangesError, TooLargeError
from ..metadata.requirements import parse_requirement
from .documents import Scope, check_text
from .files import Listing, Reading, Release, list_files, read_metadata
from .findings import Checks, Collector, Finding, Problem
from .labels import labels_of, tell
from .wheel import HASH_CHECKS, check_wheel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..index.http.blocking import BlockingClient

LISTING_CHECKS: Checks[Listing] = Checks()
"""The checks of the file names in a directory or on a page."""

METADATA_CHECKS: Checks[CheckedRelease] = Checks()
"""The checks whose findings point into the metadata file of a release."""

RELEASE_CHECKS: Checks[CheckedRelease] = Checks()
"""The checks of a release whose findings are about whole files."""

_LARGE = 16 * 1024 * 1024
"""The size in bytes above which a wheel should not be downloaded for its METADATA."""

_UPGRADE = "nvp upgrade --index DIRECTORY"


_REGULAR = "the release has neither labels nor metadata; name wheels by themselves"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedRelease:
    """A release whose files were read.

    :param document: the metadata; ``None`` if it is missing or not JSON.
    :param wheels: the labeled wheels that can be compared: file, label and
        ``variant.json``.
    :param requires: the labeled wheels with METADATA: file, label and
        ``Requires-Dist``.
    """

    release: Release
    document: Mapping[str, Any] | None
    wheels: Sequence[tuple[IndexFile, str, Mapping[str, Any]]]
    requires: Sequence[tuple[IndexFile, str, Sequence[str]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """The server of a page.

    :param large: large wheels for which the page announces no METADATA file.
    """

    client: BlockingClient
    large: Sequence[IndexFile]


SERVER_CHECKS: Checks[Server] = Checks()


def check_files(
    path: str,
    files: Iterable[IndexFile],
    reading: Reading,
    *,
    may_be_empty: bool = False,
) -> Iterator[Finding]:
    """Check all releases among the files of one project, one release after the other.

    :param path: the directory or the page, for findings that are not about one file.
    :param may_be_empty: accept a project without wheels and metadata, such as a project
        that has only source distributions.
    """
    listing = list_files(files)
    page = Collector(path)
    LISTING_CHECKS.run(listing, page)
    for file, error in listing.not_wheels:
        page.add_error("NV411", error, file.name)
    if listing.is_empty and not may_be_empty:
        message = f"there is neither a wheel nor a *{SUFFIX}"
        page.add("NV100", "", message, "name the directory or the page of a project")
    yield from page.findings
    large: list[IndexFile] = []
    for release in listing.releases:
        place = release.metadata.path if release.metadata else path
        try:
            with signals.reading(place):
                found = _check_release(release, path, reading, large)
        except InputError as error:
            page = Collector(place)
            page.add_error("NV100", error)
            found = page.findings
        yield from found
    if reading.client is not None:
        page = Collector(path)
        SERVER_CHECKS.run(Server(client=reading.client, large=large), page)
        yield from page.findings


def _check_release(
    release: Release, path: str, reading: Reading, large: list[IndexFile]
) -> list[Finding]:
    metadata = release.metadata
    outside = Collector(metadata.path if metadata else path)
    text: bytes | None = None
    if metadata is not None:
        try:
            text = read_metadata(metadata, reading)
            digest = hashlib.sha256(text).hexdigest()
            HASH_CHECKS.run((metadata.sha256, digest), outside)
        except InputError as error:
            outside.add_error("NV100", error)
    inside = Collector(outside.path, document=text)
    document = None
    told: dict[str, object] = {}
    findings: list[Finding] = []
    wheels: list[tuple[IndexFile, str, Mapping[str, Any]]] = []
    requires: list[tuple[IndexFile, str, Sequence[str]]] = []
    for file, name, label in release.labeled:
        checked = check_wheel(file, name, reading, told)
        findings += checked.findings
        size = max(checked.size, file.size or 0)
        if size > _LARGE and file.core_metadata is None:
            large.append(file)
        if checked.requires is not None:
            requires.append((file, label, checked.requires))
        if checked.document is not None:
            wheels.append((file, label, checked.document))
            tell(told, checked.document)
    is_checked = release.is_checked
    for file, name in release.plain:
        if is_checked:
            findings += check_wheel(file, name, reading).findings
        else:
            reading.unchecked.add("everything", _REGULAR, file.path)
    if text is not None:
        labels = {label for _, _, label in release.labeled}
        scope = Scope(
            has_plain_wheel=None in release.offered,
            yanked=labels - release.offered,
            told=told,
        )
        document = check_text(text, inside, scope)
    subject = CheckedRelease(
        release=release,
        document=document if isinstance(document, dict) else None,
        wheels=wheels,
        requires=requires,
    )
    METADATA_CHECKS.run(subject, inside)
    RELEASE_CHECKS.run(subject, outside)
    return findings + inside.findings + outside.findings


@LISTING_CHECKS.rule("NV401")
def check_nv401(listing: Listing) -> Iterator[Problem]:
    """Report metadata files whose names clients do not look for."""
    for file in listing.unnormalized:
        yield Problem(
            file.name,
            f"{shown(file.name)} is not of the form {{name}}-{{version}}{SUFFIX}",
            "use lower case, and _ for - and . in the name, as wheels do",
        )


@LISTING_CHECKS.rule("NV418")
def check_nv418(listing: Listing) -> Iterator[Problem]:
    """Report files for which the page gives no hash."""
    files = [
        file
        for release in listing.releases
        if release.is_checked
        for file in release.files
        if file.page is not None and file.sha256 is None
    ]
    if files:
        count = "1 file" if len(files) == 1 else f"{len(files)} files"
        yield Problem(
            "",
            f"the page gives no sha256 for {count}, such as {files[0].name}",
            "let the index give the sha256 of each file",
        )


@SERVER_CHECKS.rule("NV421")
def check_nv421(server: Server) -> Iterator[Problem]:
    """Report large wheels that must be downloaded completely to read METADATA."""
    if not server.large:
        return
    file, number = server.large[0], len(server.large)
    try:
        server.client.open(file.url, page=file.page).close()
    except (NoRangesError, TooLargeError):
        count = "1 large wheel" if number == 1 else f"{number} large wheels"
        yield Problem(
            "",
            f"there are {count}, such as {file.name}, without METADATA files "
            "(PEP 658), and the server sends no parts of files",
            "serve the METADATA of each wheel, or parts of files: installers read the "
            "metadata of every candidate, and `nvp pip` passes over variants that it "
            "cannot read",
        )
    except InputError:
        return  # NV411 reports a wheel that cannot be read.


@METADATA_CHECKS.rule("NV402")
def check_nv402(checked: CheckedRelease) -> Iterator[Problem]:
    """Report labels in the metadata that no wheel has."""
    if checked.document is None:
        return
    yanked = {label for _, _, label in checked.release.labeled}
    for label in sorted(labels_of(checked.document).keys() - checked.release.offered):
        message = "no wheel has this label"
        if label in yanked:
            message = "all wheels with this label are yanked, so installers skip it"
        hint = "upload the wheel, or remove the label"
        yield Problem(join("variants", label), message, hint)


@METADATA_CHECKS.rule("NV403")
def check_nv403(checked: CheckedRelease) -> Iterator[Problem]:
    """Report labels of wheels that the metadata does not list."""
    if checked.document is None:
        return
    present = {label for _, _, label in checked.release.labeled}
    for label in sorted(present - labels_of(checked.document).keys()):
        yield Problem(
            "variants",
            f"a wheel has the label {shown(label)}, which is not listed",
            f"add the label: {_UPGRADE}",
        )


@METADATA_CHECKS.rule("NV405")
def check_nv405(checked: CheckedRelease) -> Iterator[Problem]:
    """Report wheels whose own properties differ from those in the metadata."""
    if checked.document is None:
        return
    listed = {x: _as_sets(own) for x, own in labels_of(checked.document).items()}
    for file, label, own in checked.wheels:
        known = listed.get(label)
        if known is not None and known != _as_sets(labels_of(own).get(label)):
            yield Problem(
                join("variants", label),
                f"{file.name} has other properties in its variant.json",
                f"the wheel is right; write the metadata again: {_UPGRADE}",
            )


@METADATA_CHECKS.rule("NV406")
def check_nv406(checked: CheckedRelease) -> Iterator[Problem]:
    """Report namespaces and providers that cannot be merged into one metadata file."""
    if checked.document is None:
        return
    providers = checked.document.get("providers")
    for file, _, own in checked.wheels:
        # PEP 825: the lists "MUST either be identical, or the longer MUST start with
        # the elements of the shorter one".
        lists = sorted((_namespaces(checked.document), _namespaces(own)), key=len)
        if lists[1][: len(lists[0])] != lists[0]:
            yield Problem(
                "default-priorities.namespace",
                f"{file.name} has the namespaces in another order",
                "neither list starts with the other; use one list for all wheels",
            )
        others = own.get("providers")
        if isinstance(providers, dict) and isinstance(others, dict):
            for namespace in sorted(providers.keys() & others.keys()):
                if providers[namespace] != others[namespace]:
                    yield Problem(
                        join("providers", namespace),
                        f"{file.name} has another provider for the namespace",
                        "use one provider for all wheels",
                    )


@METADATA_CHECKS.rule("NV407")
def check_nv407(checked: CheckedRelease) -> Iterator[Problem]:
    """Report wheels with the same label but different properties."""
    first: dict[str, tuple[IndexFile, object]] = {}
    for file, label, own in checked.wheels:
        properties = _as_sets(labels_of(own).get(label))
        other, known = first.setdefault(label, (file, properties))
        if known != properties:
            yield Problem(
                join("variants", label),
                f"{file.name} and {other.name} have different properties",
                "a label has one set of properties in a release; rename one of them",
            )


@RELEASE_CHECKS.rule("NV409")
def check_nv409(checked: CheckedRelease) -> Iterator[Problem]:
    """Report labeled wheels without a metadata file."""
    release = checked.release
    if release.metadata is None and release.labeled:
        yield Problem(
            "",
            f"{release.name} has labeled wheels but no {release.name}{SUFFIX}",
            f"make the file: {_UPGRADE}",
        )


@RELEASE_CHECKS.rule("NV410")
def check_nv410(checked: CheckedRelease) -> Iterator[Problem]:
    """Report a metadata file that is older than a wheel of the release."""
    metadata = checked.release.metadata
    if metadata is None or metadata.time is None:
        return
    newer = [
        file.name
        for file, _, _ in checked.release.labeled
        if file.time is not None and file.time > metadata.time
    ]
    if newer:
        yield Problem(
            "",
            f"the file is older than some of its wheels, such as {min(newer)}",
            f"write it again: {_UPGRADE}",
        )


@RELEASE_CHECKS.rule("NV416")
def check_nv416(checked: CheckedRelease) -> Iterator[Problem]:
    """Report wheels with the same label but different requirements."""
    first: dict[str, tuple[IndexFile, frozenset[str]]] = {}
    parsed: dict[str, set[str]] = {}
    reported: set[str] = set()
    for file, label, requires in checked.requires:
        other, known = first.setdefault(label, (file, frozenset(requires)))
        if label in reported or known == frozenset(requires):
            continue
        # Parse only different texts: parsing is slow, and most wheels have the same.
        if label not in parsed:
            parsed[label] = _normalized(known)
        mine, theirs = _normalized(requires), parsed[label]
        for text in sorted(mine ^ theirs)[:1]:
            reported.add(label)
            one, two = (file, other) if text in mine else (other, file)
            yield Problem(
                "",
                f"{one.name} requires {shown(text, 100)}, and {two.name} of the same "
                "label does not",
                "give both the same requirements, with markers where platforms differ",
            )


def _normalized(requires: Iterable[str]) -> set[str]:
    """Return requirements in a form that does not depend on their spelling."""
    parsed = ((text, parse_requirement(text)) for text in requires)
    return {text if item is None else str(item) for text, item in parsed}


def _as_sets(properties: object) -> object:
    """Return properties in a form that ignores the order of values."""
    if not isinstance(properties, dict):
        return None
    return {
        namespace: {
            feature: frozenset(map(str, values)) if isinstance(values, list) else values
            for feature, values in features.items()
        }
        if isinstance(features, dict)
        else features
        for namespace, features in properties.items()
    }


def _namespaces(document: Mapping[str, Any]) -> list[Any]:
    priorities = document.get("default-priorities")
    names = priorities.get("namespace") if isinstance(priorities, dict) else None
    return names if isinstance(names, list) else []
