"""The documents that the child process prints, in the form of a snapshot.

A driver may return any number and any bytes. These functions replace an impossible
value with ``None`` and a reason code, so every document is valid.
"""

from __future__ import annotations

from ...machine import reasons

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

PENDING = "pending"
"""The reason code of a GPU that has not been queried yet."""

_MAX_GPUS = 1024
_MAX_TEXT = 256
_MAX_DOCUMENTS = 64


def empty_document(source: str) -> dict[str, Any]:
    """Return a document without facts."""
    return {
        "cuda_driver_version": None,
        "kernel_driver_version": None,
        "source": source,
        "reason": None,
        "gpus": [],
    }


def format_cuda_version(number: int) -> str | None:
    """Return ``12.9`` for 12090, or ``None`` for a number that is not a version."""
    if not 1000 <= number < 100_000:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"


def fill_gpus(
    document: dict[str, Any], count: int, ask_gpu: Callable[[dict[str, Any]], None]
) -> Iterator[dict[str, Any]]:
    """Query ``count`` GPUs; yield the same ``document`` repeatedly, with new facts.

    :param ask_gpu: receives the entry of a GPU with its ``index``, and sets other keys.
    """
    if not 0 <= count <= _MAX_GPUS:
        document["reason"] = document["reason"] or reasons.UNKNOWN_ERROR
        yield document
        return
    document["gpus"] = [_pending_gpu(index) for index in range(count)]
    yield document
    # Each document repeats all GPUs, so one document for each GPU would make the output
    # grow with the square of their number. For many GPUs, skip some documents.
    step = 1 + count // _MAX_DOCUMENTS
    for number, gpu in enumerate(document["gpus"], 1):
        ask_gpu(gpu)
        if number % step == 0 or number == count:
            yield document


def set_capability(gpu: dict[str, Any], numbers: Sequence[int]) -> None:
    """Set the compute capability of a GPU, or the reason why it is unknown."""
    major, minor = numbers
    valid = 0 < major < 100 and 0 <= minor < 100
    gpu["compute_capability"] = f"{major}.{minor}" if valid else None
    gpu["reason"] = None if valid else reasons.UNKNOWN_ERROR


def to_text(value: bytes | str) -> str:
    """Return a name as text, even if it is not UTF-8."""
    name = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return name[:_MAX_TEXT]


def _pending_gpu(index: int) -> dict[str, object]:
    return {
        "index": index,
        "name": None,
        "compute_capability": None,
        "reason": PENDING,
    }
