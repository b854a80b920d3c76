"""The requirements on the command line and in files, as each pip reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.processes import PIPS, Environment, Pip, installed_labels

from nvp.index.pip.command import PipCommand, find_hashes, find_labels, find_versions
from nvp.index.pip.process import Pip as Command
from nvp.metadata.requirements import parse_requirement

A, B = "a" * 64, "b" * 64

POSIX = pytest.mark.skipif(os.name == "nt", reason="this system has no named pipes")

Understand = Callable[..., PipCommand]

EVERY_PIP = pytest.mark.parametrize(
    "version",
    [
        PIPS[0],
        *(pytest.param(version, marks=pytest.mark.slow) for version in PIPS[1:]),
    ],
)


@pytest.fixture
def understand(
    pips: dict[str, Environment],
    environ: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Understand:
    """Return a function that writes files, and lets a pip read a command with these
    files."""
    monkeypatch.chdir(tmp_path)

    def ask(*words: str, files: Mapping[str, str], version: str) -> PipCommand:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text.replace("{here}", tmp_path.as_uri()))
        pip = Command(str(pips[version].python), {**environ, "LABEL": "xpu"})
        return pip.understand(["install", *words])

    return ask


# Each row has the text of a file, and the requirements in it that count.
FILES: dict[str, tuple[str, list[str]]] = {
    "plain": ("torch==2.10.0+xpu\n", ["torch==2.10.0+xpu"]),
    "comments": ("# torch==1\n\n  torch == 2 # the newest\n", ["torch == 2"]),
    "variable": ("torch==2.10.0+${LABEL}\n", ["torch==2.10.0+xpu"]),
    "continued": ("torch[fast] \\\n >=2, \\\n <3\n", ["torch[fast] >=2, <3"]),
    "hashes": (f"torch==2 \\\n --hash=sha256:{A} --hash sha256:{B}\n", ["torch==2"]),
    "markers": (
        "torch==1+cpu; python_version < '3'\ntorch==1+xpu; python_version > '3'\n",
        ["torch==1+xpu; python_version > '3'"],
    ),
    "named URL": ("x @ https://a.example/x-2.zip\n", ["x @ https://a.example/x-2.zip"]),
    "URL": ("https://a.example/x-2.zip\n", ["https://a.example/x-2.zip"]),
    "editable": ("-e ./folder\nx\n", ["x"]),
    "options": ("-i https://a.example/\n--pre\n--no-binary x\nx\n", ["x"]),
    "byte order mark": ("\ufefftorch==2\n", ["torch==2"]),
    # pip itself reports the error, and installs nothing.
    "no such file": ("x\n-r missing.txt\ny\n", ["x"]),
    "no such option": ("x\n--no-such-option\ny\n", ["x"]),
    "bad marker": ("x\ny; python_version\n", ["x", "y; python_version"]),
}


@EVERY_PIP
def test_lines_of_files(version: str, understand: Understand) -> None:
    files = {f"{name}.txt": text for name, (text, _) in FILES.items()}
    # Use one process for all files, because starting pip takes much longer than reading
    # a file.
    words = [word for name in files for word in ("-r", name)]
    command = understand(*words, files=files, version=version)
    # A lone URL and an invalid line name no project.
    assert [item.requirement for item in command.asked] == [
        requirement
        for _, expected in FILES.values()
        for text in expected
        if (requirement := parse_requirement(text)) is not None
    ]


@EVERY_PIP
def test_the_command_line_and_nested_files(
    version: str, understand: Understand
) -> None:
    files = {
        "r.txt": "a==1+cu126\n-c sub/c.txt\n-r sub/n.txt\n-r {here}/u.txt\n",
        "sub/n.txt": f"-r m.txt\nb==2.* --hash=sha256:{A.upper()} --hash=sha512:00\n",
        "sub/m.txt": "m===3+XPU,!=4",
        "sub/c.txt": f"C.c==5 --hash=sha256:{B}",
        "u.txt": "-r https://a.example/no.txt\nu",
        "d.txt": "d<6",
        # One file names itself, and the other is not a requirements file.
        "again.txt": "again\n-r again.txt\n",
        "pylock.toml": "y==1\n",
    }
    words = ["p==7", "q; python_version < '3'", "./folder", "-c", "d.txt"]
    words += ["-r", "r.txt", "-r", "again.txt", "-r", "pylock.toml"]
    command = understand(*words, files=files, version=version)
    asked = command.asked
    assert {item.project: item.is_constraint for item in asked} == {
        "p": False,
        "d": True,
        "a": False,
        "c-c": True,
        "m": False,
        "b": False,
        "u": False,
        "again": False,
    }
    assert find_labels(asked) == {"a": {"cu126"}, "m": {"xpu"}}
    assert find_versions(asked) == {
        "p": {"7"},
        "a": {"1+cu126"},
        "m": {"3+XPU"},
        "c-c": {"5"},
    }
    assert find_hashes(asked) == {"b": {A}, "c-c": {B}}
    assert command.requires_hashes


@pytest.mark.parametrize(
    ("text", "required"),
    [
        ("--require-hashes\nx", True),
        (f"x==1 --hash=sha512:{A}{A}", True),
        # pip ignores the first with a warning.
        (f"--hash=sha256:{A}\nx # --hash=sha256:{A}", False),
    ],
)
def test_hashes_are_required(text: str, required: bool, understand: Understand) -> None:
    command = understand("-r", "r.txt", files={"r.txt": text}, version=PIPS[-1])
    assert command.requires_hashes is required
    assert find_hashes(command.asked) == {}


@pytest.mark.parametrize(
    ("words", "text", "limits"),
    [
        ("-r r.txt", "x", False),
        ("-r r.txt --no-require-hashes", f"x==1 --hash=sha256:{A}", True),
        ("-r reqs.toml", f"x==1 --hash=sha512:{A}{A}", True),
        ("-c pylock.toml", f"x==1 --hash=sha512:{A}{A}", True),
        ("-r https://a.example/r.txt", "", True),
        ("-c HTTPS://a.example/pylock.toml", "", True),
        ("-r r.txt", "x\n-c https://a.example/c.txt", True),
        ("-r r.txt", "x\n-c %sc.txt", False),
        pytest.param("-r r.txt", "x\n-r pipe", True, marks=POSIX),
        pytest.param("-r r.txt", "x\n-r %spipe", True, marks=POSIX),
        pytest.param("-r pipe", "", True, marks=POSIX),
    ],
)
def test_a_file_that_only_pip_reads_may_have_hashes(
    words: str, text: str, limits: bool, understand: Understand, tmp_path: Path
) -> None:
    if "pipe" in words + text:
        os.mkfifo(tmp_path / "pipe")
    text = text.replace("%s", f"{tmp_path.as_uri()}/")
    files = {"r.txt": text, "reqs.toml": text, "c.txt": "x<9"}
    files["pylock.toml"] = text
    command = understand(*words.split(), files=files, version=PIPS[-1])
    assert command.limits_hashes is limits
    assert {item.project for item in command.asked} <= {"x"}


@EVERY_PIP
def test_options_of_files_count_as_those_of_the_command_line(
    version: str, understand: Understand
) -> None:
    files = {
        "c.txt": "--no-index\n--no-binary x\n",
        # pip ignores indexes after --no-index.
        "r.txt": "-i https://a.example/\n--pre\n",
    }
    words = ("-i", "https://b.example/", "-r", "r.txt", "-c", "c.txt")
    command = understand(*words, files=files, version=version)
    assert command.indexes == []
    assert command.target is not None
    assert command.target.pre
    assert command.target.builds("x")


def test_requirements_of_groups(understand: Understand) -> None:
    files = {"pyproject.toml": '[dependency-groups]\nx = ["torch==2.10.0+xpu"]\n'}
    command = understand("--group", "x", files=files, version=PIPS[-1])
    assert find_labels(command.asked) == {"torch": {"xpu"}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("-r missing.txt\n", "missing.txt", marks=pytest.mark.slow),
        ("torch\n--no-such-option\n", "no such option: --no-such-option"),
    ],
)
def test_pip_says_once_what_is_wrong(
    text: str, words: str, pip: Pip, index: str, tmp_path: Path
) -> None:
    file = tmp_path / "r.txt"
    file.write_text(text)
    done = pip("install", "-i", index, "--dry-run", "-r", file)
    assert done.code in (1, 2)
    assert done.text.count(words) == 1, done.text


@pytest.mark.skipif(os.name == "nt", reason="/dev/stdin of POSIX")
@pytest.mark.parametrize("is_included", [False, True])
def test_requirements_from_a_pipe(
    is_included: bool, pip: Pip, index: str, tmp_path: Path
) -> None:
    """A pipe can be read only once, and pip must get its contents."""
    file = tmp_path / "outer.txt"
    file.write_text("-r /dev/stdin\n")
    file = file if is_included else Path("/dev/stdin")
    machine = ("--cuda-driver", "12.9", "--sm-arch", "8.0")
    words = ("--no-deps", "--target", tmp_path / "target", "-r", file)
    line = ("pip", "--python", pip.python, *machine, "install", "-i", index, *words)
    done = subprocess.run(
        [sys.executable, "-m", "nvp", *map(str, line)],
        env=pip.environ,
        input=b"torch==2.8.0\n",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert installed_labels(tmp_path / "target") == {"torch": "2.8.0 cu126"}
