"""Why no build has the hash that a user pinned."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from packaging.requirements import Requirement
from support.builds import machine
from support.loopback import start
from support.wheels import stub_wheel, write_page

from nvp.index.pip.command import Asked, PipCommand
from nvp.index.pip.explain import explain_failure, explain_hashes

TAG = "py3-none-manylinux_2_17_x86_64"
A = "a" * 64


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_build_for_other_hardware(tmp_path: Path) -> None:
    xpu, cuda, cpu, old = (
        stub_wheel(tmp_path / "torch", "torch", version, tag=TAG)
        for version in ("2.10.0+xpu", "2.10.0+cu128", "2.10.0+cpu", "2.9.1+cu128")
    )
    write_page(tmp_path / "torch")
    with start(str(tmp_path), machine=machine("12.8", "8.0")) as running:
        pages = running.local_index.find_shown("torch")
        assert running.local_index.find_shown("nothing") == []
    assert explain_hashes("torch", {digest(xpu)}, pages) == (
        f"the hash sha256:{digest(xpu)[:12]}... that you give is that of torch "
        f"2.10.0+xpu ({xpu.name}), which is not for this machine: it is for hardware "
        f"of another vendor; pin that of {cuda.name}: --hash=sha256:{digest(cuda)}"
    )
    # pip selects the file, or itself reports why not.
    for shown in ({digest(cuda)}, {digest(xpu), digest(old)}, {digest(cpu)}, {A}):
        assert explain_hashes("torch", shown, pages) is None
    # A hash is quoted for the user to copy.
    hostile = [
        replace(file, hashes={"sha256": "0 --index-url https://x.example/"})
        if file.filename == cuda.name
        else file
        for file in pages[0].files
    ]
    said = explain_hashes("torch", {digest(xpu)}, [replace(pages[0], files=hostile)])
    assert said is not None
    assert "x.example" not in said


def test_an_index_that_fails_is_not_asked_for_each_project() -> None:
    """Each request could take a timeout, after pip has ended."""
    read: dict[str, list[Any]] = {}
    run: Any = SimpleNamespace(
        command=PipCommand(
            command="install",
            requires_hashes=True,
            asked=[
                Asked(project=x, requirement=Requirement(x), hashes=frozenset({A}))
                for x in "abc"
            ],
        ),
        local_index=SimpleNamespace(
            requested={"b", "c"}, find_shown=lambda name: read.setdefault(name, [])
        ),
    )
    assert explain_failure(run) == ()
    assert [*read] == ["b"]
