"""Arguments that several commands share: a release as FILE, a machine, and options.

Options have the same names as in pip, if pip has them.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nvidia_variant_provider.errors import (
    DetectionError,
    InputError,
    OverrideError,
    UsageError,
    listed,
    redacted,
    shown,
)
from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import (
    CUDA_DRIVER_VERSION,
    SM_ARCH,
    Environment,
    apply_forced,
    driver_numbers,
    forced_compute_capability,
    forced_cuda_version,
    is_failure,
)
from nvidia_variant_provider.machine.supported import HIGHEST, LOWEST, NEWEST

from ..signals import count_input
from .parsers import PROGRAM, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvidia_variant_provider.metadata import VariantsMetadata

_SHARED = """
--all-pairs
  also show drivers with GPUs that they do not support, marked
--assume NAMESPACE...
  assume that all machines have the hardware of this namespace, such as intel; otherwise
  none has other vendors' hardware
--every-gpu
  accept only builds with code for every GPU, not only for the newest one
--extra-index-url URL...
  another index to read
--format FORMAT
  form of the output: %(choices)s; json is the same as --json (default: %(default)s)
-i, --index-url URL
  index of the project (default: pip's)
--jobs N
  number of files to read at the same time (default: %(default)s)
--label [PROJECT=]LABEL...
  select this build instead of the best one, for one project or for every project that
  has it
--minor-version-compatibility
  accept builds for a newer minor version of the driver's CUDA major version, after all
  others
--no-range-metadata
  do not read METADATA by range requests, which cannot be verified before the whole
  wheel arrives; installers then download wheels for it
--platform TAG...
  platform tag of the wheels, such as win_amd64 or manylinux_2_28_aarch64, may be
  repeated (default: this machine's)
--trusted-host HOST...
  do not verify this host, and allow plain HTTP, as for pip
--unchecked
  show regular wheels as the index does, even if they do not run here
--vendor-indexes
  also read vendors' indexes, such as PyTorch's and vLLM's, for releases that do not run
  from your own indexes
"""
"""Options that several commands share; see `add_options`."""


def _one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    """Return a function for argparse that accepts only ``words``."""

    def parse(text: str) -> str:
        if text not in words:
            *others, last = words
            choices = f"{', '.join(others)} or {last}" if others else last
            raise argparse.ArgumentTypeError(f"{shown(text)} is not {choices}")
        return text

    return parse


_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "jobs": {"type": whole_number, "default": min(4, os.cpu_count() or 1)},
    "no_range_metadata": {"action": "store_false", "dest": "range_metadata"},
}

INDEXES = "indexes (default: pip's indexes)"
"""The title of the options for indexes."""


def add_options(
    parser: argparse._ActionsContainer, table: str, **settings: Mapping[str, Any]
) -> None:
    """Add the options of a table, in its order.

    Each option has a line such as ``-o, --output FILE``, and its help in indented lines
    below. An option without a value is a switch. An option with ``FILE...`` may be
    given several times. An option without help is looked up in `_SHARED`.

    :param settings: further arguments of ``add_argument``, keyed by option name.
    """
    shared = {
        next(word for word in words if word.startswith("--")): (words, text)
        for words, text in _rows(_SHARED)
    }
    settings = {**_SETTINGS, **settings}
    for row in _rows(table):
        names, text = row if row[1] else shared[row[0][0]]
        value = names.pop() if names[-1].isupper() else ""
        given: dict[str, Any] = {"help": text}
        if value.endswith("...") and names[-1].startswith("-"):
            given |= {"action": "append", "default": []}
        elif value.endswith("..."):
            given["nargs"] = "+"
        name = names[-1].lstrip("-").replace("-", "_")
        if value:
            given["metavar"] = value.removesuffix("...")
        elif name not in settings:
            given["action"] = "store_true"
        parser.add_argument(*names, **{**given, **settings.get(name, {})})


def _rows(table: str) -> Iterator[tuple[list[str], str]]:
    """Yield ``([*names, METAVAR], help)`` for each option of a table."""
    for row in re.split(r"\n(?=\S)", table.strip()):
        head, *lines = row.splitlines()
        yield head.replace(",", "").split(), " ".join(map(str.strip, lines))


def choice(*words: str) -> dict[str, Any]:
    """Return the settings of an option that accepts ``words``, by default the first."""
    return {"choices": words, "type": _one_of(words), "default": words[0]}


def require_positive(options: argparse.Namespace, *names: str) -> None:
    """Reject values below 1.

    :param names: the names of the values, such as ``per_host``.
    :raises UsageError: a given value is not positive.
    """
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} must be at least 1", hint=f"{value} was given")


def read_release(file: str, environ: Mapping[str, str]) -> VariantsMetadata:
    """Read the metadata of a release.

    :param file: a metadata file, a directory that holds exactly one, the URL of a file,
        or ``-`` for stdin.
    :param environ: environment variables, including pip's settings for connections.
    :raises InputError: the metadata cannot be read or is not valid, or ``file`` is the
        name of a project.
    :raises UsageError: the directory has several metadata files, or a URL is not HTTP.
    """
    refuse_project(file, "releases")
    from nvidia_variant_provider.metadata import read_metadata
    from nvidia_variant_provider.strict_json import read_bytes, read_stdin

    if "://" in file:
        body, file = _download(file, environ)
    elif file == "-":
        body, file = read_stdin(), "stdin"
    else:
        file = _only_release(file) if os.path.isdir(file) else file
        body = read_bytes(file, given=True)
    count_input(file)
    return read_metadata(body, path=file)


def refuse_project(text: str, *command: str) -> None:
    """Reject an argument that seems to be a project instead of a file.

    :param command: the words of the command to suggest for the project.
    :raises InputError: there is no such file, but a project could have this name.
    """
    if os.path.lexists(text):
        return
    match = re.fullmatch(r"([A-Za-z0-9][\w-]*)(\[.*\])? *([=<>!~].*)?", text, re.ASCII)
    if match is not None:
        line = " ".join((PROGRAM, *command, match[1]))
        message = "there is no such file or directory"
        raise InputError(
            message, path=text, hint=f"for the project on an index: {line}"
        )


def _only_release(folder: str) -> str:
    """Return the path of the only metadata file of a directory."""
    from nvidia_variant_provider.metadata.document import SUFFIX
    from nvidia_variant_provider.strict_json import unreadable

    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except OSError as error:
        raise unreadable(error, folder) from None
    if not names:
        message = f"the directory has no file *{SUFFIX}"
        raise InputError(message, path=folder, hint="name the file itself")
    if len(names) > 1:
        several = listed([*map(shown, names)], 5)
        message = f"the directory has {len(names)} files *{SUFFIX}: {several}"
        raise UsageError(message, path=folder, hint="name one of the files")
    return os.path.join(folder, names[0])


def _download(url: str, environ: Mapping[str, str]) -> tuple[bytes, str]:
    """Return the file at a URL, and the URL without credentials and query."""
    from ..index import connect

    if not url.startswith(("http://", "https://")):
        message = "only http and https URLs are read"
        raise UsageError(message, path=url, hint="download the file")
    with connect(environ) as client:
        body = client.read(url)
    # The name of the release is in the path, before query and fragment.
    return body, redacted(url).partition("#")[0].partition("?")[0]


def read_releases(
    options: argparse.Namespace, environ: Mapping[str, str], *files: str
) -> list[VariantsMetadata]:
    """Read the metadata of releases; the list is empty for projects on an index.

    :raises InputError: as for `read_release`.
    :raises UsageError: as for `read_release`, or only one of ``files`` is a project, or
        ``--assume`` has no effect.
    """
    projects = [
        options.index_url is not None or ("==" in file and not os.path.exists(file))
        for file in files
    ]
    if any(projects):
        if not all(projects):
            hint = "give two files or two projects"
            raise UsageError("one of OLD and NEW is a project", hint=hint)
        if options.assume:
            message = "regular wheels do not name the hardware of other vendors"
            raise UsageError(message, path="--assume", hint="leave it out")
        return []
    releases = [read_release(file, environ) for file in files]
    known = {name for metadata in releases for name in metadata.namespaces}
    for name in options.assume:
        if name not in known:
            message = f"no label uses the namespace {shown(name)}"
            hint = (
                f"choose from: {', '.join(sorted(known))}" if known else "leave it out"
            )
            raise UsageError(message, path="--assume", hint=hint)
    return releases


_FLAGS = {CUDA_DRIVER_VERSION: "--cuda-driver", SM_ARCH: "--sm-arch"}

_NO_CUDA = 20
"""The lowest major version that is read as a driver's; CUDA is years away from it."""

_WINDOWS = 5
"""The most by which a Windows driver exceeds its branch: 553 belongs to branch 550."""


_MACHINE = """
--cuda-driver VERSION
  act as if the driver supported this CUDA version, such as 12.9, or were this driver,
  such as 550.54.15
--sm-arch MAJOR.MINOR
  act as if the GPU had this compute capability, such as 9.0
--no-gpu
  act as a machine without an NVIDIA GPU and driver
--environment FILE
  act as the machine in this snapshot (made with detect --json > FILE) or inventory,
  such as the output of nvidia-smi -q -x or kubectl get nodes
--node NAME
  machine of an inventory that describes several
"""


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a machine; `words_of` returns the given ones."""
    group = parser.add_argument_group("options for another machine")
    add_options(group, _MACHINE)


def words_of(options: argparse.Namespace) -> list[str]:
    """Return the machine options of a command as they were typed."""
    words = ["--no-gpu"] if options.no_gpu else []
    for name, text in _given(options).items():
        words += [name, text]
    return words


def _given(options: argparse.Namespace) -> dict[str, str]:
    """Return the machine options that have a value, as ``{option: value}``."""
    values = {
        "--cuda-driver": options.cuda_driver,
        "--sm-arch": options.sm_arch,
        "--environment": options.environment,
        "--node": options.node,
    }
    return {name: text for name, text in values.items() if text is not None}


def detection_errors(environment: Environment) -> list[DetectionError]:
    """Return the error if the machine could not be queried, else an empty list."""
    reason = environment.reason
    if not is_failure(reason):
        return []
    sentence, step = reasons.explain(reason)
    return [DetectionError(f"{reason}: {sentence}", hint=step)]


def find_later(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> Callable[[], Environment]:
    """Return a function that calls `find_environment` later.

    Commands that might not need a machine thus avoid querying the driver. Options are
    checked immediately, so a wrong option fails early.
    """
    forced = (environ.get(CUDA_DRIVER_VERSION), environ.get(SM_ARCH))
    if words_of(options) or any(forced):
        environment = find_environment(options, environ)
        return lambda: environment
    return lambda: find_environment(options, environ)


def find_environment(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> Environment:
    """Return the machine; the options override all other sources.

    With a snapshot, the ``NV_VARIANT_PROVIDER_FORCE_*`` variables are ignored.

    :raises OverrideError: a flag or a variable is malformed.
    :raises InputError: the snapshot or inventory cannot be read, or is not valid.
    :raises UsageError: no single machine is selected, or options contradict each
        other.
    """
    words = _given(options)
    for name in _FLAGS.values():
        if words.get(name) == "":  # such as from an unset shell variable
            raise OverrideError("is empty", path=name, hint="give a value")
    if options.no_gpu:
        if words:
            message = f"--no-gpu and {next(iter(words))} contradict each other"
            raise UsageError(message, hint="give one of them")
        return Environment(source="forced", reason=reasons.NO_DEVICE)
    if options.node is not None and options.environment is None:
        message = "names a machine, but there is no inventory"
        raise UsageError(message, path="--node", hint="give --environment FILE")
    given = dict[str, str]()
    if options.cuda_driver is not None:
        given[CUDA_DRIVER_VERSION] = _find_cuda(options.cuda_driver.strip())
    if options.sm_arch is not None:
        given[SM_ARCH] = options.sm_arch
    environment = _find_machine(options, environ, given)
    if (
        options.sm_arch is not None
        and environment.cuda_driver_version is None
        and not is_failure(environment.reason)
    ):
        message = "names a GPU, but the machine has no NVIDIA driver"
        hint = "give its CUDA version as well, such as --cuda-driver 12.9"
        raise UsageError(message, path="--sm-arch", hint=hint)
    return environment


def _find_cuda(text: str) -> str:
    """Return the CUDA version for ``--cuda-driver``; print it if a driver was given."""
    numbers = driver_numbers(text if "." in text else f"{text}.0")
    if numbers is None:  # `forced_cuda_version` reads the text or reports the error
        return text
    major, minor = numbers
    if 1 <= major < _NO_CUDA and minor <= NEWEST.minor:
        return text
    from ..knowledge.tables import driver_branches
    from .render import complain

    known = driver_branches()
    branch = max((x for x in known if x <= major <= x + _WINDOWS), default=None)
    if branch is not None:
        complain(f"driver {text} is for CUDA {known[branch]}")
        return str(known[branch])
    if major >= 100 and text.isdigit():  # such as 128: the provider reports the error
        return text
    raise OverrideError(
        f"{shown(text)} is neither a CUDA version nor the number of a known driver",
        path="--cuda-driver",
        hint="give the CUDA version that nvidia-smi shows, such as 12.9",
    )


def _find_machine(
    options: argparse.Namespace, environ: Mapping[str, str], given: Mapping[str, str]
) -> Environment:
    """Return the machine, with the values that options force."""
    # Import late: `nvp pip` starts pip first, and the import would delay that.
    from nvidia_variant_provider.detection import detect

    try:
        _check_capability(given)
        if options.environment is None:
            return detect({**environ, **given})
        from ..api import read_machine
        from .render import complain

        cuda, capability = forced_cuda_version(given), forced_compute_capability(given)
        other = read_machine(options.environment, options.node)
        for note in other.notes:
            complain(f"warning: {other.name}: {note}")
        return apply_forced(other.environment, cuda, capability)
    except OverrideError as error:
        if error.path is not None and error.path in given:
            error.path = _FLAGS[error.path]
            error.hint = (error.hint or "").removesuffix(", or unset it")
        raise


def _check_capability(given: Mapping[str, str]) -> None:
    """Reject a compute capability that no GPU has.

    Values missing from the table are accepted between known ones, and up to `HIGHEST`.
    """
    capability = forced_compute_capability(given)
    if capability is None or (
        LOWEST <= capability <= HIGHEST and capability.minor < 10  # surely valid
    ):
        return
    from ..knowledge.tables import gpu_models

    known = gpu_models()
    if not min(known) <= capability <= max(known) or capability.minor > 9:
        message = f"{shown(given[SM_ARCH])} is not the compute capability of any GPU"
        hint = f"give one such as 9.0; the newest that is known is {max(known)}"
        raise OverrideError(message, path=SM_ARCH, hint=hint)
