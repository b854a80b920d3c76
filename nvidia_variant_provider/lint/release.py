"""NV4xx: is what an index holds of a release consistent?"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError, join, shown
from ..strict_json import read_bytes
from ..wheels.archive import WheelName, parse_wheel_name
from ..wheels.reading import WheelContent, read_wheel
from .collector import Collector
from .documents import check_text
from .findings import Finding
from .structure import labels_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..gpu_code.report import WheelReport

__all__ = ["IndexFile", "check_files", "check_folder", "check_wheel"]

_SUFFIX = "-variants.json"
_JOBS = min(4, os.cpu_count() or 1)
"""Members of a wheel that are read at the same time."""
_NORMALISED = re.compile(r"(?P<name>[a-z0-9_.]+)-(?P<version>[^-/]+)-variants\.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFile:
    """A file of an index page or a folder.

    :param path: where it is, for findings.
    :param time: when it was written or uploaded, in seconds; ``None``: unknown.
    :param read: its bytes, for metadata files.
    :param open_wheel: what it says of its variant, for wheels.
    :param inspect: the GPU code of a wheel; ``None`` where that is not read, as
        from an index, which would have to send all of it.
    """

    name: str
    path: str
    time: float | None
    read: Callable[[], bytes]
    open_wheel: Callable[[], WheelContent]
    inspect: Callable[[], WheelReport] | None = None


@dataclass(kw_only=True, slots=True)
class _Release:
    """What belongs together: a project's version."""

    metadata: IndexFile | None = None
    wheels: list[tuple[IndexFile, WheelName]] = field(default_factory=list)


def check_folder(path: str, *, content: bool = True) -> list[Finding]:
    """Check the files of a folder, as an index page would list them.

    :param content: read the GPU code of wheels as well.
    :raises InputError: the folder cannot be read.
    """
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None
    files = [_local(os.path.join(path, name), content=content) for name in names]
    return check_files(path, files)


def check_wheel(path: str, *, content: bool = True) -> list[Finding]:
    """Check one wheel for itself: its name, ``variant.json``, METADATA and code.

    :param content: read its GPU code as well.
    """
    found = Collector(path)
    name = _wheel_name(os.path.basename(path), found)
    if name is not None:
        _check_content(_local(path, content=content), name, found)
    return found.findings


def _local(path: str, *, content: bool) -> IndexFile:
    try:
        time = os.stat(path).st_mtime
    except (OSError, ValueError):
        time = None

    def inspect() -> WheelReport:
        from ..gpu_code.inspection import inspect_path

        return inspect_path(path, jobs=_JOBS)

    return IndexFile(
        name=os.path.basename(path),
        path=path,
        time=time,
        read=lambda: read_bytes(path),
        open_wheel=lambda: read_wheel(path),
        inspect=inspect if content else None,
    )


def check_files(path: str, files: Iterable[IndexFile]) -> list[Finding]:
    """Check all releases among ``files``.

    :param path: of the folder or page, for findings that no file is at fault for.
    """
    page = Collector(path)
    releases: dict[tuple[str, str], _Release] = {}
    for file in files:
        if file.name.endswith(_SUFFIX):
            match = _NORMALISED.fullmatch(file.name)
            if match is None:
                _add_name(file, page)
                continue
            key = (_normalised(match["name"]), _release_version(match["version"]))
            if key != (match["name"], match["version"]):
                _add_name(file, page)
            release = releases.setdefault(key, _Release())
            if release.metadata is None or key == (match["name"], match["version"]):
                release.metadata = file
        elif file.name.endswith(".whl"):
            wheel = _wheel_name(file.name, page)
            if wheel is not None:
                key = (wheel.name, wheel.version)
                releases.setdefault(key, _Release()).wheels.append((file, wheel))
    findings = page.findings
    for (name, version), release in sorted(releases.items()):
        findings += _check_release(f"{name}-{version}", path, release)
    if not releases and not findings:
        message = "there is neither a wheel nor a *-variants.json"
        page.add("NV100", "", message, "name the folder or page of a project")
    return findings


def _normalised(project: str) -> str:
    # The rule for wheel names: runs of -, _ and . become _, in lower case.
    return re.sub(r"[-_.]+", "_", project).lower()


def _release_version(text: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(text)).replace("-", "_")
    except (InvalidVersion, ValueError):
        return text


def _add_name(file: IndexFile, page: Collector) -> None:
    message = f"{shown(file.name)} is not of the form {{name}}-{{version}}{_SUFFIX}"
    hint = "lower case, with _ for - and . in the name, as in the wheels' names"
    page.add("NV401", file.name, message, hint)


def _check_release(release_name: str, path: str, release: _Release) -> list[Finding]:
    found = Collector(release.metadata.path if release.metadata else path)
    document: Any = None
    if release.metadata is not None:
        try:
            data = release.metadata.read()
        except InputError as error:
            found.add("NV100", "", error.message, error.hint or "")
        else:
            document = check_text(data, found)
    labelled = [(file, name) for file, name in release.wheels if name.label is not None]
    if release.metadata is None and labelled:
        message = f"{release_name} has labelled wheels and no {release_name}{_SUFFIX}"
        hint = "make it: nvidia-variant-provider upgrade --index FOLDER"
        found.add("NV409", "", message, hint)
    wheels = _check_wheels(labelled, found)
    for file, name in release.wheels if labelled or release.metadata else ():
        if name.label is None:
            # What stock installers take: it has no variant.json to compare.
            alone = Collector(file.path)
            _check_content(file, name, alone)
            found.findings += alone.findings
    if isinstance(document, dict):
        plain = len(labelled) < len(release.wheels)
        _compare_labels(document, labelled, found, plain=plain)
        for file, label, own in wheels:
            _compare_with_index(document, file, label, own, found)
    if release.metadata is not None:
        _compare_times(release.metadata, labelled, found)
    return found.findings


