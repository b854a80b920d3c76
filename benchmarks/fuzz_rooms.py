"""The rooms of `benchmarks.fuzz`: for each, its inputs and the reader of the inputs.

Each room is a kind of file that other people write. `Room.read` raises an exception for
a finding; errors that users see as one line are not findings. The files of a room in
`CORPUS` are valid files, and files that caused findings.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w
from simple_repository.content_negotiation import Format

ROOT = Path(__file__).resolve().parent.parent
FIXTURES, CORPUS = ROOT / "fixtures", ROOT / "tests" / "corpus"
sys.path.append(str(ROOT / "tests"))

from support.containers import in_pieces  # noqa: E402

from benchmarks.fuzz_mutations import (  # noqa: E402
    dump,
    mutate_binary,
    mutate_json,
    mutate_text,
)
from nvidia_variant_provider.api import metadata_of  # noqa: E402
from nvidia_variant_provider.errors import ProviderError  # noqa: E402
from nvp import api  # noqa: E402
from nvp.doctor.compile_log import CompileLog  # noqa: E402
from nvp.doctor.receipts.making import receipt_of  # noqa: E402
from nvp.doctor.runner import diagnose_installation  # noqa: E402
from nvp.doctor.system import read_cache  # noqa: E402
from nvp.gpu_code.dynamic import read_dynamic, read_symbols  # noqa: E402
from nvp.gpu_code.library import inspect_library, inspect_local  # noqa: E402
from nvp.gpu_code.ranges import read_seekable  # noqa: E402
from nvp.index.http.pages import (  # noqa: E402
    find_projects,
    parse_page,
    parse_projects,
)
from nvp.index.pip.locks import parse_toml, read_lock  # noqa: E402
from nvp.index.server.rendering import respond_with  # noqa: E402
from nvp.inventories.reading import read_inventory  # noqa: E402
from nvp.pins.reading import read_pins  # noqa: E402
from nvp.wheels.archive import open_wheel, read_dist_info  # noqa: E402
from nvp.wheels.rewriting import Rewriting, plan_rewrite  # noqa: E402
from nvp.wheels.variant_json import read_wheel  # noqa: E402

__all__ = ["CORPUS", "ROOMS", "Room"]

Mutate = Callable[[random.Random, "Sequence[bytes]"], bytes]


@dataclass(frozen=True, kw_only=True)
class Room:
    """One kind of input.

    :param mutate: a function that makes an input from valid ones.
    :param read: a function that reads an input; its directory stays between inputs.
    :param fixtures: a pattern for valid inputs among the fixtures.
    """

    name: str
    mutate: Mutate
    read: Callable[[bytes, Path], object]
    fixtures: str = ""

    def seeds(self) -> list[bytes]:
        """Return valid inputs, and inputs that caused findings."""
        paths = [*FIXTURES.glob(self.fixtures)] if self.fixtures else []
        paths += (CORPUS / self.name).glob("*")
        return [
            path.read_bytes()
            for path in sorted(paths)
            if path.is_file() and not path.name.endswith((".expected.json", ".py"))
        ]


@cache
def _machines() -> list[api.Environment]:
    names = ("b200-12.8", "t4-12.2", "none")
    return [api.read_environment(FIXTURES / f"environments/{n}.json") for n in names]


@cache
def _parsed(data: bytes) -> Any:
    """Return the value of a JSON text; ``None`` for another text."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _json(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Change the values of a document, and sometimes its text."""
    documents = list(filter(None, map(_parsed, seeds)))
    if not documents or rng.random() < 0.15:
        return mutate_text(rng, seeds)
    return dump(mutate_json(rng, documents))


