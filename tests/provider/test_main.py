"""``python -m nvidia_variant_provider``, if Python can import only the provider.

Each process can import the provider and its three required distributions, but neither
nvp nor other packages of the test environment.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.shared import shared_folder

REQUIRED = ("packaging", "platformdirs", "pynvml")
FORCED = {
    "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": "12.8",
    "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": "9.0",
}

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes and signals")
linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux device nodes")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a directory with the provider and its requirements."""

    def fill(folder: Path) -> None:
        for name in ("nvidia_variant_provider", *REQUIRED):
            spec = find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            source = Path(spec.origin)
            if spec.submodule_search_locations:
                leave_out = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source.parent, folder / name, ignore=leave_out)
            else:
                shutil.copy(source, folder)

    return shared_folder(tmp_path_factory, "provider-alone", fill)


class Program:
    """Runs the program, by default without a driver and without forced values."""

    def __init__(self, packages: Path, system: Path) -> None:
        self.command = [sys.executable, "-S", "-m", "nvidia_variant_provider"]
        self.environ = {
            **os.environ,
            "PYTHONPATH": str(packages),
            "NV_VARIANT_PROVIDER_SYSROOT": str(system),
        }

    def __call__(
        self,
        *words: str | Path,
        stdin: bytes = b"",
        stdout: int = subprocess.PIPE,
        variables: dict[str, str] | None = None,
    ) -> tuple[int, str, str]:
        done = subprocess.run(
            [*self.command, *map(str, words)],
            env={**self.environ, **(variables or {})},
            input=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            check=False,
        )
        err = done.stderr.decode().replace("\r\n", "\n")
        assert "Traceback" not in err
        return done.returncode, (done.stdout or b"").decode(), err


