"""Read machines from the output of nvidia-smi, pixi and conda.

``nvidia-smi -q -x`` prints the driver, and ``--query-gpu`` the compute capabilities.
``pixi info --json`` and ``conda info --json`` list virtual packages.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from xml.parsers import expat

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.machine.environment import Environment

from .model import (
    MAX_GPUS,
    Machine,
    as_text,
    make_environment,
    parse_capability,
    parse_cuda,
)

_ROOT = "nvidia_smi_log"
_DTD = re.compile(r"nvsmi_device_v[0-9]{1,3}\.dtd")
_ABSENT = ("n/a", "[n/a]", "[not supported]", "[unknown error]", "")
_HINT = "save the output of: nvidia-smi -q -x"
_DEPTH = 32
_LONGEST = 256

_VIRTUAL_PACKAGES = ("virtual_packages", "virtual_pkgs")
"""The key of the list of virtual packages in the output of pixi, and of conda."""


class _Log:
    """Collects facts about a machine from the XML of ``nvidia-smi -q -x``."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.text = ""
        self.fields: dict[str, str] = {}
        self.gpus: list[dict[str, str]] = []

    def start(self, name: str, _: object) -> None:
        if not self.path and name != _ROOT:
            raise InputError(f"this is <{name}>, not <{_ROOT}>", hint=_HINT)
        if len(self.path) == _DEPTH:
            raise InputError("its elements are nested too deeply", hint=_HINT)
        self.path.append(name)
        self.text = ""
        if self.path[1:] == ["gpu"]:
            if len(self.gpus) == MAX_GPUS:
                raise InputError(f"it has more than {MAX_GPUS} GPUs", hint=_HINT)
            self.gpus.append({})

    def data(self, text: str) -> None:
        if len(self.text) < _LONGEST:
            self.text += text

    def end(self, name: str) -> None:
        self.path.pop()
        text, self.text = self.text.strip(), ""
        if text.lower() in _ABSENT:
            return
        if len(self.path) == 1:
            self.fields.setdefault(name, text)
        elif self.path[1:] == ["gpu"]:
            self.gpus[-1].setdefault(name, text)
        elif self.path[1:] in (["gpu", "mig_mode"], ["gpu", "gpu_virtualization_mode"]):
            self.gpus[-1].setdefault(f"{self.path[-1]}.{name}", text)


def read_log(data: bytes, name: str, *, is_utf_8: bool = False) -> Machine:
    """Read the output of ``nvidia-smi -q -x``, which has no compute capabilities.

    :param name: the name of the machine, which the output does not contain.
    :param is_utf_8: whether the data is UTF-8, whatever the document declares.
    :raises InputError: the data is not this output, has another document type, or has
        entities.
    """
    log = _Log()
    parser = expat.ParserCreate("utf-8" if is_utf_8 else None)
    parser.StartElementHandler = log.start
    parser.EndElementHandler = log.end
    parser.CharacterDataHandler = log.data
    parser.StartDoctypeDeclHandler = _check_document_type
    parser.EntityDeclHandler = _refuse_entity
    parser.SkippedEntityHandler = _refuse_entity
    try:
        parser.Parse(data, True)
    except LookupError as error:  # the declared encoding is unknown
        raise InputError(f"cannot be read as XML: {error}", hint=_HINT) from None
    except expat.ExpatError as error:
        message = f"not well-formed XML: {error}"
        raise InputError(message, hint=_HINT) from None
    # Driver 610 renamed the element: the version is that of the user-mode driver.
    text = log.fields.get("cuda_umd_version") or log.fields.get("cuda_version")
    return Machine(
        name=name,
        environment=make_environment(
            parse_cuda(text) if text else None,
            [(gpu.get("product_name"), None) for gpu in log.gpus],
            kernel=log.fields.get("driver_version"),
        ),
        notes=tuple(dict.fromkeys(note for gpu in log.gpus for note in _notes(gpu))),
    )


def _notes(gpu: Mapping[str, str]) -> list[str]:
    notes = []
    if gpu.get("mig_mode.current_mig") == "Enabled":
        notes.append("a GPU is split by MIG")
    mode = gpu.get("gpu_virtualization_mode.virtualization_mode", "None")
    if mode == "VGPU":
        notes.append("its GPU is a vGPU, which runs under the driver of its host")
    elif mode not in ("None", "Pass-Through"):
        notes.append(f"its GPU has the virtualization mode {shown(mode)}")
    return notes


