"""Hashes that a user pinned, of builds that this machine is not shown.

pip says that somebody may have tampered with a file when the one that it takes has
another hash than the user gave, or that there is no matching one. The true reason is
often that the hash is that of a build for another machine.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from simple_repository import model

from nvidia_variant_provider.errors import InputError

from ...wheels.names import parse_wheel_name
from ..selection.choice import ShownPage
from ..server.local_index import LocalIndex
from .command import PipCommand
from .named_labels import read_lines

__all__ = ["explain_hashes", "explain_pinned_hashes", "find_pinned_hashes"]

_LINE = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*).*?--hash", re.DOTALL)
_HASH = re.compile(r"--hash[=\s]\s*sha256:([0-9A-Fa-f]{64})(?![0-9A-Fa-f])")


def find_pinned_hashes(command: PipCommand) -> Mapping[str, frozenset[str]]:
    """Find the SHA-256 hashes that requirements files give, by normalized project."""
    text = "\n".join(read_lines(command))
    pinned: dict[str, frozenset[str]] = {}
    # A backslash at the end of a line continues it.
    for line in re.sub(r"\\[ \t]*\n", " ", text).splitlines():
        match = _LINE.match(line)
        hashes = {digest.lower() for digest in _HASH.findall(line)}
        if match is not None and hashes:
            project = canonicalize_name(match[1])
            pinned[project] = pinned.get(project, frozenset()) | hashes
    return pinned


def explain_pinned_hashes(
    command: PipCommand, local_index: LocalIndex
) -> tuple[str, ...]:
    """Say which hashes of the user are those of builds that are not shown.

    :param local_index: it has to serve.
    """
    sentences = (
        explain_hashes(project, hashes, local_index.find_shown(project))
        for project, hashes in find_pinned_hashes(command).items()
    )
    return tuple(filter(None, sentences))


def explain_hashes(
    project: str, hashes: Collection[str], pages: Sequence[ShownPage]
) -> str | None:
    """Say why no build with one of the hashes is shown.

    :param hashes: those that the user gave for the project.
    :param pages: the page of the project in each index that has it.
    :returns: ``None`` where one is shown, or where no file has any of them.
    """
    for page in pages:
        if any(_digest(file) in hashes for file in page.shown):
            return None
    for page in pages:
        for file in page.files:
            if _digest(file) in hashes:
                return _explain(project, file, page)
    return None


def _explain(project: str, file: model.File, page: ShownPage) -> str | None:
    try:
        parts = parse_wheel_name(file.filename)
        version = Version(parts.version.replace("_", "-"))
    except (InputError, InvalidVersion):
        return None
    if parts.label is None:
        return _explain_build(project, version, file, page)
    for choice in page.choices.values():
        if Version(choice.version) != version or parts.label in choice.labels:
            continue
        rejected = choice.resolution.rejected if choice.resolution else {}
        if reasons := rejected.get(parts.label):
            why = f"does not fit this machine: {reasons[0].sentence}"
        elif parts.label in choice.unread:
            why = f"is passed over: {choice.unread[parts.label]}"
        else:
            why = f"is not shown: {choice.problem or 'another one is asked for'}"
        others = [offer.wheel.file_name for offer in choice.offers]
        others += sorted(choice.plain)
        what = f"variant {parts.label} of {project} {choice.version}"
        return _sentence(file, what, why, others, page)
    return None


def _explain_build(
    project: str, version: Version, file: model.File, page: ShownPage
) -> str | None:
    if page.judged is None:
        return None
    decisions = page.judged.decisions
    decision = decisions.files.get(file.filename)
    if decision is None or decision.action != "hide":
        return None
    release = Version(version.public)
    others = [
        build.file
        for build in page.judged.builds
        if build.release == release
        and decisions.files.get(build.file, decision).action == "show"
    ]
    what = f"{project} {version}"
    why = f"is not for this machine: {decision.reason}"
    return _sentence(file, what, why, others, page)


def _sentence(
    file: model.File, what: str, why: str, others: Sequence[str], page: ShownPage
) -> str:
    """Say whose hash it is, why that file is not shown, and what to pin instead."""
    files = {item.filename: item for item in page.files}
    # Prefer the wheel for the same interpreter and platform.
    tags = file.filename.split("-")[-4:-1] if "-any" not in file.filename else []
    same = [name for name in others if all(tag in name for tag in tags)]
    instead = next(
        (name for name in [*same, *others] if _digest(files[name]) is not None), None
    )
    end = "no build of this release is for this machine"
    if instead is not None:
        end = f"pin that of {instead}: --hash=sha256:{_digest(files[instead])}"
    digest = _digest(file) or ""
    return (
        f"the hash sha256:{digest[:12]}... that you give is that of {what} "
        f"({file.filename}), which {why}; {end}"
    )


def _digest(file: model.File) -> str | None:
    digest = file.hashes.get("sha256")
    return None if digest is None else digest.lower()
