"""Terminal sessions in Markdown pages: find them, run them, and write them again.

A block of the language ``console`` has commands, each after ``$ ``, and below each
command its output. The blocks of one page share a scratch directory, in which
``fixtures`` and ``schemas`` are those of the checkout, and the commands of one block
share a shell. A block of the language ``pycon`` is a session of Python in the same way;
its blocks share only the directory. A block below the comment ``<!-- not run: REASON
-->`` is left alone.
"""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.paths import ROOT

__all__ = [
    "ROOT",
    "Block",
    "Step",
    "blocks",
    "compared",
    "environ_of",
    "pages",
    "refresh",
    "run_page",
]


_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>console|pycon)$")
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+) -->")
_HERE_DOCUMENT = re.compile(r"<<'(?P<end>\w+)'")
_SEPARATOR = "--- next command ---"

# Ports, secrets and times differ in every run; the pages have these placeholders.
_LOOPBACK = re.compile(r"http://127\.0\.0\.1:\d+/[\w-]{22}/")
_SHOWN_LOOPBACK = "http://127.0.0.1:42131/x6nEDycrWrAYt2hjInP3yQ/"
_SHOWN_FOLDER = "/home/user/kernels"
_SHOWN_PYTHON = "/home/user/.venv/bin/python"
_SYSTEM = re.compile(r"Python 3\.\S+, \S+$", re.MULTILINE)
_SHOWN_SYSTEM = "Python 3.13.9, Linux-6.12.57-x86_64-with-glibc2.41"
_DURATION = re.compile(r"\b(passed|failed) after \d+\.\d s\b")
_SHOWN_DURATION = r"\1 after 0.2 s"
_SERVED = re.compile(r"http://127\.0\.0\.1:\d+/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One command and its output."""

    command: str
    output: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One session of a page; ``first`` and ``last`` are the indexes of its fences.

    ``not_run`` is the reason why the session cannot be run, if there is one.
    """

    language: str
    first: int
    last: int
    indent: str
    steps: tuple[Step, ...]
    not_run: str | None

    @property
    def line(self) -> int:
        """The number of its first line, as editors count."""
        return self.first + 1


def pages() -> list[Path]:
    """Return every Markdown page of the documentation, `README.md` first."""
    top = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> list[Block]:
    """Return the sessions of a page that has this text."""
    return list(_find_blocks(text.splitlines()))


def _find_blocks(lines: Sequence[str]) -> Iterator[Block]:
    start = 0
    while start < len(lines):
        fence = _FENCE.match(lines[start])
        if fence is None:
            start += 1
            continue
        indent = fence["indent"]
        end = lines.index(f"{indent}```", start + 1)
        content = [line.removeprefix(indent) for line in lines[start + 1 : end]]
        before = next((line for line in reversed(lines[:start]) if line.strip()), "")
        mark = _NOT_RUN.search(before)
        yield Block(
            language=fence["language"],
            first=start,
            last=end,
            indent=indent,
            steps=tuple(
                _shell_steps(content)
                if fence["language"] == "console"
                else _python_steps(content)
            ),
            not_run=mark["reason"] if mark else None,
        )
        start = end + 1


def _python_steps(lines: Sequence[str]) -> Iterator[Step]:
    for example in doctest.DocTestParser().get_examples("\n".join([*lines, ""])):
        yield Step(command=example.source.removesuffix("\n"), output=example.want)


def _shell_steps(lines: Sequence[str]) -> Iterator[Step]:
    position = 0
    while position < len(lines):
        if not lines[position].startswith("$ "):
            raise ValueError(f"no command stands above this line: {lines[position]}")
        words = [lines[position].removeprefix("$ ")]
        position += 1
        here_document = _HERE_DOCUMENT.search(words[0])
        while words[-1].endswith("\\") or (
            here_document and words[-1] != here_document["end"]
        ):
            words.append(lines[position])
            position += 1
        start = position
        while position < len(lines) and not lines[position].startswith("$ "):
            position += 1
        output = "".join(f"{line}\n" for line in lines[start:position])
        yield Step(command="\n".join(words), output=output)


def run_page(text: str) -> list[tuple[Block, tuple[Step, ...]]]:
    """Run the sessions of a page; return each block with its new steps."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work = folder.resolve() / "work"
        work.mkdir()
        for shared in ("fixtures", "schemas"):
            (work / shared).symlink_to(ROOT / shared)
        environ = environ_of(folder)
        return [
            (block, _run(block, work, environ))
            for block in blocks(text)
            if block.not_run is None
        ]


def environ_of(folder: Path) -> dict[str, str]:
    """Return the variables of a machine without a GPU and without configuration."""
    empty = folder / "empty"
    empty.mkdir(exist_ok=True)
    kept = ("SYSTEMROOT", "TEMP", "TMP", "TMPDIR")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PATH": os.pathsep.join(
            [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
        ),
        "COLUMNS": "80",
        "HOME": str(empty),
        "LC_ALL": "C.UTF-8",
        "NV_VARIANT_PROVIDER_SYSROOT": str(empty),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_CACHE_DIR": "1",
        # Merge stdout and stderr, so their lines have the same order as on a terminal.
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "default",
        "XDG_CONFIG_DIRS": str(empty),
    }


