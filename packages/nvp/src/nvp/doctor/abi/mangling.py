"""What the mangled name of a C++ function says.

Itanium C++ ABI: https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

__all__ = [
    "OF_TORCH",
    "Abi",
    "abi_of",
    "qualified_name",
    "with_other_tag",
]

Abi: TypeAlias = Literal["new", "old"]
"""The C++ ABI of GCC's standard library: ``new`` since GCC 5, which is
``_GLIBCXX_USE_CXX11_ABI=1``, or ``old``."""

OF_TORCH = re.compile(
    # Functions, and the tables of classes; "N" begins a name inside a namespace, and
    # "K" says that the function is const.
    rb"_Z(?:T[VTISC]|GV|Th?n?[0-9_]+)?N[VKRO]*(?:3c10|2at|5torch|6caffe2)"
    # The functions of the stable ABI, which C can call, and those for Python.
    rb"|(?:aoti_)?torch_|THP[A-Z]"
)
"""What the names that belong to torch begin with."""

_NESTED = re.compile(rb"_Z(?:T[VTISC]|GV|Th?n?[0-9_]+)?N[VKRO]*")
_TAG = b"B5cxx11"
_IN_NAMESPACE = b"7__cxx11"

_LENGTH = re.compile(rb"[0-9]{1,6}")
_TOKEN = re.compile(
    rb"(?P<length>[0-9]+)"
    rb"|L[a-z]n?[0-9]+E"  # a number as the argument of a template
    rb"|S[0-9A-Z]*_|T[0-9A-Z]*_"  # something that has been named before
    rb"|(?P<string>Ss)"  # std::string of the old ABI
    rb"|.",
    re.DOTALL,
)


def abi_of(name: bytes) -> Abi | None:
    """Return which ABI the parameters or the result of a function are of.

    :returns: ``None`` where the name says nothing, as most names do.
    """
    # GCC: "in the new ABI ... std::string is std::__cxx11::string", and a function
    # that returns one has the tag in its name.
    if _IN_NAMESPACE in name or _TAG in name:
        return "new"
    return "old" if b"Ss" in name and _has_old_string(name) else None


def with_other_tag(name: bytes) -> bytes | None:
    """Return the name that the same function has in the other ABI.

    :returns: ``None`` where more than the tag would be different.
    """
    if _TAG in name:
        return name.replace(_TAG, b"")
    end = _end_of_name(name)
    return None if end is None else name[:end] + _TAG + name[end:]


def qualified_name(name: bytes) -> str:
    """Return a name for people, such as ``c10::detail::torchCheckFail``.

    What is not a plain name inside of namespaces stays as it is.
    """
    match = _NESTED.match(name)
    if match is None:
        return name.decode("utf-8", "backslashreplace")
    parts, _ = _identifiers(name, match.end())
    return "::".join(parts) or name.decode("utf-8", "backslashreplace")


def _end_of_name(name: bytes) -> int | None:
    """Return where a plain name inside of namespaces ends."""
    match = _NESTED.match(name)
    if match is None:
        return None
    _, at = _identifiers(name, match.end())
    return at if name[at : at + 1] == b"E" else None


def _identifiers(name: bytes, at: int) -> tuple[list[str], int]:
    """Return the identifiers that stand in a row, and where they end."""
    parts = []
    while match := _LENGTH.match(name, at):
        at = match.end() + int(match[0])
        text = name[match.end() : at]
        parts.append(text.decode("utf-8", "backslashreplace"))
    return parts, min(at, len(name))


def _has_old_string(name: bytes) -> bool:
    at = 0
    while match := _TOKEN.match(name, at):
        if match["string"]:
            return True
        at = match.end()
        digits = match["length"]
        if digits:
            # The identifier itself says nothing: it may contain the two letters.
            at += int(digits[:6])
    return False
