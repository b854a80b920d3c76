"""The folders ``glibc-hwcaps``: copies of libraries for newer processors.

ld.so(8): "The dynamic loader will search for libraries in subdirectories of
glibc-hwcaps", of every folder that it looks into, before the folder itself. The names
are those of the levels in the psABI of x86-64. No other processor of wheels with GPU
code has any.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["FOLDER", "levels_of"]

FOLDER = "glibc-hwcaps"

_LEVELS: Mapping[str, str] = {
    "x86-64-v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "x86-64-v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}
"""The flags of Linux that each level needs in addition to those of the level before."""

_FIRST_GLIBC = (2, 33)


def levels_of(cpuinfo: str, glibc: str | None) -> tuple[str, ...]:
    """Return the names of the folders that the loader of a machine looks into.

    :param cpuinfo: the contents of ``/proc/cpuinfo``.
    :param glibc: its version, such as ``2.36``; ``None`` where it is not known.
    :returns: the preferred one first; none before glibc 2.33, which has other folders.
    """
    numbers = tuple(int(part) for part in (glibc or "").split(".") if part.isdigit())
    if glibc is not None and numbers < _FIRST_GLIBC:
        return ()
    line = next((x for x in cpuinfo.splitlines() if x.startswith("flags")), "")
    flags = set(line.partition(":")[2].split())
    levels: list[str] = []
    for level, needed in _LEVELS.items():
        if not flags.issuperset(needed.split()):
            break
        levels.insert(0, level)
    return tuple(levels)
