"""Read and write JSON that this package wrote itself, without importing `json`.

``import json`` imports ``re`` and takes half as long as starting Python.
Detection would pay that in every process, so that it uses the C scanner on which
`json` of CPython is built, and `json` itself wherever the scanner does not work.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["dumps", "loads"]


class _Context:
    """The attributes that the scanner reads; the values are the decoder's defaults."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = None
    memo: dict[str, str] = {}  # noqa: RUF012  # Python before 3.13 reads it


def loads(text: str) -> Any:
    """Return the value of a JSON text.

    :raises ValueError: the text is not JSON.
    """
    try:
        from _json import make_scanner

        context: Any = _Context
        value, end = make_scanner(context)(text, 0)
        if not text[end:].strip():
            return value
    except Exception:  # noqa: BLE001, S110  # `json` reads it, or says what is wrong
        pass
    import json

    return json.loads(text)


def dumps(value: object) -> str:
    """Return the JSON text of a value, in ASCII.

    :param value: a string, a whole number, ``None``, or lists and mappings of these.
    """
    if value is None:
        return "null"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    if isinstance(value, dict):
        items = (f"{dumps(key)}: {dumps(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(dumps, value))}]"
    raise TypeError(f"{type(value).__name__} cannot be written")


def _escaped(character: str) -> str:
    if " " <= character <= "~" and character not in '"\\':
        return character
    # A character beyond the first 65,536 becomes two escapes (RFC 8259, section 7).
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
