"""The workers of a Dask cluster that runs already.

Dask distributes the wheels, gives those of a lost worker to others, and tries again.
None of that is done here.
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
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from typing import Any

from nvidia_variant_provider.errors import (
    InputError,
    MissingExtraError,
    redacted,
    shown,
)

from .. import __version__
from .model import Outcome
from .worker import Task
from .workers import gone

logger = logging.getLogger(__name__)

_PATIENCE = 6
"""Seconds for the connection to the scheduler."""

_RETRIES = 2
"""How often the scheduler runs a task again that has failed."""

_FRESH = 5.0
"""Seconds for which the number of workers counts as known."""

_MOST_NAMED = 3

_PACKAGE = "nvp"

_SCHEMES = ("tcp", "tls")

_HINT = "give the address that dask scheduler has printed, such as tcp://10.0.0.1:8786"

_TLS_HINT = (
    "name the certificates in Dask's configuration: distributed.comm.tls.ca-file, "
    "client.cert and client.key"
)


class ClusterWorkers:
    """The workers of a cluster, each with the package and with access to the index.

    :param address: the address of the scheduler, such as ``tcp://10.0.0.1:8786``.
    :raises InputError: no scheduler responds there, or a worker has another version of
        the package, or none.
    :raises MissingExtraError: the extra ``census`` is not installed.
    """

    # A wheel passes through the scheduler on its way to a worker, and so does what was
    # found in it.
    ahead = 8

    def __init__(self, address: str) -> None:
        self._client = _connect(address)
        self._threads = 0
        self._asked = 0.0
        # Keys are those of the whole cluster, which other censuses may use as well.
        self._name = f"census-{uuid.uuid4().hex}"
        self._numbers = itertools.count()
        self._distant: dict[Future[Outcome], Any] = {}
        self._read = _reader()
        try:
            _require_version(self._client)
        except BaseException:
            self._leave()
            raise

    def submit(self, task: Task) -> Future[Outcome]:
        """Give a wheel to the scheduler.

        :raises InputError: there is no scheduler any more.
        """
        # Two wheels with the same fields are two tasks, with a key for each: one may
        # have been read long ago, and its file may have changed.
        key = f"{self._name}-{next(self._numbers)}"
        # The scheduler would unpickle a task, and need the package for it. There may be
        # a password in it, and some versions of Dask log the arguments of what fails.
        # What is in a BytesIO is not shown then.
        packed = io.BytesIO(pickle.dumps(task))
        try:
            distant = self._client.submit(
                self._read, __version__, packed, key=key, retries=_RETRIES
            )
            # This is the result whatever becomes of its worker now. Dask's own executor
            # looks at the state of the future once more, and takes the result of a
            # worker that was lost since for an error.
            result = distant._result()
            loop = self._client.loop.asyncio_loop
            future: Future[Outcome] = asyncio.run_coroutine_threadsafe(result, loop)
        except Exception:  # noqa: BLE001  # Dask has many, by what it was doing
            raise gone() from None
        # Dask forgets what nobody refers to.
        self._distant[future] = distant
        return future

    def capacity(self) -> int:
        """Return how many wheels all workers of this moment read at the same time.

        :raises InputError: there is no scheduler any more.
        """
        now = time.monotonic()
        if not self._threads or now > self._asked + _FRESH:
            self._asked = now
            try:
                self._threads = sum(self._client.nthreads().values())
            except Exception:  # noqa: BLE001  # Dask has many, by what it was doing
                raise gone() from None
        # A cluster that grows with its work starts the first worker for the first task.
        return max(1, self._threads)

    def result(self, future: Future[Outcome]) -> Outcome:
        """Return what became of a wheel, when ``future`` is done.

        :raises CancelledError: it was not read.
        :raises InputError: a worker that has come since has another version, or there
            is no scheduler any more.
        """
        del self._distant[future]
        try:
            return future.result()
        except ImportError as error:
            if error.name != _PACKAGE:
                raise
            raise _other_versions({str(error.path): error.msg or None}) from None
        except OSError as error:
            # The scheduler was lost while it sent the result.
            if type(error).__name__ == "CommClosedError":
                raise gone() from None
            raise

    def withdraw(self, futures: Iterable[Future[Outcome]]) -> None:
        """Take back the wheels that no worker has begun to read."""
        try:
            begun = self._client.run(_list_begun, on_error="ignore")
            keys = set(itertools.chain.from_iterable(begun.values()))
            others = [self._distant[future] for future in futures]
            # Their own futures are cancelled by that. To cancel them here could cancel
            # a message with the results of others.
            self._client.cancel([other for other in others if other.key not in keys])
        except Exception:  # noqa: BLE001  # Dask has many, by what it was doing
            logger.info("the scheduler does not take wheels back")

    def renew(self) -> None:
        """Do nothing: the scheduler replaces workers."""

    def close(self, *, at_once: bool = False) -> None:
        """Leave the cluster, which goes on to run and forgets the wheels."""
        del at_once  # nothing is waited for here
        self._leave()

    def _leave(self) -> None:
        # If nobody takes leave, the scheduler sees that the connection has ended.
        with contextlib.suppress(Exception):
            self._client.close(timeout=1)


def _reader() -> Callable[[str, io.BytesIO], Outcome]:
    """Return what a worker does with a wheel."""

    # A function in a function is sent as it is: no package needs to be there.
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
        from nvp.census.worker import read_wheel

        return read_wheel(pickle.loads(task.getvalue()))  # noqa: S301  # it is ours

    return read


def _list_begun(dask_worker: Any) -> list[str]:
    """Return the keys of what a worker does; Dask gives it the worker."""
    return [task.key for task in dask_worker.state.executing]


def _connect(address: str) -> Any:
    try:
        # Type checkers see no types of it where the extra is not installed.
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        message = f"--dask needs the extra census: {error.name} is not installed"
        hint = "pip install 'nvp[census]'"
        raise MissingExtraError(message, hint=hint) from None
    scheme, mark, _ = address.rpartition("://")
    if mark and scheme not in _SCHEMES:
        message = f"is no address of a Dask scheduler: it begins with {shown(scheme)}"
        raise InputError(message, path=redacted(address), hint=_HINT)
    # This package reports what goes wrong, once and in one line.
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
    # A server of another kind sends what Dask takes for the length of a message, and
    # Dask has assertions for what happens where its thread does not start in time.
    except (OSError, ValueError, TypeError, LateError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "nobody responds"
    except MemoryError:
        reason = "what responds is no scheduler"
    message = f"no Dask scheduler can be reached: {redacted(reason)}"
    hint = _TLS_HINT if scheme == "tls" else _HINT
    raise InputError(message, path=redacted(address), hint=hint)


def _require_version(client: Any) -> None:
    """Refuse workers that would not give the same rows."""

    # A function in a function is sent as it is: it needs no package to be there.
    def version() -> str | None:
        try:
            from nvp import __version__ as installed
        except ImportError:
            return None
        return installed

    versions = client.run(version)
    others = {name: other for name, other in versions.items() if other != __version__}
    if others:
        raise _other_versions(others)


def _other_versions(versions: Mapping[str, str | None]) -> InputError:
    """Return the error for workers that have other versions, or ``None``."""
    listed = [
        f"{name} has {f'version {other}' if other else 'none'}"
        for name, other in sorted(versions.items())[:_MOST_NAMED]
    ]
    if len(versions) > _MOST_NAMED:
        listed.append(f"{len(versions) - _MOST_NAMED} more workers are like that")
    message = f"workers have another version of this package: {', '.join(listed)}"
    return InputError(message, hint=f"install version {__version__} there")
