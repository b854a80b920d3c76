"""Objects of Kubernetes in YAML, one after the other as they are parsed.

A document of many nodes would take some twenty times its size if it were loaded. Only
what ``kubectl`` writes is read: anchors, aliases and tags are refused, since a few
lines of them can stand for billions of elements. All scalars are texts, so that the
version ``12.10`` does not become the number 12.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nvidia_variant_provider.errors import InputError

__all__ = ["parse_objects"]

_DEPTH = 100
_HINT = "make the file again, with: kubectl get nodes -o yaml"
_LIST = "items"


def parse_objects(file: Any, yaml: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the elements of ``items``, and the documents that have no such list.

    :param file: a binary stream.
    :param yaml: the module ``yaml``.
    :raises InputError: it is not YAML, or has what ``kubectl`` does not write.
    """
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    open_values = _OpenValues()
    try:
        for event in yaml.parse(file, loader):
            _check(event)
            if isinstance(event, yaml.ScalarEvent):
                ended = event.value
            elif isinstance(event, yaml.MappingStartEvent):
                open_values.start({}, event)
                continue
            elif isinstance(event, yaml.SequenceStartEvent):
                open_values.start([], event)
                continue
            elif isinstance(event, yaml.CollectionEndEvent):
                ended = open_values.end()
            else:
                continue
            yield from open_values.add(ended, event)
    except yaml.YAMLError as error:
        message = f"not valid YAML: {str(error).splitlines()[0]}"
        raise InputError(message, hint=_HINT) from None


class _OpenValues:
    """The mappings and sequences that have begun, the outermost first."""

    def __init__(self) -> None:
        # With each mapping the key that waits for its value.
        self._stack: list[tuple[Any, list[str]]] = []

    def start(self, value: Any, event: Any) -> None:
        if len(self._stack) == _DEPTH:
            raise _refuse("objects that are nested too deeply", event)
        self._stack.append((value, []))

    def end(self) -> Any:
        return self._stack.pop()[0]

    def add(self, value: Any, event: Any) -> Iterator[Mapping[str, Any]]:
        """Put a whole value where it belongs, or yield it."""
        if not self._stack:
            if isinstance(value, dict) and not isinstance(value.get(_LIST), list):
                yield value
            return
        holder, keys = self._stack[-1]
        if isinstance(holder, list):
            if len(self._stack) != 2 or self._stack[0][1] != [_LIST]:
                holder.append(value)
            elif isinstance(value, dict):
                yield value
        elif keys:
            holder[keys.pop()] = value
        elif isinstance(value, str):
            keys.append(value)
        else:
            raise _refuse("a key that is no text", event)


def _check(event: Any) -> None:
    if getattr(event, "anchor", None) is not None:
        raise _refuse("an anchor or an alias", event)
    if getattr(event, "tag", None) not in (None, "!"):
        raise _refuse("a tag", event)


def _refuse(what: str, event: Any) -> InputError:
    mark = event.start_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}"
    return InputError(f"not YAML of Kubernetes: it has {what}", place=place, hint=_HINT)
