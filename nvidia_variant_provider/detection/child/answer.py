"""Parts of the documents that `child` prints, in the form of a snapshot.

Runs in the child process only. Whatever a driver may answer, the parts are
well-formed: an answer that makes no sense is no answer.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

PENDING = "pending"
"""The reason of a GPU that was not asked yet."""

UNKNOWN_ERROR = "unknown-error"

_MAX_GPUS = 1024
_MAX_TEXT = 256


def document(source: str) -> dict[str, object]:
    """An empty document."""
    return {
        "cuda_driver_version": None,
        "kernel_driver_version": None,
        "source": source,
        "reason": None,
        "gpus": [],
    }


def cuda_version(number: int) -> str | None:
    """``12.9`` for 12090; ``None`` for a number that is no CUDA version."""
    if not 1000 <= number < 100_000:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"


def _compute_capability(numbers: Sequence[int]) -> str | None:
    """``9.0`` for (9, 0); ``None`` for numbers that are no compute capability."""
    major, minor = numbers
    if not (0 < major < 100 and 0 <= minor < 100):
        return None
    return f"{major}.{minor}"


def fill_gpus(
    answer: dict[str, Any], count: int, fill: Callable[[dict[str, Any]], None]
) -> Iterator[dict[str, Any]]:
    """Ask ``count`` GPUs, and yield ``answer`` as it becomes more complete.

    :param fill: asks for the GPU with an ``index``, and sets its other keys.
    """
    if not 0 <= count <= _MAX_GPUS:
        answer["reason"] = answer["reason"] or UNKNOWN_ERROR
        yield answer
        return
    answer["gpus"] = [_gpu(index) for index in range(count)]
    yield answer
    # Each document is a whole one: of very many GPUs not all are worth one.
    step = 1 + count // 64
    for number, found in enumerate(answer["gpus"], 1):
        fill(found)
        if number % step == 0 or number == count:
            yield answer


def set_capability(found: dict[str, Any], numbers: Sequence[int]) -> None:
    """Set the compute capability of a GPU, or why it has none."""
    found["compute_capability"] = _compute_capability(numbers)
    found["reason"] = None if found["compute_capability"] else UNKNOWN_ERROR


def _gpu(index: int) -> dict[str, object]:
    """A GPU that was not asked yet."""
    return {
        "index": index,
        "name": None,
        "compute_capability": None,
        "reason": PENDING,
    }


def text(value: bytes | str) -> str:
    """A name as text, also when it is not UTF-8."""
    name = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return name[:_MAX_TEXT]
