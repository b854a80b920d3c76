"""What the names of C++ functions and the versions of extensions say.

The rules of mangled names are those of the Itanium C++ ABI:
https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling

Projects outside of the package indexes publish a wheel of an extension for each torch,
and tell the wheels apart by the local version label. There is no standard for it. These
forms are read:

===================================  ==============================================
flash-attn, mamba-ssm                ``cu12torch2.8cxx11abiTRUE``
torch-scatter and its siblings       ``pt28cu126``
natten                               ``torch280cu128``
gptqmodel, sageattention             ``cu128torch2.7``, ``cu128torch2.8.0``
exllamav2                            ``cu128.torch2.8.0``
k2                                   ``cuda12.6.torch2.7.1``
torchvision, torchaudio              ``cu128``
===================================  ==============================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "OF_TORCH",
    "Abi",
    "Label",
    "abi_of",
    "parse_label",
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


_PART = re.compile(
    r"(?:cuda(?P<dotted_cuda>[0-9]{1,2}\.[0-9])"
    r"|cu(?P<cuda>[0-9]{2,3})"
    r"|(?:torch|pt)(?P<dotted_torch>[0-9]\.[0-9]{1,2})(?:\.[0-9]{1,2})?(?![0-9])"
    r"|torch(?P<torch>[0-9]{3,4})"
    r"|pt(?P<short_torch>[0-9]{2,3})"
    r"|cxx11abi(?P<abi>true|false))"
    r"(?:\.(?!$))?"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """What a label names.

    :param torch: such as ``(2, 8)``; ``None`` where it does not say.
    :param cuda: such as ``(12, 8)``, or ``(12,)``.
    :param abi: the C++ ABI.
    """

    torch: tuple[int, int] | None = None
    cuda: tuple[int, ...] | None = None
    abi: Abi | None = None


def parse_label(text: str) -> Label | None:
    """Read a local version label.

    :param text: without the ``+``, in upper or lower case. A normalized label has a
        dot instead of a dash or an underscore.
    :returns: ``None`` for every form that is not known, and where two parts are of one
        kind.
    """
    text = text.lower().replace("-", ".").replace("_", ".")
    if not text:
        return None
    parts: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            return None
        (key,) = (key for key, value in match.groupdict().items() if value is not None)
        kind = key.rpartition("_")[2]
        if kind in (known.rpartition("_")[2] for known in parts):
            return None
        parts[key] = match[key]
        at = match.end()
    return Label(torch=_torch(parts), cuda=_cuda(parts), abi=_abi(parts))


def _torch(parts: dict[str, str]) -> tuple[int, int] | None:
    if dotted := parts.get("dotted_torch"):
        major, minor = dotted.split(".")
        return int(major), int(minor)
    # "torch280" has the patch release as its last digit, "pt28" has none.
    digits = parts.get("torch", "")[:-1] or parts.get("short_torch")
    return (int(digits[0]), int(digits[1:])) if digits else None


def _cuda(parts: dict[str, str]) -> tuple[int, ...] | None:
    if dotted := parts.get("dotted_cuda"):
        return tuple(map(int, dotted.split(".")))
    digits = parts.get("cuda")
    if digits is None:
        return None
    # "cu12" is any CUDA 12; "cu126" is CUDA 12.6, and "cu92" was CUDA 9.2.
    split = 2 if digits[0] == "1" else 1
    return (int(digits[:split]), *map(int, digits[split:]))


def _abi(parts: dict[str, str]) -> Abi | None:
    if "abi" not in parts:
        return None
    return "new" if parts["abi"] == "true" else "old"
