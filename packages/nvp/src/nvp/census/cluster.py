"""The workers of a running Dask cluster.

Dask distributes the wheels, reassigns the wheels of a lost worker, and retries
failures, so this module does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import itertools
import logging
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from typing import Any

from nvidia_variant_provider.errors import (
    InputError,
    MissingExtraError,
    shown,
)

from .. import __version__
from .model import Outcome
from .worker import Task
from .workers import gone

logger = logging.getLogger(__name__)

_PATIENCE = 6
"""The time limit of replies of the scheduler and the workers, in seconds."""

_RETRIES = 2
"""How often the scheduler retries a failed task."""

_FRESH = 5.0
"""Seconds for which the number of workers is cached."""

_PACKAGE = "nvp"

_SCHEMES = ("tcp", "tls")

_HINT = "give the address that dask scheduler has printed, such as tcp://10.0.0.1:8786"

_TLS_HINT = (
    "name the certificates in Dask's configuration: distributed.comm.tls.ca-file, "
    "client.cert and client.key"
)


class ClusterWorkers:
    """The workers of a cluster, which need this package and access to the index.

    :param address: the address of the scheduler, such as ``tcp://10.0.0.1:8786``.
    :raises InputError: no scheduler responds at the address.
    :raises MissingExtraError: the extra ``census`` is not installed.
    """

    # Tasks and results pass through the scheduler, so submit more wheels ahead.
    ahead = 8

    def __init__(self, address: str) -> None:
        self._client = _connect(address)
        self._threads = 0
        self._asked = 0.0
        # Use unique keys, because other censuses may run on the same cluster.
        self._name = f"census-{uuid.uuid4().hex}"
        self._numbers = itertools.count()
        self._distant: dict[Future[Outcome], Any] = {}
        self._read = _reader()

    def submit(self, task: Task) -> Future[Outcome]:
        """Submit a wheel to the scheduler.

        :raises InputError: the scheduler is gone.
        """
        # Use a new key for every task, even with the same fields: the file may have
        # changed since an earlier task.
        key = f"{self._name}-{next(self._numbers)}"
        # Pickle the task here, because the scheduler would need the package to unpickle
        # it. A BytesIO also hides passwords from the logs of Dask, which show the
        # arguments of failed tasks.
        packed = io.BytesIO(pickle.dumps(task))
        try:
            distant = self._client.submit(
                self._read, __version__, packed, key=key, retries=_RETRIES
            )
            # Do not use Dask's executor: its futures check the state again, and fail if
            # the worker is lost after returning a valid result.
            result = distant._result()
            loop = self._client.loop.asyncio_loop
            future: Future[Outcome] = asyncio.run_coroutine_threadsafe(result, loop)
        except Exception:  # noqa: BLE001  # Dask raises many kinds
            raise gone() from None
        # Keep a reference, because Dask forgets unreferenced futures.
        self._distant[future] = distant
        return future

    def capacity(self) -> int:
        """Return how many wheels the current workers can read at the same time.

        :raises InputError: the scheduler is gone.
        """
        now = time.monotonic()
        if not self._threads or now > self._asked + _FRESH:
            self._asked = now
            try:
                self._threads = sum(self._client.nthreads().values())
            except Exception:  # noqa: BLE001  # Dask raises many kinds
                raise gone() from None
        # An adaptive cluster has no worker until the first task, so return at least 1.
        return max(1, self._threads)

    def result(self, future: Future[Outcome]) -> Outcome:
        """Return the outcome of a wheel; ``future`` must be done.

        :raises CancelledError: the wheel was not read.
        :raises InputError: a new worker's version differs, or the scheduler is gone.
        """
        del self._distant[future]
        try:
            return future.result()
        except ImportError as error:
            if error.name != _PACKAGE:
                raise
            has = f"version {error.msg}" if error.msg else "none"
            message = "workers have another version of this package"
            message += f": {error.path} has {has}"
            hint = f"install version {__version__} there"
            raise InputError(message, hint=hint) from None
        except OSError as error:
            # The connection was lost during the transfer of the result.
            if type(error).__name__ == "CommClosedError":
                raise gone() from None
            raise

    def withdraw(self, futures: Iterable[Future[Outcome]]) -> None:
        """Cancel the wheels that no worker has started to read."""
        try:
            # A stopped worker would not reply.
            begun = self._client.run(
                _list_begun, on_error="ignore", callback_timeout=_PATIENCE
            )
            keys = set(itertools.chain.from_iterable(begun.values()))
            others = [self._distant[future] for future in futures]
            # Dask also cancels the local futures. Canceling them here could cancel a
            # message with results of other wheels.
            self._client.cancel([other for other in others if other.key not in keys])
        except Exception:  # noqa: BLE001  # Dask raises many kinds
            logger.info("the scheduler does not take wheels back")

    def close(self) -> None:
        """Disconnect from the cluster, which keeps running and forgets the wheels."""
        # If closing fails, the scheduler notices the lost connection.
        with contextlib.suppress(Exception):
            self._client.close(timeout=1)


def _reader() -> Callable[[str, io.BytesIO], Outcome]:
    """Return the function that a worker runs for a wheel."""

    # A nested function is sent by value, so workers unpickle it without this package.
    def read(version: str, task: io.BytesIO) -> Outcome:
        import pickle

        from distributed import get_worker

        try:
            from nvp import __version__ as installed
        except ImportError:
            installed = ""
        address: str = get_worker().address
        if installed != version:
            name = "nvp"
            raise ImportError(installed, name=name, path=address)
        from nvp.census.workers import read_in_process

        return read_in_process(pickle.loads(task.getvalue()))  # noqa: S301  # it is ours

    return read


def _list_begun(dask_worker: Any) -> list[str]:
    """Return the keys of a worker's running tasks; Dask passes the worker."""
    return [task.key for task in dask_worker.state.executing]


def _connect(address: str) -> Any:
    try:
        # Import by name: type checkers have no types for Dask without the extra.
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        message = f"--dask needs the extra census: {error.name} is not installed"
        hint = "pip install 'nvp[census]'"
        raise MissingExtraError(message, hint=hint) from None
    scheme, mark, _ = address.rpartition("://")
    if mark and scheme not in _SCHEMES:
        message = f"is no address of a Dask scheduler: it begins with {shown(scheme)}"
        raise InputError(message, path=address, hint=_HINT)
    if "@" in address:  # Dask would print a password
        message = "is no address of a Dask scheduler: it has a user"
        raise InputError(message, path="--dask", hint=_HINT)
    # Silence Dask's logs: this package reports each error once, in one line.
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

    # Dask's timeout covers only the connection. A server that accepts it but never
    # replies, because it is not a scheduler, would block this process forever.
    threading.Thread(target=connect, name="connects to Dask", daemon=True).start()
    try:
        return attempt.result(_PATIENCE + 1)
    # Dask misreads the reply of another kind of server as the length of a message, and
    # raises AssertionError if its thread does not start in time.
    except (OSError, ValueError, TypeError, LateError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "no response"
    except MemoryError:
        reason = "what responds is no scheduler"
    message = f"no Dask scheduler can be reached: {reason}"
    hint = _TLS_HINT if scheme == "tls" else _HINT
    raise InputError(message, path=address, hint=hint)
