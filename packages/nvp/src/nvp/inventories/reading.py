"""Read inventories in any form, which is recognized from the content.

Files are read into memory whole: a Kubernetes cluster has at most 5,000 nodes, for
which ``kubectl`` prints about 100 MB.
"""

from __future__ import annotations

import codecs
import io
import itertools
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from nvidia_variant_provider.errors import (
    InputError,
    MissingExtraError,
    ProviderError,
    shown,
)
from nvidia_variant_provider.strict_json import (
    check_memory,
    open_regular,
    unreadable,
)

from ..files import page_url
from ..signals import reading
from . import clusters, commands
from .model import Machine, as_mapping, environment_of_snapshot, refuse_repeated

logger = logging.getLogger(__name__)

_PAGE = "how-to/fleet/#inventories"
"""The section of the documentation that lists the forms of inventories."""

_LONGEST = 512 * 1024 * 1024
"""The maximum size of an inventory in bytes, five times the size for 5,000 nodes.
Standard input may be endless."""

_LONGEST_OF_ONE = 8 * 1024 * 1024
"""The maximum size of a file about one machine; nvidia-smi prints 20 KB for a GPU."""

_LEAST_MEMORY, _TIMES = 100 * 1024 * 1024, 3
"""The memory limit for the values of JSON; see `check_memory`. ResourceSlices need 3 to
9 times the length of their text, depending on its indentation."""

_PIECE = 1024 * 1024

_START = 4 * 1024 * 1024
"""The form of a text is recognized from this number of characters at its start."""

_DEEPEST = 100
"""The maximum depth of a YAML document; Kubernetes objects have a depth of about 20."""

_DIRECTIVE = re.compile("(?<![^\n\r\x85\u2028\u2029\ufeff])%TAG")
"""Matches a directive of YAML. libyaml takes quadratic time for many directives."""

_AGAIN = "make the file again"
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_SPACE = b"\xef\xbb\xbf \t\r\n"
"""Bytes that may precede a document: a byte order mark and blanks."""


def read_inventories(
    paths: Iterable[str],
) -> tuple[Sequence[Machine], Sequence[ProviderError]]:
    """Read the machines of several files.

    Two files whose paths differ only in the extension become one machine if they
    contain the two outputs of nvidia-smi.

    :returns: the machines, and an error for each file that cannot be read or repeats
        the name of a machine.
    """
    machines: dict[tuple[str, int], Machine] = {}
    by_stem: dict[str, tuple[str, int]] = {}
    errors: list[ProviderError] = []
    for path in paths:
        try:
            read = read_inventory(path)
        except ProviderError as error:
            errors.append(error)
            continue
        stem = os.path.splitext(path)[0]
        if len(read) == 1 and stem in by_stem:
            merged = commands.merge(machines[by_stem[stem]], read[0])
            if merged is not None:
                machines[by_stem[stem]] = merged
                continue
        taken = {item.name for item in machines.values()}
        repeated = [item.name for item in read if item.name in taken]
        if repeated:
            message = f"two machines have the name {shown(repeated[0])}"
            hint = "another inventory has it; give each machine a name of its own"
            errors.append(InputError(message, path=path, hint=hint))
            continue
        if len(read) == 1:
            by_stem[stem] = path, 0
        machines.update({(path, number): item for number, item in enumerate(read)})
    return list(machines.values()), errors


def read_inventory(path: str) -> list[Machine]:
    """Read the machines of a file, or of standard input for ``-``.

    :raises InputError: the file cannot be read, has an unknown form, or has no machine
        with a GPU.
    :raises MissingExtraError: the form needs the extra ``fleet``.
    """
    name = "standard input" if path == "-" else path
    stem = os.path.splitext(os.path.basename(path))[0] if path != "-" else "stdin"
    try:
        with _open(path) as file:
            # Read in pieces: a single read would always allocate `_LONGEST` bytes.
            held = io.BytesIO()
            while held.tell() <= _LONGEST and (piece := file.read(_PIECE)):
                held.write(piece)
        data = held.getvalue()
        if len(data) > _LONGEST:
            message = f"it is larger than {_LONGEST >> 20} MiB"
            raise InputError(message, hint="select fewer machines")
        with reading(name, len(data)):
            machines = list(refuse_repeated(_read(data, stem)))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            error.path = name
            raise
        failure = unreadable(error, name)
        if isinstance(error, FileNotFoundError) and path:
            failure.hint = f"{failure.hint}, or {_forms()}"
        raise failure from None
    if not machines:
        message = "it has no machine with an NVIDIA GPU"
        raise InputError(message, path=name, hint=_forms())
    logger.info("%s: %d machines", name, len(machines))
    return machines


def _open(path: str) -> BinaryIO:
    if path != "-":
        return open_regular(path, given=True)
    if sys.stdin is None:  # the shell closed stdin, with <&-
        raise InputError("cannot be read: closed", hint="name a file")
    # Close only a copy of the descriptor: the stream belongs to the process.
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb", closefd=True)


