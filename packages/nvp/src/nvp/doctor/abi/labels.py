"""What the version of an extension says about the torch that it was built with.

Projects outside of the package indexes publish a wheel for each torch, and tell them
apart by the local version label. There is no standard for it. These forms are read:

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

from .mangling import Abi

__all__ = ["Label", "parse_label"]

_PART = re.compile(
    r"(?:cuda(?P<dotted_cuda>[0-9]{1,2}\.[0-9])"
    r"|cu(?P<cuda>[0-9]{2,3})"
    r"|(?:torch|pt)(?P<dotted_torch>[0-9]\.[0-9]{1,2})(?:\.[0-9]{1,2})?(?![0-9])"
    r"|torch(?P<torch>[0-9]{3,4})"
    r"|pt(?P<short_torch>[0-9]{2,3})"
    r"|cxx11abi(?P<abi>true|false))"
    r"(?:\.(?!$))?"
)
_LONGEST = 64


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
    if not text or len(text) > _LONGEST:
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
