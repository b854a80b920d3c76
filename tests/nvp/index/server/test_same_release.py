"""Behind the local index, uv takes the release, and the index, that it takes alone.

A variant may only replace a regular wheel of the same release, or be in a release
without a regular file for this Python.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uv
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.builds import gpu_build, machine, metadata
from support.loopback import JSON, start
from support.processes import clean_environ
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel

from nvp.wheels.variant_json import read_own_metadata

HERE = f"cp3{sys.version_info[1]}"
OTHER = f"cp3{sys.version_info[1] + 1}"
NEWER = "py3-none-manylinux_2_99_x86_64"
TAGS = (
    *("py3-none-any", f"{HERE}-{HERE}-linux_x86_64"),
    *(f"{OTHER}-{OTHER}-linux_x86_64", NEWER),
)
LIMITS = (None, None, ">=3.9", f">=3.{sys.version_info[1] + 1}")
LABELS = {"cu118": "11.8", "cu126": "12.6", "cu130": "13.0"}
DOCUMENT = json.dumps(metadata({x: gpu_build(cuda) for x, cuda in LABELS.items()}))
MACHINE = machine("12.8", "9.0")


class File(NamedTuple):
    """A wheel of an index; a regular one has no label."""

    version: str
    tag: str
    label: str | None
    yanked: bool
    requires_python: str | None
    is_told: bool
    """Whether the page has ``requires_python``, too."""

    @property
    def name(self) -> str:
        label = f"-{self.label}" if self.label else ""
        return f"kern-{self.version}-{self.tag}{label}.whl"

    @property
    def is_usable(self) -> bool:
        """Whether uv can take the wheel for a requirement without a pin."""
        limit = self.requires_python or ""
        fits = OTHER not in self.tag and self.tag != NEWER
        return fits and not self.yanked and limit != LIMITS[-1]


Page = Sequence[File]

FILES = st.builds(
    File,
    version=st.sampled_from(("1.0", "1.0", "1.0", "0.9", "2.0a1")),
    tag=st.sampled_from((TAGS[0], *TAGS)),
    label=st.sampled_from((None, None, None, *LABELS)),
    yanked=st.sampled_from((False, False, False, True)),
    requires_python=st.sampled_from(LIMITS),
    is_told=st.booleans(),
)


def with_like_metadata(page: Page) -> Page:
    """Give the wheels of a label one limit of Python, which METADATA may tell alone.

    uv and ``serve`` read METADATA of one of them.
    """
    firsts = {(file.version, file.label): file for file in reversed(page)}
    return [
        file._replace(requires_python=first.requires_python)
        for file in page
        for first in (firsts[file.version, file.label],)
    ]


PAGES = st.lists(
    st.lists(FILES, min_size=1, max_size=6, unique_by=lambda file: file.name).map(
        with_like_metadata
    ),
    min_size=1,
    max_size=2,
)


class Taken(NamedTuple):
    """The wheel that uv installed, and the number of its index."""

    place: int
    version: str
    label: str | None


def answers_of(page: Sequence[File], number: int, folder: Path) -> dict[str, Answer]:
    """Return the pages and files of an index."""
    answers: dict[str, Answer] = {}
    entries: list[dict[str, Any]] = []
    for file in page:
        path = stub_wheel(
            folder / str(number),
            "kern",
            file.version,
            file.label,
            tag=file.tag,
            requires_python=file.requires_python,
            variant_json=json.loads(DOCUMENT) if file.label else None,
            members={"kern_index.txt": str(number).encode()},
        )
        entry: dict[str, Any] = {"filename": path.name, "yanked": file.yanked}
        if file.is_told:
            entry["requires-python"] = file.requires_python
        entries.append(entry)
        entry["core-metadata"] = True
        answers[f"/{path.name}"] = Answer(body=path.read_bytes())
        with path.open("rb") as wheel:
            own = read_own_metadata(path.name, wheel)
        answers[f"/{path.name}.metadata"] = Answer(body=own)
    for version in sorted({file.version for file in page if file.label}):
        name = f"kern-{version}-variants.json"
        entries.append({"filename": name})
        answers[f"/{name}"] = Answer(body=DOCUMENT.encode())
    for entry in entries:
        place = f"/{entry['filename']}"
        digest = hashlib.sha256(answers[place].body).hexdigest()
        entry |= {"url": place, "hashes": {"sha256": digest}}
    document = {"meta": {"api-version": "1.1"}, "name": "kern", "files": entries}
    body = json.dumps(document).encode()
    return {**answers, "/simple/kern/": Answer(body=body, kind=JSON)}


def install(urls: Sequence[str], words: Sequence[str], folder: Path) -> Taken | None:
    """Install with uv, and return what it took; ``None`` if it failed."""
    indexes = [word for url in urls[:-1] for word in ("--index", url)]
    with tempfile.TemporaryDirectory(dir=folder) as name:
        command = [uv.find_uv_bin(), "pip", "install", "--no-config", "--no-cache"]
        command += ["--python", sys.executable, "--target", name]
        done = subprocess.run(
            [*command, *indexes, "--default-index", urls[-1], *words],
            env=clean_environ(folder / "home"),
            capture_output=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            return None
        found: dict[str, str | None] = {}
        exec(Path(name, "kern.py").read_text(), found)
        place = int(Path(name, "kern_index.txt").read_text())
        return Taken(place, str(found["VERSION"]), found["LABEL"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory for all examples."""
    path = tmp_path_factory.mktemp("same")
    (path / "home").mkdir()
    return path


