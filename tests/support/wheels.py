"""Stub wheels and a package index of them, in a directory that any server can serve."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.tags import parse_tag
from packaging.utils import canonicalize_name

__all__ = [
    "publish",
    "record_of",
    "stub_sdist",
    "stub_wheel",
    "variants_json_name",
    "wheel_name",
    "write_index",
    "write_page",
]


def wheel_name(
    name: str, version: str, label: str | None = None, tag: str = "py3-none-any"
) -> str:
    """Return ``{name}-{version}-{tag}-{label}.whl``, or a name without a label."""
    end = "" if label is None else f"-{label}"
    return f"{_escaped(name)}-{version}-{tag}{end}.whl"


def variants_json_name(name: str, version: str) -> str:
    """Return ``{name}-{version}-variants.json``, normalized as names of wheels are."""
    return f"{_escaped(name)}-{version}-variants.json"


def stub_wheel(
    folder: str | os.PathLike[str],
    name: str,
    version: str,
    label: str | None = None,
    *,
    variant_json: Mapping[str, Any] | None = None,
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
    requires_python: str | None = None,
    members: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a valid wheel with one module, and return its path.

    :param label: the variant label; ``None`` for a non-variant wheel.
    :param variant_json: the document ``*.dist-info/variant.json``; without this
        document, a wheel with a label is invalid.
    :param requires: ``Requires-Dist`` entries.
    :param extras: ``Provides-Extra`` entries.
    :param requires_python: ``Requires-Python``.
    :param members: more files.
    """
    module = canonicalize_name(name).replace("-", "_")
    info = f"{_escaped(name)}-{version}.dist-info"
    purelib = "true" if tag.endswith("-any") else "false"
    files: dict[str, str | bytes] = {
        **(members or {}),
        f"{module}.py": f"VERSION = {version!r}\nLABEL = {label!r}\n",
        f"{info}/METADATA": _lines(
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {item}" for item in requires),
            *(f"Provides-Extra: {item}" for item in extras),
            *(f"Requires-Python: {item}" for item in (requires_python,) if item),
        ),
        f"{info}/WHEEL": _lines(
            "Wheel-Version: 1.0",
            "Generator: stub_wheel",
            f"Root-Is-Purelib: {purelib}",
            *(f"Tag: {item}" for item in sorted(map(str, parse_tag(tag)))),
        ),
    }
    if variant_json is not None:
        files[f"{info}/variant.json"] = json.dumps(variant_json, indent=2)
    files[f"{info}/RECORD"] = record_of({**files, f"{info}/RECORD": None})
    path = Path(folder) / wheel_name(name, version, label, tag)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            # The date is fixed, so the same arguments give the same bytes.
            archive.writestr(zipfile.ZipInfo(member), data)
    return path


def record_of(files: Mapping[str, str | bytes | None]) -> bytes:
    """Return the RECORD of files; a file whose content is ``None`` has no hash."""
    rows = [
        f"{path},,"
        if data is None
        else f"{path},sha256={_record_hash(data)},{len(_bytes(data))}"
        for path, data in files.items()
    ]
    return _lines(*rows).encode()


def publish(
    folder: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    name: str,
    version: str,
    *,
    requires: Mapping[str | None, Sequence[str]] | None = None,
    extras: Sequence[str] = (),
) -> None:
    """Put a release with a wheel for each label into the index below ``folder``.

    The layout is that of PEP 503: ``{project}/index.html`` next to the files it links.
    A non-variant wheel and the metadata file are always written, the metadata without
    any checks. Other releases in ``folder`` stay.

    :param requires: the requirements of the wheel of each label; ``None`` is the key of
        the non-variant wheel.
    """
    requires = requires or {}
    project = Path(folder) / canonicalize_name(name)
    stub_wheel(project, name, version, requires=requires.get(None, ()), extras=extras)
    for label, properties in metadata["variants"].items():
        document = {**metadata, "variants": {label: properties}}
        stub_wheel(
            project,
            name,
            version,
            label,
            variant_json=document,
            requires=requires.get(label, ()),
            extras=extras,
        )
    path = project / variants_json_name(name, version)
    path.write_text(json.dumps(metadata, indent=2), encoding="utf-8")
    write_page(project)
    write_page(Path(folder))


def write_page(folder: Path) -> None:
    """Write a page with links to everything in ``folder``: projects, or files of a
    project."""
    page = folder / "index.html"
    links = []
    for item in sorted(folder.iterdir()):
        if item == page:
            continue
        target = f"{item.name}/"
        if item.is_file():
            digest = hashlib.sha256(item.read_bytes()).hexdigest()
            target = f"{item.name}#sha256={digest}"
        links.append(f'<a href="{html.escape(target)}">{html.escape(item.name)}</a>')
    text = _lines("<!DOCTYPE html>", "<html><body>", *links, "</body></html>")
    page.write_text(text, encoding="utf-8")


def write_index(folder: Path, project: str, *versions: str) -> str:
    """Write an index with wheels for Linux of a project, and return its path."""
    tag = "py3-none-manylinux_2_17_x86_64"
    for version in versions:
        stub_wheel(folder / project, project, version, tag=tag)
    write_page(folder / project)
    return str(folder)


def _escaped(name: str) -> str:
    return canonicalize_name(name).replace("-", "_")


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _record_hash(data: str | bytes) -> str:
    digest = hashlib.sha256(_bytes(data)).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


_BACKEND = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


def stub_sdist(folder: Path, name: str, version: str) -> None:
    """Write a source distribution whose build fails."""
    folder.mkdir(exist_ok=True)
    top = f"{name.replace('-', '_')}-{version}"
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": _BACKEND,
        "backend.py": "raise SystemExit('it was built from its source')\n",
    }
    with tarfile.open(folder / f"{top}.tar.gz", "w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{top}/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
