"""Asking the other provider plugins that are installed here.

Plugins of the entry-point group ``variant_plugins`` are other people's code: an
exception of one becomes a reason, and what it prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points

from ..errors import shown
from .providers import ENTRY_POINT_GROUP, Answer

__all__ = ["ask_plugins"]


def ask_plugins(namespaces: Sequence[str]) -> dict[str, Answer]:
    """The answer of the plugin of each namespace, or why there is none."""
    installed: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        installed.setdefault(point.name, []).append(point)
    return {name: _ask(installed.get(name, [])) for name in namespaces}


def _ask(points: Sequence[EntryPoint]) -> Answer:
    endpoints = {point.value: point for point in points}
    if not endpoints:
        return Answer(why_not="no provider plugin for it is installed here")
    if len(endpoints) > 1:
        # PEP 817: attempting to load multiple plugins for one namespace "MUST
        # result in a fatal error"; here it costs the namespace its answer.
        names = ", ".join(sorted(endpoints))
        return Answer(why_not=f"several installed plugins claim it: {names}")
    (point,) = endpoints.values()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            features = _features(point)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it does
        text = f"{type(error).__name__}: {error}"
        return Answer(why_not=f"its plugin {point.value} failed with {shown(text)}")
    return Answer(features=features)


def _features(point: EntryPoint) -> Mapping[str, tuple[str, ...]]:
    plugin = point.load()
    # An endpoint is a module or a class (PEP 817). Classes of the first plugins
    # have plain methods, which need an instance; class methods do not mind one.
    if isinstance(plugin, type):
        plugin = plugin()
    features = {}
    for config in plugin.get_supported_configs():
        if isinstance(config.values, str):
            raise TypeError("the values of a feature are one string")
        values = tuple(config.values)
        if not isinstance(config.name, str) or not all(
            isinstance(value, str) for value in values
        ):
            raise TypeError("a feature's name or value is not a string")
        features[config.name] = values
    return features
