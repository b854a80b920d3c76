"""Read machines from files, and check whether installed software runs on them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from nvidia_variant_provider.api import detect
from nvidia_variant_provider.errors import InputError, UsageError, shown
from nvidia_variant_provider.light import Logger
from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.strict_json import parse_json, read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..doctor.receipts.comparing import Comparison
    from ..doctor.receipts.making import Receipt
    from ..doctor.runner import Diagnosis, Evidence
    from ..doctor.software import Watch as WatchReading
    from ..inventories.model import Machine


_logger = Logger("nvp.api")


_LARGEST_SNAPSHOT = 1024 * 1024

_MOST_NAMES = 10
"""The maximum number of machines that a message names."""


def read_environment(path: str | os.PathLike[str]) -> Environment:
    """Read a snapshot of a machine.

    :param path: the output of ``detect --json``, or only the ``data`` of that report.
        The schema is ``schemas/environment.schema.json``.
    :raises InputError: the file cannot be read, or is not valid.
    """
    from ..inventories.model import environment_of_snapshot

    name = str(path)
    try:
        environment = environment_of_snapshot(parse_json(read_bytes(path, given=True)))
    except InputError as error:
        error.path = name
        raise
    _logger.info("the machine of %s: %s", name, environment.to_dict())
    return environment.replace(source="snapshot")


def read_machines(path: str | os.PathLike[str]) -> list[Machine]:
    """Read the machines of an inventory made by another tool.

    :param path: a file, whose form is recognized by its content: a snapshot, ``kubectl
        get`` of nodes or resourceslices (JSON or YAML), ``condor_status -json``, ``pixi
        info --json``, ``conda info --json``, ``nvidia-smi -q -x``, ``nvidia-smi
        --query-gpu``, or metrics of the DCGM exporter. ``-`` is standard input.
    :return: the machines with a GPU, in the order of the file. A fact that the file
        does not contain is ``None`` with the reason ``not-given``.
    :raises InputError: the file is unreadable, has a different form, or has no machine.
    :raises MissingExtraError: the form needs the extra ``fleet``.
    """
    from ..inventories.reading import read_inventory

    return read_inventory(os.fspath(path))


def read_machine(path: str | os.PathLike[str], node: str | None = None) -> Machine:
    """Read one machine from a snapshot or an inventory.

    :param path: a file as for `read_environment` or `read_machines`.
    :param node: the name of the machine; required if the inventory has several.
    :raises UsageError: there are several machines, or none has this name; the hint
        lists the names.
    :raises InputError: the file cannot be read, or is not valid.
    :raises MissingExtraError: the form needs the extra ``fleet``.
    """
    from ..inventories.model import Machine
    from ..signals import bounded

    name = os.fspath(path)
    if node is None and _is_snapshot(name):
        return Machine(name=name, environment=read_environment(name))
    with bounded():  # for commands that have no such limit
        machines = read_machines(name)
    named = [item for item in machines if node in (None, item.name)]
    if len(named) == 1:
        _logger.info("the machine %s of %s", named[0].to_dict(), name)
        return named[0]
    shown_names = [shown(item.name) for item in machines[:_MOST_NAMES]]
    if len(machines) > _MOST_NAMES:
        shown_names.append(f"{len(machines) - _MOST_NAMES} more")
    listed = ", ".join(shown_names)
    if node is None:
        message = f"it describes {len(machines)} machines"
        raise UsageError(message, path=name, hint=f"choose one with --node: {listed}")
    message = f"it has no machine {shown(node)}"
    raise UsageError(message, path=name, hint=f"there are {listed}")


def _is_snapshot(path: str) -> bool:
    """Return whether a file is a snapshot, to be read with `read_environment`.

    Unreadable files and broken JSON are also read with that function, whose errors are
    more exact than those about inventories.
    """
    if path == "-":
        return False
    try:
        if os.path.getsize(path) > _LARGEST_SNAPSHOT:
            return False
        body = read_bytes(path)
        if body.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
            return False
        document = parse_json(body)
    except (OSError, InputError):
        return True
    keys = {"cuda_driver_version", "gpus", "schema_version", "variants"}
    return isinstance(document, dict) and bool(keys & document.keys())


def doctor(
    python: str | None = None,
    *,
    environment: Environment | None = None,
    is_here: bool = True,
    machine_options: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    jobs: int = 1,
    watch: WatchReading | None = None,
    live: float | None = None,
    everything: bool = False,
    evidence: Evidence | None = None,
) -> Diagnosis:
    """Check whether an installed stack can use the GPUs of a machine.

    The checks run no Python code of the stack, but they run ``ptxas`` and ``nvcc`` to
    find their versions. Only ``live``, which runs torch, and the workloads of
    ``evidence`` run code of the stack.

    :param python: an interpreter or the directory of an environment; by default the
        activated environment, or else the running interpreter.
    :param environment: the machine; by default the one that `detect` returns.
    :param is_here: whether the stack runs on this machine, so the system files of the
        machine are also checked.
    :param machine_options: the options that describe the machine, such as
        ``--cuda-driver 12.8``; suggested commands contain them.
    :param environ: environment variables, by default those of the process.
    :param jobs: the number of files to read at the same time.
    :param watch: called with the name of each distribution before it is read; returns a
        context manager that yields a progress function, as for `inspect`.
    :param live: run code on the GPUs of this machine, with this deadline in seconds
        for each GPU and for torch.
    :param everything: check ``nvcc`` even if no distribution was installed from source
        and there is no workload.
    :param evidence: workloads to run, and the receipt to write or to compare with; a
        new receipt is the ``receipt`` of the result.
    :return: ``findings`` has the problems, in the order in which to fix them. In the
        main thread, except on Windows, the checks have 9 seconds of processor time
        and 200 MiB: if a limit is reached, ``unfinished`` is an error that names the
        remaining checks.
    :raises UsageError: there is no such interpreter or environment, or ``evidence`` has
        a malformed command or reason.
    :raises MissingExtraError: ``live`` needs the extra ``live``.
    :raises DetectionError: ``live`` needs a GPU.
    """
    from ..doctor.runner import add_evidence, diagnose_installation
    from ..files import cache_folder

    environ = os.environ if environ is None else environ
    diagnosis = diagnose_installation(
        python,
        environment=detect(environ) if environment is None else environment,
        is_here=is_here,
        environ=environ,
        cache=cache_folder(environ),
        jobs=jobs,
        watch=watch,
        live=live,
        machine_options=machine_options,
        everything=everything or bool(evidence and evidence.workloads),
    )
    return diagnosis if evidence is None else add_evidence(diagnosis, evidence)


def diff_receipts(old: Receipt | str, new: Receipt | str) -> Comparison:
    """Compare two receipts of `doctor`.

    :param old: a receipt, or the path of one.
    :return: ``facts`` has an entry for each fact and workload.
    :raises InputError: a file is not a receipt.
    """
    from ..doctor.receipts.comparing import compare
    from ..doctor.receipts.making import read_receipt, receipt_of

    before, after = (
        read_receipt(item) if isinstance(item, str) else receipt_of(item)
        for item in (old, new)
    )
    return compare(before, after)
