"""The workers of a Dask cluster that runs already.

Dask distributes the wheels, gives those of a lost worker to others, and tries again.
Nothing of that is done here.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from typing import Any

from .._version import __version__
from ..errors import InputError, MissingExtraError
from ..redaction import redacted
from .model import Outcome
from .worker import OtherVersionError, Task, read_wheel

__all__ = ["ClusterWorkers"]

_PATIENCE = 6
"""Seconds for the connection to the scheduler."""

_RETRIES = 2
"""How often the scheduler runs a task again that has failed."""

_FRESH = 5.0
"""Seconds for which the number of workers counts as known."""

_MOST_NAMED = 3


class ClusterWorkers:
    """The workers of a cluster, each with the package and with access to the index.

    :param address: the address of the scheduler, such as ``tcp://10.0.0.1:8786``.
    :raises InputError: no scheduler responds there, or a worker has another version of
        the package, or none.
    :raises MissingExtraError: the extra ``census`` is not installed.
    """

    def __init__(self, address: str) -> None:
        self._client = _connect(address)
        self._threads = 0
        self._asked = 0.0
        try:
            _require_version(self._client)
            # Two wheels with the same fields are two tasks: one may have been read
            # long ago, and its file may have changed.
            self._executor = self._client.get_executor(pure=False, retries=_RETRIES)
        except BaseException:
            self._client.close(timeout=1)
            raise

    def submit(self, task: Task) -> Future[Outcome]:
        """Give a wheel to the scheduler."""
        future: Future[Outcome] = self._executor.submit(read_wheel, task)
        return future

    def capacity(self) -> int:
        """Return how many wheels all workers of this moment read at the same time."""
        now = time.monotonic()
        if not self._threads or now > self._asked + _FRESH:
            self._asked = now
            self._threads = sum(self._client.nthreads().values())
        # A cluster that grows with its work starts the first worker for the first task.
        return max(1, self._threads)

    def withdraw(self, future: Future[Outcome]) -> None:
        """Do nothing: nobody knows here which wheels a worker has begun."""

    def renew(self) -> None:
        """Do nothing: the scheduler replaces workers."""

    def close(self, *, at_once: bool = False) -> None:
        """Leave the cluster, which goes on to run."""
        self._executor.shutdown(wait=not at_once)
        self._client.close(timeout=1)


def _connect(address: str) -> Any:
    try:
        # There are no types of it where the extra is not installed.
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        message = f"--dask needs the extra census: {error.name} is not installed"
        hint = "pip install 'nvidia-variant-provider[census]'"
        raise MissingExtraError(message, hint=hint) from None
    # What goes wrong is said once, in one line, by this package.
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    attempt: Future[Any] = Future()

    def connect() -> None:
        try:
            attempt.set_result(
                distributed.Client(
                    address, timeout=_PATIENCE, set_as_default=False, name="census"
                )
            )
        except BaseException as error:  # noqa: BLE001  # the caller gets it
            attempt.set_exception(error)

    # The time-out of Dask is for the connection. A server that accepts it and then says
    # nothing, since it is no scheduler, would keep this process waiting for ever.
    threading.Thread(target=connect, name="connects to Dask", daemon=True).start()
    try:
        return attempt.result(_PATIENCE + 1)
    # Dask has assertions for what happens where its thread does not start in time.
    except (OSError, ValueError, TypeError, LateError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "nobody responds"
        message = f"no Dask scheduler can be reached: {redacted(reason)}"
        hint = "check the address that dask scheduler has printed"
        raise InputError(message, path=redacted(address), hint=hint) from None


def _require_version(client: Any) -> None:
    """Refuse workers that would not give the same rows.

    :raises OtherVersionError: names them.
    """

    # A function in a function is sent as it is: it needs no package to be there.
    def version() -> str | None:
        try:
            from nvidia_variant_provider import __version__ as installed
        except ImportError:
            return None
        return installed

    versions = client.run(version)
    others = {name: other for name, other in versions.items() if other != __version__}
    if not others:
        return
    listed = [
        f"{name} has {f'version {other}' if other else 'none'}"
        for name, other in sorted(others.items())[:_MOST_NAMED]
    ]
    if len(others) > _MOST_NAMED:
        listed.append(f"{len(others) - _MOST_NAMED} more workers are like that")
    message = f"workers have another version of this package: {', '.join(listed)}"
    raise OtherVersionError(message, hint=f"install version {__version__} there")