def _run(block: Block, work: Path, environ: Mapping[str, str]) -> tuple[Step, ...]:
    if block.language == "pycon":
        return _run_python(block, work, environ)
    if any(_is_server(step.command) for step in block.steps):
        (step,) = block.steps
        return (Step(command=step.command, output=_serve(step.command, work, environ)),)
    script = "".join(
        # Keep the exit code for a next command that prints it.
        f"status=$?; echo '{_SEPARATOR}'; (exit $status)\n{step.command}\n"
        for step in block.steps
    )
    outputs = _outputs(["bash", "-c", script], block, work, environ)
    return tuple(
        Step(command=step.command, output=_normalised(output, work))
        for step, output in zip(block.steps, outputs, strict=True)
    )


def _run_python(
    block: Block, work: Path, environ: Mapping[str, str]
) -> tuple[Step, ...]:
    script = "".join(
        f"print({_SEPARATOR!r}, flush=True)\n"
        # Print the value of an expression, as the prompt of Python does.
        f"exec(compile({step.command!r} + chr(10), '<page>', 'single'))\n"
        for step in block.steps
    )
    outputs = _outputs([sys.executable, "-c", script], block, work, environ)
    return tuple(
        Step(command=step.command, output=output)
        for step, output in zip(block.steps, outputs, strict=True)
    )


def _outputs(
    command: Sequence[str], block: Block, work: Path, environ: Mapping[str, str]
) -> list[str]:
    """Run a program that prints `_SEPARATOR` before each step of a block.

    :raises ValueError: the program did not reach the last step.
    """
    done = subprocess.run(
        command,
        cwd=work,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    outputs = done.stdout.split(f"{_SEPARATOR}\n")[1:]
    if len(outputs) != len(block.steps):
        raise ValueError(f"the session stopped early: {done.stdout}")
    return outputs


def _normalised(output: str, work: Path) -> str:
    output = output.replace(str(work), _SHOWN_FOLDER)
    output = output.replace(sys.executable, _SHOWN_PYTHON)
    output = _SYSTEM.sub(_SHOWN_SYSTEM, output)
    output = _DURATION.sub(_SHOWN_DURATION, output)
    return _LOOPBACK.sub(_SHOWN_LOOPBACK, output)


def _is_server(command: str) -> bool:
    return re.match(r"\S+ serve\b", command) is not None


def _serve(command: str, work: Path, environ: Mapping[str, str]) -> str:
    """Run ``serve`` on a free port until it has printed how to stop it."""
    asked = re.search(r"--port (\d+)", command)
    port = asked[1] if asked else "42131"
    words = command.replace(f"--port {port}", "--port 0")
    with subprocess.Popen(
        ["bash", "-c", f"exec {words}"],
        cwd=work,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                process.send_signal(signal.SIGINT)
    return _SERVED.sub(f"http://127.0.0.1:{port}/", "".join(lines))


def _prompted(block: Block, step: Step) -> list[str]:
    """Return the lines of a command as a page shows them."""
    first, *others = step.command.splitlines()
    if block.language == "console":
        return [f"$ {first}", *others]
    return [f">>> {first}", *(f"... {line}" for line in others)]


def compared(step: Step) -> list[str]:
    """Return the lines of a step that do not depend on the version of pip."""
    lines = step.output.splitlines()
    if re.search(r"(nvidia-variant-provider|nvp) pip\b", step.command) is None:
        return lines
    starts = ("Would install variant", "warning:", "error:")
    return [x for x in lines if x.startswith(starts) or " -> " in x]


def refresh(text: str) -> str:
    """Return the text of a page with the current output of its commands."""
    lines = text.splitlines()
    for block, steps in reversed(run_page(text)):
        fresh = [
            line
            for step in steps
            for line in (*_prompted(block, step), *step.output.splitlines())
        ]
        lines[block.first + 1 : block.last] = [
            f"{block.indent}{line}".rstrip() for line in fresh
        ]
    return "\n".join(lines) + "\n"
