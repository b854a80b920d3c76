"""The interpreter that wheels are selected for: its version and its tags."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags, sys_tags

from nvidia_variant_provider.errors import InputError

_QUESTION = (
    "import json, sys, sysconfig; print(json.dumps(["
    "sys.implementation.name, list(sys.version_info[:3]), "
    "bool(sysconfig.get_config_var('Py_GIL_DISABLED'))]))"
)

_TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """A Python on this machine.

    :param version: such as ``3.13.9``.
    :param ranks: the tags of the wheels that it can use, each with its rank; 0 is the
        best.
    """

    version: str
    ranks: Mapping[Tag, int] = field(repr=False)

    @property
    def platforms(self) -> frozenset[str]:
        """The platforms of the machine, ``any`` among them."""
        return frozenset(tag.platform for tag in self.ranks)

    def rank(self, tags: Iterable[Tag]) -> int | None:
        """Return the rank of a wheel; ``None`` for one that it cannot use."""
        return min((self.ranks[tag] for tag in tags if tag in self.ranks), default=None)

    def is_allowed(self, requires_python: str | None) -> bool:
        """Return whether a file is for this version; pip ignores a malformed rule."""
        try:
            return not requires_python or self.version in SpecifierSet(requires_python)
        except ValueError:  # `InvalidSpecifier`, or a number that is too long.
            return True


def find_interpreter(python: str, environ: Mapping[str, str]) -> Interpreter:
    """Ask an interpreter of this machine what it is.

    :param python: its path.
    :raises InputError: it cannot be run.
    """
    if python == sys.executable:
        version = ".".join(map(str, sys.version_info[:3]))
        return _make(version, sys_tags())
    try:
        done = subprocess.run(  # noqa: S603
            [python, "-I", "-c", _QUESTION],
            env=dict(environ),
            capture_output=True,
            timeout=_TIMEOUT,
            check=True,
        )
        name, numbers, free_threaded = json.loads(done.stdout)
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        message = "does not run as an interpreter of Python"
        raise InputError(message, path=python, hint="see --python") from None
    short = (int(numbers[0]), int(numbers[1]))
    plain = f"cp{short[0]}{short[1]}"
    tags: list[Tag] = []
    if name == "cpython":
        tags += cpython_tags(short, abis=[f"{plain}t" if free_threaded else plain])
    tags += compatible_tags(short, plain if name == "cpython" else None)
    return _make(".".join(map(str, numbers)), tags)


def _make(version: str, tags: Iterable[Tag]) -> Interpreter:
    ranks: dict[Tag, int] = {}
    for rank, tag in enumerate(tags):
        ranks.setdefault(tag, rank)
    return Interpreter(version=version, ranks=ranks)
