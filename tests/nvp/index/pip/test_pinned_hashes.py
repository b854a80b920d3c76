"""Why no build has the hash that a user pinned."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from support.builds import machine
from support.loopback import start
from support.wheels import stub_wheel, write_page

from nvp.index.pip.command import PipCommand
from nvp.index.pip.pinned_hashes import (
    explain_hashes,
    find_pinned_hashes,
)

TAG = "py3-none-manylinux_2_17_x86_64"
A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"torch==1.0 --hash=sha256:{A}\n", {"torch": {A}}),
        (
            f"A.b_c[x]==1 \\\n  --hash=sha256:{A} \\ \n --hash sha256:{B}",
            {"a-b-c": {A, B}},
        ),
        (f"x @ https://h/x.whl --hash=sha256:{A.upper()}", {"x": {A}}),
        (f"x==1 --hash=sha256:{A}\nx==2 --hash=sha256:{B}\n", {"x": {A, B}}),
        (f"x==1 --hash=sha512:{A}\n", {}),
        (f"x==1 --hash=sha256:{A}0\n", {}),
        (f"--hash=sha256:{A}\n# x\n\n-r other.txt\n\\", {}),
    ],
)
def test_hashes_of_requirements_files(
    text: str, expected: dict[str, set[str]], tmp_path: Path
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(text)
    command = PipCommand(command="install", options={"requirements": [str(file)]})
    assert find_pinned_hashes(command) == expected


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
        f"of another maker; pin that of {cuda.name}: --hash=sha256:{digest(cuda)}"
    )
    # pip takes it, or says itself why not.
    for shown in ({digest(cuda)}, {digest(xpu), digest(old)}, {digest(cpu)}, {A}):
        assert explain_hashes("torch", shown, pages) is None
