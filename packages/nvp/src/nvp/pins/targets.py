"""The platform and interpreter that pinned packages are installed for."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any

from nvidia_variant_provider.errors import UsageError, shown

from ..wheels.archive import expands_too_far, platform_of

_EXTRA = re.compile(r"""\bextra\s*(==|!=)\s*(["'])([^"']*)\2""")
_EXTRA_BEHIND = re.compile(r"""(["'])([^"']*)\1\s*(==|!=)\s*extra\b""")
_HOLDS, _FAILS = "os_name != ''", "os_name == ''"
_OF_UV = re.compile("(extra|group)-([0-9]{1,3})-(.+)")
_NEWEST_GLIBC = 43
_OLDEST_GLIBC = {"x86_64": 5, "i686": 5}
_PYTHON = re.compile(r"3\.([0-9]{1,2})(\.[0-9]{1,3})?|3([0-9]{1,2})")
_SYSTEMS = {
    "linux": {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"},
    "win": {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"},
    "macosx": {
        "sys_platform": "darwin",
        "platform_system": "Darwin",
        "os_name": "posix",
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PinTarget:
    """The platform and interpreter to install for.

    :param variables: the variables of environment markers.
    :param ranks: the accepted wheel tags, such as
        ``cp313-cp313-manylinux_2_28_x86_64``, each with its rank; 0 is the best.
    :param platform: the platform, such as ``linux_x86_64``, or the first platform tag.
    """

    variables: Mapping[str, str]
    ranks: Mapping[str, int] = field(repr=False)
    platform: str | None = None
    _known: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    @property
    def python(self) -> str:
        """The Python version, such as ``3.12``."""
        return self.variables["python_version"]

    def holds(
        self, marker: str, extras: frozenset[str], groups: frozenset[str]
    ) -> bool:
        """Return whether a marker holds with the chosen extras and groups.

        A marker that cannot be evaluated counts as true, so its package is checked.
        """
        from packaging.markers import Marker

        def settle(operator: str, name: str) -> str:
            has = _is_chosen(name, extras, groups)
            return _HOLDS if has is (operator == "==") else _FAILS

        marker = _EXTRA.sub(lambda x: settle(x[1], x[3]), marker)
        marker = _EXTRA_BEHIND.sub(lambda x: settle(x[3], x[2]), marker)
        # Cache the result if it does not depend on the chosen extras and groups.
        is_same = "extras" not in marker and "dependency_groups" not in marker
        if is_same and marker in self._known:
            return self._known[marker]
        variables: dict[str, Any] = dict(self.variables)
        variables.update(extras=extras, dependency_groups=groups)
        try:
            result = Marker(marker).evaluate(variables, context="lock_file")
        except (ValueError, RecursionError, KeyError):
            result = True
        if is_same:
            self._known[marker] = result
        return result

    def best(self, names: Iterable[str]) -> str | None:
        """Return the name of the best wheel for the target; ``None`` if none fits."""
        ranked = [
            (rank, name) for name in names if (rank := self.rank(name)) is not None
        ]
        return min(ranked, key=lambda item: item[0])[1] if ranked else None

    def rank(self, name: str) -> int | None:
        """Return the rank of the wheel ``name``; ``None`` if the wheel does not fit."""
        sets = tags_of(name)
        ranks = (self.ranks.get("-".join(tag)) for tag in product(*sets))
        return min((rank for rank in ranks if rank is not None), default=None)


def _is_chosen(name: str, extras: frozenset[str], groups: frozenset[str]) -> bool:
    """Return whether a name in a marker stands for a chosen extra or group.

    The names in markers of uv consist of the kind, the length of the project's name,
    that name, and the name of the choice: ``extra-7-project-cu128``.
    """
    if name in extras:
        return True
    if match := _OF_UV.fullmatch(name):
        start = int(match[2]) + 1
        return match[3][start:] in (extras if match[1] == "extra" else groups)
    return False


@lru_cache(maxsize=4096)
def tags_of(name: str) -> tuple[tuple[str, ...], ...]:
    """Return the interpreters, ABIs and platforms in the name of a wheel.

    The result is ``((),)`` for other file names, and for names with unrealistically
    many tags. Variant labels are ignored.
    """
    parts = name.removesuffix(".whl").split("-")
    has_build = len(parts) > 5 and parts[2][:1].isdigit()
    tags = parts[2 + has_build : 5 + has_build]
    if len(tags) != 3 or not name.endswith(".whl") or expands_too_far("-".join(tags)):
        return ((),)
    return tuple(tuple(part.lower().split(".")) for part in tags)


def find_target(
    requires_python: str | None = None,
    *,
    platforms: Sequence[str] = (),
    python_version: str | None = None,
    abis: Sequence[str] = (),
) -> PinTarget:
    """Return the target that options describe; by default, this platform and Python.

    :param requires_python: the Python versions that a file allows. If they exclude the
        running version, the target has an allowed version.
    :param platforms: platform tags as for pip, such as ``manylinux_2_28_x86_64`` or
        ``win_amd64``; ``linux_x86_64`` allows every glibc.
    :param python_version: the Python version, such as ``3.12``, ``3.12.4`` or ``312``.
    :param abis: the ABI tags, such as ``cp312``.
    :raises UsageError: an option has an invalid value.
    """
    from packaging import markers, tags

    variables = {k: str(v) for k, v in markers.default_environment().items()}
    short = sys.version_info[:2]
    full = None
    if python_version is not None:
        match = _PYTHON.fullmatch(python_version)
        if match is None:
            message = f"{shown(python_version)} is not a version of Python 3"
            hint = "give one such as 3.12"
            raise UsageError(message, path="--python-version", hint=hint)
        short = 3, int(match[1] or match[3])
        full = python_version if match[2] else None
    else:
        short = _allowed(requires_python, short)
    if short != sys.version_info[:2] or full:
        plain = f"{short[0]}.{short[1]}"
        full = full or f"{plain}.0"
        variables |= {"python_version": plain, "python_full_version": full}
        variables |= {"implementation_version": full}
    names = [name for platform in platforms for name in _expand(platform)]
    names = names or list(tags.platform_tags())
    if platforms:
        variables |= _variables_of(names[0])
    own = list(abis) or None
    interpreter = f"cp{short[0]}{short[1]}"
    found = [
        *tags.cpython_tags(short, own or [interpreter], names),
        *tags.compatible_tags(short, interpreter, names),
    ]
    ranks: dict[str, int] = {}
    for rank, tag in enumerate(found):
        ranks.setdefault(str(tag), rank)
    return PinTarget(
        variables=variables,
        ranks=ranks,
        platform=platform_of(names[0]) or names[0],
    )


def _allowed(requires_python: str | None, here: tuple[int, int]) -> tuple[int, int]:
    from packaging.specifiers import SpecifierSet

    try:
        allowed = SpecifierSet(requires_python or "")
        minors = [n for n in range(8, 31) if allowed.contains(f"3.{n}.99")]
        if f"{here[0]}.{here[1]}.99" in allowed or not minors:
            return here
    except ValueError:
        return here
    # With only a lower bound, take the oldest version, which surely has wheels.
    return 3, (minors[0] if minors[-1] == 30 else minors[-1])


def _expand(platform: str) -> list[str]:
    """Return the platform tags that pip accepts for ``platform``, best first."""
    name = platform.replace("-", "_").replace(".", "_").lower()
    legacy = {"2014": 17, "2010": 12, "1": 5}
    match = re.fullmatch(
        r"(?:many)?linux(?:_2_(?P<minor>[0-9]{1,3})|(?P<year>2014|2010|1))?_"
        r"(?P<machine>x86_64|aarch64|i686|ppc64le|s390x|armv7l|riscv64)",
        name,
    )
    if match is None:
        if _system(name) is None:
            message = f"{shown(platform)} is not a platform that is known"
            hint = "give one such as manylinux_2_28_x86_64, linux_aarch64 or win_amd64"
            raise UsageError(message, path="--platform", hint=hint)
        if mac := re.fullmatch(r"macosx_([0-9]{1,2})_([0-9]{1,2})_([a-z0-9_]+)", name):
            from packaging.tags import mac_platforms

            return list(mac_platforms((int(mac[1]), int(mac[2])), mac[3]))
        return [name]
    machine = match["machine"]
    minor = legacy[match["year"]] if match["year"] else int(match["minor"] or 0)
    oldest = _OLDEST_GLIBC.get(machine, 17)
    found = []
    for number in range(minor or _NEWEST_GLIBC, oldest - 1, -1):
        found.append(f"manylinux_2_{number}_{machine}")
        found += [
            f"manylinux{year}_{machine}"
            for year, first in legacy.items()
            if first == number
        ]
    return [*found, f"linux_{machine}"]


def _system(name: str) -> str | None:
    return next((x for x in _SYSTEMS if name.startswith((x, f"many{x}"))), None)


def _variables_of(name: str) -> dict[str, str]:
    system = _system(name)
    if system is None:
        return {}
    ends = ("x86_64", "aarch64", "arm64", "amd64", "i686", "win32")
    machine = next((x for x in ends if name.endswith(x)), name.rpartition("_")[2])
    machine = {"amd64": "AMD64", "win32": "x86"}.get(machine, machine)
    machine = "ARM64" if (system, machine) == ("win", "arm64") else machine
    return {**_SYSTEMS[system], "platform_machine": machine}
