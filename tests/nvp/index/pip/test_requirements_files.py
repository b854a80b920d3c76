"""The indexes that requirements files name: pip reads the files, and nvp its result."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.index_server import serve
from support.processes import PIPS, Pip, installed_labels
from support.wheels import stub_wheel

CHOSEN = {"torch": "2.8.0 cu126", "runtime": "12.6 None"}

FILES = {
    "short": ("-i {index}\ntorch", {}),
    "joined": ("--index-url={index} \\\n\ntorch", {}),
    "abbreviated": ("--index {index}\ntorch", {}),
    "extra": ("--extra-index-url {index}\ntorch", {}),
    "variable": ("-i ${{INDEX}}\ntorch", {}),
    "variable of pip": ("-i ${{PIP_EXTRA_INDEX_URL}}\ntorch", {}),
    "included": (
        "-r more/x.txt",
        {"more/x.txt": "-r ../y.txt\ntorch", "y.txt": "-i {index}"},
    ),
    "constraint": ("torch\n-c limits.txt", {"limits.txt": "-i {index}\ntorch<3"}),
    "last": ("-i http://127.0.0.1:1/\ntorch\n-i {index}", {}),
    "links": ("--no-index\n-f {index}torch/\n-f {index}runtime/\ntorch", {}),
}


@pytest.mark.parametrize(
    "name",
    [
        "short",
        "included",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in FILES
            if name not in ("short", "included")
        ),
    ],
)
@pytest.mark.parametrize(
    "version", [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]
)
def test_an_index_of_a_file(
    name: str,
    version: str,
    published: Path,
    pip_of: Callable[[str], Pip],
    tmp_path: Path,
) -> None:
    text, more = FILES[name]
    pip, target = pip_of(version), tmp_path / "it"
    with serve(published) as index:
        for path, content in {"main.txt": text, **more}.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(content.format(index=index))
        pip.environ |= {"INDEX": index}
        if name == "variable of pip":
            pip.environ |= {"PIP_EXTRA_INDEX_URL": index}
        if name != "links":
            pip.environ |= {"PIP_INDEX_URL": index if name == "extra" else ""}
        done = pip("install", "-r", tmp_path / "main.txt", "--target", target)
    assert done.code == 0, done.text
    assert installed_labels(target) == CHOSEN


@pytest.mark.parametrize(
    "encoding", ["utf-16", pytest.param("latin-1", marks=pytest.mark.slow)]
)
def test_encodings(encoding: str, pip: Pip, published: Path, tmp_path: Path) -> None:
    file, target = tmp_path / "main.txt", tmp_path / "it"
    with serve(published) as index:
        text = f"# coding: {encoding}\n# \xe4\n-i {index}\ntorch\n"
        file.write_text(text, encoding=encoding)
        done = pip("install", "-r", file, "--target", target)
    assert done.code == 0, done.text
    assert installed_labels(target) == CHOSEN


def test_an_error_of_pip_names_the_file_of_the_user(
    pip: Pip, index: str, tmp_path: Path
) -> None:
    file = tmp_path / "main.txt"
    file.write_text(f"-i {index}\ntorch>=1 \\\n  ,<9\n\nno requirement !\n")
    done = pip("install", "-r", file)
    assert done.code == 1
    assert f"(from line 5 of {file})" in done.err


@pytest.mark.skipif(sys.platform == "win32", reason="there is no /dev/fd")
def test_a_shell_replaces_a_command_by_a_pipe(
    pip: Pip, published: Path, tmp_path: Path
) -> None:
    file, target = tmp_path / "main.txt", tmp_path / "it"
    file.write_text("torch\n")
    with serve(published) as index:
        program = [sys.executable, "-m", "nvp", "pip", "--python", str(pip.python)]
        nvp = shlex.join(program)
        words = shlex.join(["install", "-i", index, "--target", str(target)])
        command = f"{nvp} {words} -r <(cat {shlex.quote(str(file))})"
        done = subprocess.run(
            ["bash", "-c", command],
            env=pip.environ,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert installed_labels(target).keys() == {"torch"}


@pytest.mark.skipif(sys.platform == "win32", reason="there is no /dev/stdin")
def test_only_pip_reads_a_pipe(pip: Pip, published: Path, tmp_path: Path) -> None:
    """It can be read only once."""
    target = tmp_path / "it"
    with serve(published) as index:
        words = ("install", "-r", "/dev/stdin", "--target", str(target))
        done = subprocess.run(
            [sys.executable, "-m", "nvp", "pip", "--python", str(pip.python), *words],
            env=pip.environ,
            input=f"-i {index}\ntorch\n",
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    line = f"nvp selects no builds, because it does not know the files of {index}"
    assert done.stderr.count(line) == 1
    assert installed_labels(target) == {"torch": "2.8.0 None"}


def test_a_home_in_a_file(pip: Pip, published: Path, tmp_path: Path) -> None:
    """pip expands it on the command line only."""
    stub_wheel(tmp_path / "links", "torch", "3.0")
    file, target = tmp_path / "main.txt", tmp_path / "it"
    file.write_text("-f ~/links\ntorch\n")
    pip.environ["HOME"] = str(tmp_path)
    with serve(published) as index:
        done = pip("install", "-i", index, "-r", file, "--target", target)
    assert done.code == 0, done.text
    assert installed_labels(target) == CHOSEN


@pytest.mark.parametrize("option", ["--find-links", "--extra-index-url"])
def test_only_pip_knows_what_an_option_makes_of_a_place(
    option: str, pip: Pip, published: Path, tmp_path: Path
) -> None:
    file, target = tmp_path / "it.txt", tmp_path / "it"
    with serve(published) as index, serve(tmp_path) as files:
        # The command line gives the same URL to another option.
        places: tuple[str, ...] = ("-i", index)
        if option == "--extra-index-url":
            places = ("-i", f"{files}none/", "-f", index)
        file.write_text(f"{option} {index}\n-i {index}\ntorch\n")
        done = pip("install", *places, "-r", f"{files}it.txt", "--target", target)
    assert done.code == 0, done.text
    line = f"nvp selects no builds, because it does not know the files of {index}"
    assert done.err.count(line) == 1
    assert installed_labels(target) == {"torch": "2.8.0 None"}


@pytest.mark.skipif(sys.platform == "win32", reason="0.0.0.0 is no server there")
@pytest.mark.parametrize("trusts", [False, True])
def test_only_pip_knows_that_a_file_trusts_a_host(
    trusts: bool, pip: Pip, published: Path, tmp_path: Path
) -> None:
    file, target = tmp_path / "it.txt", tmp_path / "it"
    file.write_text("--trusted-host 0.0.0.0\ntorch\n" if trusts else "torch\n")
    with serve(published) as index, serve(tmp_path) as files:
        other = index.replace("127.0.0.1", "0.0.0.0")
        words = ("-i", index, "--extra-index-url", other, "-r", f"{files}it.txt")
        done = pip("install", *words, "--target", target)
    assert done.code == 0, done.text
    line = "nvp selects no builds, because it does not know the files of http://0.0.0.0"
    assert done.err.count(line) == trusts
    assert installed_labels(target) == ({"torch": "2.8.0 None"} if trusts else CHOSEN)