def _read(data: bytes, stem: str) -> Iterable[Machine]:
    # Windows PowerShell redirects the output of a program as UTF-16.
    encoding = _MARKS.get(data[:2])
    if encoding is not None:
        try:
            data = data[2:].decode(encoding).encode()
        except UnicodeError:
            message = "it is not UTF-16, although it begins like that"
            raise InputError(message, hint="save it as UTF-8") from None
    first = data[: len(_SPACE) + 1024].lstrip(_SPACE)[:1]
    if first in (b"{", b"["):
        return _read_json(data, stem)
    if first == b"<":
        _check_length(data)
        return [commands.read_log(data, stem, is_utf_8=encoding is not None)]
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _other_form() from None
    start = text[:_START]
    if commands.is_query(start):
        _check_length(data)
        return [commands.read_query(text, stem)]
    if clusters.is_metrics(start):
        return clusters.read_metrics(io.StringIO(text), stem)
    if "apiVersion:" in start:
        return _read_items(parse_yaml(text))
    raise _other_form()


def _check_length(data: bytes) -> None:
    if len(data) > _LONGEST_OF_ONE:
        message = (
            f"it is about one machine, and larger than {_LONGEST_OF_ONE >> 20} MiB"
        )
        raise InputError(message, hint=_AGAIN)


def _other_form() -> InputError:
    return InputError("this is not an inventory", hint=_forms())


def _forms() -> str:
    return f"give the output of nvp detect --json, or a form in {page_url(_PAGE)}"


def _read_json(data: bytes, stem: str) -> Iterable[Machine]:
    try:
        text = data.decode("utf-8-sig")
        check_memory(text, least=_LEAST_MEMORY, times=_TIMES)
        document: Any = json.loads(text)
    except RecursionError:
        message = "not valid JSON: it is nested too deeply"
        raise InputError(message, hint=_AGAIN) from None
    except InputError as error:
        raise InputError(error.message, hint=_AGAIN) from None
    except ValueError as error:
        raise InputError(f"not valid JSON: {error}", hint=_AGAIN) from None
    if isinstance(document, dict) and not isinstance(document.get("items"), list):
        _check_length(data)
        return [_read_document(document, stem)]
    items = document if isinstance(document, list) else document["items"]
    return _read_items(map(as_mapping, items))


def _read_document(document: Mapping[str, Any], stem: str) -> Machine:
    """Read a document about one machine."""
    if {"cuda_driver_version", "gpus", "schema_version"} & document.keys():
        environment = environment_of_snapshot(document)
        return Machine(name=stem, environment=environment.replace(source="snapshot"))
    if commands.is_info(document):
        return commands.read_info(document, stem)
    if clusters.is_kubernetes(document):
        machines = list(_read_items(iter([document])))
        if machines:
            return machines[0]
        message = "it has no machine with an NVIDIA GPU"
        raise InputError(message, hint=_forms())
    raise _other_form()


def _read_items(items: Iterator[Mapping[str, Any]]) -> Iterable[Machine]:
    """Read the machines of a list, whose first element determines its form."""
    first = next(items, None)
    if first is None:
        return ()
    items = itertools.chain([first], items)
    if clusters.is_kubernetes(first):
        return clusters.read_objects(items)
    if clusters.is_slot(first):
        return clusters.read_slots(items)
    raise _other_form()


def parse_yaml(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the elements of ``items``, and the documents that have no such list.

    All scalars are texts, so the version ``12.10`` does not become the number 12.1. The
    values are built from events: PyYAML's own loaders take four times as long for 5,000
    nodes, and the C loader crashes on deeply nested lists.

    :raises InputError: the text is not YAML, or not in the form of ``kubectl``.
    """
    try:
        import yaml
    except ImportError:
        message = "this inventory needs the extra fleet: yaml is not installed"
        hint = "pip install 'nvp[fleet]'"
        raise MissingExtraError(message, hint=hint) from None
    if _DIRECTIVE.search(text):
        message = "not YAML of Kubernetes: it has a directive"
        raise InputError(message, hint=_AGAIN)
    # The values of each open collection; in a mapping, keys and values alternate.
    documents: list[Any] = []
    begun = [documents]
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    # Each takes time and memory. Nodes have half as many.
    texts, lists = 400_000 + len(text) // 8, 200_000 + len(text) // 16
    try:
        for event in yaml.parse(text, loader):
            if isinstance(event, yaml.ScalarEvent):
                begun[-1].append(event.value)
                texts -= 1
            elif isinstance(event, yaml.CollectionStartEvent):
                begun.append([])
                lists -= 1
            elif isinstance(event, yaml.MappingEndEvent):
                values = begun.pop()
                begun[-1].append(dict(zip(values[::2], values[1::2], strict=True)))
            elif isinstance(event, yaml.SequenceEndEvent):
                values = begun.pop()
                begun[-1].append(values)
            elif isinstance(event, yaml.AliasEvent):
                raise _other_yaml("an alias", event)
            # libyaml takes quadratic time for nested lists.
            if texts < 0 or lists < 0 or len(begun) > _DEEPEST:
                raise _other_yaml("too many or too deep values", event)
    except TypeError:
        raise _other_yaml("a key that is no text", event) from None
    except yaml.YAMLError as error:
        message = f"not valid YAML: {str(error).splitlines()[0]}"
        raise InputError(message, hint=_AGAIN) from None
    for document in map(as_mapping, documents):
        items = document.get("items")
        yield from map(as_mapping, items) if isinstance(items, list) else [document]


def _other_yaml(what: str, event: Any) -> InputError:
    mark = event.start_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}"
    message = f"not YAML of Kubernetes: it has {what}"
    hint = f"{_AGAIN}, with: kubectl get nodes -o yaml"
    return InputError(message, place=place, hint=hint)
