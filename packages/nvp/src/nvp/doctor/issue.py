"""Format a diagnosis for an issue tracker, without personal information.

Home directories, the names of users and machines, and passwords in URLs are replaced.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping

from nvidia_variant_provider.errors import listed, printable, redacted

from .. import __version__
from ..knowledge.builds import PROJECTS
from ..matrix.style import without_mentions
from .model import commands_of
from .runner import Diagnosis

LONGEST_SHARED = 60
"""The maximum number of lines in a comment on an issue."""

_HOME = re.compile(r"(/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s'\"]+", re.IGNORECASE)
_MARKUP = re.compile(r"(?<!\\)(\\*)(<(?=[A-Za-z/!?])|&(?=[#A-Za-z])|(?<=\])\(|`)")
"""Any backslashes, and the start of a tag, of an entity, of code, or of the target of a
link or an image.

The backslashes are doubled: otherwise the last one would escape the added backslash."""

_NAMED = ("jax", "jaxlib", "numpy", "onnxruntime")
_MOST_NOTES = 10


def issue_lines(
    diagnosis: Diagnosis, environ: Mapping[str, str], *, most: int | None = None
) -> list[str]:
    """Return a diagnosis as lines of Markdown.

    :param environ: environment variables, which name the user and the home directory.
    :param most: the maximum number of lines; the end, with the versions of
        distributions, is cut off.
    """
    personal = [*_personal(environ)]
    lines = [*_lines(diagnosis, lambda text: _anonymous(text, personal))]
    if most is not None and len(lines) > most:
        more = (
            f"... and {len(lines) - most + 1} lines more: nvp doctor --report FILE.md"
        )
        lines = [*lines[: most - 1], more]
    return lines


def _anonymous(text: str, personal: Iterable[tuple[re.Pattern[str], str]]) -> str:
    text = redacted(text)
    for pattern, replacement in personal:
        text = pattern.sub(replacement, text)
    return text


def _personal(environ: Mapping[str, str]) -> Iterator[tuple[re.Pattern[str], str]]:
    """Yield ``(pattern, replacement)`` for home directories and user and host names."""
    homes = {environ.get(name, "") for name in ("HOME", "USERPROFILE")}
    # A home may be a link, and paths in a diagnosis may contain its target.
    known = {home for home in homes if os.path.isabs(home) and os.path.isdir(home)}
    homes |= set(map(os.path.realpath, known))
    homes = _forms(home.rstrip("/\\") for home in homes)
    for home in sorted(homes, key=len)[::-1]:
        yield re.compile(rf"{re.escape(home)}(?![\w.-])", re.IGNORECASE), "~"
    yield _HOME, r"\1USER"
    variables = ("USER", "LOGNAME", "USERNAME", "SUDO_USER")
    names = {environ.get(name, "") for name in variables}
    hosts = {platform.node(), environ.get("HOSTNAME", "")}
    names |= {_account(), *hosts, *(host.partition(".")[0] for host in hosts)}
    for name in map(re.escape, _forms(names - {"root", "localhost"})):
        # Directory names often contain the name of the user.
        part = rf"(?<=[/\\])((?:[^\s/\\]*[_.-])?){name}(?![A-Za-z0-9])"
        yield re.compile(part), r"\1USER"
        yield re.compile(rf"(?<![\w.-]){name}(?![\w.-])"), "USER"


def _forms(texts: Iterable[str]) -> set[str]:
    """Return texts as they are, and as messages escape and commands quote them."""
    return {
        form
        for x in filter(None, texts)
        for form in (x, printable(x), ascii(x)[1:-1], x.replace("'", "'\"'\"'"))
    }


def _account() -> str:
    """Return the name of the user's account, even if no variable contains it."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return ""


def _escaped(text: str) -> str:
    """Escape text from a file, so Markdown shows the text without markup."""
    return without_mentions(_MARKUP.sub(r"\1\1\\\2", printable(text)))


def _anonymous_command(command: str, anonymous: Callable[[str], str]) -> str:
    """Replace texts in the words of a command, which may be those of a stranger.

    In the whole command, a replacement could remove a quote.
    """
    return " ".join(map(_quote, map(anonymous, shlex.split(command))))


def _quote(word: str) -> str:
    home = "~/" if word.startswith("~/") else ""  # which the shell must expand
    return home + shlex.quote(word.removeprefix(home))


def _lines(diagnosis: Diagnosis, anonymous: Callable[[str], str]) -> Iterator[str]:
    def prose(text: str) -> str:
        # First replace: "@" and a name can become a mention where a path was removed.
        return _escaped(anonymous(text))

    stack = diagnosis.stack
    environment = stack.environment
    yield f"**GPU stack**, by `nvp doctor` {__version__}"
    yield ""
    if stack.is_here:
        system = (platform.system(), platform.release(), platform.machine())
        yield f"- System: {anonymous(' '.join(system))}"
    python = stack.installation.to_dict().get("version")
    yield f"- Python: {prose(str(python or 'unknown'))}"
    driver = environment.cuda_driver_version
    number = environment.kernel_driver_version
    yield f"- Driver: {f'CUDA {driver}' if driver else 'none'}" + (
        f" ({prose(number)})" if number else ""
    )
    for gpu in environment.gpus:
        name = prose(gpu.name or "a GPU")
        capability = gpu.compute_capability or "unknown"
        yield f"- GPU {gpu.index}: {name}, compute capability {capability}"

    def advice(text: str, commands: Iterable[object]) -> str:
        parts = []
        for command in map(str, commands):
            before, found, text = text.partition(command)
            parts += [anonymous(before), _anonymous_command(found, anonymous)]
        return _escaped("".join([*parts, anonymous(text)]))

    for finding in diagnosis.findings:
        yield ""
        message = prose(finding.message)
        yield f"- **{finding.code}** ({finding.severity}): {message}"
        yield f"  - {advice(finding.hint, finding.commands)}"
    if not diagnosis.findings:
        yield ""
        yield "No check found anything wrong."
    commands = commands_of(diagnosis.findings)
    if commands:
        hidden = (_anonymous_command(command, anonymous) for command in commands)
        yield from ("", "```sh", *map(printable, hidden), "```")
    notes = diagnosis.notes
    if notes:
        yield ""
        yield from (f"- {prose(note)}" for note in notes[:_MOST_NOTES])
    if len(notes) > _MOST_NOTES:
        yield f"- {len(notes) - _MOST_NOTES} more notes"
    yield ""
    with_code = {item.name for item, _ in stack.with_gpu_code()}
    libraries = []
    for item in stack.distributions.values():
        if item.is_library:
            libraries.append(prose(item.title))
        elif item.name in with_code or item.name in PROJECTS or item.name in _NAMED:
            cuda = stack.cuda_of(item)
            yield f"- {prose(item.title)}{f' (CUDA {cuda})' if cuda else ''}"
    if libraries:
        yield f"- {listed(libraries, len(libraries))}"