def _of_form(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Change one of the seeds, by the structure of JSON if the seed is JSON."""
    seed = rng.choice(seeds)
    return _json(rng, [seed]) if _parsed(seed) else mutate_text(rng, seeds)


def _read_metadata(data: bytes, folder: Path) -> None:
    path = folder / "torch-2.9.0-variants.json"
    path.write_bytes(data)
    api.validate([path])
    with suppress(ProviderError):
        metadata = metadata_of(data)
        for machine in _machines():
            api.resolve(metadata, environment=machine, environ={})
    upgraded = api.upgrade(data, name="metadata").text
    if upgraded is not None and upgraded.encode() != data:
        again = api.upgrade(upgraded.encode(), name="metadata").text
        assert again in (None, upgraded), "an upgrade is not stable"


def _read_pages(data: bytes, _: Path) -> None:
    is_json = data.lstrip()[:1] == b"{"
    kind = "application/vnd.pypi.simple.v1+json" if is_json else "text/html"
    url = "https://wheels.example/simple/torch/"
    with suppress(ProviderError):
        parse_projects(data, kind, url)
    with suppress(ProviderError):
        find_projects(data, kind, url)
    with suppress(ProviderError):
        parse_page(data, kind, url, "torch", exact=True)
    page = parse_page(data, kind, url, "torch")
    for form in (Format.JSON_V1, Format.HTML_V1):  # as the local index shows it
        respond_with(page, (form, form), lambda _: None)


def _mutate_pins(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    seed = rng.choice(seeds)
    return _json(rng, [seed]) if _parsed(seed) else _mutate_lock(rng, [seed])


@cache
def _parsed_toml(data: bytes) -> Any:
    """Return the value of a TOML text; ``None`` for another text."""
    try:
        return parse_toml(data.decode("utf-8"), "")
    except (ProviderError, ValueError):
        return None


def _mutate_lock(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    seed = rng.choice(seeds)
    if rng.random() < 0.8 and (document := _parsed_toml(seed)) is not None:
        # TOML has no null, and its writer calls itself for each level.
        with suppress(TypeError, ValueError, AttributeError, RecursionError):
            return tomli_w.dumps(mutate_json(rng, [document])).encode("utf-8")
    return mutate_text(rng, seeds)


def _read_locks(data: bytes, folder: Path) -> None:
    path = folder / "pylock.toml"
    path.write_bytes(data)
    for package in read_lock(str(path)).packages:
        _ = package.labels


def _read_pins(data: bytes, folder: Path) -> None:
    path = folder / "pins"
    path.write_bytes(data)
    pinned = read_pins(str(path))
    target = pinned.target()
    for chosen in pinned.alternatives()[:5]:
        pinned.select(chosen, target)


def _read_inventories(data: bytes, folder: Path) -> None:
    path = folder / "inventory"
    path.write_bytes(data)
    with suppress(ProviderError):
        api.read_environment(path)
    for machine in read_inventory(str(path)):
        json.dumps(machine.to_dict())


@cache
def _receipt() -> Any:
    return json.loads((CORPUS / "receipts" / "valid.json").read_bytes())


def _read_receipts(data: bytes, folder: Path) -> None:
    path = folder / "receipt.json"
    path.write_bytes(data)
    for pair in ((str(path), receipt_of(_receipt())), (_receipt(), str(path))):
        json.dumps(api.diff_receipts(*pair).to_dict())


_PART = re.compile(rb"^=== (.+)\n", re.MULTILINE)
"""The line before each file of an environment: its path below the packages."""

_MOST_PARTS = 40


def _mutate_environment(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    parts = _PART.split(rng.choice(seeds))[1:]
    if not parts or rng.random() < 0.3:
        return mutate_text(rng, seeds)
    at = rng.randrange(len(parts) // 2) * 2
    name, body = parts[at : at + 2]
    if rng.random() < 0.15:
        name = mutate_text(rng, [name, *parts[::2]]).replace(b"\n", b"")
    elif name.endswith(b".json"):
        body = _json(rng, [body]) + b"\n"
    else:
        body = mutate_text(rng, [body, *parts[1::2]])
    parts[at : at + 2] = name, body
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return b"".join(b"=== %s\n%s" % pair for pair in pairs)


def _read_environments(data: bytes, folder: Path) -> None:
    prefix = folder / "env"
    packages = prefix / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    try:
        parts = _PART.split(data)[1 : 2 * _MOST_PARTS + 1]
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            _write(packages, os.fsdecode(name), prefix, body)
        found = diagnose_installation(
            str(prefix),
            environment=_machines()[0],
            is_here=False,
            # Otherwise each input would run the compiler of this machine.
            environ={"PATH": "", "CUDA_HOME": str(prefix)},
            cache=None,
        )
        json.dumps(found.to_dict())
    finally:
        shutil.rmtree(prefix)


def _write(packages: Path, name: str, prefix: Path, body: bytes) -> None:
    """Write a file of an environment, unless its name leads out of the environment."""
    path = Path(os.path.normpath(packages / name.replace("\0", "")))
    if prefix in path.parents:
        with suppress(OSError):  # the name is too long, or that of a directory
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)


def _mutate_fat(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Change a loose file, put some into a wheel, or change a wheel."""
    if rng.random() < 0.8:
        return mutate_binary(rng, seeds)
    out = io.BytesIO()
    kind = rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED))
    with zipfile.ZipFile(out, "w", kind) as wheel:
        # Pass a ZipInfo: with a name, the archive would have the current time, and the
        # same seed would give other bytes.
        info = zipfile.ZipInfo("demo-1.0.dist-info/METADATA")
        wheel.writestr(info, "Name: demo\nVersion: 1.0\n", kind)
        for number in range(3):
            info = zipfile.ZipInfo(f"demo/{number}.cubin")
            wheel.writestr(info, rng.choice(seeds), kind)
    return mutate_binary(rng, [out.getvalue()])


