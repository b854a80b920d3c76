"""Structure-aware mutations of documents, texts and binaries for `benchmarks.fuzz`."""

from __future__ import annotations

import copy
import json
import pickle
import random
import re
import struct
from collections.abc import Sequence
from typing import Any

__all__ = ["mutate_binary", "mutate_json", "mutate_text"]

NUMBERS = (0, 1, 2, 3, 7, 8, 16, 24, 63, 64, 127, 255, 4095, 4096, 65535, 1 << 20)
LARGE = (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)

WORDS = (
    *("", " ", "\0", "\ud800", "\u202e", "\x1b[2J", "é", "²", "٣", "0", "-1", "1e999"),
    *("9" * 5000, "1." * 300, "a" * 70_000, "(" * 400, "[" * 3000, "%00", "../" * 30),
    *("NaN", "Infinity", "null", "true", "1.0", "1!2.0.post3.dev4+cu128", "2.9.0"),
    *("cu128", "nvidia", "sm_arch", "90_real", "90a_virtual", "cuda_version", "12.8"),
    *("nvidia :: sm_arch :: 90_real", "cuda_version_lower_bound", "blas_lapack"),
    *('python_version < "3" and ' * 40, 'extra == "x"', "torch==2.9.0; os_name == ''"),
    *("file:///etc/passwd", "http://[::1", "//host/", "https://u:p@h/#sha256=0", "#"),
    *(
        "torch-2.9.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "t-1.0-py3-none-any-cu1.whl",
    ),
    *("sha256=" + "0" * 64, "sha256", "2026-11-22T12:00:00Z", "$ORIGIN/${LIB}", ",,,"),
)

COUNTS = (300, 3000, 30_000)
"""The numbers of copies of a value or line."""

LARGEST = 1 << 20
"""The maximum length of a text, in bytes."""

GROWN = 1 << 18
"""The maximum length of all copies of a value or line, in bytes. A reader whose time
grows with the square of it is found, and one that reads it once is fast enough."""

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, float("nan"), float("inf"), 10**400, [], {}),
    *([[]], {"": None}, [None] * 50, {str(n): n for n in range(40)}, *LARGE),
)


def mutate_json(rng: random.Random, seeds: Sequence[Any]) -> Any:
    """Return a changed copy of one of the documents, as `json.loads` returns them."""
    # This is several times as fast as `copy.deepcopy`.
    document = pickle.loads(pickle.dumps(rng.choice(seeds), -1))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        places = list(_places(document))
        if not places:
            return rng.choice(VALUES)
        container, key = rng.choice(places)
        _change(rng, container, key, places)
    return document


