"""Parsing the JSON of a page in little memory, whatever it holds.

A list or an object of few bytes takes a hundred bytes of memory. So commas and
brackets are counted first, and objects are replaced as soon as they are complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["TooMuchError", "load_page"]

_LEAST = 32 * 1024 * 1024
"""Memory that the values of any page may take, however short it is."""

_TIMES = 4
"""How many bytes of memory there may be for each byte of a long page; the body and its
text take two more."""

_OBJECT, _LIST, _VALUE = 232, 90, 72
"""Bytes of memory of an object, of a list, and of another short value, at most."""


class TooMuchError(ValueError):
    """A page has more of something than any real page."""


def load_page(body: bytes, replace: Callable[[dict[str, Any]], Any]) -> Any:
    """Return the value of a page.

    :param replace: returns what is kept of an object, which may be the object itself.
    :raises ValueError: the page is not JSON.
    :raises TooMuchError: its values would take too much memory.
    """
    left = _LEAST + _TIMES * len(body)
    if _LIST * body.count(b"[") + _VALUE * body.count(b",") > left:
        raise TooMuchError("it has too many values for its length")

    def keep(item: dict[str, Any]) -> Any:
        nonlocal left
        kept = replace(item)
        if kept is item:
            left -= _OBJECT
            if left < 0:
                raise TooMuchError("it has too many objects for its length")
        return kept

    return json.loads(body, object_hook=keep)