def _check_document_type(
    name: str, system: str | None, public: str | None, internal: int
) -> None:
    """Reject every document type except nvidia-smi's, whose DTD is never loaded."""
    known = name == _ROOT and public is None and _DTD.fullmatch(system or "")
    if internal or not known:
        raise InputError("it has a document type of its own", hint=_HINT)


def _refuse_entity(*_: object) -> None:
    raise InputError("it has an entity", hint=_HINT)


def is_query(text: str) -> bool:
    """Return whether a text is ``nvidia-smi --query-gpu`` output with capabilities."""
    header = [name.strip() for name in text.partition("\n")[0].split(",")]
    return "compute_cap" in header


def read_query(text: str, name: str) -> Machine:
    """Read the output of ``nvidia-smi --query-gpu=... --format=csv``.

    The output does not contain the CUDA version of the driver.

    :param name: the name of the machine.
    :raises InputError: a column or a value is malformed.
    """
    rows = list(_rows(text.splitlines()))
    gpus = []
    for row in rows:
        capability = _given(row, "compute_cap")
        gpus.append(
            (
                _given(row, "name"),
                parse_capability(capability) if capability else None,
            )
        )
    kernels = [version for row in rows if (version := _given(row, "driver_version"))]
    environment = make_environment(None, gpus, kernel=next(iter(kernels), None))
    return Machine(name=name, environment=environment)


def _rows(lines: Iterable[str]) -> Iterable[dict[str, str]]:
    reader = csv.reader(lines, skipinitialspace=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        rows = [
            dict(zip(header, row, strict=False))
            for row, _ in zip(reader, range(MAX_GPUS), strict=False)
            if row
        ]
    except csv.Error as error:
        raise InputError(f"cannot be read as CSV: {error}", hint=_HINT) from None
    if all(row.get("index", "").strip().isdecimal() for row in rows):
        rows.sort(key=lambda row: int(row["index"][:9]))
    return rows


def _given(row: Mapping[str, str], key: str) -> str | None:
    text = (row.get(key) or "").strip()
    return None if text.lower() in _ABSENT else text


def merge(first: Machine, second: Machine) -> Machine | None:
    """Merge the two outputs of nvidia-smi into one machine.

    :returns: ``None`` unless one output has only the CUDA version and the other only
        the compute capabilities, for the same number of GPUs.
    """
    one, other = first.environment, second.environment
    if one.cuda_driver_version is None:
        one, other = other, one
    has_no_capability = not any(gpu.compute_capability for gpu in one.gpus)
    if (
        one.cuda_driver_version is None
        or other.cuda_driver_version is not None
        or not has_no_capability
        or len(one.gpus) != len(other.gpus)
    ):
        return None
    environment: Environment = make_environment(
        one.cuda_driver_version,
        [(gpu.name, gpu.compute_capability) for gpu in other.gpus],
        kernel=one.kernel_driver_version,
    )
    notes = tuple(dict.fromkeys((*first.notes, *second.notes)))
    return Machine(name=first.name, environment=environment, notes=notes)


def is_info(document: Mapping[str, Any]) -> bool:
    """Return whether a document is the output of pixi or conda."""
    return any(isinstance(document.get(key), list) for key in _VIRTUAL_PACKAGES)


def read_info(document: Mapping[str, Any], name: str) -> Machine:
    """Read the machine from the output of pixi or conda.

    :param name: the name of the machine, which the output does not contain.
    :raises InputError: a version is malformed.
    """
    packages = dict(_packages(document))
    cuda = packages.get("__cuda")
    arch = packages.get("__cuda_arch")
    notes = []
    if arch is not None:
        # CEP 46: the version is the lowest compute capability of all GPUs.
        notes.append("only its lowest compute capability is known")
    elif cuda is not None:
        notes.append(
            "it has no virtual package __cuda_arch: install nvidia-virtual-packages"
        )
    gpus = [] if cuda is None else [(None, parse_capability(arch) if arch else None)]
    return Machine(
        name=name,
        environment=make_environment(parse_cuda(cuda) if cuda else None, gpus),
        notes=tuple(notes),
    )


def _packages(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and version of each virtual package.

    pixi writes ``__cuda=12.9=0``, and conda ``["__cuda", "12.9", "0"]``.
    """
    for key in _VIRTUAL_PACKAGES:
        listed = document.get(key)
        for item in listed if isinstance(listed, list) else []:
            parts = item.split("=") if isinstance(item, str) else item
            if not isinstance(parts, list) or len(parts) < 2:
                continue
            name, version = as_text(parts[0]), as_text(parts[1])
            if name is not None and version is not None:
                yield name, version
