"""Wheels for other platforms, as installers see them that lock for several at once.

uv, poetry and pdm lock one version for every platform, and take a release for a
candidate when one of its files is not yanked. A wheel for Windows would therefore bring
in a release whose wheel for this machine is yanked, and the lock file would have both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .page import Build, Decision

if TYPE_CHECKING:
    from packaging.version import Version

__all__ = ["decide_elsewhere"]

_SHOW = Decision(action="show")


def decide_elsewhere(
    here: Iterable[Build],
    decided: Mapping[str, Decision],
    elsewhere: Iterable[Build],
    *,
    driver: bool,
) -> dict[str, Decision]:
    """Decide what becomes of wheels that this machine cannot install.

    A version with a local label is decided as on this machine. A release of which
    nothing is shown for this machine is not shown at all.

    :param here: the wheels that this machine can install.
    :param decided: what becomes of them, by file.
    :param driver: the machine has an NVIDIA driver.
    :returns: by file, what becomes of the wheels ``elsewhere``. A release without a
        wheel for this machine stays as it is.
    """
    versions: dict[Version, Decision] = {}
    releases: dict[Version, Decision] = {}
    for build in here:
        decision = decided[build.file]
        for known, key in ((versions, build.version), (releases, build.release)):
            if key not in known or decision.action == "show":
                known[key] = decision
    files: dict[str, Decision] = {}
    for build in elsewhere:
        decision = releases.get(build.release, _SHOW)
        if decision.action == "show":
            # Of a release that is shown, its other labels stay away.
            decision = versions.get(build.version, _SHOW)
        foreign = build.backend is not None and build.backend.is_foreign
        if foreign and driver and build.version not in versions:
            # As on this machine: pip and uv would take +xpu under an exact pin.
            reason = "it is for hardware of another maker"
            decision = Decision(action="hide", reason=reason)
        files[build.file] = decision
    return files
