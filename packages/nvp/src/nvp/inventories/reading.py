"""Reading an inventory, whose content tells its form."""

from __future__ import annotations

import codecs
import io
import itertools
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from nvidia_variant_provider.errors import InputError, MissingExtraError
from nvidia_variant_provider.strict_json import open_regular, unreadable

from . import conda, condor, dcgm, kubernetes, nvidia_smi
from .model import Machine, as_mapping, refuse_repeated
from .snapshots import environment_of_snapshot
from .source import HEAD, SPACE, Source
from .yaml_items import parse_objects

__all__ = ["FORMS", "read_inventory"]

logger = logging.getLogger(__name__)

FORMS = (
    "a snapshot of detect, kubectl get nodes or resourceslices (JSON or YAML), "
    "condor_status -json, pixi info --json, conda info --json, nvidia-smi -q -x, "
    "nvidia-smi --query-gpu, or metrics of the DCGM exporter"
)

_File: TypeAlias = "io.BufferedReader[Source]"

_LONGEST_TEXT = 16 * 1024 * 1024
"""The most bytes of a form that is about one machine; nvidia-smi writes some 20 kB for
each GPU."""


def read_inventory(path: str) -> list[Machine]:
    """Read the machines of a file, or of standard input for ``-``.

    :raises InputError: the file cannot be read, has another form than `FORMS`, or has
        no machine with a GPU.
    :raises MissingExtraError: the form needs the extra ``fleet``.
    """
    name = "standard input" if path == "-" else path
    stem = os.path.splitext(os.path.basename(path))[0] if path != "-" else "stdin"
    try:
        with _open(path) as source:
            machines = list(refuse_repeated(_read(source, stem)))
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


def _open(path: str) -> Source:
    if path != "-":
        return Source(open_regular(path))
    if sys.stdin is None:  # The shell has closed it: <&-
        raise InputError("cannot be read: closed", hint="name a file")
    # The stream stays open: it belongs to the process.
    return Source(os.fdopen(os.dup(sys.stdin.fileno()), "rb", closefd=True))


def _read(source: Source, stem: str) -> Iterable[Machine]:
    file = io.BufferedReader(source, HEAD)
    head = file.peek(HEAD)[:HEAD].lstrip(SPACE)
    if head[:1] in (b"{", b"["):
        return _read_json(file, source, stem)
    if head[:1] == b"<":
        data = _read_short(file)
        return [nvidia_smi.read_log(data, stem, is_utf_8=source.is_decoded)]
    try:
        # The last character of the head may be cut.
        start = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        raise _other_form() from None
    if nvidia_smi.is_query(start):
        return [nvidia_smi.read_query(_text(_read_short(file)), stem)]
    if dcgm.is_metrics(start):
        return dcgm.read_metrics(_lines(file, source), stem)
    if "apiVersion:" in start:
        return _read_items(_counted(parse_objects(file, _import("yaml")), source))
    raise _other_form()


def _read_short(file: _File) -> bytes:
    data = file.read(_LONGEST_TEXT + 1)
    if len(data) > _LONGEST_TEXT:
        message = f"it is larger than {_LONGEST_TEXT >> 20} MiB"
        raise InputError(message, hint="give one file for each machine")
    return data


def _lines(file: _File, source: Source) -> Iterator[str]:
    for line in file:
        source.start_element()
        yield _text(line)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("it is not UTF-8", hint="save it as UTF-8") from None


def _counted(
    items: Iterator[Mapping[str, Any]], source: Source
) -> Iterator[Mapping[str, Any]]:
    """Yield ``items``, each of which has a limit of its own."""
    for item in items:
        source.start_element()
        yield item


def _other_form() -> InputError:
    return InputError("this is not an inventory", hint=f"an inventory is {FORMS}")


def _read_json(file: _File, source: Source, stem: str) -> Iterable[Machine]:
    head = file.peek(HEAD)
    if len(head) < HEAD:
        try:
            document: Any = json.loads(file.read())
        except RecursionError:
            message = "not valid JSON: it is nested too deeply"
            raise InputError(message, hint="make the file again") from None
        except ValueError as error:
            message = f"not valid JSON: {error}"
            raise InputError(message, hint="make the file again") from None
        if isinstance(document, dict) and not isinstance(document.get("items"), list):
            return [_read_document(document, stem)]
        items = document if isinstance(document, list) else document["items"]
        return _read_items(map(as_mapping, items))
    ijson = _import("ijson")
    prefix = "item" if head.lstrip(SPACE)[:1] == b"[" else "items.item"

    def stream() -> Iterator[Mapping[str, Any]]:
        try:
            yield from map(as_mapping, ijson.items(file, prefix, use_float=True))
        except ijson.JSONError as error:
            message = f"not valid JSON: {str(error).splitlines()[0]}"
            raise InputError(message, hint="make the file again") from None

    return _read_items(_counted(stream(), source))


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
    if kubernetes.is_kubernetes(first):
        return kubernetes.read_objects(items)
    if condor.is_slot(first):
        return condor.read_slots(items)
    raise _other_form()


def _import(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        message = f"this inventory needs the extra fleet: {name} is not installed"
        hint = "pip install 'nvp[fleet]'"
        raise MissingExtraError(message, hint=hint) from None
