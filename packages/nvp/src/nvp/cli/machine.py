"""The options that say which machine a verb is about."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from nvidia_variant_provider.errors import (
    DetectionError,
    OverrideError,
    UsageError,
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

from . import arguments

_FLAGS = {CUDA_DRIVER_VERSION: "--cuda-driver", SM_ARCH: "--sm-arch"}

_NO_CUDA = 20
"""No CUDA version has this major or a higher one, for years to come."""

_WINDOWS = 5
"""A branch has numbers of its own on Windows: 551 to 553 are of the branch 550."""


_OPTIONS = """
--cuda-driver VERSION
  act as if the driver supported this CUDA version, such as 12.9; or the number of a
  driver, such as 550.54.15, whose CUDA version is looked up
--sm-arch MAJOR.MINOR
  act as if the GPU had this compute capability, such as 9.0
--no-gpu
  act as a machine without an NVIDIA GPU and without its driver
--environment FILE
  act as the machine in this snapshot, made with: detect --json > FILE; or in an
  inventory, such as the output of nvidia-smi -q -x or kubectl get nodes
--node NAME
  the machine of an inventory that describes several
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of which `words_of` returns those that the user gave."""
    group = parser.add_argument_group("options for another machine")
    arguments.add_options(group, _OPTIONS)


def words_of(options: argparse.Namespace) -> list[str]:
    """Return the options that say which machine a verb is about, as they were given."""
    words = ["--no-gpu"] if options.no_gpu else []
    for name, text in _given(options).items():
        words += [name, text]
    return words


def _given(options: argparse.Namespace) -> dict[str, str]:
    """Return the options with a value, by their names."""
    values = {
        "--cuda-driver": options.cuda_driver,
        "--sm-arch": options.sm_arch,
        "--environment": options.environment,
        "--node": options.node,
    }
    return {name: text for name, text in values.items() if text is not None}


def detection_errors(environment: Environment) -> list[DetectionError]:
    """Return the error of a machine that could not be asked, or no error."""
    reason = environment.reason
    if not is_failure(reason):
        return []
    sentence, step = reasons.explain(reason)
    return [DetectionError(f"{reason}: {sentence}", hint=step)]


def find_later(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> Callable[[], Environment]:
    """Return a function that does what `find_environment` does, when it is needed.

    It is for verbs that may not need a machine at all, and then ask no driver. What
    the user gave is checked at once, so that a wrong option fails early.
    """
    forced = (environ.get(CUDA_DRIVER_VERSION), environ.get(SM_ARCH))
    if words_of(options) or any(forced):
        environment = find_environment(options, environ)
        return lambda: environment
    return lambda: find_environment(options, environ)


def find_environment(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> Environment:
    """Return the machine that the options name; flags win over everything else.

    With a snapshot, the ``NV_VARIANT_PROVIDER_FORCE_*`` variables do not count.

    :raises OverrideError: a flag or a variable is malformed.
    :raises InputError: the snapshot or inventory cannot be read, or is not valid.
    :raises UsageError: it does not have one machine that is meant, or options
        contradict each other.
    """
    words = _given(options)
    for name in _FLAGS.values():
        if words.get(name) == "":  # such as from a shell variable that is not set
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
    """Return the CUDA version that ``--cuda-driver`` names, and tell it of a driver."""
    numbers = driver_numbers(text if "." in text else f"{text}.0")
    if numbers is None:  # `forced_cuda_version` reads it, or says what is wrong.
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
    if major >= 100 and text.isdigit():  # The provider tells what was meant by 128.
        return text
    raise OverrideError(
        f"{shown(text)} is neither a CUDA version nor the number of a known driver",
        path="--cuda-driver",
        hint="give the CUDA version that nvidia-smi shows, such as 12.9",
    )


def _find_machine(
    options: argparse.Namespace, environ: Mapping[str, str], given: Mapping[str, str]
) -> Environment:
    """Return the machine, with the forced values ``given`` by flags."""
    # Verbs that pass words on to another program start that program first.
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
    """Refuse a compute capability that no GPU has.

    Those between known ones pass, and so do the newest that the catalog has room for.
    """
    capability = forced_compute_capability(given)
    if capability is None or (
        LOWEST <= capability <= HIGHEST and capability.minor < 10  # the usual case
    ):
        return
    from ..knowledge.tables import gpu_models

    known = gpu_models()
    if not min(known) <= capability <= max(known) or capability.minor > 9:
        message = f"{shown(given[SM_ARCH])} is not the compute capability of any GPU"
        hint = f"give one such as 9.0; the newest that is known is {max(known)}"
        raise OverrideError(message, path=SM_ARCH, hint=hint)
