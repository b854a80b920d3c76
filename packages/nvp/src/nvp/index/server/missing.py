"""Files that a machine does not get, although a lock file of another machine has them.

The URL of a variant wheel has its label, and the name in it has the rank of the label
on the machine that the page was made for.
"""

from __future__ import annotations

from collections.abc import Iterable

from packaging.version import InvalidVersion, Version

from ..selection.choice import Choice

__all__ = ["explain_missing", "find_renamed"]


def find_renamed(choices: Iterable[Choice], label: str, name: str) -> str | None:
    """Return the name by which this machine gets a variant wheel.

    :param choices: what the page of the project shows.
    :param label: the label in the URL.
    :param name: the name in the URL, which the page does not have.
    """
    if name.endswith(".metadata"):
        renamed = find_renamed(choices, label, name.removesuffix(".metadata"))
        return f"{renamed}.metadata" if renamed is not None else None
    for choice in _of_version(choices, name):
        for offer in choice.offers:
            if offer.label == label and _tags(offer.name) == _tags(name):
                return offer.name if offer.name != name else None
    return None


def explain_missing(choices: Iterable[Choice], label: str, name: str) -> str | None:
    """Say which build a file is that this machine does not get, and which it gets.

    :returns: ``None`` for a file of which nothing is known.
    """
    wheel = name.removesuffix(".metadata")
    for choice in _of_version(choices, name):
        shown = any(offer.name == wheel for offer in choice.offers)
        if shown or label not in choice.available:
            continue
        release = f"{choice.project} {choice.version}"
        start = f"{name}: variant {label} of {release} "
        resolution = choice.resolution
        reasons = resolution.rejected.get(label, ()) if resolution else ()
        why = (
            f"does not fit this machine: {reasons[0].sentence}"
            if reasons
            else ("is not shown to this machine")
        )
        return f"{start}{why}; this machine gets {_best(choice)}"
    return None


def _best(choice: Choice) -> str:
    if choice.labels:
        return f"variant {choice.labels[0]}"
    return "the non-variant wheel" if choice.plain else "no build of this release"


def _of_version(choices: Iterable[Choice], name: str) -> list[Choice]:
    try:
        version = Version(name.split("-")[1])
    except (IndexError, InvalidVersion):
        return []
    return [choice for choice in choices if Version(choice.version) == version]


def _tags(name: str) -> list[str]:
    return name.split("-")[-3:]