def check(alone: Taken | None, behind: Taken | None, pages: Sequence[Page]) -> None:
    """Check that a variant has only replaced a regular wheel of its release."""
    if behind == alone:
        return
    if behind is None:
        # A limit that only METADATA of variants has may end the search of uv.
        files = [file for page in pages for file in page if not file.is_told]
        assert any(x.label and x.requires_python == LIMITS[-1] for x in files), alone
        return
    assert behind.label is not None, (alone, behind)
    regular = [
        file
        for file in pages[behind.place]
        if file.version == behind.version and file.label is None and file.is_usable
    ]
    assert not regular or (alone and alone[:2] == behind[:2]), (alone, behind)


REGULAR = File("1.0", TAGS[0], None, False, None, True)
NATIVE = REGULAR._replace(tag=TAGS[1])
FOR_NEWER = REGULAR._replace(label="cu126", tag=NEWER)
OLDER = REGULAR._replace(version="0.9")
NARROW = REGULAR._replace(label="cu126", requires_python=LIMITS[-1])
UNTOLD = NARROW._replace(is_told=False)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the wheels are for Linux")
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    pages=PAGES,
    want=st.sampled_from(("kern", "kern", "kern<1.0", "kern>=1.0")),
    words=st.sampled_from(((), ("--index-strategy", "unsafe-best-match"))),
)
@example(pages=[[REGULAR, NARROW, OLDER]], want="kern", words=())
@example(pages=[[NATIVE, FOR_NEWER, OLDER]], want="kern", words=())
@example(pages=[[REGULAR, UNTOLD, OLDER]], want="kern", words=())
def test_uv_takes_the_same_release(
    pages: Sequence[Page], want: str, words: tuple[str, ...], folder: Path
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        answers: list[Mapping[str, Answer]] = [
            answers_of(page, number, Path(name)) for number, page in enumerate(pages)
        ]
    with serve_answers(answers[0]) as one, serve_answers(answers[-1]) as two:
        urls = [f"{server.url}/simple/" for server in (one, two)[: len(pages)]]
        alone = install(urls, [*words, want], folder)
        with start(*urls, machine=MACHINE) as running:
            behind = install(running.urls, [*words, want], folder)
    check(alone, behind, pages)
