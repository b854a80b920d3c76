"""Reading an inventory: its form is told by its content."""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from ..errors import InputError, MissingExtraError
from ..strict_json import open_regular, unreadable
from . import conda, condor, dcgm, kubernetes, nvidia_smi
from .model import Machine, as_mapping, refuse_repeated
from .snapshots import environment_of_snapshot

__all__ = ["FORMS", "read_inventory"]

logger = logging.getLogger(__name__)

FORMS = (
    "a snapshot of detect, kubectl get nodes or resourceslices (JSON or YAML), "
    "condor_status -json, pixi info --json, conda info --json, nvidia-smi -q -x, "
    "nvidia-smi --query-gpu, or metrics of the DCGM exporter"
)

_WHOLE = 1024 * 1024
"""Bytes up to which a document is read as a whole. Longer ones are lists, whose
elements are read one by one."""

_LONGEST = 512 * 1024 * 1024
"""The most bytes of a list. 20,000 nodes with all their fields have some 300 MB."""

_LONGEST_TEXT = 64 * 1024 * 1024


def read_inventory(path: str) -> list[Machine]:
    """Read the machines of a file, or of standard input for ``-``.

    :raises InputError: the file cannot be read, has another form than `FORMS`, or has
        no machine with a GPU.
    :raises MissingExtraError: the form needs the extra ``fleet``.
    """
    name = "standard input" if path == "-" else path
    stem = os.path.splitext(os.path.basename(path))[0] if path != "-" else "stdin"
    try:
        with _open(path) as file:
            machines = list(refuse_repeated(_read(file, stem)))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            error.path = name
            raise
        raise unreadable(error, name) from None
    if not machines:
        message = "it has no machine with an NVIDIA GPU"
        raise InputError(message, path=name, hint=f"an inventory is {FORMS}")
    logger.info("%s: %d machines", name, len(machines))
    return machines


def _open(path: str) -> BinaryIO:
    source: Any = sys.stdin.buffer if path == "-" else open_regular(path)
    if path == "-":
        # The stream stays open: it belongs to the process.
        source = os.fdopen(os.dup(source.fileno()), "rb", closefd=True)
    return io.BufferedReader(_Bounded(source), _WHOLE)


class _Bounded(io.RawIOBase):
    """A stream that refuses to go on for ever."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._left = _LONGEST

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(min(len(buffer), 1 << 20))
        self._left -= len(data)
        if self._left < 0:
            message = f"it is larger than {_LONGEST >> 20} MiB"
            raise InputError(message, hint="select fewer machines")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._source.close()
        super().close()


def _read(file: Any, stem: str) -> Iterable[Machine]:
    head = file.peek(_WHOLE)[:_WHOLE].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] in (b"{", b"["):
        return _read_json(file, stem)
    if head[:1] == b"<":
        return [nvidia_smi.read_log(file.read(_LONGEST_TEXT), stem)]
    try:
        text = file.read(_LONGEST_TEXT + 1).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _other_form() from None
    if len(text) > _LONGEST_TEXT:
        message = f"it is larger than {_LONGEST_TEXT >> 20} MiB"
        raise InputError(message, hint="give it as JSON")
    if nvidia_smi.is_query(text):
        return [nvidia_smi.read_query(text, stem)]
    if dcgm.is_metrics(text):
        return dcgm.read_metrics(text, stem)
    if "apiVersion:" in text:
        return _read_yaml(text)
    raise _other_form()


def _other_form() -> InputError:
    return InputError("this is not an inventory", hint=f"an inventory is {FORMS}")


def _read_json(file: Any, stem: str) -> Iterable[Machine]:
    head = file.peek(_WHOLE)
    if len(head) < _WHOLE:
        try:
            document: Any = json.loads(file.read())
        except (ValueError, RecursionError) as error:
            message = f"not valid JSON: {error}"
            raise InputError(message, hint="make the file again") from None
        if isinstance(document, dict) and not isinstance(document.get("items"), list):
            return [_read_document(document, stem)]
        items = document if isinstance(document, list) else document["items"]
        return _read_items(map(as_mapping, items))
    ijson = _import("ijson")
    prefix = "item" if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[" else "items.item"

    def stream() -> Iterator[Mapping[str, Any]]:
        try:
            yield from map(as_mapping, ijson.items(file, prefix, use_float=True))
        except ijson.JSONError as error:
            message = f"not valid JSON: {str(error).splitlines()[0]}"
            raise InputError(message, hint="make the file again") from None

    return _read_items(stream())


def _read_yaml(text: str) -> Iterable[Machine]:
    yaml = _import("yaml")
    try:
        documents = list(yaml.load_all(text, getattr(yaml, "CSafeLoader", None)))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        message = f"not valid YAML: {str(error).splitlines()[0]}"
        raise InputError(message, hint="make the file again") from None
    items: list[Mapping[str, Any]] = []
    for document in map(as_mapping, documents):
        listed = document.get("items")
        items += map(as_mapping, listed) if isinstance(listed, list) else [document]
    return _read_items(iter(items))


def _read_document(document: Mapping[str, Any], stem: str) -> Machine:
    """Read a document that is about one machine."""
    if conda.is_info(document):
        return conda.read_info(document, stem)
    if kubernetes.is_kubernetes(document):
        machines = list(_read_items(iter([document])))
        if machines:
            return machines[0]
        message = "it has no machine with an NVIDIA GPU"
        raise InputError(message, hint=f"an inventory is {FORMS}")
    known = {"cuda_driver_version", "gpus", "schema_version"}
    if not known & document.keys():
        raise _other_form()
    environment = environment_of_snapshot(document)
    return Machine(name=stem, environment=environment.replace(source="snapshot"))


def _read_items(items: Iterator[Mapping[str, Any]]) -> Iterable[Machine]:
    """Read the elements of a list, whose first one tells what the list is of."""
    first = next(items, None)
    if first is None:
        return ()
    items = itertools.chain([first], items)
    if first.get("kind") == "Node":
        return kubernetes.read_nodes(items)
    if first.get("kind") == "ResourceSlice":
        return kubernetes.read_slices(items)
    if condor.is_slot(first):
        return condor.read_slots(items)
    raise _other_form()


def _import(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        message = f"this inventory needs the extra fleet: {name} is not installed"
        hint = "pip install 'nvidia-variant-provider[fleet]'"
        raise MissingExtraError(message, hint=hint) from None
