"""METADATA of a wheel with its variant markers settled."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..metadata.markers import (
    SelectedVariant,
    evaluate_requirement,
)

__all__ = ["evaluate_core_metadata"]

_REQUIRES = re.compile(rb"Requires-Dist[ \t]*:", re.IGNORECASE)
_FOLD = re.compile(rb"\r?\n[ \t]+")


def evaluate_core_metadata(data: bytes, variant: SelectedVariant) -> bytes:
    """Settle the variant markers of each ``Requires-Dist`` field.

    Every other byte stays as it is, the description included.

    :param data: the bytes of METADATA.
    :raises InputError: a variant marker is used in a way that PEP 825 does not define.
    """
    return b"".join(_evaluated(data, variant))


def _evaluated(data: bytes, variant: SelectedVariant) -> Iterator[bytes]:
    fields, description = _split(data)
    for field in fields:
        match = _REQUIRES.match(field)
        if match is None:
            yield field
            continue
        value = field[match.end() :]
        text = _FOLD.sub(b" ", value.rstrip(b"\r\n")).decode("utf-8", "surrogateescape")
        settled = evaluate_requirement(text.strip(), variant)
        if settled == text.strip():
            yield field
        elif settled is not None:
            end = value[len(value.rstrip(b"\r\n")) :]
            encoded = settled.encode("utf-8", "surrogateescape")
            yield match.group() + b" " + encoded + end
    yield description


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the header fields with their continuation lines, and the rest."""
    fields: list[bytes] = []
    position = 0
    while position < len(data):
        end = data.find(b"\n", position) + 1 or len(data)
        line = data[position:end]
        if not line.strip(b"\r\n"):
            break
        if fields and line[:1] in (b" ", b"\t"):
            fields[-1] += line
        else:
            fields.append(line)
        position = end
    return fields, data[position:]
