"""Requirements and environment markers in metadata, as `packaging` reads them.

They are other people's text: one that cannot be read is ``None`` here, never an
exception, also where it is nested too deeply for the parser.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.markers import Marker
    from packaging.requirements import Requirement

__all__ = ["marker_holds", "parse_marker", "parse_requirement"]


def parse_requirement(text: str) -> Requirement | None:
    """The requirement, or ``None`` when it cannot be read."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError):
        return None


def parse_marker(text: str) -> Marker | None:
    """The environment marker, or ``None`` when it cannot be read."""
    from packaging.markers import InvalidMarker, Marker

    try:
        return Marker(text)
    except (InvalidMarker, RecursionError):
        return None


def marker_holds(text: str, platform: Mapping[str, str] | None = None) -> bool | None:
    """Does an environment marker hold? ``None``: it cannot be read or compared.

    :param platform: variables that stand in for those of this machine.
    """
    marker = parse_marker(text)
    if marker is None:
        return None
    try:
        return marker.evaluate(dict(platform) if platform else None)
    except (ValueError, RecursionError):  # all that packaging raises is one of them
        return None
