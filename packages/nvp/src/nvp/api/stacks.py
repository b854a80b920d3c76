"""Installed software: whether it can use the GPUs of a machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from nvidia_variant_provider.api import detect
from nvidia_variant_provider.machine.environment import Environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..doctor.evidence import Evidence
    from ..doctor.receipts.comparing import Comparison
    from ..doctor.receipts.making import Receipt
    from ..doctor.runner import Diagnosis
    from ..doctor.software import Watch as WatchReading


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
    evidence: Evidence | None = None,
) -> Diagnosis:
    """Check whether an installed stack can use the GPUs of a machine.

    The checks run no Python code of the stack. ``ptxas`` and ``nvcc`` are asked for
    their version. Only ``live``, which runs torch, and the workloads of ``evidence``
    run code.

    :param python: an interpreter, or the folder of an environment; by default the
        activated environment, and then the running interpreter.
    :param environment: the machine; by default `detect` finds this one.
    :param is_here: whether the stack is to run on this machine, so that the files of
        its system count as well.
    :param machine_options: the words of a command line that name the machine, such as
        ``--cuda-driver 12.8``; the commands that are proposed have them.
    :param environ: environment variables, by default those of the process.
    :param jobs: how many files are read at the same time.
    :param watch: called with the name of each distribution that is read; the context
        that it returns gives a function that reports the progress, as for `inspect`.
    :param live: run code on the GPUs of this machine, with this deadline in seconds
        for each GPU and for torch.
    :param evidence: workloads to run, and the receipt to make or to compare with; a
        receipt that is made is the ``receipt`` of the result.
    :return: ``findings`` has what is wrong, in the order of the codes.
    :raises UsageError: there is no such interpreter or environment, or ``evidence`` has
        a command or a reason that is malformed.
    :raises MissingExtraError: ``live`` needs the extra ``live``.
    :raises DetectionError: ``live`` needs a GPU.
    """
    from ..doctor.runner import diagnose_installation
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
    )
    if evidence is None:
        return diagnosis
    from ..doctor.evidence import add_evidence

    return add_evidence(diagnosis, evidence)


def diff_receipts(old: Receipt | str, new: Receipt | str) -> Comparison:
    """Compare two receipts of `doctor`.

    :param old: a receipt, or the path of one.
    :return: ``lanes`` has a lane for each fact and for each workload.
    :raises InputError: a file is no receipt.
    """
    from ..doctor.receipts.comparing import compare
    from ..doctor.receipts.reading import read_receipt, receipt_of

    before, after = (
        read_receipt(item) if isinstance(item, str) else receipt_of(item)
        for item in (old, new)
    )
    return compare(before, after)
