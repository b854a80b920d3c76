"""What installed distributions require of each other, extras included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from ..metadata.requirements import parse_requirement
from .distributions import Distribution
from .installation import Installation

if TYPE_CHECKING:
    from packaging.requirements import Requirement

__all__ = ["Need", "find_needs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """One requirement of an installed distribution that holds here.

    :param user: the distribution that has the requirement.
    :param text: the requirement without its marker, such as ``triton==3.9.0``.
    """

    user: Distribution
    name: str
    text: str
    requirement: Requirement

    def allows(self, version: str) -> bool:
        """Return whether a version satisfies it; one that is malformed does not."""
        # PEP 440: "Local version identifiers are ignored" where the specifier has none.
        return self.requirement.specifier.contains(version, prereleases=True)


def find_needs(
    distributions: Mapping[str, Distribution], installation: Installation
) -> Iterator[Need]:
    """Yield the requirements that hold for an environment.

    Requirements of extras count where another installed distribution asks for the
    extra, such as torch for ``cuda-toolkit[cublas]``.
    """
    variables = installation.marker_variables()
    extras: dict[str, set[str]] = {name: {""} for name in distributions}
    waiting = list(distributions)
    seen: set[tuple[str, str, str]] = set()
    parsed: dict[str, list[Requirement]] = {}
    while waiting:
        user = distributions[waiting.pop()]
        if user.name not in parsed:
            parsed[user.name] = [
                item for text in user.requires if (item := parse_requirement(text))
            ]
        for requirement in parsed[user.name]:
            active = extras[user.name]
            if not any(_holds(requirement, {**variables, "extra": e}) for e in active):
                continue
            name = canonicalize_name(requirement.name)
            text = f"{requirement.name}{requirement.specifier}"
            key = (user.name, name, text)
            if key not in seen:
                seen.add(key)
                yield Need(user=user, name=name, text=text, requirement=requirement)
            wanted = {canonicalize_name(extra) for extra in requirement.extras}
            if name in extras and not wanted <= extras[name]:
                extras[name] |= wanted
                waiting.append(name)


def _holds(requirement: Requirement, variables: Mapping[str, str]) -> bool:
    if requirement.marker is None:
        return True
    try:
        return requirement.marker.evaluate(dict(variables))
    except (ValueError, RecursionError):
        return False