_WHEEL = "demo-1.0-py3-none-any-cu129.whl"


def _mutate_wheel(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Change a file of a wheel, or the bytes of the archive."""
    seed = rng.choice(seeds)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(seed)) as wheel, zipfile.ZipFile(out, "w") as new:
        changed = rng.choice(wheel.infolist())
        for info in wheel.infolist():
            data = wheel.read(info)
            if info is changed:
                data = _json(rng, [data]) if _parsed(data) else mutate_text(rng, [data])
            new.writestr(info, data)
    return out.getvalue() if rng.random() < 0.6 else mutate_binary(rng, [seed])


def _read_wheels(data: bytes, folder: Path) -> None:
    path = folder / _WHEEL
    path.write_bytes(data)
    api.validate([path])
    with suppress(ProviderError):
        read_wheel(str(path))
    file = io.BytesIO(data)
    # Like the real function, this one leaves a missing METADATA as it is.
    plan = plan_rewrite(file, lambda text: b"Platform: demo\n" + text if text else text)
    if plan is None:
        return
    rewriting = Rewriting(plan)
    pieces = [*rewriting.feed(data[: plan.original]), rewriting.finish()]
    with open_wheel(io.BytesIO(b"".join(pieces))) as wheel:
        assert read_dist_info(wheel, "METADATA") == plan.metadata, "another METADATA"


def _read_projects(data: bytes, folder: Path) -> None:
    path = folder / "pyproject.toml"
    path.write_bytes(data)
    api.validate([path])


def _read_workloads(data: bytes, _: Path) -> None:
    log = CompileLog()
    for line in data.decode("utf-8", "replace").splitlines():
        log.read_line("stderr", line)
    json.dumps(log.to_dict())


def _read_binary(data: bytes, folder: Path) -> None:
    if data[:2] == b"PK":
        api.inspect(io.BytesIO(data), name="demo-1.0-py3-none-any.whl").to_dict()
        return
    name = "a.ptx" if data[:1] in (b".", b"/") else "a.so"
    whole = inspect_library(name, len(data), lambda: iter([data]))
    borders = range(13, len(data), max(7, len(data) // 9))
    in_parts = inspect_library(name, len(data), lambda: in_pieces(data, borders))
    assert in_parts == whole, "pieces change the report"
    if whole is not None:
        json.dumps(whole.to_dict())
    path = folder / name
    path.write_bytes(data)
    if data:
        assert inspect_local(name, len(data), str(path)) == whole, "a file differs"
        inspect_local(name, len(data), str(path), loaded_only=True)
    file = io.BytesIO(data)
    # These two functions raise ValueError, which their callers expect.
    with suppress(ValueError):
        read_seekable(read_dynamic(), file)
    with suppress(ValueError):
        list(itertools.islice(read_symbols(file), 100_000))


def _read_caches(data: bytes, folder: Path) -> None:
    path = folder / "ld.so.cache"
    path.write_bytes(data)
    with suppress(ValueError):  # the caller makes a note of it
        read_cache(str(path), "x86_64")


_ALL = (
    Room(
        name="metadata",
        fixtures="variants-json/**/*-variants.json",
        mutate=_json,
        read=_read_metadata,
    ),
    Room(name="pages", mutate=_of_form, read=_read_pages),
    Room(name="locks", mutate=_mutate_lock, read=_read_locks),
    Room(
        name="pins",
        fixtures="pins/*-*/*",  # without the largest one
        mutate=_mutate_pins,
        read=_read_pins,
    ),
    Room(
        name="inventories",
        fixtures="inventories/*",
        mutate=_of_form,
        read=_read_inventories,
    ),
    Room(name="receipts", mutate=_json, read=_read_receipts),
    Room(name="environments", mutate=_mutate_environment, read=_read_environments),
    Room(
        name="elf", fixtures="binaries/*.[so]*", mutate=mutate_binary, read=_read_binary
    ),
    Room(name="pe", fixtures="binaries/*.dll", mutate=mutate_binary, read=_read_binary),
    Room(
        name="fat",
        fixtures="binaries/*.[cfap]*",  # .cubin, .fatbin, .a, .ptx
        mutate=_mutate_fat,
        read=_read_binary,
    ),
    Room(name="ld.so.cache", mutate=mutate_binary, read=_read_caches),
    Room(name="wheels", mutate=_mutate_wheel, read=_read_wheels),
    Room(name="projects", mutate=_mutate_lock, read=_read_projects),
    Room(
        name="workloads",
        fixtures="workloads/*.txt",
        mutate=mutate_text,
        read=_read_workloads,
    ),
)
ROOMS: dict[str, Room] = {room.name: room for room in _ALL}
