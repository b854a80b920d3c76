"""A diagnosis for an issue tracker: what others need, and nothing about the user.

Home folders, the names of users and machines, and passwords in URLs are left out.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping

from nvidia_variant_provider.errors import printable, redacted

from .. import __version__
from ..findings import listed
from ..knowledge.builds import PROJECTS
from .model import commands_of
from .runner import Diagnosis

LONGEST_SHARED = 60
"""The most lines of what is short enough for a comment."""

_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
_HOME = re.compile(r"(/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s'\"]+")
_NAMED = ("jax", "jaxlib", "numpy", "onnxruntime")
_MOST_NOTES = 10


def issue_lines(
    diagnosis: Diagnosis, environ: Mapping[str, str], *, most: int | None = None
) -> list[str]:
    """Return a diagnosis as lines of Markdown.

    :param environ: environment variables, which name the user and the home folder.
    :param most: the most lines; findings come first, and versions are left out.
    """
    lines = [_anonymous(line, environ) for line in _lines(diagnosis)]
    if most is not None and len(lines) > most:
        more = (
            f"... and {len(lines) - most + 1} lines more: nvp doctor --report FILE.md"
        )
        lines = [*lines[: most - 1], more]
    return lines


def _anonymous(text: str, environ: Mapping[str, str]) -> str:
    text = _URL.sub(lambda match: redacted(match[0]), text)
    homes = {environ.get(name, "").rstrip("/\\") for name in ("HOME", "USERPROFILE")}
    for home in sorted(homes - {""}, key=len, reverse=True):
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    text = _HOME.sub(r"\1USER", text)
    names = {environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")}
    names |= {environ.get("HOSTNAME", ""), platform.node()}
    for name in names - {"", "root", "localhost"}:
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", "USER", text)
    return text


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    stack = diagnosis.stack
    environment = stack.environment
    yield f"**GPU stack**, by `nvp doctor` {__version__}"
    yield ""
    if stack.is_here:
        system = (platform.system(), platform.release(), platform.machine())
        yield f"- System: {' '.join(system)}"
    python = stack.installation.to_dict().get("version")
    yield f"- Python: {printable(str(python or 'unknown'))}"
    driver = environment.cuda_driver_version
    number = environment.kernel_driver_version
    yield f"- Driver: {f'CUDA {driver}' if driver else 'none'}" + (
        f" ({printable(number)})" if number else ""
    )
    for gpu in environment.gpus:
        name = printable(gpu.name or "a GPU")
        capability = gpu.compute_capability or "unknown"
        yield f"- GPU {gpu.index}: {name}, compute capability {capability}"
    for finding in diagnosis.findings:
        yield ""
        message = printable(finding.message)
        yield f"- **{finding.code}** ({finding.severity}): {message}"
        yield f"  - {printable(finding.hint)}"
    if not diagnosis.findings:
        yield ""
        yield "No check found anything wrong."
    commands = commands_of(diagnosis.findings)
    if commands:
        yield from ("", "```sh", *map(printable, commands), "```")
    notes = [printable(note) for note in diagnosis.notes]
    if notes:
        yield ""
        yield from (f"- {note}" for note in notes[:_MOST_NOTES])
    if len(notes) > _MOST_NOTES:
        yield f"- {len(notes) - _MOST_NOTES} more notes"
    yield ""
    with_code = {item.name for item, _ in stack.with_gpu_code()}
    libraries = []
    for item in stack.distributions.values():
        if item.is_library:
            libraries.append(item.title)
        elif item.name in with_code or item.name in PROJECTS or item.name in _NAMED:
            cuda = stack.cuda_of(item)
            yield f"- {item.title}{f' (CUDA {cuda})' if cuda else ''}"
    if libraries:
        yield f"- {listed(libraries, len(libraries))}"
