"""The real variantlib follows the suggestion of ``inspect --suggest``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
from support.containers import BINARIES, binaries
from support.documents import PROVIDER, document
from support.grids import some_of
from support.variantlib_peer import refused_properties
from support.wheels import stub_wheel

from nvp import api
from nvp.cli import main
from nvp.gpu_code.claims import find_claim
from nvp.gpu_code.describe import suggest

TAG = "cp311-cp311-linux_x86_64"


@pytest.mark.skipif(os.name == "nt", reason="the command is for a POSIX shell")
@pytest.mark.parametrize("options", [[], ["--relaxed"]])
def test_the_printed_command_writes_the_suggested_document(
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("build.env", reason="variantlib[cli] brings it")

    def inspect(*words: object) -> tuple[str, str]:
        assert main(["inspect", "--suggest", *options, *map(str, words)]) == 0
        return capsys.readouterr()

    def follow(instructions: str) -> None:
        """Run the commands of the text in a shell."""
        blocks = re.split(r"^(\S.*):$", instructions, flags=re.MULTILINE)
        told = dict(zip(blocks[1::2], map(textwrap.dedent, blocks[2::2]), strict=True))
        assert list(told) == [
            "Add this to pyproject.toml",
            "Install variantlib where nvp is installed",
            "Then run this command",
        ]
        pyproject, install, command = told.values()
        assert install.strip() == "pip install 'variantlib[cli]'"
        (tmp_path / "pyproject.toml").write_text(pyproject)
        folders = [os.path.dirname(sys.executable), os.environ["PATH"]]
        environ = {**os.environ, "PATH": os.pathsep.join(folders)}
        subprocess.run(command, shell=True, check=True, cwd=tmp_path, env=environ)

    monkeypatch.chdir(tmp_path)
    members = {"demo/plain.so": (BINARIES / "plain.so").read_bytes()}
    path = stub_wheel(tmp_path / "in it", "demo", "1.0", tag=TAG, members=members)
    out, err = inspect(path.relative_to(tmp_path))
    follow(err)
    (label,) = json.loads(out)["variants"]
    made = tmp_path / f"demo-1.0-{TAG}-{label}.whl"
    with zipfile.ZipFile(made) as archive:
        assert archive.testzip() is None
        written = archive.read("demo-1.0.dist-info/variant.json").decode()
    assert f"{written}\n" == out
    assert {f.code for f in api.validate([made]) if f.severity != "note"} == set()
    # variantlib keeps the label of a wheel, and does not overwrite the wheel.
    before = made.read_bytes()
    out, err = inspect(made.name)
    assert f"{written}\n" == out
    follow(err)
    assert made.read_bytes() == before
    again = tmp_path / "relabelled" / made.name
    with zipfile.ZipFile(again) as archive:
        assert archive.testzip() is None


@pytest.mark.parametrize("path", some_of(zip(binaries()), 3))
def test_variantlib_accepts_what_is_suggested(path: Path) -> None:
    report = api.inspect(path)
    suggestion = suggest(find_claim(report), report.path, report.kind)
    if suggestion is None:
        assert not find_claim(report).sm_arch
        return
    variants = {
        label: {
            n: {f: list(v) for f, v in features.items()} for n, features in p.items()
        }
        for label, p in suggestion.metadata.variants.items()
    }
    release = document(variants, providers={"nvidia": PROVIDER})
    assert refused_properties(release, suggestion.label) == set()