def _places(document: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [document] if isinstance(document, (dict, list)) else []
    while waiting and len(found) < 3000:
        item = waiting.pop()
        keys = item if isinstance(item, dict) else range(len(item))
        found += [(item, key) for key in keys]
        values = item.values() if isinstance(item, dict) else item
        waiting += [value for value in values if isinstance(value, (dict, list))]
    return found


def _change(
    rng: random.Random, container: Any, key: Any, places: Sequence[tuple[Any, Any]]
) -> None:
    value = container[key]
    kind = rng.randrange(9)
    if not rng.randrange(60):
        _grow(rng, container, key)
    elif kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, dict):
        names = [name for _, name in places if isinstance(name, str)]
        name = mutate_word(rng, key) if rng.random() < 0.5 else rng.choice(names)
        container[name] = container.pop(key)
    elif kind == 1:
        container += copy.deepcopy([value] * rng.choice((1, 2, 30)))
    elif kind in (2, 3):
        other, name = rng.choice(places)
        container[key] = copy.deepcopy(other[name])
    elif kind == 4:
        container[key] = [value] if rng.random() < 0.5 else {"x": value}
    elif isinstance(value, str) and kind < 8:
        container[key] = mutate_word(rng, value)
    elif isinstance(value, (int, float)) and kind < 7:
        container[key] = rng.choice((*NUMBERS, *LARGE, -value, value + 1, value // 2))
    else:
        container[key] = copy.deepcopy(rng.choice(VALUES))


def _grow(rng: random.Random, container: Any, key: Any) -> None:
    """Nest a value deeply, or repeat it with other numbers."""
    value = container[key]
    if rng.random() < 0.2:
        for _ in range(rng.choice((30, 100))):
            value = [value] if rng.random() < 0.5 else {"x": value}
        container[key] = value
        return
    count = min(rng.choice(COUNTS), GROWN // (len(repr(value)) + 20))
    copies = [_renumbered(value, number) for number in range(count)]
    if isinstance(container, dict):
        container.update((_renumbered(f"{key}0", n), x) for n, x in enumerate(copies))
    else:
        container += copies


def _renumbered(value: Any, number: int) -> Any:
    """Return a copy of a value with another number in its texts."""
    if isinstance(value, str):
        return re.sub("[0-9]+", str(number), value)
    if isinstance(value, list):
        return [_renumbered(item, number) for item in value]
    if isinstance(value, dict):
        return {key: _renumbered(item, number) for key, item in value.items()}
    return value


def mutate_word(rng: random.Random, text: str) -> str:
    """Return a changed short text, such as a version or a label."""
    kind = rng.randrange(6)
    at = rng.randrange(len(text) + 1)
    if kind == 0:
        return rng.choice(WORDS)
    if kind == 1:
        return text[:at] + rng.choice(WORDS) + text[at:]
    if kind == 2:
        return text[:at] + text[at + rng.randrange(1, 4) :]
    if kind == 3:
        return text[:at] + chr(rng.choice((0, 9, 10, 32, 34, 39, 45, 46, 58, 95, 300)))
    if kind == 4 and (numbers := list(re.finditer("[0-9]+", text))):
        found = rng.choice(numbers)
        number = rng.choice((*map(str, NUMBERS), "00", "9" * 20, "9" * 4301, "-1"))
        return text[: found.start()] + number + text[found.end() :]
    return text[at:] + text[:at] if kind == 5 else text * rng.choice((2, 3, 100))


def dump(document: Any) -> bytes:
    """Write a document as JSON, maybe with syntax that only Python's own reader
    accepts."""
    try:
        return json.dumps(document).encode("ascii")
    except (ValueError, RecursionError):  # an integer has too many digits
        return b'{"a": ' + b"9" * 5000 + b"}"


_TOKEN = re.compile(
    rb"\r?\n|[<>=:,;\"'{}\[\]()#&|/!~]|[ \t]+|[^\s<>=:,;\"'{}\[\]()#&|/!~]+"
)


def mutate_text(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return a changed copy of one of the texts: its tokens or lines change."""
    data = rng.choice(seeds)
    by_line = rng.random() < 0.4
    tokens = data.splitlines(keepends=True) if by_line else _TOKEN.findall(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        if not tokens:
            break
        at = rng.randrange(len(tokens))
        kind = rng.randrange(7)
        if not rng.randrange(100):
            piece = tokens[at : at + rng.choice((1, 1, 4, 12))]
            count = rng.choice(COUNTS)
            numbers = range(min(count, GROWN // (sum(map(len, piece)) + 5)))
            tokens[at:at] = [
                re.sub(rb"[0-9]+", b"%d" % number, token)
                for number in numbers
                for token in piece
            ]
        elif kind == 0:
            del tokens[at : at + rng.choice((1, 1, 3, 20))]
        elif kind == 1:
            tokens[at:at] = tokens[at : at + rng.choice((1, 4))] * rng.choice((1, 9))
        elif kind == 2:
            tokens[at] = rng.choice(tokens)
        elif kind == 3:
            other = rng.choice(seeds)
            start = rng.randrange(len(other) + 1)
            tokens.insert(at, other[start : start + rng.randrange(1, 400)])
        elif kind == 4:
            tokens[at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 6)))
        else:
            word = mutate_word(rng, tokens[at].decode("utf-8", "replace"))
            # Several changes may each repeat the same token 100 times.
            tokens[at] = word.encode("utf-8", "surrogatepass")[: 1 << 18]
    return b"".join(tokens)[:LARGEST]


def mutate_binary(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return a changed copy of a binary: numbers in its tables, pieces, its length."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        kind = rng.randrange(12)
        size = len(data)
        if size < 16:
            data += rng.choice(seeds)[:64]
        elif kind == 0:
            del data[rng.randrange(size) :]
        elif kind == 1:
            other = rng.choice(seeds)
            start = rng.randrange(len(other))
            at = rng.randrange(size)
            piece = other[start : start + rng.choice((4, 16, 64, 400))]
            data[at : at + len(piece) * rng.randrange(2)] = piece
        elif kind == 2:
            at = rng.randrange(size)
            del data[at : at + rng.choice((1, 4, 8, 64))]
        elif kind == 3:
            data[rng.randrange(size)] ^= 1 << rng.randrange(8)
        else:
            _write_number(rng, data)
    return bytes(data[: 1 << 20])


def _write_number(rng: random.Random, data: bytearray) -> None:
    form = rng.choice("BHHIIIQQQ")
    width = struct.calcsize(form)
    within = min(len(data), rng.choice((64, 256, 1024, len(data))))
    at = rng.randrange(max(1, within - width + 1)) // width * width
    if rng.random() < 0.3:  # tables of sections stand at the end
        at = max(0, len(data) - width - at)
    order = rng.choice("<<<<<>")
    old = int.from_bytes(data[at : at + width], "little" if order == "<" else "big")
    new = rng.choice(
        (*NUMBERS, *LARGE, len(data), len(data) - 8, old + 1, old - 1, old * 2, -old)
    )
    struct.pack_into(order + form, data, at, new % (1 << 8 * width))
