"""The options that say which machine a verb is about."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from nvidia_variant_provider.errors import (
    DetectionError,
    OverrideError,
    UsageError,
)
from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.machine.overrides import (
    CUDA_DRIVER_VERSION,
    SM_ARCH,
    apply_forced,
    forced_compute_capability,
    forced_cuda_version,
)

_FLAGS = {CUDA_DRIVER_VERSION: "--cuda-driver", SM_ARCH: "--sm-arch"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--cuda-driver``, ``--sm-arch``, ``--environment`` and ``--node``."""
    group = parser.add_argument_group("options for another machine")
    group.add_argument(
        "--cuda-driver",
        metavar="VERSION",
        help="act as if the driver supported this CUDA version, such as 12.9",
    )
    group.add_argument(
        "--sm-arch",
        metavar="MAJOR.MINOR",
        help="act as if the GPU had this compute capability, such as 9.0",
    )
    group.add_argument(
        "--environment",
        metavar="FILE",
        help="act as the machine in this snapshot, made with: detect --json > FILE; or "
        "in an inventory, such as the output of nvidia-smi -q -x or kubectl get nodes",
    )
    group.add_argument(
        "--node",
        metavar="NAME",
        help="the machine of an inventory that describes several",
    )


def words_of(options: argparse.Namespace) -> list[str]:
    """Return the options that say which machine a verb is about, as they were given."""
    given = {
        "--cuda-driver": options.cuda_driver,
        "--sm-arch": options.sm_arch,
        "--environment": options.environment,
        "--node": options.node,
    }
    return [word for name, text in given.items() if text for word in (name, text)]


def detection_errors(environment: Environment) -> list[DetectionError]:
    """Return the error of a machine that could not be asked, or no error."""
    reason = environment.reason
    if not reasons.is_failure(reason):
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
    given = (options.cuda_driver, options.sm_arch, options.environment, options.node)
    forced = (environ.get(CUDA_DRIVER_VERSION), environ.get(SM_ARCH))
    if any(item is not None for item in given) or any(forced):
        environment = find_environment(options, environ)
        return lambda: environment
    # Only the verbs that serve installers come here; the others start faster.
    from threading import Lock

    lock, known = Lock(), list[Environment]()

    def find_once() -> Environment:
        with lock:
            if not known:
                known.append(find_environment(options, environ))
            return known[0]

    return find_once


def find_environment(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> Environment:
    """Return the machine that the options name; flags win over everything else.

    With a snapshot, the ``NV_VARIANT_PROVIDER_FORCE_*`` variables do not count.

    :raises OverrideError: a flag or a variable is malformed.
    :raises InputError: the snapshot or inventory cannot be read, or is not valid.
    :raises UsageError: it does not have one machine that is meant.
    """
    # Verbs that pass words on to another program start that program first.
    from nvidia_variant_provider.detection import detect

    flags = {
        CUDA_DRIVER_VERSION: options.cuda_driver,
        SM_ARCH: options.sm_arch,
    }
    given = {name: text for name, text in flags.items() if text is not None}
    for name, text in given.items():
        if not text:  # such as from a shell variable that is not set
            raise OverrideError("is empty", path=_FLAGS[name], hint="give a value")
    if options.node is not None and options.environment is None:
        message = "names a machine, but there is no inventory"
        raise UsageError(message, path="--node", hint="give --environment FILE")
    try:
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
        if error.path in given:
            error.path = _FLAGS[error.path]
            error.hint = (error.hint or "").removesuffix(", or unset it")
        raise
