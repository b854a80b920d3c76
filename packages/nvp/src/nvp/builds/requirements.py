"""Builds that cannot run because what they require cannot.

torchvision 0.29 requires ``torch>=2.14.0``. Where no such torch runs, neither does
torchvision: an installer that took it would let the torch that cannot run in again,
since an exact pin of a dependency admits yanked files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.utils import canonicalize_name
from packaging.version import Version

from .verdicts import Judgement

__all__ = ["find_refusal", "judge_by_pin", "required_projects"]


def required_projects(
    requires: Iterable[str], projects: Iterable[str]
) -> dict[str, str]:
    """Find the requirements on projects that have GPU builds.

    Requirements of extras do not count, since an installation without the extra does
    not need them.

    :param requires: the ``Requires-Dist`` fields.
    :param projects: normalized names, such as those of the build table.
    :returns: the requirement's text by project.
    """
    from nvidia_variant_provider.metadata.requirements import parse_requirement

    wanted = frozenset(projects)
    required: dict[str, str] = {}
    for text in requires:
        # The parser is slow, and a wheel may have hundreds of requirements.
        if not any(canonicalize_name(text).startswith(name) for name in wanted):
            continue
        requirement = parse_requirement(text)
        if requirement is None or "extra" in str(requirement.marker or ""):
            continue
        name = canonicalize_name(requirement.name)
        if name in wanted:
            required[name] = f"{requirement.name}{requirement.specifier}"
    return required


def find_refusal(
    requirement: str, judged: Mapping[Version, Sequence[Judgement]]
) -> str | None:
    """Say why no release that satisfies a requirement runs.

    :param requirement: such as ``torch>=2.14.0``.
    :param judged: by release, the judgement of each of its builds.
    :returns: ``None`` when one runs, when one may run, or when none satisfies it at
        all, which is for the installer to say.
    """
    from nvidia_variant_provider.metadata.requirements import parse_requirement

    parsed = parse_requirement(requirement)
    if parsed is None:
        return None
    allowed = [
        version
        for version in parsed.specifier.filter(sorted(judged), prereleases=True)
        if judged[version]
    ]
    if not allowed:
        return None
    for version in allowed:
        if any(judgement.verdict != "cannot" for judgement in judged[version]):
            return None
    newest = allowed[-1]
    reason = next(iter(judged[newest][0].reasons), "it cannot run")
    return f"it requires {requirement}, and none of these runs here: {newest}: {reason}"


def judge_by_pin(
    requirement: str, judged: Mapping[Version, Sequence[Judgement]]
) -> Judgement | None:
    """Judge a build by the build that it requires exactly.

    torchvision 0.25.0 requires ``torch==2.10.0``: it was built against that release,
    and runs with it.

    :param requirement: such as ``torch==2.10.0``; a range says nothing, since it does
        not name what the build was made with.
    :param judged: by release, the judgement of each of its builds.
    :returns: ``None`` when no build of that release is known to run.
    """
    from nvidia_variant_provider.metadata.requirements import parse_requirement

    parsed = parse_requirement(requirement)
    if parsed is None or [s.operator for s in parsed.specifier] != ["=="]:
        return None
    running = [
        judgement
        for version in parsed.specifier.filter(judged, prereleases=True)
        for judgement in judged[version]
        if judgement.verdict in ("runs", "partly")
    ]
    if not running:
        return None
    cuda = {judgement.cuda for judgement in running}
    return Judgement(
        verdict="runs",
        evidence="metadata",
        reasons=(f"it requires {requirement}, which runs here; its code was not read",),
        cuda=cuda.pop() if len(cuda) == 1 else None,
        strict=all(judgement.strict for judgement in running),
    )