@pytest.fixture
def program(alone: Path, tmp_path: Path) -> Program:
    return Program(alone, tmp_path)


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """Open a pipe whose reading end is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def test_nothing_but_the_provider_can_be_imported(program: Program) -> None:
    command = [sys.executable, "-S", "-c", "import nvp"]
    done = subprocess.run(
        command, env=program.environ, capture_output=True, text=True, check=False
    )
    assert "No module named 'nvp'" in done.stderr


def test_the_supported_properties(program: Program) -> None:
    code, out, err = program(variables=FORCED)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "nvidia :: cuda_version_lower_bound :: 12.8"
    assert lines[-2:] == [
        "nvidia :: sm_arch :: 90_real",
        "nvidia :: sm_arch :: 90_virtual",
    ]
    code, out, err = program("--json", variables=FORCED)
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["sm_arch"] == ["90_real", "90_virtual"]
    assert [
        f"nvidia :: {name} :: {value}" for name in answer for value in answer[name]
    ] == lines


def test_no_driver_is_an_answer_with_its_reason(program: Program) -> None:
    code, out, err = program()
    assert (code, out) == (0, "")
    assert err == "warning: no-device: no NVIDIA device or driver was found\n"


def test_the_labels_that_fit_in_order(
    program: Program, fixtures: Path, tmp_path: Path
) -> None:
    file = fixtures / "variants-json" / "torch-2.9.1-variants.json"
    code, out, err = program(file, variables=FORCED)
    assert (code, err) == (0, "")
    assert out.splitlines() == ["cu128", "cu126", "null"]
    assert json.loads(program(file, "--json", variables=FORCED)[1]) == out.splitlines()
    assert program("-", stdin=file.read_bytes(), variables=FORCED)[1] == out
    # The path of a file may look like a document.
    strange = tmp_path / "{}"
    shutil.copy(file, strange)
    command = [*program.command, strange.name]
    done = subprocess.run(
        command,
        env={**program.environ, **FORCED},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, out, "")


def test_no_label_fits(program: Program, fixtures: Path, tmp_path: Path) -> None:
    file = fixtures / "variants-json" / "torch-2.9.1-variants.json"
    document = json.loads(file.read_text())
    del document["variants"]["null"]
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(document))
    code, out, err = program(changed)
    assert (code, out) == (1, "")
    assert err == "warning: no label fits this machine\n"
    assert program("--json", changed)[:2] == (1, "[]\n")


@linux
def test_a_driver_that_cannot_be_asked(program: Program, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    # The deadline is too short to query the driver of this machine.
    code, out, err = program(
        variables={
            "NV_VARIANT_PROVIDER_DETECT_TIMEOUT": "1e-300",
            "NV_VARIANT_PROVIDER_NO_CACHE": "1",
        }
    )
    assert (code, out) == (4, "")
    assert err.startswith("warning: timeout: the driver did not reply in time; ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "not UTF-8: byte 0"),
        (b"{", "not JSON: "),
        (b"[]", "top level: expected an object, found a list"),
        (b"\x00", "not JSON: "),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"variants": 1, "default-priorities": {"namespace": []}}', "variants: "),
        (b"", "not JSON: "),
    ],
)
def test_an_invalid_file(
    content: bytes, message: str, program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "torch-1-variants.json"
    file.write_bytes(content)
    code, out, err = program(file)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith(f"error: {file}: {message}")
    assert program("-", stdin=content)[0] == 3


@pytest.mark.parametrize(
    "word", ["missing", "a\x1b[31mb", "\udcff", "{", "", os.curdir, "\u2028"]
)
def test_a_file_that_cannot_be_read(word: str, program: Program) -> None:
    code, out, err = program(word)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("error: ")
    assert err.rstrip("\n").isprintable()


@posix
def test_a_file_that_may_not_be_read(program: Program, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code, _, err = program(pipe)
    assert code == 3
    assert err == f"error: {pipe}: cannot be read: not a regular file; check the path\n"


@pytest.mark.parametrize("value", ["nine", "9", "9.0.0"])
def test_a_forced_value_that_is_wrong(value: str, program: Program) -> None:
    code, out, err = program(variables={"NV_VARIANT_PROVIDER_FORCE_SM_ARCH": value})
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert err.startswith("error: NV_VARIANT_PROVIDER_FORCE_SM_ARCH: ")


@pytest.mark.parametrize(
    "words",
    [
        ("serve",),
        ("resolve", "torch-2.8.0-variants.json"),
        ("detect", "--json"),
        ("pip", "install", "--index-url", "x", "torch"),
    ],
)
def test_what_was_a_command_names_its_successor(
    words: tuple[str, ...], program: Program
) -> None:
    code, out, err = program(*words)
    assert (code, out) == (2, "")
    assert err == f"error: this is now: nvp {words[0]}; pip install nvp\n"


@pytest.mark.parametrize("words", [("--all",), ("a", "b"), ("--json", "-v", "a")])
def test_wrong_words(words: tuple[str, ...], program: Program) -> None:
    code, out, err = program(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "usage: python -m nvidia_variant_provider [--json] [FILE]" in err


def test_help(program: Program) -> None:
    code, out, err = program("--help")
    assert (code, err) == (0, "")
    assert out.startswith("Print the answer of the provider: ")
    assert out.endswith("usage: python -m nvidia_variant_provider [--json] [FILE]\n")


@posix
def test_a_reader_that_has_gone_is_no_error(program: Program, closed_pipe: int) -> None:
    assert program(stdout=closed_pipe, variables=FORCED) == (0, "", "")


@posix
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(closed: str, program: Program) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *program.command],
        env={**program.environ, **FORCED},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    if ">&-" in closed.split():
        assert (done.returncode, done.stdout) == (3, "")
    else:
        assert done.returncode == 0
        assert "nvidia :: sm_arch :: 90_real\n" in done.stdout
    if closed == ">&-":
        assert done.stderr.startswith("error: stdout: cannot be written: it is closed")


@linux
def test_output_that_cannot_be_written(program: Program) -> None:
    with open("/dev/full", "wb") as full:
        code, _, err = program(stdout=full.fileno(), variables=FORCED)
        done = subprocess.run(
            program.command, env=program.environ, stderr=full, check=False
        )
    assert code == 3
    assert err.startswith("error: stdout: cannot be written: No space left on device; ")
    assert done.returncode == 0, "a warning that cannot be written is no error"


@posix
def test_an_interrupt(program: Program) -> None:
    with subprocess.Popen(
        [*program.command, "-"],
        env=program.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        # The text is longer than the buffer of a pipe, so the program has begun to
        # read.
        os.write(process.stdin.fileno(), b" " * (1 << 20))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"")