def _check_wheels(
    labelled: Sequence[tuple[IndexFile, WheelName]], found: Collector
) -> list[tuple[IndexFile, str, Mapping[str, Any]]]:
    """Check each wheel, and wheels of the same label with each other."""
    good = []
    first: dict[str, tuple[IndexFile, object]] = {}
    for file, name in labelled:
        own = Collector(file.path)
        document = _check_content(file, name, own)
        found.findings += own.findings
        if document is None or name.label is None:
            continue
        good.append((file, name.label, document))
        properties = _as_sets(labels_of(document).get(name.label))
        other, known = first.setdefault(name.label, (file, properties))
        if known != properties:
            message = f"{file.name} and {other.name} have different properties"
            hint = "a label has one set of properties in a release: rename one"
            found.add("NV407", join("variants", name.label), message, hint)
    return good


def _check_content(
    file: IndexFile, name: WheelName, found: Collector
) -> Mapping[str, Any] | None:
    try:
        content = file.open_wheel()
    except InputError as error:
        found.add("NV411", "", error.message, error.hint or "")
        return None
    for requirement in content.markers:
        message = f"no installer accepts the marker of {shown(requirement, 100)}"
        found.add("NV408", "METADATA", message, "resolve it when the wheel is built")
    document = _check_variant_json(content, name, found)
    if file.inspect is not None:
        from .content import check_content

        try:
            check_content(file.inspect(), name, document, found)
        except InputError as error:
            found.add("NV411", "", error.message, error.hint or "")
    return document


def _check_variant_json(
    content: WheelContent, name: WheelName, found: Collector
) -> Mapping[str, Any] | None:
    if name.label is None:
        return None
    if content.variant_json is None:
        message = f"the label is {name.label}, and there is no variant.json"
        found.add("NV404", "", message, "build it with variant metadata")
        return None
    document = check_text(content.variant_json, found)
    # One wheel says nothing of what its release gives other machines.
    alone = ("NV114", "NV312", "NV313", "NV315")
    found.findings = [f for f in found.findings if f.code not in alone]
    if not isinstance(document, dict):
        return None
    labels = document.get("variants")
    if isinstance(labels, dict) and list(labels) != [name.label]:
        message = f"is for {', '.join(map(shown, labels)) or 'no label'}"
        hint = f"the file name has {name.label}: they have to be the same"
        found.add("NV412", "variants", message, hint)
        return None
    return document


def _compare_labels(
    document: Mapping[str, Any],
    labelled: Sequence[tuple[IndexFile, WheelName]],
    found: Collector,
    *,
    plain: bool,
) -> None:
    listed = set(labels_of(document))
    present = {name.label for _, name in labelled if name.label is not None}
    for label in sorted(listed - present):
        message = "no wheel has this label"
        found.add("NV402", join("variants", label), message, "upload it, or remove it")
    for label in sorted(present - listed):
        message = f"{shown(label)} has a wheel, and is not listed"
        hint = "add it: nvidia-variant-provider upgrade --index FOLDER"
        found.add("NV403", "variants", message, hint)
    if plain:
        # The non-variant wheel is a fallback as good as the null variant.
        found.findings = [f for f in found.findings if f.code != "NV114"]


def _compare_with_index(
    document: Mapping[str, Any],
    file: IndexFile,
    label: str,
    own: Mapping[str, Any],
    found: Collector,
) -> None:
    here, there = labels_of(document).get(label), labels_of(own).get(label)
    if here is not None and _as_sets(here) != _as_sets(there):
        message = f"{file.name} has other properties in its variant.json"
        hint = "the wheel is right: nvidia-variant-provider upgrade --index FOLDER"
        found.add("NV405", join("variants", label), message, hint)
    # PEP 825: the lists "MUST either be identical, or the longer MUST start with
    # the elements of the shorter one".
    lists = sorted((_namespaces(document), _namespaces(own)), key=len)
    if lists[1][: len(lists[0])] != lists[0]:
        message = f"{file.name} orders the namespaces otherwise"
        hint = "neither list is the beginning of the other; use one for all wheels"
        found.add("NV406", "default-priorities.namespace", message, hint)
    providers, others = document.get("providers"), own.get("providers")
    if isinstance(providers, dict) and isinstance(others, dict):
        for namespace in sorted(providers.keys() & others.keys()):
            if providers[namespace] != others[namespace]:
                message = f"{file.name} has another provider"
                hint = "use one for all wheels"
                found.add("NV406", join("providers", namespace), message, hint)


def _compare_times(
    metadata: IndexFile,
    labelled: Sequence[tuple[IndexFile, WheelName]],
    found: Collector,
) -> None:
    if metadata.time is None:
        return
    newer = [
        file.name
        for file, _ in labelled
        if file.time is not None and file.time > metadata.time
    ]
    if newer:
        message = f"is older than its wheels, {min(newer)} for one"
        hint = "write it again: nvidia-variant-provider upgrade --index FOLDER"
        found.add("NV410", "", message, hint)


def _wheel_name(name: str, found: Collector) -> WheelName | None:
    try:
        return parse_wheel_name(name)
    except InputError as error:
        place = "" if os.path.basename(found.path) == name else name
        found.add("NV411", place, error.message, error.hint or "")
        return None


def _as_sets(properties: object) -> object:
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
